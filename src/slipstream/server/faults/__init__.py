"""Faults on purpose, for tests: held replicas, cut connections, a moved clock."""

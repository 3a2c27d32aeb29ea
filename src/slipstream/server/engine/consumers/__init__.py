"""Consumers of a stream: what was delivered to whom, what was acknowledged, and what comes next."""

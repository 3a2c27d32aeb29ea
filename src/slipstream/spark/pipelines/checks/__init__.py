"""Checks of a pipeline before it runs: in the file alone, against the server, and on Spark over empty input."""

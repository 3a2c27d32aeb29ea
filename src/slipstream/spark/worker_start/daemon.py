"""Spark's daemon of Python workers, with the modules that tasks of this package use already imported.

The daemon forks a worker for each task that finds none idle, and workers end after an idle minute: each would import
them again, 0.4 s of CPU. What starts threads (pyarrow, pandas) must not be imported before a fork.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401 - this and the rest: for the workers
from pyspark.daemon import manager

import slipstream.spark.sink.kv
import slipstream.spark.sink.stream
import slipstream.spark.source.kv
import slipstream.spark.source.stream  # noqa: F401

if __name__ == "__main__":
    manager()

"""Spark looks for data sources in packages called `pyspark_*` and so finds the format `jetstream_kv` by itself.

It must never fail: one such package that cannot be imported takes every Python data source with it.
"""

from contextlib import suppress

with suppress(Exception):
    from slipstream.spark.source.kv import KeyValueDataSource as DefaultSource

__all__ = ["DefaultSource"]

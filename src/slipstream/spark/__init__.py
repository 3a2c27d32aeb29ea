"""Spark data sources: streams as tables (`jetstream`), results as Key-Value views (`jetstream_kv`).

Spark finds both formats by itself once the package is installed; nothing needs to be imported. `into_bucket`,
`into_stream` and `into_table` are for streaming queries in update mode; `session` starts Spark with settings that are
easily forgotten, and `register` is for programs with a session of their own and several streaming queries.
"""

from slipstream.spark.formats import register
from slipstream.spark.session import session
from slipstream.spark.sink.foreach_batch import into_bucket, into_stream
from slipstream.spark.sink.merge import into_table

__all__ = ["into_bucket", "into_stream", "into_table", "register", "session"]

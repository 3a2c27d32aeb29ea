"""Spark data sources: streams as tables (`jetstream`), results as Key-Value views (`jetstream_kv`).

Spark finds both formats by itself once the package is installed; nothing needs to be imported or registered.
`into_bucket` and `into_stream` are for streaming queries in update mode; `session` starts Spark with settings that are
easily forgotten.
"""

from slipstream.spark.session import session
from slipstream.spark.sink.foreach_batch import into_bucket, into_stream

__all__ = ["into_bucket", "into_stream", "session"]

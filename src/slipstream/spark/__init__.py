"""Spark data sources: streams as tables (`jetstream`), results as Key-Value views (`jetstream_kv`).

Spark finds both formats by itself once the package is installed; nothing needs to be imported or registered.
`into_bucket` is for streaming queries in update mode.
"""

from slipstream.spark.views import into_bucket

__all__ = ["into_bucket"]

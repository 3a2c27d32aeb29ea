"""The asyncio client as users hold it: core NATS with `jetstream()`, JetStream with Key-Value buckets.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.client import aio as core
from slipstream.jetstream import aio as jetstream
from slipstream.kv.aio import KeyValue
from slipstream.kv.bucket import BucketConfig


class JetStream(jetstream.JetStream):
    """JetStream of one account: publish, streams, Key-Value buckets."""

    async def create_key_value(self, config: BucketConfig, *, timeout: float | None = None) -> KeyValue:
        """Make a bucket, or find it made with the same configuration."""
        return await KeyValue.create_bucket(self, config, timeout=timeout)

    async def key_value(self, bucket: str, *, timeout: float | None = None) -> KeyValue:
        """An existing bucket; raises BucketNotFoundError if there is none."""
        return await KeyValue.open_bucket(self, bucket, timeout=timeout)


class Client(core.Client):
    """A connection to NATS. Made by `connect`."""

    def jetstream(self, *, prefix: str = "", domain: str = "", timeout: float = jetstream.DEFAULT_TIMEOUT) -> JetStream:
        """JetStream over this connection, below another API prefix or in a domain if one is given."""
        return JetStream(self, prefix=prefix, domain=domain, timeout=timeout)


connect = Client.connect

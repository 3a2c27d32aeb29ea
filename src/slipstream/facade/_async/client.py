"""The asyncio client as users hold it: core NATS with `jetstream()`, JetStream with Key-Value buckets.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, Final, Unpack

from slipstream.api import StreamConfig, StreamInfo
from slipstream.api.fields_set import configuration
from slipstream.client._async import client as core
from slipstream.client._async.opening import opens
from slipstream.codecs import Codec
from slipstream.jetstream._async import jetstream
from slipstream.jetstream._async.snapshot import CHUNK_SIZE, Snapshot, restore
from slipstream.kv._async import buckets
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.bucket import BucketConfig, BucketFields
from slipstream.objects._async.object_store import ObjectStore
from slipstream.objects.info import STREAM_PREFIX as OBJECTS_PREFIX
from slipstream.objects.info import ObjectStoreConfig, ObjectStoreFields
from slipstream.services._async.discovery import Services
from slipstream.services._async.service import Service, StatsHandler
from slipstream.services.protocol import PREFIX, service_config
from slipstream.wire.arguments import Duration, check_timeout


class JetStream(jetstream.JetStream):
    """JetStream of one account: publish, streams, Key-Value buckets."""

    @opens
    async def create_key_value(
        self,
        config: BucketConfig | str,
        *,
        consistency: str | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[BucketFields],
    ) -> KeyValue[bytes]:
        """Create a bucket: by its name and options (`create_key_value("settings", history=5)`), or with a BucketConfig.
        An existing one must have the same options.

        Raises BucketOptionsError if it has others, ReplicaOptionsError for a read replica that would answer reads of
        its origin with other values. `consistency`: as for `key_value`.
        """
        timeout = check_timeout(timeout)
        config = configuration(BucketConfig, config, fields)
        return KeyValue(await buckets.create_bucket(self, config, consistency=consistency, timeout=timeout))

    @opens
    async def update_key_value(
        self,
        config: BucketConfig | str,
        *,
        consistency: str | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[BucketFields],
    ) -> KeyValue[bytes]:
        """Change the options of an existing bucket that were set here, also to their default; others stay.

        Its read replicas in the same account change with it. All options of a bucket: `(await kv.status()).config`.
        `consistency`: as for `key_value`.
        """
        timeout = check_timeout(timeout)
        config = configuration(BucketConfig, config, fields)
        return KeyValue(await buckets.update_bucket(self, config, consistency=consistency, timeout=timeout))

    @opens
    async def key_value(
        self,
        bucket: str,
        *,
        stream: str = "",
        subject_prefix: str = "",
        put_prefix: str = "",
        consistency: str | None = None,
        timeout: Duration | None = None,
    ) -> KeyValue[bytes]:
        """Open an existing bucket, created by any client; raises BucketNotFoundError if it does not exist.

        `stream` and `subject_prefix` are for buckets whose stream is not `KV_<bucket>` on `$KV.<bucket>`, `put_prefix`
        for writes to other subjects (those imported from another account).

        `consistency` says what every read of the handle reflects: "own-writes" everything written and returned through
        the handle before, "latest" everything the bucket's leader had when the read was called, "any" the state of the
        replica that answers first. The default is "own-writes", and "any" for a replica of a bucket in another domain,
        account or server. A session's buckets reflect everything the session has seen, and may be "latest".
        """
        timeout = check_timeout(timeout)
        storage = await buckets.open_bucket(
            self,
            bucket,
            stream=stream,
            subject_prefix=subject_prefix,
            put_prefix=put_prefix,
            consistency=consistency,
            timeout=timeout,
        )
        return KeyValue(storage)

    async def delete_key_value(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Delete a bucket and everything in it."""
        timeout = check_timeout(timeout)
        await buckets.delete_bucket(self, bucket, timeout=timeout)

    async def key_values(self, *, timeout: Duration | None = None) -> AsyncIterator[str]:
        """The names of all buckets."""
        timeout = check_timeout(timeout)
        async for name in buckets.bucket_names(self, timeout=timeout):
            yield name

    def snapshot(
        self, stream: str, *, consumers: bool = True, chunk_size: int = CHUNK_SIZE, timeout: Duration | None = None
    ) -> Snapshot:
        """A snapshot of a stream as bytes, for `restore`: `async for piece in js.snapshot("ORDERS")`."""
        return Snapshot(self, stream, consumers=consumers, chunk_size=chunk_size, timeout=timeout)

    async def restore(
        self,
        config: StreamConfig | Mapping[str, Any],
        state: Mapping[str, Any],
        data: Iterable[bytes] | AsyncIterable[bytes],
        *,
        timeout: Duration | None = None,
    ) -> StreamInfo:
        """Create a stream from the `config`, `state` and bytes of a snapshot. No stream of that name may exist."""
        timeout = check_timeout(timeout)
        return await restore(self, config, state, data, timeout=timeout)

    async def create_object_store(
        self, config: ObjectStoreConfig | str, *, timeout: Duration | None = None, **fields: Unpack[ObjectStoreFields]
    ) -> ObjectStore:
        """Create a bucket of objects: by its name and options, or with an ObjectStoreConfig. An existing one must have
        the same configuration."""
        config = configuration(ObjectStoreConfig, config, fields)
        return await ObjectStore.create_bucket(self, config, timeout=timeout)

    async def object_store(self, bucket: str, *, timeout: Duration | None = None) -> ObjectStore:
        """Open an existing bucket of objects; raises BucketNotFoundError if there is none."""
        return await ObjectStore.open_bucket(self, bucket, timeout=timeout)

    async def delete_object_store(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Delete a bucket of objects and everything in it."""
        await ObjectStore(self, bucket).destroy(timeout=timeout)

    async def object_stores(self, *, timeout: Duration | None = None) -> AsyncIterator[str]:
        """The names of all buckets of objects."""
        async for name in self.stream_names(subject="$O.*.M.>", timeout=timeout):
            if name.startswith(OBJECTS_PREFIX):
                yield name.removeprefix(OBJECTS_PREFIX)

    def session(self, token: str = "", *, secret: bytes = b"") -> Session:
        """A session with read-your-writes and monotonic reads: `async with js.session() as s`.

        `s` has all methods of this object, buckets included; every read through it reflects what was written and read
        through it before. With the `token` of another session, of any process, it continues that one. With a `secret`
        its tokens are signed, and tokens that are not signed with it are rejected.
        """
        return Session(self, token, secret=secret)


class Session(JetStream, jetstream.Session):
    """JetStream with read-your-writes: every read reflects what was written and read through it before."""


class Client(core.Client):
    """A connection to NATS. Made by `connect`."""

    def jetstream(
        self,
        *,
        prefix: str = "",
        domain: str = "",
        timeout: Duration = jetstream.DEFAULT_TIMEOUT,
        codec: Codec[Any] | None = None,
    ) -> JetStream:
        """JetStream over this connection, with another API prefix or in a domain if one is named.

        `codec` encodes payloads that are not bytes, and decodes them: that of the connection if none is named.
        """
        return JetStream(self, prefix=prefix, domain=domain, timeout=timeout, codec=codec)

    @opens
    async def add_service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue_group: str | None = None,
        stats_handler: StatsHandler | None = None,
        prefix: str = PREFIX,
        timeout: Duration = 5.0,
    ) -> Service:
        """Start an instance of a service: `async with nc.add_service("calc", "1.0.0") as service`.

        It can be discovered from now on; `service.add_endpoint` gives it something to do. The endpoints of all
        instances are in the queue group `queue_group`, unless a group or an endpoint has another: None for "q", "" for
        none. `stats_handler` gets the EndpointStats of each endpoint and returns the value of its `data`.
        """
        config = service_config(
            name, version, description=description, metadata=metadata, queue_group=queue_group, prefix=prefix
        )
        service = Service(self, config, stats_handler)
        await service.start(timeout=timeout)
        return service

    @property
    def services(self) -> Services:
        """Discovery of services, and requests to them: `async for info in nc.services.list()`."""
        return Services(self)


connect: Final = Client.connect

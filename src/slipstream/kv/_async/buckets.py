"""Administration of the buckets of a JetStream account, over asyncio: create, update, open, list and delete.

A read replica takes over what its origin keeps, and the replicas of a bucket are changed with it: `kv/replica.py` says
why. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

from slipstream.api import StreamConfig
from slipstream.errors import (
    BucketNotFoundError,
    BucketOptionsError,
    ReplicaOptionsError,
    StreamNameInUseError,
    StreamNotFoundError,
    UsageError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.requests import check_bucket
from slipstream.kv._async.replicas import Upstream, is_local_mirror, origin_of, replicas_of, upstream_of
from slipstream.kv._async.stream_storage import StreamStorage, not_found
from slipstream.kv.bucket import STREAM_PREFIX, Address, BucketConfig, BucketSource, as_source, differences
from slipstream.kv.consistency import Consistency, check_consistency
from slipstream.kv.replica import FOLLOWED, following, grows, keeps_alike, kept_differently, loosens
from slipstream.kv.snapshot import forgotten_of, with_forgotten

log = logging.getLogger("slipstream.kv")

_ADVICE = "Leave these options out to take them over, or use sources: such a bucket answers for itself alone"


async def create_bucket(
    js: JetStream,
    config: BucketConfig,
    *,
    consistency: str | None = None,
    timeout: float | None = None,
) -> StreamStorage:
    """Create a bucket, or open it if it exists with the same options."""
    reads = check_consistency(consistency, in_session=js.context.session is not None)
    config = await _with_source_prefixes(js, config, timeout)
    stream, unknown = config.stream_config(), set[str]()
    if stream.mirror is not None:
        upstream = await _upstream(js, stream, timeout)
        stream = _joined(config.bucket, stream, upstream, own=config.fields_set)
        if upstream is None:  # what the replica took over from its origin before is no difference
            unknown = FOLLOWED.keys() - config.fields_set
    try:
        await js.create_stream(stream, timeout=timeout)
    except StreamNameInUseError as error:
        found = (await js.stream(stream.name).info(timeout=timeout)).config
        different = differences(stream, found, config)
        different = {option: values for option, values in different.items() if option not in unknown}
        if different:
            raise BucketOptionsError(config.bucket, different) from error
        stream = found
    bucket, prefix = check_bucket(config.bucket), config.key_prefix
    return await _storage(js, bucket, stream, subject_prefix=prefix, consistency=reads, timeout=timeout)


async def update_bucket(
    js: JetStream, config: BucketConfig, *, consistency: str | None = None, timeout: float | None = None
) -> StreamStorage:
    """Change the options of an existing bucket that `config` sets, and those of its read replicas with them."""
    reads = check_consistency(consistency, in_session=js.context.session is not None)
    try:
        current = (await js.stream(config.stream_name).info(timeout=timeout)).config
    except StreamNotFoundError as error:
        raise not_found(config.bucket) from error
    wanted = (await _with_source_prefixes(js, config, timeout)).applied_to(current)
    if wanted.mirror is not None:
        upstream = await _upstream(js, wanted, timeout)
        wanted = _joined(config.bucket, wanted, upstream, own=FOLLOWED)
        if wanted.mirror_direct and upstream is not None and grows(current, wanted):
            advice = "Delete it and create it again: values that it has removed do not come back"
            different = kept_differently(current, upstream.config)
            raise ReplicaOptionsError(config.bucket, upstream.config.name, different, advice)
    replicas = await _replicas_with(js, current, wanted, timeout)
    # A replica must at no time remove what its origin keeps.
    updates = [*replicas, wanted] if grows(current, wanted) else [wanted, *replicas]
    infos = [await js.update_stream(update, timeout=timeout) for update in updates]
    if loosens(current, wanted):
        # What the old limits removed cannot be told from what never was: snapshots of that time are lost.
        last = max(info.state.last_seq for info in infos)
        for info in infos:
            if (info.state.first_seq > 1 or info.state.num_deleted) and forgotten_of(info.config) < last:
                await js.update_stream(with_forgotten(info.config, last), timeout=timeout)
    bucket, prefix = config.bucket, config.key_prefix
    return await _storage(js, bucket, wanted, subject_prefix=prefix, consistency=reads, timeout=timeout)


async def open_bucket(
    js: JetStream,
    bucket: str,
    *,
    stream: str = "",
    subject_prefix: str = "",
    put_prefix: str = "",
    consistency: str | None = None,
    timeout: float | None = None,
) -> StreamStorage:
    """Open an existing bucket. Raises BucketNotFoundError if there is none.

    How to read and write it follows from its stream's configuration, so buckets of other clients work too.
    """
    check_bucket(bucket)
    context = js.context
    reads = check_consistency(consistency, in_session=context.session is not None)
    name, sent = stream or STREAM_PREFIX + bucket, context.client.now()
    try:
        info = await js.stream(name).info(timeout=timeout)
    except StreamNotFoundError as error:
        raise not_found(bucket) from error
    if info.config.mirror is None:  # reads need to know when the bucket was made; of a mirror, when its origin was
        context.read_state.stream(context.prefix, name).learn(info, sent)
    return await _storage(
        js,
        bucket,
        info.config,
        subject_prefix=subject_prefix,
        put_prefix=put_prefix,
        consistency=reads,
        timeout=timeout,
    )


async def delete_bucket(js: JetStream, bucket: str, *, timeout: float | None = None) -> None:
    """Remove a bucket and everything in it."""
    await StreamStorage(js, bucket, Address.usual(bucket)).destroy(timeout=timeout)


async def bucket_names(js: JetStream, *, timeout: float | None = None) -> AsyncIterator[str]:
    """The names of all buckets with standard stream names; mirrors, which have no subjects, included."""
    async for name in js.stream_names(timeout=timeout):
        if name.startswith(STREAM_PREFIX):
            yield name.removeprefix(STREAM_PREFIX)


async def _storage(
    js: JetStream,
    bucket: str,
    stream: StreamConfig,
    *,
    subject_prefix: str,
    put_prefix: str = "",
    consistency: Consistency | None,
    timeout: float | None,
) -> StreamStorage:
    """A bucket at the address that follows from its stream's configuration; of a replica, from its origin's."""
    mirror = stream.mirror
    if consistency is None:
        is_elsewhere = mirror is not None and mirror.external is not None and js.context.session is None
        consistency = Consistency.ANY if is_elsewhere else Consistency.OWN_WRITES
    if mirror is not None and not mirror.subject_transforms and not subject_prefix and not put_prefix:
        sent = js.context.client.now()
        origin = await origin_of(js, mirror, timeout=timeout)
        if origin is not None:
            if origin.is_all_of_it:  # as of any bucket, reads need to know when it was made: it may be made again
                cache = js.context.read_state.stream(js.prefix, stream.name)
                cache.follow(origin.config.name)
                cache.learn(origin.info, sent)
            address = Address.of_replica(stream, origin.config, api_prefix=origin.js.prefix)
            return StreamStorage(js, bucket, address, consistency=consistency)
    address = Address.found(stream, api_prefix=js.prefix, subject_prefix=subject_prefix, put_prefix=put_prefix)
    return StreamStorage(js, bucket, address, consistency=consistency)


async def _with_source_prefixes(js: JetStream, config: BucketConfig, timeout: float | None) -> BucketConfig:
    """The options of an aggregate, with the prefix of keys for each source whose server can be asked.

    The keys of a source need not be below `$KV.<bucket>`: it may have a prefix of its own, or be a read replica.
    """
    if not config.sources:
        return config
    sources = [await _with_prefix(js, as_source(source), timeout) for source in config.sources]
    return config.replace(sources=tuple(sources))


async def _with_prefix(js: JetStream, source: BucketSource, timeout: float | None) -> BucketSource:
    if source.subject_prefix:
        return source
    try:
        found = await upstream_of(js, source.as_source("x"), timeout=timeout)
    except StreamNotFoundError:  # a source may be created later
        return source
    if found is None:
        return source
    if found.config.mirror is not None and not found.config.mirror.subject_transforms:
        found = await origin_of(found.js, found.config.mirror, timeout=timeout) or found
    try:
        prefix = Address.found(found.config, api_prefix=js.prefix).prefix.removesuffix(".")
    except UsageError:  # it does not say; the usual one is as good as any
        return source
    return (
        source
        if prefix == Address.usual(source.bucket).prefix.removesuffix(".")
        else replace(source, subject_prefix=prefix)
    )


# Read replicas


async def _upstream(js: JetStream, stream: StreamConfig, timeout: float | None) -> Upstream | None:
    assert stream.mirror is not None
    try:
        return await upstream_of(js, stream.mirror, timeout=timeout)
    except StreamNotFoundError as error:
        bucket = stream.mirror.name.removeprefix(STREAM_PREFIX)
        raise BucketNotFoundError(f"bucket {bucket!r}, the origin of stream {stream.name!r}, does not exist") from error


def _joined(bucket: str, stream: StreamConfig, upstream: Upstream | None, *, own: Collection[str]) -> StreamConfig:
    """A replica's configuration that keeps what its origin keeps, or does not answer reads of it."""
    assert stream.mirror is not None
    origin = stream.mirror.name
    if upstream is None:
        log.warning(
            "replica %r does not answer reads of its origin, stream %r: the origin is unreachable, so its limits are "
            "unknown; set history, ttl and value_ttl to the origin's values",
            bucket,
            origin,
        )
        return stream.replace(mirror_direct=False)
    stream = following(stream, upstream.config, own=own)
    different = kept_differently(stream, upstream.config)
    if not different or not upstream.config.allow_direct:
        return stream.replace(mirror_direct=upstream.config.allow_direct)
    if is_local_mirror(stream):
        raise ReplicaOptionsError(bucket, origin, different, _ADVICE)
    log.warning("replica %r does not answer reads of its origin, stream %r: %s", bucket, origin, "; ".join(different))
    return stream.replace(mirror_direct=False)


async def _replicas_with(
    js: JetStream, before: StreamConfig, after: StreamConfig, timeout: float | None
) -> list[StreamConfig]:
    """The configurations of a bucket's replicas that a change of its options changes too."""
    if keeps_alike(before, after):
        return []
    changes = {before.name: (before, after)}
    changed = []
    for info in await replicas_of(js, before.name, timeout=timeout):
        replica = info.config
        assert replica.mirror is not None
        then, now = changes[replica.mirror.name]
        own = [
            option for option, (setting, *_) in FOLLOWED.items() if getattr(replica, setting) != getattr(then, setting)
        ]
        adapted = following(replica, now, own=own)
        changes[replica.name] = replica, adapted
        different = kept_differently(adapted, now)
        if different and now.allow_direct:
            bucket = replica.name.removeprefix(STREAM_PREFIX)
            if not kept_differently(replica, then):
                raise ReplicaOptionsError(bucket, now.name, different, "Delete the replica first, or keep the option")
            log.warning(
                "stream %r answers reads of bucket %r with other values: %s",
                replica.name,
                now.name,
                "; ".join(different),
            )
        if adapted != replica:
            changed.append(adapted)
    return changed

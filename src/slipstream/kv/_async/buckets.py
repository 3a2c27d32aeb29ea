"""Administration of the buckets of a JetStream account, over asyncio: create, update, open, list and delete.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from slipstream.api import StreamInfo
from slipstream.errors import StreamNameInUseError, StreamNotFoundError
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.requests import check_bucket, check_type
from slipstream.kv._async.stream_storage import StreamStorage, not_found
from slipstream.kv.bucket import STREAM_PREFIX, Address, BucketConfig
from slipstream.kv.snapshot import forgotten_of


async def create_bucket(js: JetStream, config: BucketConfig, *, timeout: float | None = None) -> StreamStorage:
    """Create a bucket, or open it if it exists with the same configuration."""
    check_type(config, BucketConfig)
    stream = config.stream_config()
    address = _address(js, stream_prefix=config.key_prefix, info=StreamInfo(config=stream))
    try:
        await js.create_stream(stream, timeout=timeout)
    except StreamNameInUseError:
        found = (await js.stream(stream.name).info(timeout=timeout)).config
        if not forgotten_of(found) or config.applied_to(found) != found:  # otherwise it differs by that record only
            raise
    return StreamStorage(js, check_bucket(config.bucket), address)


async def update_bucket(js: JetStream, config: BucketConfig, *, timeout: float | None = None) -> StreamStorage:
    """Change an existing bucket's options; other settings of its stream stay."""
    check_type(config, BucketConfig)
    try:
        current = (await js.stream(config.stream_name).info(timeout=timeout)).config
    except StreamNotFoundError as error:
        raise not_found(config.bucket) from error
    info = await js.update_stream(config.applied_to(current), timeout=timeout)
    return StreamStorage(js, config.bucket, _address(js, stream_prefix=config.key_prefix, info=info))


async def open_bucket(
    js: JetStream,
    bucket: str,
    *,
    stream: str = "",
    subject_prefix: str = "",
    put_prefix: str = "",
    timeout: float | None = None,
) -> StreamStorage:
    """Open an existing bucket. Raises BucketNotFoundError if there is none.

    How to read and write it follows from its stream's configuration, so buckets of other clients work too.
    """
    check_bucket(bucket)
    try:
        info = await js.stream(stream or STREAM_PREFIX + bucket).info(timeout=timeout)
    except StreamNotFoundError as error:
        raise not_found(bucket) from error
    return StreamStorage(js, bucket, _address(js, stream_prefix=subject_prefix, put_prefix=put_prefix, info=info))


async def delete_bucket(js: JetStream, bucket: str, *, timeout: float | None = None) -> None:
    """Remove a bucket and everything in it."""
    await StreamStorage(js, bucket, Address.usual(bucket)).destroy(timeout=timeout)


async def bucket_names(js: JetStream, *, timeout: float | None = None) -> AsyncIterator[str]:
    """The names of all buckets with standard stream names; mirrors, which have no subjects, included."""
    async for name in js.stream_names(timeout=timeout):
        if name.startswith(STREAM_PREFIX):
            yield name.removeprefix(STREAM_PREFIX)


def _address(js: JetStream, *, info: StreamInfo, stream_prefix: str = "", put_prefix: str = "") -> Address:
    return Address.found(info.config, api_prefix=js.prefix, subject_prefix=stream_prefix, put_prefix=put_prefix)

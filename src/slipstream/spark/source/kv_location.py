"""Location of a bucket: its stream, and the subjects that its keys are stored under and written to.

All of it follows from the stream's configuration. A read replica stores under its origin's subjects and is written to
through its origin; a bucket may have subjects of its own; and below another API prefix (a domain) the subjects to
write to differ.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo
from slipstream.errors import MessageNotFoundError, NoRespondersError, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream._sync.stream import Stream
from slipstream.kv.bucket import STREAM_PREFIX, SUBJECT_PREFIX, Address
from slipstream.spark.options import JETSTREAM_KV
from slipstream.spark.source import plan

MAX_HOPS = 8  # from a replica to the replica it replicates


class Origin(NamedTuple):
    """The stream that stores a bucket's writes, and the API to reach it by."""

    js: JetStream
    address: Address
    info: StreamInfo

    @property
    def stream(self) -> Stream:
        return self.js.stream(self.address.stream)


def inspect_bucket(stream: Stream, bucket: str) -> StreamInfo:
    """The info of the bucket's stream; raises UsageError if it does not exist or cannot be read."""
    try:
        info = stream.info()
    except StreamNotFoundError as error:
        raise UsageError(f"bucket {bucket!r} does not exist on this server, or not in this account") from error
    plan.check_readable(info)
    return info


def prefix_of(js: JetStream, bucket: str, info: StreamInfo) -> str:
    """The prefix of the keys in the subjects that the bucket stores, with the dot.

    The configuration of a replica does not tell if its origin has an unusual name. So the prefix is verified against
    the stored messages: a wrong one would silently read nothing.
    """
    mirror = info.config.mirror
    if mirror is None:
        return _address(info.config, bucket, js.prefix).prefix
    stream, is_empty = js.stream(info.config.name), not info.state.messages
    with contextlib.suppress(UsageError):  # its origin is not a bucket with a usual name
        usual = Address.found(info.config, api_prefix=js.prefix).prefix
        if is_empty or _stores(stream, usual):
            return usual
    prefix = origin_of(js, bucket).address.prefix
    if is_empty or _stores(stream, prefix):
        return prefix
    raise UsageError(
        f"{JETSTREAM_KV} cannot find the keys of bucket {bucket!r}: it is a replica of stream {mirror.name!r}, whose "
        f"keys are below {prefix!r}, but it has no such subjects"
    )


def origin_of(js: JetStream, bucket: str) -> Origin:
    """The origin of a bucket: the stream that its writes go to. A bucket that is not a replica is its own."""
    name = STREAM_PREFIX + bucket
    for _ in range(MAX_HOPS):
        try:
            info = js.stream(name).info()
        except (StreamNotFoundError, NoRespondersError) as error:
            if name == STREAM_PREFIX + bucket and isinstance(error, StreamNotFoundError):
                raise UsageError(
                    f"bucket {bucket!r} does not exist: create it first, with create_key_value or `nats kv add`"
                ) from error
            raise UsageError(
                f"bucket {bucket!r} is a replica of stream {name!r}, which does not exist below {js.prefix!r}: "
                "connect to the server or domain that has it, and use the bucket there"
            ) from error
        mirror = info.config.mirror
        if mirror is None:
            return Origin(js, _address(info.config, name.removeprefix(STREAM_PREFIX), js.prefix), info)
        if mirror.external is not None and mirror.external.api:
            js = JetStream(js.client, prefix=mirror.external.api, timeout=js.timeout)
        name = mirror.name
    raise UsageError(f"bucket {bucket!r} must be at most {MAX_HOPS} replicas away from its origin")


def _address(config: StreamConfig, bucket: str, api_prefix: str) -> Address:
    try:
        return Address.found(config, api_prefix=api_prefix)
    except UsageError as error:
        raise UsageError(
            f"{JETSTREAM_KV} cannot find the keys of bucket {bucket!r}: the subjects of its stream must be "
            f"'{SUBJECT_PREFIX}{bucket}.>' or one subject that ends in '.>', got {list(config.subjects)}"
        ) from error


def _stores(stream: Stream, prefix: str) -> bool:
    """Whether the stream has messages of that prefix, by its own leader, who gave its info too."""
    try:
        stream.get_next(f"{prefix}>", seq=1, from_leader=True)
    except MessageNotFoundError:
        return False
    return True

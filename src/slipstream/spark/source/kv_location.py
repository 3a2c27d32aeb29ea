"""A bucket's name becomes the place of its keys: its stream, the subjects that keys are stored under and written to.

All of that is in the stream's configuration, as for any client. A read replica stores under its origin's subjects and
is written to by way of its origin; a bucket may have subjects of its own; and below another API prefix (a domain) there
are other subjects to write to.
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

MOST_HOPS = 8  # of replicas that are replicas of replicas


class Origin(NamedTuple):
    """What a bucket's writes are stored in, and the API that it is asked by."""

    js: JetStream
    address: Address
    info: StreamInfo

    @property
    def stream(self) -> Stream:
        return self.js.stream(self.address.stream)


def inspect_bucket(stream: Stream, bucket: str) -> StreamInfo:
    """The bucket's stream; raises if there is none or it cannot be read."""
    try:
        info = stream.info()
    except StreamNotFoundError as error:
        raise UsageError(f"there is no bucket {bucket!r} on this server, or not in this account") from error
    plan.check_readable(info)
    return info


def prefix_of(js: JetStream, bucket: str, info: StreamInfo) -> str:
    """What stands before a key in the subjects that the bucket stores, with the dot.

    A replica's configuration does not say it where its origin is called otherwise than usual: so it is looked at,
    since a wrong one would read nothing, silently.
    """
    mirror = info.config.mirror
    if mirror is None:
        return _address(info.config, bucket, js.prefix).prefix
    stream, is_empty = js.stream(info.config.name), not info.state.messages
    with contextlib.suppress(UsageError):  # it is no replica of a bucket that is called as usual
        usual = Address.found(info.config, api_prefix=js.prefix).prefix
        if is_empty or _stores(stream, usual, info):
            return usual
    prefix = origin_of(js, bucket).address.prefix
    if is_empty or _stores(stream, prefix, info):
        return prefix
    raise UsageError(
        f"{JETSTREAM_KV} cannot tell the keys of bucket {bucket!r}: it is a replica of stream {mirror.name!r}, whose "
        f"keys are below {prefix!r}, and has no such subjects"
    )


def origin_of(js: JetStream, bucket: str) -> Origin:
    """Where writes of the bucket are stored: a replica's in its origin, whose entries are those to be compared with."""
    name = STREAM_PREFIX + bucket
    for _ in range(MOST_HOPS):
        try:
            info = js.stream(name).info()
        except (StreamNotFoundError, NoRespondersError) as error:
            if name == STREAM_PREFIX + bucket and isinstance(error, StreamNotFoundError):
                raise UsageError(
                    f"there is no bucket {bucket!r}: make it first, with create_key_value or `nats kv add`"
                ) from error
            raise UsageError(
                f"bucket {bucket!r} is a replica of stream {name!r}, which is not to be found below {js.prefix!r}: "
                "connect to where it is, and use the bucket there"
            ) from error
        mirror = info.config.mirror
        if mirror is None:
            return Origin(js, _address(info.config, name.removeprefix(STREAM_PREFIX), js.prefix), info)
        if mirror.external is not None and mirror.external.api:
            js = JetStream(js.client, prefix=mirror.external.api, timeout=js.timeout)
        name = mirror.name
    raise UsageError(f"bucket {bucket!r} is a replica of replicas, more than {MOST_HOPS} of them: less is allowed")


def _address(config: StreamConfig, bucket: str, api_prefix: str) -> Address:
    try:
        return Address.found(config, api_prefix=api_prefix)
    except UsageError as error:
        raise UsageError(
            f"{JETSTREAM_KV} cannot tell the keys of bucket {bucket!r}: its stream takes {list(config.subjects)}, "
            f"'{SUBJECT_PREFIX}{bucket}.>' or one subject that ends in '.>' is allowed"
        ) from error


def _stores(stream: Stream, prefix: str, info: StreamInfo) -> bool:
    try:
        stream.get_next(f"{prefix}>", seq=1, min_last_seq=info.state.last_seq)
    except MessageNotFoundError:
        return False
    return True

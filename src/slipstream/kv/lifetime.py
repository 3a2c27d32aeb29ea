"""Rules of a TTL per value: which TTLs a bucket accepts, and what is sent so that the value expires on time.

Pure. A server counts whole seconds. A value that expires uncovers the older ones of its key, so a value with a TTL is
sent with a rollup: it replaces the key's history, and nothing comes back when it goes. Where a server leaves markers
and keeps a history it lengthens a shorter TTL to that of the markers, without saying so: such a TTL is rejected here.
"""

from __future__ import annotations

import math
from datetime import timedelta

from slipstream.api import StreamConfig
from slipstream.api.times import Duration, duration
from slipstream.errors import Error, ErrorCode, UsageError

SHORTEST_TTL = timedelta(seconds=1)


def whole_seconds(ttl: Duration | None) -> timedelta | None:
    """A TTL as a server counts it: fractions of a second are rounded up. Raises UsageError below one second."""
    if ttl is None:
        return None
    span = duration(ttl, "ttl")
    if span < SHORTEST_TTL:
        raise UsageError(f"ttl must be at least 1 second, got {span!r}")
    return timedelta(seconds=math.ceil(span.total_seconds()))


def shortest_ttl(config: StreamConfig) -> timedelta:
    """The shortest TTL that a bucket keeps to the letter."""
    if config.max_msgs_per_subject == 1:
        return SHORTEST_TTL
    # A server compares whole seconds.
    return max(SHORTEST_TTL, timedelta(seconds=config.subject_delete_marker_ttl // SHORTEST_TTL))


def rejected_ttl(config: StreamConfig, bucket: str, ttl: timedelta) -> Error | None:
    """Why a bucket with this configuration does not take a value with a TTL; None if it does."""
    if not config.allow_msg_ttl:
        return ttl_disabled(bucket)
    if ttl < shortest_ttl(config):
        return UsageError(
            f"ttl must be at least limit_marker_ttl ({config.subject_delete_marker_ttl}) in bucket {bucket!r}, whose "
            f"history is {config.max_msgs_per_subject}, got {ttl}: its server does not expire values sooner"
        )
    if config.max_msgs_per_subject != 1 and not config.allow_rollup_hdrs:
        return UsageError(
            f"allow_rollup_hdrs of stream {config.name!r} must be set for a ttl in bucket {bucket!r}, whose history is "
            f"{config.max_msgs_per_subject}: otherwise the key's older value would reappear when this one expires"
        )
    return None


def ttl_disabled(bucket: str) -> Error:
    """The error for a bucket that allows no TTL per value: the server's code, and what to set."""
    text = ErrorCode.MESSAGE_TTL_DISABLED.description
    return ErrorCode.MESSAGE_TTL_DISABLED.error(f"{text} in bucket {bucket!r}: create it with value_ttl=True")

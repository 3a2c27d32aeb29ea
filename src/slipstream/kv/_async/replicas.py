"""Read replicas of a bucket and the origin of one, found through the API, over asyncio.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo, StreamSource
from slipstream.errors import Error, StreamNotFoundError, UsageError
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.reads.retry import RetryPolicy

MAX_HOPS = 8  # from a replica to the replica that it mirrors
ASK_TIMEOUT = 2.0  # seconds: an origin elsewhere may be out of reach, and its replica is used all the same


class Upstream(NamedTuple):
    """A stream that another one mirrors: its configuration, and the API that it is below."""

    js: JetStream
    config: StreamConfig


async def upstream_of(js: JetStream, mirror: StreamSource, *, timeout: float | None = None) -> Upstream | None:
    """The stream that a mirror copies. None if it is elsewhere and cannot be asked; raises StreamNotFoundError if it is
    in the same account and does not exist."""
    api = mirror.external.api if mirror.external else ""
    if not api:
        return Upstream(js, (await js.stream(mirror.name).info(timeout=timeout)).config)
    there = JetStream(js.client, prefix=api, timeout=js.timeout)
    limit = ASK_TIMEOUT if timeout is None else min(timeout, ASK_TIMEOUT)
    try:
        return Upstream(there, (await there.stream(mirror.name).info(timeout=limit)).config)
    except Error:  # no responders, no permission, no answer, or no such stream yet
        return None


async def origin_of(js: JetStream, mirror: StreamSource, *, timeout: float | None = None) -> Upstream | None:
    """The stream at the end of a chain of mirrors, which takes their writes; None if it cannot be asked."""
    for _ in range(MAX_HOPS):
        try:
            found = await upstream_of(js, mirror, timeout=timeout)
        except StreamNotFoundError:
            return None
        if found is None or found.config.mirror is None:
            return found
        js, mirror = found.js, found.config.mirror
    raise UsageError(f"a bucket must be at most {MAX_HOPS} replicas away from its origin")


async def replicas_of(js: JetStream, stream: str, *, timeout: float | None = None) -> list[StreamInfo]:
    """The mirrors of a stream in its account, and their mirrors, each behind the one that it copies."""
    mirrors = [info async for info in js.streams(timeout=timeout) if is_local_mirror(info.config)]
    found, origins = list[StreamInfo](), [stream]
    for origin in origins:
        for info in mirrors:
            if info.config.mirror is not None and info.config.mirror.name == origin:
                found.append(info)
                origins.append(info.config.name)
    return found


def is_local_mirror(config: StreamConfig) -> bool:
    """Whether a stream mirrors one of its own account."""
    return config.mirror is not None and config.mirror.external is None


async def wait_for_replica(js: JetStream, replica: str, revision: int, *, timeout: float | None = None) -> bool:
    """Wait until a replica has a revision; False if it does not get there in time, or is gone."""
    retry = RetryPolicy(js.timeout if timeout is None else timeout, js.client.now)
    while True:
        try:
            last = (await js.stream(replica).info(timeout=retry.left())).state.last_seq
        except Error:
            return False
        if last >= revision:
            return True
        pause = retry.next_pause(Error(f"{replica} has {last}, wanted {revision}"))
        if pause is None:
            return False
        await js.client.sleep(pause)

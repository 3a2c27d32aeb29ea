"""Read replicas of a bucket and the origin of one, found through the API, over asyncio.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo, StreamSource
from slipstream.errors import (
    ApiError,
    Error,
    NoRespondersError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream.reads.evidence import is_of_all
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.kv.replica import kept_differently

log = logging.getLogger("slipstream.kv")

MAX_HOPS = 8  # from a replica to the replica that it mirrors
ASK_TIMEOUT = 2.0  # seconds: an origin elsewhere may be out of reach, and its replica is used all the same


class Upstream(NamedTuple):
    """A stream that another one mirrors, and the API that it is below.

    `is_all_of_it`: the mirror is in the same account, and takes over everything.
    """

    js: JetStream
    info: StreamInfo
    is_all_of_it: bool

    @property
    def config(self) -> StreamConfig:
        """Its configuration."""
        return self.info.config


async def upstream_of(js: JetStream, mirror: StreamSource, *, timeout: float | None = None) -> Upstream | None:
    """The stream that a mirror copies. None if it is elsewhere and cannot be asked; raises StreamNotFoundError if it is
    in the same account and does not exist."""
    api = mirror.external.api if mirror.external else ""
    if not api:
        info = await js.stream(mirror.name).info(timeout=timeout)
        return Upstream(js, info, is_all_of_it=mirror.external is None and is_of_all(mirror))
    there = JetStream(js.client, prefix=api, timeout=js.timeout)
    limit = ASK_TIMEOUT if timeout is None else min(timeout, ASK_TIMEOUT)
    try:
        return Upstream(there, await there.stream(mirror.name).info(timeout=limit), is_all_of_it=False)
    except Error:  # no responders, no permission, no answer, or no such stream yet
        return None


async def origin_of(js: JetStream, mirror: StreamSource, *, timeout: float | None = None) -> Upstream | None:
    """The stream at the end of a chain of mirrors, which takes their writes; None if it cannot be asked."""
    is_all_of_it = True
    for _ in range(MAX_HOPS):
        try:
            found = await upstream_of(js, mirror, timeout=timeout)
        except StreamNotFoundError:
            return None
        if found is None:
            return None
        is_all_of_it = is_all_of_it and found.is_all_of_it
        if found.config.mirror is None:
            return found._replace(is_all_of_it=is_all_of_it)
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


class Copies:
    """The streams that hold a bucket's entries: the origin, and its replicas, each behind the one that it copies.

    `last` has the newest sequence that each replica is known to have.
    """

    def __init__(self, js: JetStream, origin: Stream, last: dict[str, int]) -> None:
        self._js = js
        self._origin = origin
        self._last = last

    async def purge(self, subject: str, below: int, *, timeout: float | None = None) -> None:
        """Remove a subject's messages below a sequence from all of them: a mirror does not repeat a purge."""
        for name, last in list(self._last.items()):  # what is still on its way would arrive behind the purge
            if last < below - 1:
                await self._wait(name, below - 1, timeout)
        await self._origin.purge(subject=subject, below=below, timeout=timeout)
        # Only then: our server believes a replica that removes what is gone from its origin.
        for name in list(self._last):
            try:
                await self._js.stream(name).purge(subject=subject, below=below, timeout=timeout)
            except StreamNotFoundError:  # deleted since it was found
                del self._last[name]

    async def _wait(self, name: str, revision: int, timeout: float | None) -> None:
        """Wait until a replica has a revision; one that does not get there in time is left out."""
        retry = RetryPolicy(self._js.timeout if timeout is None else timeout, self._js.client.now)
        pause: float | None = 0.0
        while pause is not None:
            await self._js.client.sleep(pause)
            try:
                self._last[name] = (await self._js.stream(name).info(timeout=retry.left())).state.last_seq
            except StreamNotFoundError:
                break
            if self._last[name] >= revision:
                return
            pause = retry.next_pause(Error(f"{name} has {self._last[name]}, wanted {revision}"))
        if pause is None:
            log.warning("replica %r keeps removed keys: it lags", name)
        del self._last[name]


async def find_copies(js: JetStream, stream: Stream, *, timeout: float | None = None) -> Copies | None:
    """The streams of a bucket in its account; None for a replica whose origin cannot be asked.

    Replicas in other accounts or domains are not known here. A mirror that keeps more, such as an archive, is none.
    """
    config = (await stream.info(timeout=timeout)).config
    if config.mirror is not None:
        origin = await origin_of(js, config.mirror, timeout=timeout)
        if origin is None:
            return None
        js, config = origin.js, origin.config
    last: dict[str, int] = {}
    try:
        for info in await replicas_of(js, config.name, timeout=timeout):
            if kept_differently(info.config, config) or info.config.deny_purge:
                log.warning("mirror %r of stream %r keeps removed keys", info.config.name, config.name)
            else:
                last[info.config.name] = info.state.last_seq
    except (ApiError, NoRespondersError, RequestTimeoutError) as error:  # this user may not list streams
        log.warning("replicas of stream %r, if any, keep removed keys: %s", config.name, error)
    return Copies(js, js.stream(config.name), last)

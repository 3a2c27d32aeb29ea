"""Live statistics: streams, consumers and servers, sampled every two seconds while a page is open.

Sampling continues for ten minutes after the last page was closed, so that a page that comes back finds what it missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from slipstream import Client, ConsumerInfo, Error, JetStream, StreamInfo
from slipstream.console import monitoring

log: logging.Logger = logging.getLogger("slipstream.console")

INTERVAL = 2.0
KEPT = 300  # samples
LINGER = 600.0  # seconds
MOST_STREAMS = 500
MOST_CONSUMERS = 200  # streams whose consumers are listed
SHOWN_CONSUMERS = 200

Series = deque[list[float | None]]


def _total(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None


class Ticker(ABC):
    """Samples at an interval, shared by all pages that watch."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._left = 0.0
        self._changed = asyncio.Condition()
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.sample: dict[str, Any] = {}

    @abstractmethod
    async def take(self) -> dict[str, Any]:
        """One sample; it may be added to the history."""

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """The samples from now on; the first one has the history."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            if not self.sample:
                await self._next(30)
            yield self.sample | {"history": list(self.history)}
            while True:
                await self._next(60)
                yield self.sample
        finally:
            self._watchers -= 1
            self._left = time.monotonic()

    async def _next(self, timeout: float) -> None:
        # Not wait_for: before Python 3.12 it waits in a task of its own, which finds the lock released once the reader
        # has left.
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait()

    def close(self) -> None:
        """Take no more samples."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._watchers or time.monotonic() - self._left < LINGER:
                began = time.monotonic()
                try:
                    self.sample = await self.take()
                except (Error, OSError) as error:
                    self.sample = {"error": str(error), "time": time.time()}
                except Exception as error:  # of a report that is not as expected: pages must not wait for ever
                    log.error("a sample could not be taken", exc_info=error)
                    text = f"the console failed ({type(error).__name__}); its log has more"
                    self.sample = {"error": text, "time": time.time()}
                async with self._changed:
                    self._changed.notify_all()
                await asyncio.sleep(max(INTERVAL - (time.monotonic() - began), INTERVAL / 2))
        finally:
            self._task = None


class Sampler(Ticker):
    """Samples of one account."""

    def __init__(self, client: Client, js: JetStream, monitors: Sequence[str] = ()) -> None:
        super().__init__()
        self._client, self._js, self._monitors = client, js, monitors
        self._rates: dict[str, tuple[float, int]] = {}
        self._streams: dict[str, Series] = {}
        self._consumers: dict[tuple[str, str], Series] = {}

    def stream_history(self, name: str) -> list[list[float | None]]:
        """Of a stream: time, messages a second, bytes."""
        return list(self._streams.get(name, ()))

    def consumer_history(self, stream: str, name: str) -> list[list[float | None]]:
        """Of a consumer: time, to deliver, unacknowledged, redelivered, deliveries a second."""
        return list(self._consumers.get((stream, name), ()))

    async def connections(self) -> dict[str, Any]:
        """The connections as of now."""
        return await monitoring.connections(self._client, self._monitors)

    def _rate(self, key: str, now: float, value: int) -> float | None:
        """How fast a counter grows; None with the first look at it."""
        then, before = self._rates.get(key, (0.0, 0))
        self._rates[key] = (now, value)
        return round(max(0.0, (value - before) / (now - then)), 1) if then and now > then else None

    async def take(self) -> dict[str, Any]:
        """Ask for everything once."""
        now = time.monotonic()
        streams: list[dict[str, Any]] = []
        consumers: list[dict[str, Any]] = []
        account = await self._js.account_info(timeout=5)
        asked = 0
        async for info in self._js.streams(timeout=5):
            if len(streams) >= MOST_STREAMS:
                break
            streams.append(self._stream(info, now))
            if info.state.consumer_count and asked < MOST_CONSUMERS:
                asked += 1
                with suppress(Error):  # deleted since
                    async for one in self._js.stream(info.config.name).consumers(timeout=5):
                        consumers.append(self._consumer(info.config.name, one, now))
        self._forget(streams, consumers)
        consumers.sort(key=lambda one: -(one["pending"] + one["unacked"]))
        servers = await monitoring.servers(self._client, self._monitors)
        for server in servers:
            for way in ("in", "out"):
                if server.get(way) is not None:
                    server[f"{way}_rate"] = self._rate(f"{way} {server['id']}", now, server[way])
        totals = {
            "time": round(time.time(), 1),
            "rate": _total(one["rate"] for one in streams),
            "bytes": sum(one["bytes"] for one in streams),
            "messages": sum(one["messages"] for one in streams),
            "lag": sum(one["pending"] + one["unacked"] for one in consumers),
            "delivered": _total(one["rate"] for one in consumers),
            "in": _total(one.get("in_rate") for one in servers),
            "out": _total(one.get("out_rate") for one in servers),
        }
        self.history.append(totals)
        return {
            "totals": totals,
            "streams": streams,
            "consumers": consumers[:SHOWN_CONSUMERS],
            "consumer_count": len(consumers),
            "servers": servers,
            "account": {"streams": account.streams, "consumers": account.consumers, "storage": account.storage,
                        "memory": account.memory, "api": account.api.total, "api_errors": account.api.errors},
            "more": account.streams > len(streams),
        }  # fmt: skip

    def _stream(self, info: StreamInfo, now: float) -> dict[str, Any]:
        name, state = info.config.name, info.state
        rate = self._rate(f"stream {name}", now, state.last_seq)
        self._streams.setdefault(name, deque(maxlen=KEPT)).append([round(time.time(), 1), rate, state.bytes])
        replicas = [int(peer.get("lag", 0)) for peer in info.cluster.get("replicas", ())]
        upstream = [info.mirror] if info.mirror else list(info.sources)
        return {
            "name": name,
            "messages": state.messages,
            "bytes": state.bytes,
            "first": state.first_seq,
            "last": state.last_seq,
            "last_time": max(state.last_ts, 0) // 1_000_000,
            "subjects": state.num_subjects,
            "consumers": state.consumer_count,
            "rate": rate,
            "replica_lag": max(replicas, default=0),
            "replicas": len(replicas) + 1,
            "upstream_lag": max((int(one.get("lag", 0)) for one in upstream), default=None),
        }

    def _consumer(self, stream: str, one: ConsumerInfo, now: float) -> dict[str, Any]:
        rate = self._rate(f"consumer {stream} {one.name}", now, one.delivered.consumer_seq)
        self._consumers.setdefault((stream, one.name), deque(maxlen=KEPT)).append(
            [round(time.time(), 1), one.num_pending, one.num_ack_pending, one.num_redelivered, rate]
        )
        return {
            "stream": stream,
            "name": one.name,
            "pending": one.num_pending,
            "unacked": one.num_ack_pending,
            "redelivered": one.num_redelivered,
            "waiting": one.num_waiting,
            "paused": one.paused,
            "delivered": one.delivered.stream_seq,
            "floor": one.ack_floor.stream_seq,
            "rate": rate,
        }

    def _forget(self, streams: list[dict[str, Any]], consumers: list[dict[str, Any]]) -> None:
        """Drop the histories of what is gone: names may be as many as there are short-lived consumers."""
        names = {one["name"] for one in streams}
        pairs = {(one["stream"], one["name"]) for one in consumers}
        for name in self._streams.keys() - names:
            del self._streams[name]
            self._rates.pop(f"stream {name}", None)
        for pair in self._consumers.keys() - pairs:
            del self._consumers[pair]
            self._rates.pop(f"consumer {pair[0]} {pair[1]}", None)

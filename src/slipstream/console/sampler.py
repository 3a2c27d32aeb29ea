"""Live figures: streams and consumers, asked for every two seconds while a page watches, and not otherwise."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from slipstream import Error, JetStream

INTERVAL = 2.0
KEPT = 300  # samples
MOST_STREAMS = 500
MOST_CONSUMERS = 200  # streams whose consumers are listed


class Sampler:
    """Samples of one account, shared by all pages."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._changed = asyncio.Condition()
        self._last: dict[str, tuple[float, int]] = {}
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.sample: dict[str, Any] = {}

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """The samples from now on; the first one has the history of the totals."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            if self.sample:
                yield self.sample | {"history": list(self.history)}
            else:
                async with self._changed:
                    await asyncio.wait_for(self._changed.wait(), 30)
                yield self.sample | {"history": list(self.history)}
            while True:
                async with self._changed:
                    await asyncio.wait_for(self._changed.wait(), 60)
                yield self.sample
        finally:
            self._watchers -= 1

    def close(self) -> None:
        """Take no more samples."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._watchers:
                try:
                    self.sample = await self._take()
                except Error as error:
                    self.sample = {"error": str(error), "time": time.time()}
                async with self._changed:
                    self._changed.notify_all()
                await asyncio.sleep(INTERVAL)
        finally:
            self._task = None

    async def _take(self) -> dict[str, Any]:
        now = time.monotonic()
        streams: list[dict[str, Any]] = []
        consumers: list[dict[str, Any]] = []
        asked = 0
        account = await self._js.account_info(timeout=5)
        async for info in self._js.streams(timeout=5):
            if len(streams) >= MOST_STREAMS:
                break
            name, state = info.config.name, info.state
            then, before = self._last.get(name, (0.0, 0))
            rate = max(0.0, (state.last_seq - before) / (now - then)) if then else 0.0
            self._last[name] = (now, state.last_seq)
            replicas = [int(peer.get("lag", 0)) for peer in info.cluster.get("replicas", ())]
            upstream = [info.mirror] if info.mirror else list(info.sources)
            streams.append(
                {
                    "name": name,
                    "messages": state.messages,
                    "bytes": state.bytes,
                    "first": state.first_seq,
                    "last": state.last_seq,
                    "last_time": max(state.last_ts, 0) // 1_000_000,
                    "subjects": state.num_subjects,
                    "consumers": state.consumer_count,
                    "rate": round(rate, 1),
                    "replica_lag": max(replicas, default=0),
                    "replicas": len(replicas) + 1,
                    "upstream_lag": max((int(one.get("lag", 0)) for one in upstream), default=None),
                }
            )
            if state.consumer_count and asked < MOST_CONSUMERS:
                asked += 1
                try:
                    async for one in self._js.stream(name).consumers(timeout=5):
                        consumers.append(
                            {
                                "stream": name,
                                "name": one.name,
                                "pending": one.num_pending,
                                "unacked": one.num_ack_pending,
                                "redelivered": one.num_redelivered,
                                "waiting": one.num_waiting,
                                "paused": one.paused,
                                "delivered": one.delivered.stream_seq,
                                "floor": one.ack_floor.stream_seq,
                            }
                        )
                except Error:  # deleted since
                    continue
        consumers.sort(key=lambda one: -(one["pending"] + one["unacked"]))
        totals = {
            "time": round(time.time(), 1),
            "rate": round(sum(one["rate"] for one in streams), 1),
            "bytes": sum(one["bytes"] for one in streams),
            "messages": sum(one["messages"] for one in streams),
            "lag": sum(one["pending"] + one["unacked"] for one in consumers),
        }
        self.history.append(totals)
        return {
            "totals": totals,
            "streams": streams,
            "consumers": consumers[:200],
            "account": {"streams": account.streams, "consumers": account.consumers, "storage": account.storage,
                        "memory": account.memory, "api": account.api.total, "api_errors": account.api.errors},
            "more": account.streams > len(streams),
        }  # fmt: skip

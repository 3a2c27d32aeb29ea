"""Random operations on a bucket against a model of it: the embedded backend, our server in virtual time, the real one.

The model is the document in a few lines; what every read says must be what the model says, after every step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import BucketConfig, connect
from slipstream.errors import HistoryLostError, KeyExistsError, KeyNotFoundError, WrongLastSequenceError
from slipstream.kv import Entry, Operation
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.sqlite_storage import open_sqlite
from slipstream.kv.keys import any_of
from slipstream.testing import TestServer

HISTORY = 2
KEYS = ("a", "a.x", "b.x.z")
FILTERS = ((), ("a.*",), ("*",), ("b.>", "a"), ("a.>", "*.x"))
TTL = 5  # seconds of a value that goes
_names = itertools.count(1)


class Kept(NamedTuple):
    revision: int
    operation: Operation
    value: bytes
    expires: float | None = None


class Model:
    """A bucket in a few lines."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Kept]] = {}
        self.log: list[tuple[int, str, Operation, bytes]] = []
        self.revision = 0
        self.now = 0.0

    def append(self, key: str, operation: Operation, value: bytes, revision: int, ttl: float | None = None) -> None:
        assert revision == self.revision + 1
        self.revision = revision
        entry = Kept(revision, operation, value, None if ttl is None else self.now + ttl)
        kept = self.kept.setdefault(key, [])
        replaces = operation is Operation.PURGE or ttl is not None  # decision 119: with a TTL it replaces the history
        kept[:] = [entry] if replaces else [*kept, entry][-HISTORY:]
        self.log.append((revision, key, operation, value))

    def last(self, key: str) -> Kept | None:
        return self.kept[key][-1] if self.kept.get(key) else None

    def live(self, key: str) -> Kept | None:
        last = self.last(key)
        return last if last and last.operation is Operation.PUT else None

    def keys(self, filters: tuple[str, ...]) -> set[str]:
        is_wanted = any_of(filters or (">",))
        return {key for key in self.kept if is_wanted(key) and self.live(key)}

    def pass_time(self, seconds: float) -> set[str]:
        """Which keys lost an entry."""
        self.now += seconds
        touched = set()
        for key, kept in list(self.kept.items()):
            left = [entry for entry in kept if entry.expires is None or entry.expires > self.now]
            if len(left) < len(kept):
                touched.add(key)
                self.kept[key] = left
        return touched

    def as_of(self, revision: int) -> dict[str, bytes]:
        """From the whole log, which a bucket does not have."""
        state: dict[str, tuple[Operation, bytes]] = {}
        for at, key, operation, value in self.log:
            if at <= revision:
                state[key] = (operation, value)
        return {key: value for key, (operation, value) in state.items() if operation is Operation.PUT}


class Follower:
    """A watch, and what it saw."""

    def __init__(self, kv: KeyValue[bytes]) -> None:
        self._kv = kv
        self._watch: Any = None
        self.seen: list[tuple[int, str, Operation, bytes]] = []

    async def start(self) -> None:
        after = self.seen[-1][0] if self.seen else 0
        self._watch = await (self._kv.watch(resume_from=after + 1) if after else self._kv.watch(include_history=True))

    async def restart(self) -> None:
        await self._watch.close()
        await self.start()

    async def reach(self, revision: int) -> None:
        while revision and (not self.seen or self.seen[-1][0] < revision):
            entries: list[Entry[bytes]] = await self._watch.next_entries(timeout=30)
            self.seen += [(entry.revision, entry.key, entry.operation, entry.value) for entry in entries]

    async def close(self) -> None:
        await self._watch.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "create", "delete", "purge", "get", "history"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["update", "stale", "revision"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["keys", "range", "delete_range"]), st.sampled_from(FILTERS)),
        st.tuples(st.sampled_from(["snapshot"]), st.integers(1, 15)),
        st.tuples(st.sampled_from(["restart", "purge_deletes"]), st.none()),
    ),
    min_size=10,
    max_size=40,
)
STEPS_IN_TIME = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put_ttl", "create_ttl", "delete", "get"]), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["keys"]), st.sampled_from(FILTERS)),
        st.tuples(st.just("pass"), st.integers(1, 7)),
    ),
    max_size=30,
)


class Run:
    """One list of steps on a bucket and its model."""

    def __init__(self, kv: KeyValue[bytes], advance: Callable[[float], object] | None = None) -> None:
        self.kv = kv
        self.model = Model()
        self.follower = Follower(kv)
        self.advance = advance
        self.count = 0

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    async def all(self, steps: list[tuple[str, Any]]) -> None:
        if self.advance is None:
            await self.follower.start()
        for name, argument in steps:
            await getattr(self, f"do_{name}")(argument)
        if self.advance is None:
            await self._finish()

    async def _finish(self) -> None:
        """The watch saw every change in order; one that history dropped may be missing, the last of a key never."""
        await self.follower.reach(max((kept[-1].revision for kept in self.model.kept.values() if kept), default=0))
        seen = self.follower.seen
        assert [revision for revision, *_ in seen] == sorted({revision for revision, *_ in seen})
        assert set(seen) <= set(self.model.log)
        last_seen = {key: revision for revision, key, *_ in seen}
        for key, kept in self.model.kept.items():
            if kept:
                assert last_seen[key] == kept[-1].revision
        await self.follower.close()

    async def do_put(self, key: str) -> None:
        value = self.value()
        self.model.append(key, Operation.PUT, value, await self.kv.put(key, value))

    async def do_create(self, key: str) -> None:
        value = self.value()
        try:
            revision = await self.kv.create(key, value)
        except KeyExistsError:
            assert self.model.live(key)
        else:
            assert not self.model.live(key)
            self.model.append(key, Operation.PUT, value, revision)

    async def do_update(self, key: str) -> None:
        value, last = self.value(), self.model.last(key)
        revision = await self.kv.update(key, value, last=last.revision if last else 0)
        self.model.append(key, Operation.PUT, value, revision)

    async def do_stale(self, key: str) -> None:
        last = self.model.last(key)
        with pytest.raises(WrongLastSequenceError):
            await self.kv.update(key, b"", last=(last.revision if last else 0) + 1)

    async def do_delete(self, key: str) -> None:
        self.model.append(key, Operation.DELETE, b"", await self.kv.delete(key))

    async def do_purge(self, key: str) -> None:
        self.model.append(key, Operation.PURGE, b"", await self.kv.purge(key))

    async def do_get(self, key: str) -> None:
        live = self.model.live(key)
        try:
            entry = await self.kv.get(key, min_last_revision=self.model.revision)
        except KeyNotFoundError:
            assert live is None
        else:
            assert live is not None
            assert (entry.value, entry.revision) == (live.value, live.revision)

    async def do_revision(self, key: str) -> None:
        for kept in self.model.kept.get(key, []):
            if kept.operation is Operation.PUT:
                assert (await self.kv.get(key, revision=kept.revision)).value == kept.value

    async def do_history(self, key: str) -> None:
        kept = self.model.kept.get(key) or []
        found: list[Entry[bytes]] = []
        with suppress(KeyNotFoundError):
            found = await self.kv.history(key, min_last_revision=self.model.revision)
        assert [(e.revision, e.operation, e.value) for e in found] == [each[:3] for each in kept]
        assert [e.delta for e in found] == list(range(len(kept)))[::-1]

    async def do_keys(self, filters: tuple[str, ...]) -> None:
        assert set(await self.kv.keys(*filters)) == self.model.keys(filters)

    async def do_range(self, filters: tuple[str, ...]) -> None:
        found = await self.kv.get_range(*filters, min_last_revision=self.model.revision)
        expected = {key: self.model.live(key) for key in self.model.keys(filters)}
        assert {key: (e.value, e.revision) for key, e in found.items()} == {
            key: (kept.value, kept.revision) for key, kept in expected.items() if kept
        }

    async def do_delete_range(self, filters: tuple[str, ...]) -> None:
        keys = self.model.keys(filters)
        assert await self.kv.delete_range(*(filters or (">",))) == len(keys)
        order = sorted(keys, key=lambda key: self.model.kept[key][-1].revision)
        for key in order:
            self.model.append(key, Operation.DELETE, b"", self.model.revision + 1)

    async def do_snapshot(self, revision: int) -> None:
        if revision > self.model.revision:
            with pytest.raises(HistoryLostError):
                await self.kv.snapshot(revision=revision)
            return
        with suppress(HistoryLostError):  # it says so; but what it says must be true
            found = await self.kv.snapshot(revision=revision)
            assert {key: entry.value for key, entry in found.items()} == self.model.as_of(revision)
        now = await self.kv.snapshot()
        assert set(now) == self.model.keys(())

    async def do_restart(self, _: None) -> None:
        await self.follower.restart()

    async def do_purge_deletes(self, _: None) -> None:
        await self.kv.purge_deletes(older_than=timedelta(0), recorded=True)
        for key, kept in self.model.kept.items():
            if kept and kept[-1].operation is not Operation.PUT:
                self.model.kept[key] = []

    # In time

    async def do_put_ttl(self, key: str) -> None:
        value = self.value()
        revision = await self.kv.put(key, value, ttl=timedelta(seconds=TTL))
        self.model.append(key, Operation.PUT, value, revision, TTL)

    async def do_create_ttl(self, key: str) -> None:
        value = self.value()
        with suppress(KeyExistsError):
            revision = await self.kv.create(key, value, ttl=timedelta(seconds=TTL))
            assert not self.model.live(key)
            self.model.append(key, Operation.PUT, value, revision, TTL)

    async def do_pass(self, seconds: int) -> None:
        assert self.advance is not None
        self.advance(seconds)
        touched = self.model.pass_time(seconds)
        async with asyncio.timeout(30):
            while {key for key in touched if await self._is_live(key)} != {k for k in touched if self.model.live(k)}:
                await asyncio.sleep(0.01)

    async def _is_live(self, key: str) -> bool:
        try:
            await self.kv.get(key)
        except KeyNotFoundError:
            return False
        return True


@asynccontextmanager
async def on_server(url: str, **options: Any) -> AsyncIterator[KeyValue[bytes]]:
    async with connect(url) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=f"model{next(_names)}", **options))
        try:
            yield kv
        finally:
            await kv.destroy()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_bucket_behaves_like_the_model(any_server: str, steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        async with on_server(any_server, history=HISTORY) as kv:
            await Run(kv).all(steps)

    asyncio.run(asyncio.wait_for(run(), 60))


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_a_sqlite_bucket_behaves_like_the_model(steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        kv = KeyValue(await open_sqlite(config=BucketConfig(bucket="b", history=HISTORY)))
        await Run(kv).all(steps)
        await kv.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@settings(max_examples=60, deadline=None)
@given(steps=STEPS_IN_TIME)
def test_values_of_a_sqlite_bucket_expire_like_the_model(steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        now = [10**18]
        storage = await open_sqlite(
            config=BucketConfig(bucket="b", history=HISTORY, value_ttl=True), now=lambda: now[0]
        )

        def advance(seconds: float) -> None:
            now[0] += int(seconds * 10**9)

        await Run(KeyValue(storage), advance).all(steps)

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.fixture(scope="module")
def virtual_server() -> Iterator[TestServer]:
    with TestServer(virtual_time=True) as server:
        yield server


@settings(max_examples=30, deadline=None)
@given(steps=STEPS_IN_TIME)
def test_values_on_our_server_expire_like_the_model(virtual_server: TestServer, steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        async with on_server(virtual_server.url, history=HISTORY, value_ttl=True) as kv:
            await Run(kv, virtual_server.advance).all(steps)

    asyncio.run(asyncio.wait_for(run(), 60))

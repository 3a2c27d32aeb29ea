"""The buckets that scenarios run on: on a server (ours or a real one), and in a local database.

A backend makes the bucket and its handles, says what the leader holds, and moves time. Its faults (`hold`, `cut`) exist
on our server only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.api import GetRequest
from slipstream.errors import ConnectionLostError, ReplicaOptionsError
from slipstream.facade._async.client import Client, JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.sqlite_storage import open_sqlite
from slipstream.kv.entry import mark_of
from slipstream.server import Server
from tests.kv.model.model import SECOND, Found, Key, Raw
from tests.kv.model.scenario import CODECS, Options

WAIT = 30.0
RECHECK = 0.1  # seconds for which a cache may show what was removed without a trace


@dataclass
class Handle:
    """A bucket as one program holds it, and what it has written and seen: what its reads are promised to reflect."""

    kv: KeyValue[Any]
    kind: str
    seen: dict[Key, int] = field(default_factory=dict)
    highest: int = 0
    since: int = 0  # a cache: the first state it may still show
    is_of_old_bucket: bool = False  # it was opened before the bucket was made again

    def note(self, revision: int, key: Key) -> None:
        self.seen[key] = max(self.seen.get(key, 0), revision)
        self.highest = max(self.highest, revision)

    def forget(self) -> None:
        """The bucket was made again: nothing is promised of the old one."""
        self.seen, self.highest, self.since, self.is_of_old_bucket = {}, 0, 0, True


class Backend(Protocol):
    """What a run needs."""

    slack: int
    handles: list[Handle]
    has_copy: bool  # a read replica
    is_real_time: bool

    async def create(self, options: Options) -> None: ...

    async def alter(self, options: Options) -> bool: ...

    async def recreate(self, options: Options, *, keep_handles: bool) -> None: ...

    async def open_again(self, handle: Handle) -> None: ...

    async def destroy(self) -> None: ...

    async def found(self, after: int) -> Found: ...

    async def forget(self, subject: str) -> None: ...

    async def pass_time(self, seconds: int) -> None: ...

    async def nudge(self) -> bool: ...

    async def hold(self) -> bool: ...

    async def release(self) -> None: ...

    async def cut(self) -> None: ...

    async def wait_for_copies(self, revision: int) -> None: ...

    async def check_aggregate(self) -> None: ...

    async def close(self) -> None: ...


class StreamBackend:
    """A bucket of a server. `server`: ours, in virtual time, which can hold copies and cut connections.

    `timeout`: how long the calls of handles wait for copies that lag.
    """

    def __init__(
        self, clients: list[Client], bucket: str, server: Server | None = None, *, timeout: float = 5.0
    ) -> None:
        self.slack = SECOND // 200 if server is not None else 3 * SECOND
        self.handles: list[Handle] = []
        self._clients = clients
        self._bucket = bucket
        self._server = server
        self._timeout = timeout
        self._options = Options()
        self.is_real_time = server is None
        self.has_copy = False
        self._is_held = False
        self._js: JetStream = clients[0].jetstream()

    async def create(self, options: Options) -> None:
        await self._make(options)
        await self._open()

    async def _make(self, options: Options) -> None:
        self._options, self._is_held = options, False
        config = options.config(self._bucket)
        await self._js.create_key_value(config)
        self._stream = self._js.stream(config.stream_name)
        self.has_copy = options.mirror is not None
        if options.mirror is not None:
            try:
                await self._js.create_key_value(options.mirror_config(self._bucket))
            except ReplicaOptionsError:  # it would answer reads of the bucket with other values
                if options.is_copied_exactly:
                    raise
                self.has_copy = False
        if options.aggregate is not None:
            await self._js.create_key_value(options.aggregate_config(self._bucket))

    async def _open(self) -> None:
        one, two = (client.jetstream(timeout=self._timeout) for client in self._clients)
        wrap, bucket = CODECS[self._options.codec].wrap, self._bucket
        own = [Handle(wrap(await js.key_value(bucket)), "own") for js in (one, two)]
        others = [Handle(wrap(await one.key_value(bucket, consistency=kind)), kind) for kind in ("any", "latest")]
        self.handles = [*own, *others, Handle(own[0].kv, "session")]
        await self.open_again(self.handles[-1])
        cached = await wrap(await one.key_value(bucket)).cached(recheck_after=RECHECK)
        self.handles.append(Handle(cached, "cached"))
        if self.has_copy:
            copy = await two.key_value(f"{bucket}-copy")
            self.handles.append(Handle(wrap(copy), "copy"))

    async def open_again(self, handle: Handle) -> None:
        """Begin a new session, or open the read replica again."""
        js = self._clients[1].jetstream(timeout=self._timeout)
        opened = js.key_value(f"{self._bucket}-copy") if handle.kind == "copy" else js.session().key_value(self._bucket)
        handle.forget()
        handle.kv = CODECS[self._options.codec].wrap(await opened)
        handle.is_of_old_bucket = False

    async def recreate(self, options: Options, *, keep_handles: bool) -> None:
        if not keep_handles:
            await self.close()
        await self._delete()
        await self._make(options)
        async with asyncio.timeout(WAIT):
            while not await self._is_new():
                await self._delete()
                await self._make(options)
        if not keep_handles:
            await self._open()
        elif not self.has_copy:  # it is refused with the options that the bucket has now
            self.handles = [handle for handle in self.handles if handle.kind != "copy"]

    async def alter(self, options: Options) -> bool:
        self._options = options
        await self._clients[1].jetstream().update_key_value(options.config(self._bucket))
        return True

    async def destroy(self) -> None:
        await self.close()
        await self._delete()

    async def _delete(self) -> None:
        for name in self._buckets():
            await self._js.delete_key_value(name)

    def _buckets(self) -> list[str]:
        """The bucket behind those that copy it."""
        names = [self._bucket]
        if self.has_copy:
            names.insert(0, f"{self._bucket}-copy")
        if self._options.aggregate is not None:
            names.insert(0, f"{self._bucket}-all")
        return names

    async def _is_new(self) -> bool:
        """Whether buckets that were made again are empty.

        On nats-server 2.15.1 a stream that is deleted and made again at once has, one time in some hundred, the last
        message of the deleted one: its `created` is new, its first sequence is not.
        """
        if not self.is_real_time:
            return True
        infos = [await self._js.stream(f"KV_{name}").info() for name in self._buckets()]
        return not any(info.state.last_seq for info in infos)

    async def found(self, after: int) -> Found:
        info = await self._stream.info(deleted_details=True)
        state = info.state
        kept = frozenset(range(max(state.first_seq, 1), state.last_seq + 1)) - set(state.deleted)
        new = [await self._stream.get_from_leader(GetRequest(seq=seq)) for seq in sorted(kept) if seq > after]
        return Found(info.ts, state.last_seq, kept, [_raw(message) for message in new])

    async def forget(self, subject: str) -> None:
        await self._stream.purge(subject=subject)

    async def pass_time(self, seconds: int) -> None:
        if self._server is None:
            await asyncio.sleep(min(seconds, 5))
        else:  # ten milliseconds more: no two deadlines are the same
            await self._fault("advance", seconds=seconds + 0.01)

    async def nudge(self) -> bool:
        """Let virtual time pass for reads that wait by the server's clock; whether it did.

        Only then: on a busy machine any call may be slow, and what it finds must not depend on that.
        """
        if self._server is None or not self._server._running.engine.account("").commit_waiters._requests:
            return False
        await self.pass_time(1)
        return True

    async def hold(self) -> bool:
        if self._server is None or (not self.has_copy and self._options.replicas == 1):
            return False
        if self.has_copy:
            await self._fault("hold_mirror", stream=f"KV_{self._bucket}-copy", source="")
        if self._options.replicas > 1:
            await self._fault("hold", stream=self._stream.name, replica="")
        self._is_held = True
        return True

    async def release(self) -> None:
        if self._server is not None and self._is_held:
            if self.has_copy:
                await self._fault("release_mirror", stream=f"KV_{self._bucket}-copy", source="")
            if self._options.replicas > 1:
                await self._fault("release", stream=self._stream.name, replica="")
            self._is_held = False

    async def cut(self) -> None:
        if self._server is not None:
            await self._fault("cut", client=self._bucket, after=0, direction="to_client")
            async with asyncio.timeout(WAIT):
                for client in self._clients:
                    await _reconnected(client)

    async def _fault(self, command: str, **body: Any) -> None:
        assert self._server is not None
        await self._server.fault_command(command, body)

    async def wait_for_copies(self, revision: int) -> None:
        """Until the read replica has a revision."""
        if not self.has_copy or self._is_held:
            return
        copy = self._js.stream(f"KV_{self._bucket}-copy")
        async with asyncio.timeout(WAIT):
            while (await copy.info()).state.last_seq < revision:
                await asyncio.sleep(0.001)

    async def check_aggregate(self) -> None:
        """An aggregate gets all values of the bucket, below its own prefix and that of the source."""
        if self._options.aggregate is None:
            return
        origin = await self._js.key_value(self._bucket)
        everything = await self._js.key_value(f"{self._bucket}-all")
        below = f"{self._options.aggregate}." if self._options.aggregate else ""
        wanted = {below + key: entry.value for key, entry in (await origin.get_range()).items()}
        async with asyncio.timeout(WAIT):
            while {key: entry.value for key, entry in (await everything.get_range()).items()} != wanted:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for handle in self.handles:
            if handle.kind == "cached":
                await handle.kv.close()
        self.handles = []


async def _reconnected(client: Client) -> None:
    while True:
        try:
            await client.flush()
        except ConnectionLostError:
            await asyncio.sleep(0.001)
        else:
            return


def _raw(message: StoredMessage) -> Raw:
    return Raw(message.seq, message.subject, message.time, bool(mark_of(message.header).marker))


class LocalBackend:
    """A bucket in an SQLite database in memory, with a clock that stands still."""

    slack = 0
    has_copy = False
    is_real_time = False

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self._now = 10**18
        self._raw: KeyValue[bytes] | None = None

    async def create(self, options: Options) -> None:
        self._raw = raw = KeyValue(await open_sqlite(config=options.config("local"), now=lambda: self._now))
        wrap = CODECS[options.codec].wrap
        cached = await wrap(raw).cached(recheck_after=RECHECK)
        self.handles = [Handle(wrap(raw), "own"), Handle(cached, "cached")]

    async def alter(self, options: Options) -> bool:  # noqa: ARG002
        return False  # a local bucket keeps its options

    async def open_again(self, handle: Handle) -> None: ...

    async def recreate(self, options: Options, *, keep_handles: bool) -> None:
        del keep_handles  # a bucket in memory is gone with its handle
        await self.close()
        await self.create(options)

    async def destroy(self) -> None:
        await self.close()

    async def found(self, after: int) -> Found:
        assert self._raw is not None
        entries = [entry async for part in self._raw.storage.read((">",)) for entry in part]
        last = (await self._raw.status()).last_revision
        new = [Raw(e.revision, e.key, e.created, bool(e.marker)) for e in entries if e.revision > after]
        return Found(self._now, last, frozenset(entry.revision for entry in entries), new)

    async def forget(self, subject: str) -> None:
        assert self._raw is not None
        await self._raw.storage.forget(subject, below=2**60)

    async def pass_time(self, seconds: int) -> None:
        self._now += seconds * SECOND + SECOND // 100

    async def nudge(self) -> bool:
        return False

    async def hold(self) -> bool:
        return False

    async def release(self) -> None: ...

    async def cut(self) -> None: ...

    async def wait_for_copies(self, revision: int) -> None: ...

    async def check_aggregate(self) -> None: ...

    async def close(self) -> None:
        for handle in self.handles:
            if handle.kind == "cached":
                await handle.kv.close()
        self.handles = []
        assert self._raw is not None
        await self._raw.close()

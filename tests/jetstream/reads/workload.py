"""Concurrent writers, readers and sessions of one stream, whose every operation goes into a `History`."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from slipstream import BucketConfig, StreamConfig, connect_blocking
from slipstream.api import Placement, PubAck, StreamSource
from slipstream.errors import Error, KeyNotFoundError, MessageNotFoundError, StreamNotFoundError, TokenMismatchError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.read_state import GENERATION_AGE
from slipstream.kv._async.key_value import KeyValue
from tests.jetstream.reads import traces
from tests.jetstream.reads.history import TTL, Got, History, Kind, Read, Refusal, Write

T = TypeVar("T")
LONGEST_HOLD = 15.0  # seconds

GROUPS, GROUP_SIZE = 8, 12
KEYS = [f"g{n}.k{m}" for n in range(GROUPS) for m in range(GROUP_SIZE)]
ABSENT = [f"never.k{n}" for n in range(4)]
PADDING = b"." * 2000  # so that catching up takes a while on a slow route
FILL = os.urandom(1_000_000)  # a raft log is compacted at 8 MB; random, because the log compresses what it can
FILLS = 9
HUNTERS = 6
READ_TIMEOUT = 15.0
WRITE_TIMEOUT = 3.0

STREAM_PATHS = (
    "last", "last", "last", "leader", "pattern", "absent", "next", "seq", "many", "range", "columns", "to_last",
)  # fmt: skip
BUCKET_PATHS = (*STREAM_PATHS, "value", "value", "keys", "history")


class Shape(NamedTuple):
    """A kind of stream: its configuration, what its mirror has beside the name, and what writers do to it."""

    config: StreamConfig
    mirror: StreamConfig
    kinds: tuple[Kind, ...] = (Kind.PUT,)
    ttls: bool = False
    bucket: str = ""


def _stream(name: str, **more: object) -> StreamConfig:
    subjects = (f"{name}.>",)
    return StreamConfig(name=name, subjects=subjects, num_replicas=3, allow_direct=True).replace(**more)


def _mirror(name: str, **more: object) -> StreamConfig:
    return StreamConfig(name=f"{name}_COPY", mirror=StreamSource(name=name), mirror_direct=True).replace(**more)


def shapes(prefix: str, node: str) -> dict[str, Shape]:
    """The streams of a run; `node` holds the one that has a single replica."""
    bucket = BucketConfig(bucket=f"{prefix}kv", replicas=3)
    rollups = (Kind.PUT,) * 12 + (Kind.ROLLUP_SUBJECT,) * 4
    deep, shallow = {"max_msgs_per_subject": 3}, {"max_msgs_per_subject": 1}
    ring = {**shallow, "max_msgs": 60}
    return {
        "log": Shape(_stream(f"{prefix}log"), _mirror(f"{prefix}log")),
        "bucket": Shape(
            bucket.stream_config().replace(allow_msg_ttl=True),
            _mirror(bucket.stream_config().name),
            (Kind.PUT,) * 8 + (Kind.DELETE, Kind.PURGE),
            ttls=True,
            bucket=bucket.bucket,
        ),
        "rollups": Shape(
            _stream(f"{prefix}roll", allow_rollup_hdrs=True, **deep),
            _mirror(f"{prefix}roll", allow_rollup_hdrs=True, **deep),
            (*rollups * 20, Kind.ROLLUP_ALL),
        ),
        "ring": Shape(_stream(f"{prefix}ring", **ring), _mirror(f"{prefix}ring", **ring)),
        "single": Shape(
            _stream(f"{prefix}one", **shallow).replace(num_replicas=1, placement=Placement(tags=(node,))),
            _mirror(f"{prefix}one", **shallow),
        ),
        "again": Shape(_stream(f"{prefix}again", **shallow), _mirror(f"{prefix}again", **shallow)),
    }


class Workload:
    """One stream and all that is done to it. Sequences, values and outcomes are in `history`."""

    def __init__(self, shape: Shape, seed: int) -> None:
        config = shape.config
        self.shape = shape
        self.name = config.name
        self.subject = f"$KV.{shape.bucket}." if shape.bucket else f"{self.name}."
        self.history = History(
            self.name, per_subject=max(config.max_msgs_per_subject, 0), in_all=max(config.max_msgs, 0)
        )
        self.mirror = shape.mirror
        self.refusals: list[Refusal] = []
        self.is_over = False
        self.marks: tuple[int, ...] = ()  # what was the last sequence when every key had been written once more
        self._random = random.Random(seed)
        self._ids = itertools.count(1)
        self._running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._opening: asyncio.Task[None] | None = None
        self.late: list[str] = []  # publishes that arrived after the stream was made again
        self.kept: list[str] = []  # messages of a deleted stream in the one made after it

    @property
    def count(self) -> int:
        """Operations that ended."""
        return self.history.count + len(self.refusals) + self.history.model.begun

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        """What runs inside sees one generation of the stream."""
        await self._open.wait()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def make_again(self, js: JetStream, is_empty: Callable[[str], Awaitable[bool]]) -> None:
        """Delete the stream and create it again, while no operation runs. Its mirror stays with what it has.

        A connection may take the new stream for the one it knew for a while: operations go on after that.

        `is_empty`: whether the new stream is empty on every node. On nats-server 2.15.1 a stream that is made again at
        once has, one time in some hundred, messages of the deleted one, and what it says of itself is wrong then.
        """
        await self.opened()
        self._open.clear()
        while self._running:
            await asyncio.sleep(0.01)
        self.history.begin_again()
        self.marks = ()
        for _ in range(5):
            with suppress(StreamNotFoundError):  # of an earlier try, whose answer was lost
                await repeat(lambda: js.delete_stream(self.name, timeout=5))
            await repeat(lambda: js.create_stream(self.shape.config, timeout=5))
            if await is_empty(self.name):
                break
        else:
            raise AssertionError(f"{self.name} has messages whenever it is made again")
        self._opening = asyncio.create_task(self._go_on(js))

    async def opened(self) -> None:
        """Wait until a stream that was made again is in use; raises what went wrong on the way."""
        if self._opening is not None:
            await self._opening

    async def _go_on(self, js: JetStream) -> None:
        """Let operations begin on a stream that was made again.

        A server that is held may tell of the old stream for as long as it is: what is known is ten seconds old then.
        """
        await asyncio.sleep(GENERATION_AGE + LONGEST_HOLD)
        try:
            await self._take_over_late(js)
        finally:
            self._open.set()

    async def _take_over_late(self, js: JetStream) -> None:
        """Messages that the leader has before anything was written: a part of the model, if they are of this stream.

        A publish that was repeated, because a server held it or stood still, may arrive after the stream was made
        again, which does not know its message id. Its time is that of the new stream. One that is older than the stream
        was kept by the server from the deleted one: that is in `kept`, and no model.
        """
        stream = js.stream(self.name)
        info = await repeat(stream.info)
        for seq in range(max(info.state.first_seq, 1), info.state.last_seq + 1):
            message = await repeat(partial(self._by_leader, stream, seq))
            if message is None:
                continue
            after = (message.time - info.created) / 1e9
            if after < 0:
                self.kept.append(f"{self.name} has {seq} of {message.subject}, {-after:.3f} s older than itself")
                continue
            self.late.append(f"{self.name}: {seq} of {message.subject} arrived {after:.3f} s after it was made again")
            self.history.model.begun += 1
            self.history.model.wrote(seq, Write(message.subject.removeprefix(self.subject), message.data))

    async def _by_leader(self, stream: Stream, seq: int) -> StoredMessage | None:
        try:
            return await stream.get(seq, from_leader=True)
        except MessageNotFoundError:
            return None

    # Writes

    async def write(self, js: JetStream, key: str, kind: Kind = Kind.PUT, value: bytes | None = None) -> int:
        """Publish until it is acknowledged: the message id makes it one message however often it is sent."""
        async with self.operation():
            model = self.history.model
            model.begun += 1
            number = next(self._ids)
            if value is None:
                value = b"" if kind in (Kind.DELETE, Kind.PURGE) else b"%d:%s:" % (number, key.encode()) + PADDING
            headers = {"KV-Operation": {Kind.DELETE: "DEL", Kind.PURGE: "PURGE"}.get(kind, "")}
            rollup = {Kind.PURGE: "sub", Kind.ROLLUP_SUBJECT: "sub", Kind.ROLLUP_ALL: "all"}.get(kind)
            publish = partial(
                js.publish,
                self.subject + key,
                value,
                headers=headers if headers["KV-Operation"] else None,
                msg_id=f"{self.name}-{number}",
                rollup=rollup,
                ttl=timedelta(seconds=1) if key.startswith(f"{TTL}.k") else None,
                timeout=WRITE_TIMEOUT,
            )
            seq = await _acknowledged(publish)
            model.wrote(seq, Write(key, value, kind))
        return seq

    async def overwrite(self, js: JetStream) -> None:
        """Every key once, in two halves."""
        keys = self._random.sample(KEYS, len(KEYS))
        for part in (keys[::2], keys[1::2]):
            async with asyncio.TaskGroup() as group:
                for key in part:
                    group.create_task(self.write(js, key))
        self.marks = (*self.marks[-2:], self.history.model.last)

    async def fill(self, js: JetStream) -> None:
        """So much that every node up to date compacts its log; little of it stays."""
        for _ in range(FILLS):
            await self.write(js, f"{TTL}.fill", value=FILL)
        await self.write(js, f"{TTL}.fill", value=b"")

    async def keep_writing(self, js: JetStream, pause: float) -> None:
        """One write after the other, with a pause."""
        while not self.is_over:
            if self.shape.ttls and self._random.random() < 0.1:
                await self.write(js, f"{TTL}.k{self._random.randrange(5)}")
            else:
                await self.write(js, self._random.choice(KEYS), self._random.choice(self.shape.kinds))
            await asyncio.sleep(self._random.uniform(0, 2 * pause))

    # Reads

    def wanted(self, rng: random.Random) -> int:
        """What a read must have seen: the newest, something a moment old, something old, or where every key was new."""
        last = self.history.model.last
        if self.marks and rng.random() < 0.3:
            return rng.choice(self.marks)
        least = rng.choice((last, last, max(last - 250, 1), max(last - 250, 1), 1))
        return rng.randint(least, last) if last else 0


async def _acknowledged(publish: Callable[[], Awaitable[PubAck]]) -> int:
    while True:
        try:
            return (await publish()).seq
        except Error:  # no leader, or the client changes servers
            await asyncio.sleep(0.1)


async def repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Until it works: leaders and connections come and go."""
    deadline = time.monotonic() + 40
    while True:
        try:
            return await call()
        except StreamNotFoundError:
            raise
        except Error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)


class Reader:
    """Reads by every path, through a stream or through a session's. What raises is a refusal."""

    def __init__(self, name: str, workload: Workload, seed: int) -> None:
        self.name = name
        self.workload = workload
        self.history = workload.history
        self.random = random.Random(seed)
        self.is_session = False
        self.has_stale_token = False
        self._sessions = 1
        self._trace: list[str] = []
        self._paths = BUCKET_PATHS if workload.shape.bucket else STREAM_PATHS

    async def read(self, stream: Stream, bucket: KeyValue[bytes] | None, wanted: int, *, path: str = "") -> None:
        """One read. `wanted` is 0 where the session knows it."""
        path = path or self.random.choice(self._paths)
        begin = time.monotonic()
        self._trace = traces.begin()
        try:
            await getattr(self, f"_{path}")(stream if bucket is None or path in STREAM_PATHS else bucket, wanted)
        except Error as error:
            self.refused(f"{path} at {wanted}", begin, repr(error), is_final=isinstance(error, TokenMismatchError))

    def refused(self, what: str, begin: float, error: str, *, is_final: bool = False) -> None:
        """A read raised. What gives up early is judged by all the time that it had, but for what is documented: a
        token of a stream that was made again, and a stream whose only server does not answer."""
        self.has_stale_token = is_final
        is_early = is_final or not self.workload.shape.config.num_replicas > 1
        end = time.monotonic() if is_early else max(time.monotonic(), begin + READ_TIMEOUT)
        refusal = Refusal(self.workload.name, f"{self.name} {what}", begin, end, error, self._trace)
        self.workload.refusals.append(refusal)

    def begin_again(self) -> None:
        """Another session begins: it is not promised what the one before has written and seen."""
        self.has_stale_token = False
        self._sessions += 1
        self.name = f"{self.name.rstrip('0123456789')}{self._sessions}"

    def forget_trace(self) -> None:
        """What follows was read elsewhere."""
        self._trace = []

    def note(self, path: str, key: str, wanted: int, got: object, start: int = 0, end: int = 0) -> None:
        """A read ended."""
        latest = self.history.model.begun
        self.history.read(Read(self.name, path, key, wanted, latest, got, start, end, self.is_session, self._trace))

    def _ask(self, wanted: int) -> int:
        return 0 if self.is_session else wanted

    def _key(self) -> str:
        return self.random.choice(KEYS)

    async def _last(self, stream: Stream, wanted: int) -> None:
        key = self._key()
        self.note(
            "last",
            key,
            wanted,
            await _found(stream.get_last(self.workload.subject + key, min_last_seq=self._ask(wanted))),
        )

    async def _leader(self, stream: Stream, wanted: int) -> None:
        key = self._key()
        read = stream.get_last(self.workload.subject + key, min_last_seq=self._ask(wanted), from_leader=True)
        self.note("last", key, wanted, await _found(read))

    async def _absent(self, stream: Stream, wanted: int) -> None:
        key = self.random.choice(ABSENT)
        self.note(
            "last",
            key,
            wanted,
            await _found(stream.get_last(self.workload.subject + key, min_last_seq=self._ask(wanted))),
        )

    async def _pattern(self, stream: Stream, wanted: int) -> None:
        """The newest of all keys; of one with a TTL nothing is claimed."""
        read = stream.get_last(f"{self.workload.subject}*.*", min_last_seq=self._ask(wanted))
        self.note("last", "", wanted, await _found(read))

    async def _next(self, stream: Stream, wanted: int) -> None:
        key, start = self._key(), self.random.randint(1, max(wanted, 1))
        read = stream.get_next(self.workload.subject + key, seq=start, min_last_seq=self._ask(wanted))
        self.note("next", key, wanted, await _found(read), start)

    async def _seq(self, stream: Stream, wanted: int) -> None:
        seq = self.random.randint(max(wanted - 150, 1), max(wanted, 1))
        found = await _found(stream.get(seq, min_last_seq=self._ask(wanted)))
        if not self.history.model.is_ttl(seq):
            self.note("seq", "", wanted, found, seq)

    async def _many(self, stream: Stream, wanted: int) -> None:
        group = f"g{self.random.randrange(GROUPS)}."
        found = await stream.get_last_many([f"{self.workload.subject}{group}*"], min_last_seq=self._ask(wanted))
        at = len(self.workload.subject)
        got = {subject[at:]: Got(message.seq, message.data) for subject, message in found.items()}
        self.note("many", group, wanted, got)

    async def _range(self, stream: Stream, wanted: int) -> None:
        """To an end that is before, at or behind what must have been seen."""
        start = self.random.randint(max(wanted - 150, 1), max(wanted, 1))
        end = min(start + self.random.randint(0, 200), max(self.history.model.last, wanted, start))
        key = self.random.choice(("", self._key()))
        subject = self.workload.subject + key if key else ""
        read = stream.read(start=start, end=end, subject=subject, min_last_seq=self._ask(wanted))
        self.note("range", key, wanted, [message.seq async for message in read], start, end)

    async def _columns(self, stream: Stream, wanted: int) -> None:
        start = self.random.randint(max(wanted - 150, 1), max(wanted, 1))
        end = max(wanted, start)
        seqs: list[int] = []
        async for columns in stream.read_columns(start=start, end=end, min_last_seq=self._ask(wanted)):
            seqs += columns.seqs
        self.note("range", "", wanted, seqs, start, end)

    async def _to_last(self, stream: Stream, wanted: int) -> None:
        start = self.random.randint(max(wanted - 100, 1), max(wanted, 1))
        read = stream.read(start=start, min_last_seq=self._ask(wanted))
        self.note("range", "", wanted, [message.seq async for message in read], start)

    async def _value(self, bucket: KeyValue[bytes], wanted: int) -> None:
        key = self._key()
        try:
            entry = await bucket.get(key, min_last_revision=self._ask(wanted))
        except KeyNotFoundError:
            self.note("value", key, wanted, None)
        else:
            self.note("value", key, wanted, Got(entry.revision, entry.value))

    async def _keys(self, bucket: KeyValue[bytes], wanted: int) -> None:
        group = f"g{self.random.randrange(GROUPS)}."
        self.note("keys", group, wanted, frozenset(await bucket.keys(f"{group}*", min_last_revision=self._ask(wanted))))

    async def _history(self, bucket: KeyValue[bytes], wanted: int) -> None:
        key = self._key()
        try:
            seqs = [entry.revision for entry in await bucket.history(key, min_last_revision=self._ask(wanted))]
        except KeyNotFoundError:
            seqs = []
        self.note("range", key, wanted, seqs, 1)


async def _found(read: object) -> Got | None:
    try:
        message: StoredMessage = await read  # type: ignore[misc]
    except MessageNotFoundError:
        return None
    return Got(message.seq, message.data)


async def _bucket(workload: Workload, js: JetStream) -> KeyValue[bytes] | None:
    return await repeat(lambda: js.key_value(workload.shape.bucket)) if workload.shape.bucket else None


async def keep_reading(reader: Reader, js: JetStream, pause: float) -> None:
    """Reads with a wanted sequence of its own, one after the other."""
    workload = reader.workload
    stream = js.stream(workload.name)
    bucket = await _bucket(workload, js)
    while not workload.is_over:
        async with workload.operation():
            if wanted := workload.wanted(reader.random):
                await reader.read(stream, bucket, wanted)
        await asyncio.sleep(reader.random.uniform(0, 2 * pause))


HUNT_PATHS = ("last", "last", "last", "many", "range")


async def hunt(workload: Workload, js: JetStream, seconds: float, seed: int) -> None:
    """Read as much as possible for a while: a copy that catches up is wrong for moments only."""
    stream = js.stream(workload.name)
    bucket = await _bucket(workload, js)
    paths = (*HUNT_PATHS, "value", "value", "keys") if bucket is not None else HUNT_PATHS
    deadline = time.monotonic() + seconds

    async def read(reader: Reader) -> None:
        while time.monotonic() < deadline and not workload.is_over:
            async with workload.operation():
                if wanted := workload.wanted(reader.random):
                    await reader.read(stream, bucket, wanted, path=reader.random.choice(paths))

    await asyncio.gather(*(read(Reader(f"h{n}", workload, seed + n)) for n in range(HUNTERS)))


SESSION_PATHS = ("last", "last", "absent", "next", "many", "range")
CHILD_READS = 12


async def keep_a_session(
    reader: Reader, contexts: list[JetStream], pause: float, *, urls: list[str], children: int = 0
) -> None:
    """Writes and reads through a session that goes on, by its token, on other connections and in other processes.

    What it must have seen: what it wrote to this generation of the stream; the checker adds what it read.
    """
    workload, rng = reader.workload, reader.random
    reader.is_session = True
    paths = (*SESSION_PATHS, "value", "keys") if workload.shape.bucket else SESSION_PATHS
    model, wrote = workload.history.model, 0
    token = ""
    while not workload.is_over:
        if reader.has_stale_token:  # documented: a token does not outlive its stream
            token, wrote = "", 0
            reader.begin_again()
        session = rng.choice(contexts).session(token)
        stream = session.stream(workload.name)
        bucket = await _bucket(workload, session)
        for _ in range(rng.randint(5, 40)):
            if workload.is_over:
                return
            if reader.has_stale_token:
                break
            seq = await workload.write(session, rng.choice(KEYS)) if rng.random() < 0.3 else 0
            beside = None  # a read and a write at once: the answer may show the write or not
            if rng.random() < 0.2:
                beside = asyncio.create_task(workload.write(session, rng.choice(KEYS)))
            async with workload.operation():
                if model is workload.history.model:
                    wrote = max(wrote, seq)
                else:  # it was made again, perhaps between our write and here
                    model, wrote = workload.history.model, 0
                if wrote:
                    await reader.read(stream, bucket, wrote, path=rng.choice(paths))
            if beside is not None:
                seq = await beside
                wrote = max(wrote, seq) if model is workload.history.model else wrote
            await asyncio.sleep(rng.uniform(0, 2 * pause))
        token = session.token()
        if children > 0:
            children -= 1
            async with workload.operation():
                if model is workload.history.model:
                    token = await _hand_over(reader, urls, token, wrote)


async def _hand_over(reader: Reader, urls: list[str], token: str, wrote: int) -> str:
    """Another process goes on with the session; gives its token."""
    keys = [reader._key() for _ in range(CHILD_READS)]
    begin = time.monotonic()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.jetstream.reads.workload",
        *(",".join(urls), reader.workload.name, reader.workload.subject, token, *keys),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await child.communicate()
    answer = msgspec.json.decode(output)
    reader.forget_trace()
    for key, (seq, value) in zip(keys, answer["found"], strict=False):
        reader.note("last", key, wrote, Got(seq, value.encode()) if seq else None)
    if answer["error"]:
        is_final = "TokenMismatchError" in answer["error"]
        reader.refused(f"in another process at {wrote}", begin, answer["error"], is_final=is_final)
    return str(answer["token"])


def main(urls: str, name: str, subject: str, token: str, *keys: str) -> None:
    """Go on with a session in this process."""
    found: list[tuple[int, str]] = []
    error = ""
    with connect_blocking(urls.split(",")) as nc, nc.jetstream(timeout=READ_TIMEOUT).session(token) as session:
        for key in keys:
            try:
                message = session.stream(name).get_last(subject + key)
                found.append((message.seq, message.data.decode()))
            except MessageNotFoundError:
                found.append((0, ""))
            except Error as raised:
                error = repr(raised)
                break
        print(msgspec.json.encode({"found": found, "error": error, "token": session.token()}).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Multi-subject gets over sockets whose stream changes while they are answered, compared with a model of the stream.

Readers stop reading in the middle of an answer, so that the server sends it in pieces, while a writer overwrites,
deletes, purges, rolls up and lowers limits. An answer that claims to be complete has every subject that had a message
all the time, each with a message that was its newest at some moment of the read.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream import StreamConfig, connect
from slipstream.api import GetRequest, encode_json
from slipstream.errors import MessageNotFoundError, TooManyResultsError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream.reads.direct_get import EndOfBatch, StoredMessage, decode
from slipstream.server import Server
from slipstream.wire import Msg, Parser, Side, matcher, pub

ROLLUP = {"Nats-Rollup": "sub"}


class Model:
    """What each subject had after each operation. An operation under way may have taken effect or not."""

    def __init__(self) -> None:
        self.now = 0  # operations that were begun
        self.done = 0  # those that were acknowledged
        self.messages: dict[str, tuple[int, ...]] = {}
        self._history: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
        self.last = 0

    def begin(self) -> None:
        self.now += 1

    def end(self, changes: dict[str, tuple[int, ...]]) -> None:
        for subject, seqs in changes.items():
            self._history.setdefault(subject, []).append((self.now, seqs))
            self.messages[subject] = seqs
            self.last = max(self.last, *seqs, 0)
        self.done = self.now

    def newest(self, subject: str, begin: int, end: int, up_to: int) -> set[int]:
        """The newest message of a subject at each moment between two operations; 0: none."""
        history = self._history.get(subject, [])
        before = [seqs for at, seqs in history if at <= begin]
        states = [before[-1] if before else (), *(seqs for at, seqs in history if begin < at <= end)]
        return {max((seq for seq in seqs if not up_to or seq <= up_to), default=0) for seqs in states}

    def subjects(self) -> list[str]:
        return list(self._history)


class Reader:
    """A connection that reads as slowly as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self._reader, self._writer = reader, writer
        self._parser = Parser(Side.SERVER)
        self._inbox, self._asked = f"_INBOX.{name}.", 0
        self._messages: list[Msg] = []

    @classmethod
    async def open(cls, server: Server, name: str) -> Reader:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((server.host, server.port))
        found = cls(*await asyncio.open_connection(sock=sock, limit=4096), name)
        hello = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        found._writer.write(hello + b"SUB %b* 1\r\n" % found._inbox.encode())
        return found

    def ask(self, request: GetRequest) -> None:
        self._asked += 1
        self._messages.clear()
        self._writer.write(pub("$JS.API.DIRECT.GET.S", encode_json(request), f"{self._inbox}{self._asked}"))

    async def some(self) -> None:
        """Read a little."""
        data = await asyncio.wait_for(self._reader.read(4096), 30)
        assert data
        for event in self._parser.feed(data):
            if isinstance(event, Msg):
                self._messages.append(event)

    async def answer(self) -> tuple[list[StoredMessage], EndOfBatch | None, str]:
        """The messages up to the end, the end (None: not found), and an error."""
        found: list[StoredMessage] = []
        while True:
            while not self._messages:
                await self.some()
            try:
                item = decode(self._messages.pop(0), asked="test")
            except MessageNotFoundError:
                return found, None, ""
            except TooManyResultsError:
                return found, None, "413"
            if isinstance(item, EndOfBatch):
                return found, item, ""
            found.append(item.message)

    def close(self) -> None:
        self._writer.close()


class Trial:
    """A writer and some readers of one stream."""

    def __init__(self, server: Server, js: JetStream, rng: random.Random, names: Sequence[str]) -> None:
        self._server, self._js, self._rng, self._names = server, js, rng, names
        self._limit = 3
        self._is_over = False
        self.model = Model()
        self.counts: Counter[str] = Counter()

    def _config(self) -> StreamConfig:
        return StreamConfig(
            name="S",
            subjects=("m.>",),
            storage="file",  # in memory on a server without a directory
            max_msgs_per_subject=self._limit,
            allow_direct=True,
            allow_rollup_hdrs=True,
        )

    async def prepare(self) -> None:
        await self._js.create_stream(self._config())
        for name in self._names:
            await self._publish(name)

    async def _publish(self, name: str, *, is_rollup: bool = False) -> None:
        size = self._rng.choice((10, 20_000, 30_000))
        self.model.begin()
        headers = ROLLUP if is_rollup else None
        ack = await self._js.publish(name, name.encode() + b" " + b"x" * size, headers=headers)
        kept = () if is_rollup else self.model.messages.get(name, ())
        self.model.end({name: (*kept, ack.seq)[-self._limit :]})

    async def write(self) -> None:
        """One change, acknowledged."""
        rng, model, stream = self._rng, self.model, self._js.stream("S")
        name, kind = rng.choice(self._names), rng.random()
        before = model.messages
        if kind < 0.55:
            await self._publish(name, is_rollup=kind < 0.05)
            return
        model.begin()
        seqs = before.get(name, ())
        changes: dict[str, tuple[int, ...]] = {}
        if kind < 0.9:  # mostly the newest one
            if seqs:
                seq = seqs[-1] if rng.random() < 0.8 else rng.choice(seqs)
                await stream.delete_message(seq, erase=False)
                changes[name] = tuple(one for one in seqs if one != seq)
        elif kind < 0.93:
            await stream.purge(subject=name)
            changes[name] = ()
        elif kind < 0.96:
            fits = matcher("m.*.1")
            await stream.purge(subject="m.*.1", keep=2)
            every = sorted(seq for one, found in before.items() if fits(one) for seq in found)[-2:]
            changes = {one: tuple(seq for seq in found if seq in every) for one, found in before.items() if fits(one)}
        elif kind < 0.98:
            below = rng.randrange(1, max(model.last // 2, 2))
            await stream.purge(below=below)
            changes = {one: tuple(seq for seq in found if seq >= below) for one, found in before.items()}
        elif kind < 0.99:
            self._limit = 4 - self._limit  # 3 and 1
            await self._js.update_stream(self._config())
            changes = {one: found[-self._limit :] for one, found in before.items()}
        else:
            await stream.purge()
            changes = dict.fromkeys(before, ())
        model.end({one: found for one, found in changes.items() if found != before.get(one)})
        if kind >= 0.99:
            for name in self._names:
                await self._publish(name)

    async def keep_writing(self) -> None:
        while not self._is_over:
            await self.write()

    def _request(self) -> GetRequest:
        rng = self._rng
        patterns = rng.choice(
            (
                ["m.>"],
                ["m.a.*"],
                ["m.*.1", "m.a.*", "m.a.1", "m.none"],
                rng.sample(self._names, min(len(self._names), 40)),
                ["m.>", *rng.sample(self._names, 3)],
            )
        )
        last = self.model.last
        return GetRequest(
            multi_last=tuple(patterns),
            batch=rng.choice((0, 0, 0, 5, 50)),
            max_bytes=rng.choice((1 << 26, 1 << 26, 1 << 26, 10_000)),
            seq=rng.choice((0, 0, 0, rng.randrange(1, last + 2))),
            up_to_seq=rng.choice((0, 0, 0, rng.randrange(1, last + 1))),
            min_last_seq=rng.choice((0, last)),
        )

    async def read(self, name: str, count: int) -> None:
        """Requests one after the other, each compared with the model."""
        reader = await Reader.open(self._server, name)
        try:
            for _ in range(count):
                request, begin = self._request(), self.model.done
                reader.ask(request)
                await reader.some()
                until = self.model.now + self._rng.choice((0, 30, 100))
                while self.model.now < until:  # it stands still
                    await asyncio.sleep(0.001)
                answer = await reader.answer()
                end = self.model.now
                while self.model.done < end:  # what is under way may show in the answer
                    await asyncio.sleep(0)
                self._check(request, begin, end, *answer)
        finally:
            reader.close()

    def _check(
        self, request: GetRequest, begin: int, end: int, found: list[StoredMessage], eob: EndOfBatch | None, error: str
    ) -> None:
        if error:
            assert len(self._names) > 1_000
            self.counts[error] += 1
            return
        model = self.model
        text = f"{request}, operations {begin} to {end}: {eob}"
        by_subject = {message.subject: message.seq for message in found}
        assert len(by_subject) == len(found), text
        fits = [matcher(pattern) for pattern in request.multi_last]
        for message in found:
            assert message.data.startswith(b"%b " % message.subject.encode()), text
            assert any(one(message.subject) for one in fits), text
            assert message.seq >= request.seq, text
        is_complete = eob is None or eob.pending == 0
        for subject in model.subjects():
            if not any(one(subject) for one in fits):
                continue
            newest = {seq if seq >= request.seq else 0 for seq in model.newest(subject, begin, end, request.up_to_seq)}
            if subject in by_subject or is_complete:
                assert by_subject.get(subject, 0) in newest, f"{text}: {subject} {by_subject.get(subject)} {newest}"
        self.counts["complete" if is_complete else "continued"] += 1

    async def run(self, readers: int, count: int) -> None:
        writer = asyncio.create_task(self.keep_writing())
        try:
            await asyncio.gather(*(self.read(f"r{n}", count) for n in range(readers)))
        finally:
            self._is_over = True
            await writer


async def run(seed: int, storage: str, folder: Path, *, count: int) -> Counter[str]:
    rng = random.Random(seed)
    many = rng.choice((20, 200, 200, 1_100))
    names = [f"m.{rng.choice('ab')}.{n}" for n in range(many)]
    folder = folder / f"data{seed}"
    server = Server(  # answers are sent in pieces of 64 kB, to clients that may be slow
        data_dir=folder if storage == "file" else None, max_pending_bytes=1 << 18, max_payload=1 << 16, write_deadline=0
    )
    async with server, connect(server.url) as nc:
        trial = Trial(server, nc.jetstream(timeout=30), rng, names)
        await trial.prepare()
        await trial.run(4, count)
    return trial.counts


@pytest.mark.spec("DG-25", on="E")
@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("seed", range(2))
async def test_answers_about_many_subjects_are_complete_while_the_stream_changes(
    tmp_path: Path, storage: str, seed: int
) -> None:
    counts = await run(seed, storage, tmp_path, count=8)
    assert counts["complete"] > 4


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_thousands_of_answers_about_many_subjects_are_complete(tmp_path: Path, storage: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(100, 140):
        counts += await run(seed, storage, tmp_path, count=50)
    print(dict(counts))
    assert counts["complete"] > 2_000

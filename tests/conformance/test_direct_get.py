"""Direct Get at its limits and byte by byte: our server and the real one, read by our client and by nobody's."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from slipstream import connect
from slipstream.api import GetRequest, encode_json
from slipstream.api.times import format_time
from slipstream.errors import StaleReadError, TooManyResultsError, UsageError
from slipstream.jetstream.reads._async import last_many
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.last_many import LastMany
from slipstream.jetstream.reads.direct_get import BatchItem, EndOfBatch, decode
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.requests import SubjectsPage
from slipstream.wire import Headers, parse_status
from tests.conformance.test_streams import config, fill

MIB = 1024 * 1024


async def batch(url: str, stream: str, request: GetRequest) -> list[BatchItem | EndOfBatch]:
    """Every reply to one request, as the client reads them; the last is the end."""
    found: list[BatchItem | EndOfBatch] = []
    async with connect(url) as nc:
        subject = f"$JS.API.DIRECT.GET.{stream}"
        async for reply in nc.request_many(subject, encode_json(request), timeout=20):
            found.append(decode(reply.raw, asked=subject))
            if isinstance(found[-1], EndOfBatch):
                return found
    raise AssertionError(f"no end of the batch after {len(found)} replies")


@pytest.mark.spec("DG-15")
async def test_a_batch_ends_by_its_size_and_without_one_by_the_servers(any_server: str, fresh: str, wire: Wire) -> None:
    count, size = 7_000, 10_000
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(config(fresh, storage="memory"))
        await fill(js, fresh, 20)
        *items, end = await batch(any_server, fresh, GetRequest(seq=1, batch=20, max_bytes=60))
        assert isinstance(end, EndOfBatch)
        assert 1 <= len(items) < 20
        assert (end.pending, end.last_seq) == (20 - len(items), len(items))
        async with js.publisher(timeout=30) as publisher:
            for _ in range(count):
                await publisher.publish(f"{fresh}.large", b"x" * size)
        sent, pending = wire.batch(fresh, GetRequest(seq=21, batch=count))
        assert 63 * MIB < sent * size <= 65 * MIB
        assert pending == count - sent > 0
        seqs = [seq async for columns in stream.read_columns(timeout=30) for seq in columns.seqs]
        assert seqs == list(range(1, count + 21))
        await stream.delete()


@pytest.mark.spec("DG-20")
async def test_the_end_of_a_batch_says_what_is_left(any_server: str, fresh: str, is_real: bool) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        await fill(js, fresh, 9)
        subject = f"$JS.API.DIRECT.GET.{fresh}"
        body = encode_json(GetRequest(seq=2, batch=3, next_by_subj=f"{fresh}.>"))
        *_, last = [reply async for reply in nc.request_many(subject, body, max_messages=4)]
        assert last.data == b""
        assert last.status is not None
        assert (last.status.code, last.status.description) == (204, "EOB")
        assert last.headers["Nats-Num-Pending"] == "5"
        assert last.headers["Nats-Last-Sequence"] == "4"
        assert is_real or last.headers["Nats-Pending-Messages"] == "5"
        assert decode(last.raw, asked="x") == EndOfBatch(5, 4, -1)


@pytest.mark.spec("DG-25")
@pytest.mark.steady
async def test_many_subjects_with_bounds_and_past_every_limit(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=15)
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 6_000, subjects=3_000)  # each subject twice
        subjects = [f"{fresh}.{n}" for n in range(3_000)]
        with pytest.raises(TooManyResultsError):
            await batch(any_server, fresh, GetRequest(multi_last=(f"{fresh}.*",)))
        *items, end = await batch(any_server, fresh, GetRequest(multi_last=tuple(subjects[:3]), batch=2))
        assert isinstance(end, EndOfBatch)
        assert ([i.message.seq for i in items if isinstance(i, BatchItem)], end) == (
            [3001, 3002],
            EndOfBatch(1, 3002, 6000),
        )

        for asked in ([f"{fresh}.*"], subjects, [*subjects[:10], f"{fresh}.>", f"{fresh}.none"]):
            found = await stream.get_last_many(asked)
            assert [message.seq for message in found.values()] == list(range(3_001, 6_001))
            assert list(found) == subjects
        assert {m.seq for m in (await stream.get_last_many(subjects[:5], from_leader=True)).values()} == set(
            range(3_001, 3_006)
        )
        found = await stream.get_last_many([f"{fresh}.*"], min_last_seq=6_000)
        assert len(found) == 3_000
        with pytest.raises(StaleReadError):
            await stream.get_last_many(subjects[:3], min_last_seq=6_001, timeout=2)

        bounded = await stream.get_last_many(subjects[:5], up_to_seq=3_002)
        assert [message.seq for message in bounded.values()] == [3, 4, 5, 3_001, 3_002]
        bounded = await stream.get_last_many(subjects[:5], up_to_seq=3_002, min_last_seq=6_000)
        assert [message.seq for message in bounded.values()] == [3, 4, 5, 3_001, 3_002]
        assert await stream.get_last_many([f"{fresh}.none"], up_to_seq=3_002) == {}
        assert len(await stream.get_last_many(subjects[:5], up_to_seq=10_000)) == 5
        assert await stream.get_last_many([]) == {}


@pytest.mark.spec("DG-25")
async def test_times_bound_many_subjects_and_begin_ranges(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        times = []
        for n in range(4):
            seq = (await js.publish(f"{fresh}.{n % 2}", b"%d" % n)).seq
            times.append((await stream.get(seq)).time)
        subjects = [f"{fresh}.0", f"{fresh}.1"]
        for wanted in (0, 4):
            found = await stream.get_last_many(subjects, up_to_time=times[2] + 1, min_last_seq=wanted)
            assert [message.seq for message in found.values()] == [2, 3]
            found = await stream.get_last_many(subjects, up_to_time=times[3] + 10**10, min_last_seq=wanted)
            assert [message.seq for message in found.values()] == [3, 4]
        assert [m.seq async for m in stream.read(start_time=times[2])] == [3, 4]
        request = GetRequest(start_time=format_time(times[1]), next_by_subj=f"{fresh}.1")
        reply = await nc.request(f"$JS.API.DIRECT.GET.{fresh}", encode_json(request))
        assert reply.headers["Nats-Sequence"] == "2"


@pytest.mark.spec("DG-25")
async def test_bounds_are_compared_as_times_whatever_zeros_their_texts_end_in(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        times = [(await stream.get((await js.publish(f"{fresh}.{n % 3}", b"x")).seq)).time for n in range(12)]
        subjects = [f"{fresh}.{n}" for n in range(3)]
        for time in times[3:]:
            for bound in (time // 10 * 10, time // 1_000 * 1_000, time + 1, time + 10 - time % 10):
                found = await stream.get_last_many(subjects, up_to_time=bound, min_last_seq=12)
                newest = {n % 3: n + 1 for n, each in enumerate(times) if each < bound}
                assert [message.seq for message in found.values()] == sorted(newest.values())


async def test_pages_of_many_subjects_are_cut_by_bytes(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=15)
        stream = await js.create_stream(config(fresh))
        for n in range(40):
            await js.publish(f"{fresh}.{n}", b"x" * 300_000)
        found = await stream.get_last_many([f"{fresh}.*"], min_last_seq=40)
        assert [message.seq for message in found.values()] == list(range(1, 41))


@pytest.mark.parametrize("is_pattern", [True, False])
@pytest.mark.parametrize("is_bounded", [False, True])
@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.spec("DG-25", on="C")
async def test_subject_whose_newest_message_is_deleted_between_pages_is_not_left_out(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch, wanted: int, is_bounded: bool, is_pattern: bool
) -> None:
    ask = DirectGets.ask
    subjects = [f"{fresh}.{n}" for n in range(8)]
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=15)
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 8, subjects=8)
        left = [(await js.publish(subject, b"x" * 100)).seq for subject in subjects]
        last = left[-1]

        async def ask_and_delete(self: DirectGets, goal: ReadGoal, request: GetRequest, **how: Any) -> object:
            answer = await ask(self, goal, request, **how)
            if left and request.multi_last:  # of the subject that would be read last; in front of all pages that follow
                await stream.delete_message(left.pop())
            return answer

        monkeypatch.setattr(last_many, "PAGE_BYTES", 150)  # two messages
        monkeypatch.setattr(DirectGets, "ask", ask_and_delete)
        asked = [f"{fresh}.*"] if is_pattern else [*subjects, f"{fresh}.none"]
        found = await stream.get_last_many(asked, up_to_seq=last if is_bounded else 0, min_last_seq=wanted * last)
        assert sorted(found) == subjects


@pytest.mark.spec("DG-25", on="C")
async def test_subjects_whose_newest_messages_were_deleted_without_erasing_are_not_left_out(
    any_server: str, fresh: str
) -> None:
    """nats-server 2.15.1 leaves out those whose older message is in an earlier block, of 4 MB here."""
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=15)
        stream = await js.create_stream(config(fresh, max_msgs_per_subject=3))
        subjects = [f"{fresh}.{n}" for n in range(1_000)]
        async with js.publisher() as publisher:
            for n in range(2_000):
                await publisher.publish(subjects[n % 1_000], b"x" * 3_000)
        for seq in range(2_000, 1_001, -1):  # in this order
            await stream.delete_message(seq, erase=False)
        for asked in ([f"{fresh}.*"], [*subjects[-100:], f"{fresh}.none"], subjects[-1]):
            for bound in (0, 1_001):
                found = await stream.get_last_many(asked, min_last_seq=2_000, up_to_seq=bound)
                expected = [asked] if isinstance(asked, str) else subjects if len(asked) == 1 else subjects[-100:]
                assert sorted(found) == sorted(expected)


async def test_subjects_of_a_pattern_that_vanish_between_pages_of_the_list_hide_no_others(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects_page = LastMany._subjects_page  # of a hundred thousand: here of ten
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=15)
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 1_100, subjects=1_100)
        left = sorted(f"{fresh}.{n}" for n in range(1_100))[:4]

        async def few(self: LastMany, goal: ReadGoal, pattern: str, offset: int) -> SubjectsPage | Retry:
            page = await subjects_page(self, goal, pattern, offset)
            if isinstance(page, SubjectsPage):
                if left:
                    await stream.purge(subject=left.pop())
                return page._replace(subjects=tuple(sorted(page.subjects)[:300]))
            return page

        monkeypatch.setattr(LastMany, "_subjects_page", few)
        found = await stream.get_last_many(f"{fresh}.*")
        assert len(found) == 1_096


async def test_bounds_that_exclude_each_other_are_refused(our_url: str) -> None:
    async with connect(our_url) as nc:
        stream = nc.jetstream().stream("S")
        for bad in (
            {"up_to_seq": 1, "up_to_time": 1},
            {"up_to_seq": 1, "from_leader": True},
            {"up_to_time": 1, "from_leader": True},
            {"up_to_seq": -1},
        ):
            with pytest.raises(UsageError):
                await stream.get_last_many(["a"], **bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await stream.get_last_many("a..b")  # one subject
        with pytest.raises(UsageError):
            await stream.get_last_many(["a..b"])


# The document's example calls, frame by frame


class Wire:
    """A connection that speaks bytes."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=10)
        self._file = self._sock.makefile("rb")
        assert self._file.readline().startswith(b"INFO ")
        self.send(b'CONNECT {"headers":true,"no_responders":true,"verbose":false}\r\nSUB _INBOX.doc.* 1\r\nPING\r\n')
        assert self._file.readline() == b"PONG\r\n"

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def hmsg(self) -> tuple[bytes, bytes, bytes]:
        """One HMSG frame: its subject, its header block, its payload; the sizes in it must be right."""
        while (line := self._file.readline()).startswith((b"PING", b"INFO")):
            self.send(b"PONG\r\n")
        found = re.fullmatch(rb"HMSG (\S+) 1 (\d+) (\d+)\r\n", line)
        assert found, line
        head, total = int(found[2]), int(found[3])
        frame = self._file.read(total + 2)
        assert frame.endswith(b"\r\n")
        return found[1], frame[:head], frame[head:-2]

    def batch(self, stream: str, request: GetRequest) -> tuple[int, int]:
        """One batch without a limit of its own: how many messages came, and how many are left.

        nats-server cuts a connection off that is 64 MiB behind, and such a batch is that long: nothing may be done but
        reading, and the messages should be small, which takes the server longer than the reader.
        """
        body = encode_json(request)
        self.send(b"PUB $JS.API.DIRECT.GET.%b _INBOX.doc.all %d\r\n%b\r\n" % (stream.encode(), len(body), body))
        parts = [b""]
        while (end := re.search(rb"204 EOB\r\nNats-Num-Pending: (\d+)", b"".join(parts[-2:]))) is None:
            parts.append(self._file.read1(MIB))
            assert parts[-1], "the server closed the connection"
        return b"".join(parts).count(b"\r\nNats-Sequence: "), int(end[1])

    def close(self) -> None:
        self._file.close()
        self._sock.close()


@pytest.fixture
def wire(any_server: str) -> Iterator[Wire]:
    wire = Wire(any_server)
    yield wire
    wire.close()


async def bucket_of_the_document(url: str) -> None:
    async with connect(url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(
            config("KV_mykv1", subjects=("$KV.mykv1.>",), max_msgs_per_subject=1, allow_rollup_hdrs=True)
        )
        await stream.purge()
        if not (await stream.info()).state.last_seq:
            await js.publish("$KV.mykv1.mykey1", b"hello")
            await js.publish("$KV.mykv1.mykey2", b"goodbye")
        else:
            await stream.delete()
            await bucket_of_the_document(url)


def signed(header: bytes, subject: str, seq: int) -> None:
    """The reply of the document: its headers, in its order."""
    lines = header.decode().split("\r\n")
    assert lines[:4] == [
        "NATS/1.0",
        "Nats-Stream: KV_mykv1",
        f"Nats-Subject: {subject}",
        f"Nats-Sequence: {seq}",
    ]
    assert lines[4].startswith("Nats-Time-Stamp: ")
    assert lines[5:] == ["", ""]


@pytest.mark.spec("DG-16", "DG-17")
async def test_the_documents_example_calls_frame_by_frame(any_server: str, wire: Wire) -> None:
    await bucket_of_the_document(any_server)
    wire.send(b'PUB $JS.API.DIRECT.GET.KV_mykv1 _INBOX.doc.MmL 35\r\n{"last_by_subj":"$KV.mykv1.mykey1"}\r\n')
    subject, header, payload = wire.hmsg()
    assert (subject, payload) == (b"_INBOX.doc.MmL", b"hello")
    signed(header, "$KV.mykv1.mykey1", 1)

    wire.send(b'PUB $JS.API.DIRECT.GET.KV_mykv1 _INBOX.doc.XJc 44\r\n{"seq":1, "next_by_subj":"$KV.mykv1.mykey2"}\r\n')
    subject, header, payload = wire.hmsg()
    assert (subject, payload) == (b"_INBOX.doc.XJc", b"goodbye")
    signed(header, "$KV.mykv1.mykey2", 2)

    wire.send(b"PUB $JS.API.DIRECT.GET.KV_mykv1.$KV.mykv1.mykey1 _INBOX.doc.DYP 0\r\n\r\n")
    subject, header, payload = wire.hmsg()
    assert (subject, payload) == (b"_INBOX.doc.DYP", b"hello")
    signed(header, "$KV.mykv1.mykey1", 1)

    body = b'{"seq":1, "next_by_subj":"$KV.mykv1.mykey2"}'
    wire.send(b"PUB $JS.API.DIRECT.GET.KV_mykv1.$KV.mykv1.mykey2 _INBOX.doc.yo2 44\r\n" + body + b"\r\n")
    subject, header, payload = wire.hmsg()
    assert (subject, header, payload) == (b"_INBOX.doc.yo2", b"NATS/1.0 408 Bad Request\r\n\r\n", b"")


async def test_the_clients_frames_are_those_of_the_document(any_server: str, fresh: str) -> None:
    """What our client sends for each get, as another client sees it."""
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = (await js.publish(f"{fresh}.a", b"x")).seq
        watch = await other.subscribe(f"$JS.API.DIRECT.GET.{fresh}.>")
        whole = await other.subscribe(f"$JS.API.DIRECT.GET.{fresh}")
        await other.flush()
        await stream.get_last(f"{fresh}.a")
        asked = await watch.next(timeout=5)
        assert (asked.subject, asked.data) == (f"$JS.API.DIRECT.GET.{fresh}.{fresh}.a", b"")
        await stream.get(last)
        await stream.get_next(f"{fresh}.a", seq=1)
        await stream.get_last(f"{fresh}.*")
        assert [m.seq async for m in stream.read(subject=f"{fresh}.a")] == [1]
        bodies = [json.loads((await whole.next(timeout=5)).data) for _ in range(4)]
        assert bodies[:3] == [
            {"seq": 1},
            {"seq": 1, "next_by_subj": f"{fresh}.a"},
            {"last_by_subj": f"{fresh}.*"},
        ]
        assert bodies[3].keys() == {"seq", "next_by_subj", "batch", "max_bytes"}


async def test_status_lines_are_headers_and_never_json(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        for body, code in (
            (b"", 408),
            (b"{}", 408),
            (b"{", 408),
            (b'{"seq":7}', 404),
            (b'{"seq":1,"last_by_subj":"a"}', 408),
        ):
            reply = await nc.request(f"$JS.API.DIRECT.GET.{fresh}", body)
            status = parse_status(reply.raw.header)
            assert status is not None
            assert (status.code, reply.data) == (code, b"")
            assert Headers.parse(reply.raw.header).items() == []


# F21: sequences that are none, and empty filters
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"seq":18446744073709551616}', 408),
        (b'{"seq":18446744073709551615}', 404),
        (b'{"seq":-1}', 408),
        (b'{"multi_last":["a"],"up_to_seq":18446744073709551616}', 408),
        (b'{"multi_last":[""]}', 404),
    ],
)
async def test_numbers_beyond_a_sequence_and_empty_filters(any_server: str, fresh: str, body: bytes, code: int) -> None:
    async with connect(any_server) as nc:
        await nc.jetstream().create_stream(config(fresh))
        await nc.jetstream().publish(f"{fresh}.a", b"1")
        reply = await nc.request(f"$JS.API.DIRECT.GET.{fresh}", body)
        assert reply.status is not None
        assert reply.status.code == code


async def test_a_multi_subject_get_keeps_its_headers(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        await nc.jetstream().create_stream(config(fresh))
        await nc.jetstream().publish(f"{fresh}.a", b"1")
    found = await batch(any_server, fresh, GetRequest(multi_last=(f"{fresh}.*",), no_hdr=True))
    assert isinstance(found[0], BatchItem)
    assert found[0].message.subject == f"{fresh}.a"

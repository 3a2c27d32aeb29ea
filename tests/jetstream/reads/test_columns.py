"""Frames of a batch become columns, by the quick way and by the parser's, with the same result."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import DirectGetNotAllowedError, RemoteProtocolError, StaleReadError
from slipstream.jetstream.reads import columns
from slipstream.jetstream.reads.columns import ColumnPage, Columns, Part
from slipstream.wire import Msg, Parser, Side
from tests.jetstream.reads.test_direct_get import batched, reply

PREFIX = b"HMSG _INBOX.x.1 1 "
EOB = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 3\r\n\r\n"


def frame(header: bytes, payload: bytes = b"", *, prefix: bytes = PREFIX) -> bytes:
    return b"%b%d %d\r\n%b%b\r\n" % (prefix, len(header), len(header) + len(payload), header, payload)


def scanned(data: bytes, *, after: int = 0, parts: Part = Part.ALL) -> tuple[ColumnPage, int]:
    page = ColumnPage("x", after=after, parts=parts)
    page.attach(PREFIX)
    pos, count = page.scan(data, 0)
    assert count == sum(len(piece.seqs) for piece in page._pieces)
    return page, pos


def delivered(data: bytes) -> Columns:
    page = ColumnPage("x")
    for event in Parser(Side.SERVER).feed(data):
        assert isinstance(event, Msg)
        page.deliver(event)
    return page.take().columns


def wanted(columns: Columns, parts: Part) -> tuple[object, ...]:
    """The parts that were asked for, and what is always there."""
    subjects, seqs, times, headers, data, stream = columns
    assert len(subjects) == len(seqs) == len(times) == len(headers) == len(data)
    asked = zip(Part.ALL, (subjects, times, headers, data), strict=True)
    return seqs, stream, subjects[-1:], times[:1], [column for part, column in asked if part in parts]


own_headers = st.lists(
    st.sampled_from(
        [
            b"A: 1\r\n",
            b"Nats-Stream: FAKE\r\n",
            b"Nats-Subject: fake\r\n",
            b"Nats-Sequence: 9\r\n",
            b"Nats-Time-Stamp: 2022-08-06T00:29:27Z\r\n",
            b"Nats-Num-Pending: 4\r\n",
            b"Nats-Last-Sequence: 4\r\n",
            b"Nats-Msg-Id: x y\r\n",
        ]
    ),
    max_size=8,
).map(b"".join)
some_parts = st.sets(st.sampled_from(list(Part.ALL))).map(lambda parts: reduce(or_, parts, Part.NOTHING))
times = st.sampled_from([b"2026-11-15T08:03:38.88Z", b"2026-11-15T08:03:39Z", b"2022-08-06T00:29:27.587861324Z"])


@given(st.lists(st.tuples(own_headers, times, st.binary(max_size=20)), min_size=1, max_size=8), some_parts)
def test_the_raw_scanner_gives_what_the_parser_and_the_decoder_give(
    messages: list[tuple[bytes, bytes, bytes]], parts: Part
) -> None:
    data = b"".join(
        frame(batched(n, own=own, time=time), payload) for n, (own, time, payload) in enumerate(messages, 1)
    )
    page, pos = scanned(data, parts=parts)
    assert pos == len(data)
    assert wanted(page.take().columns, parts) == wanted(delivered(data), parts)


def scanned_in_runs(data: bytes, parts: Part = Part.ALL) -> tuple[ColumnPage, int]:
    """As the client does it, with runs from the third frame of a size on."""
    page, pos = ColumnPage("x", parts=parts), 0
    page.attach(PREFIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_RUN_LENGTH", 2)
        while (step := page.scan(data, pos))[0] != pos:
            pos = step[0]
    return page, pos


@given(
    st.lists(st.tuples(own_headers, times, st.sampled_from([b"abc", b"a\r\n", b"\r\nc", b"longer"])), max_size=14),
    st.booleans(),
    some_parts,
)
def test_runs_of_one_size_give_what_the_parser_and_the_decoder_give(
    messages: list[tuple[bytes, bytes, bytes]], without_headers: bool, parts: Part
) -> None:
    data = b"".join(
        frame(batched(n, own=b"" if without_headers else own, time=time), payload)
        for n, (own, time, payload) in enumerate(messages, 1)
    )
    page, pos = scanned_in_runs(data, parts)
    assert pos == len(data)
    assert wanted(page.take().columns, parts) == wanted(delivered(data), parts)


RUN = b"".join(frame(batched(n), b"abc") for n in range(1, 6))


@pytest.mark.parametrize(
    "odd",
    [
        frame(EOB),
        frame(batched(6), b"abc", prefix=b"HMSG _INBOX.x.2 1 "),
        frame(batched(5), b"abc"),  # a sequence that does not grow
        frame(batched(6).replace(b"ORDERS", b"MIRROR"), b"abc"),
        frame(batched(6, time=b"2026-99-15T08:03:38Z"), b"abc"),
        frame(batched(6, time=b"2026-11-15T08:03:38.1_0Z"), b"abc"),
        frame(batched(6).replace(b"orders.6", b"orders.\xff"), b"abc"),
        frame(batched(6).replace(b"Nats-Sequence: 6", b"Nats-Sequence: +6"), b"abc"),
        frame(batched(6).replace(b"Nats-Sequence: 6", b"Nats-Sequence: 1_6"), b"abc"),
        frame(batched(6), b"abc").replace(PREFIX, PREFIX + b"+"),
        frame(batched(6), b"abc").replace(PREFIX, PREFIX + b"9" * 30),
        frame(batched(6), b"abc")[:-1],
        frame(batched(6), b"abc").replace(b"abc\r\n", b"abcXX"),
        b"PING\r\n",
    ],
)
def test_an_unusual_frame_in_a_run_is_left_to_the_parser(odd: bytes) -> None:
    page, pos = scanned_in_runs(RUN + odd)
    assert pos == len(RUN)
    assert page.take().columns.seqs == [1, 2, 3, 4, 5]


def test_a_header_that_holds_a_whole_frame_is_a_header() -> None:
    """A publisher may store any bytes as headers, also the end of a block and what follows it on the wire."""
    inner = batched(6).removeprefix(b"NATS/1.0\r\n") + b"abc\r\n"
    forged = frame(batched(6, own=inner), b"abc")
    assert scanned_in_runs(RUN + forged)[1] == len(RUN)


@given(st.integers(0, 2000), st.booleans())
def test_whole_frames_are_taken_and_the_rest_is_left(cut: int, with_own: bool) -> None:
    frames = [frame(batched(n, own=b"A: 1\r\n" if with_own else b""), b"x" * n) for n in range(1, 6)]
    data = b"".join(frames)[:cut]
    page, pos = scanned(data)
    whole = 0
    while whole < 5 and sum(map(len, frames[: whole + 1])) <= len(data):
        whole += 1
    assert pos == sum(map(len, frames[:whole]))
    assert page.take().columns.seqs == list(range(1, whole + 1))


def test_a_payload_that_looks_like_frames_is_a_payload() -> None:
    inner = frame(batched(7), b"fake")
    data = frame(batched(1), inner) + frame(batched(2), b"real")
    page, pos = scanned(data)
    assert pos == len(data)
    assert page.take().columns.data == [inner, b"real"]


@pytest.mark.parametrize(
    "odd",
    [
        frame(EOB),
        frame(batched(2), prefix=b"HMSG _INBOX.x.2 1 "),
        frame(batched(1)),  # a sequence that does not grow
        frame(batched(2).replace(b"ORDERS", b"MIRROR")),  # another responder
        frame(batched(2, time=b"2026-99-15T08:03:38Z")),
        frame(batched(2, time=b"2022-08-06 00:29:27.587861324 +0000 UTC")),
        frame(batched(2).replace(b"orders.2", b"orders.\xff")),
        frame(batched(2), b"abc").replace(b"abc\r\n", b"abcXX"),
        frame(batched(2)).replace(b" 1 1", b" 1 99999999999999999999999 1", 1),
        frame(b"NATS/1.0\r\nA: 1\r\n\r\n"),
        b"PING\r\n",
    ],
)
def test_an_unusual_frame_is_left_to_the_parser(odd: bytes) -> None:
    good = frame(batched(1), b"x")
    page, pos = scanned(good + odd + frame(batched(3)))
    assert pos == len(good)
    assert page.take().columns.seqs == [1]


def test_a_header_size_that_does_not_fit_the_block_is_left_to_the_parser() -> None:
    header = batched(1)
    data = b"%b%d %d\r\n%bxx\r\n" % (PREFIX, len(header) + 1, len(header) + 2, header)
    assert scanned(data)[1] == 0


def test_sequences_that_go_back_are_a_protocol_error() -> None:
    page = ColumnPage("the question")
    page.deliver(reply(batched(3)))
    assert page.deliver(reply(batched(2))) is True
    assert page.take().columns.seqs == [3]
    with pytest.raises(RemoteProtocolError, match="sequence 2 came after 3"):
        page.take()


def test_two_responders_to_one_request_are_a_protocol_error() -> None:
    page = ColumnPage("x")
    page.deliver(reply(batched(1)))
    page.deliver(reply(batched(2).replace(b"ORDERS", b"OTHER")))
    page.take()
    with pytest.raises(RemoteProtocolError, match="OTHER"):
        page.take()


@pytest.mark.parametrize(
    ("status", "error"), [(b"412 Min Last Sequence", StaleReadError), (b"503", DirectGetNotAllowedError)]
)
def test_a_status_that_is_an_error_is_raised_by_take(status: bytes, error: type[Exception]) -> None:
    page = ColumnPage("x", min_last_seq=5)
    assert page.deliver(reply(b"NATS/1.0 " + status + b"\r\n\r\n")) is True
    assert page.ready()
    with pytest.raises(error):
        page.take()


def test_a_404_is_the_end_of_an_empty_batch() -> None:
    page = ColumnPage("x")
    assert page.deliver(reply(b"NATS/1.0 404 Message Not Found\r\n\r\n")) is True
    assert page.finished
    assert page.take().columns.seqs == []
    assert page.end is not None
    assert page.end.pending == 0


def test_the_caches_of_sizes_and_seconds_are_bounded() -> None:
    page = ColumnPage("x")
    page.attach(PREFIX)
    for n in range(1, 10_000):
        time = b"2026-11-15T%02d:%02d:%02dZ" % (n // 3600, n // 60 % 60, n % 60)
        data = frame(batched(n, time=time), b"x" * n)
        assert page.scan(data, 0) == (len(data), 1)
    assert len(page._seconds) <= 4096
    assert len(page._sizes) <= 4096
    assert len(page.take().columns.cut(3).messages()) == 3

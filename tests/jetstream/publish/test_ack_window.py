"""Acks that are taken together count as those that are taken one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api import PubAck
from slipstream.jetstream.publish import ack_window
from slipstream.jetstream.publish.ack_window import AckWindow, PublishAcks
from slipstream.jetstream.publish.sent import PendingAck, Sent

BODIES = st.sampled_from(
    [
        b'{"stream":"S","seq":7}',
        b'{"stream":"S","seq":8}',
        b'{"stream":"S","seq":10}',
        b'{"stream":"S", "seq":8}',
        b'{"stream":"T","domain":"d","seq":7}',
        b'{"stream":"S","seq":7,"duplicate":true}',
        b'{"error":{"code":400},"stream":"S","seq":0}',
        b'{"stream":"S","seq":7}\r\nMSG _INBOX.x.2 1 22\r\n{"stream":"S","seq":8}',  # imitates two frames
    ]
)
IN_CHUNK = 20  # frames


def ack(token: int, body: bytes) -> bytes:
    return b"MSG _INBOX.x.%d 1 %d\r\n%b\r\n" % (token, len(body), body)


def scan(bodies: list[bytes], owners: list[int], *, is_noted: bool, has_pending: bool) -> tuple[Any, ...]:
    """What became of acks for the tokens from 1 on: of two publishers, and of blocks (2), which have other sinks."""
    noted: list[tuple[PubAck, str, bytes]] = []
    first = AckWindow(100, (lambda ack, subject, header: noted.append((ack, subject, header))) if is_noted else None)
    acks, windows, pendings = PublishAcks(), [first, AckWindow(100)], list[PendingAck]()
    acks.attach(b"MSG _INBOX.x.")
    for token, owner in enumerate(owners[: len(bodies)], 1):
        pending = PendingAck() if has_pending and token % 3 == 0 else None
        if owner < 2:
            acks.register(token, (windows[owner], Sent(token, "a", pending)))
        if pending is not None:
            pendings.append(pending)
    frames = [ack(token, body) for token, body in enumerate(bodies, 1)]
    taken: list[int] = []
    for begin in range(0, len(frames), IN_CHUNK):
        chunk = frames[begin : begin + IN_CHUNK]
        at = 0
        while at < len(chunk):
            data = b"".join(chunk[at:])
            end, count = acks.scan(data, 0)
            assert end == sum(map(len, chunk[at : at + count]))
            taken += range(begin + at, begin + at + count)
            at += count or 1  # what it leaves is the parser's
    seen = [(window.acked, window.duplicates, window.in_flight, window.last_ack) for window in windows]
    return taken, noted, seen, [one.result() if one.is_done() else None for one in pendings], acks.in_flight


@given(
    st.lists(st.tuples(BODIES, st.integers(1, 6)), max_size=12),
    st.one_of(st.lists(st.integers(0, 2), min_size=72, max_size=72), st.just([0] * 72)),
    st.booleans(),
    st.booleans(),
)
def test_acks_in_a_row_count_as_those_one_by_one(
    runs: list[tuple[bytes, int]], owners: list[int], is_noted: bool, has_pending: bool
) -> None:
    bodies = [body for body, count in runs for _ in range(count)]
    results = []
    for run_length in (2, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ack_window, "_RUN_LENGTH", run_length)
            results.append(scan(bodies, owners, is_noted=is_noted, has_pending=has_pending))
    assert results[0] == results[1]


def test_acks_with_one_more_digit_are_taken_as_well() -> None:
    acks, window = PublishAcks(), AckWindow(5000)
    acks.attach(b"MSG _INBOX.x.")
    for token in range(1, 2001):
        acks.register(token, (window, Sent(token, "a")))
    for begin in range(1, 2001, 100):
        data = b"".join(ack(token, b'{"stream":"S","seq":%d}' % token) for token in range(begin, begin + 100))
        assert acks.scan(data, 0) == (len(data), 100)
    assert (window.acked, window.in_flight, window.last_ack) == (2000, 0, PubAck("S", 2000))


def test_a_repeated_ack_behind_a_run_counts_once_and_leaves_the_last_ack_of_the_run() -> None:
    acks, window = PublishAcks(), AckWindow(100)
    acks.attach(b"MSG _INBOX.x.")
    for token in range(1, 73):
        acks.register(token, (window, Sent(token, "a")))
    bodies = [b'{"stream":"S","seq":%d}' % (100 + token) for token in range(73)]
    acks.scan(b"".join(ack(token, bodies[token]) for token in range(1, 33)), 0)
    assert (window.acked, window.last_ack) == (32, PubAck("S", 132))
    data = b"".join(ack(token, bodies[token]) for token in (*range(33, 73), 72, 33))
    assert acks.scan(data, 0) == (len(data), 42)
    assert (window.acked, window.in_flight, window.last_ack) == (72, 0, PubAck("S", 172))

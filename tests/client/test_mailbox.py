"""The mailbox against a model: in order, bounded, and every message is either taken or counted in a gap."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.mailbox import Mailbox
from slipstream.errors import ConnectionLostError, SlowConsumerError, UsageError
from slipstream.wire import Msg


def message(number: int, size: int = 1) -> Msg:
    return Msg(str(number), b"2", "", b"", b"x" * size)


def box_of(max_msgs: int = 10, max_bytes: int = 1000) -> Mailbox:
    return Mailbox(b"2", "a", queue="", max_msgs=max_msgs, max_bytes=max_bytes)


@given(st.lists(st.sampled_from(["add", "add_all", "take", "take_all"])), st.integers(1, 4), st.integers(1, 12))
def test_every_message_is_taken_in_order_or_counted_where_it_was_dropped(
    steps: list[str], max_msgs: int, max_bytes: int
) -> None:
    box = box_of(max_msgs, max_bytes)
    sent = 0
    seen: list[int] = []  # the numbers taken, and -n for a gap of n

    def read(whole: bool) -> None:
        if not box.is_ready:
            return
        try:
            msgs = box.take_all() if whole else [box.take()]
            seen.extend(int(msg.subject) for msg in msgs)
        except SlowConsumerError as exc:
            found = re.search(r": (\d+) message", str(exc))
            assert found is not None
            seen.append(-int(found[1]))

    for step in steps:
        if step.startswith("add"):
            msgs = [message(sent + i, size=3) for i in range(1 if step == "add" else 2)]
            sent += len(msgs)
            if step == "add":
                box.add(msgs[0])
            else:
                box.add_all(msgs)
            assert box.pending <= max_msgs
            assert box.pending * 3 <= max_bytes
        else:
            read(step == "take_all")
    while box.is_ready:
        read(False)
    position = 0
    for number in seen:
        if number >= 0 and number == position:
            position += 1
        else:
            assert number < 0
            position -= number
    assert position == sent
    assert box._size == 0


def test_a_waiting_reader_is_woken_once() -> None:
    box, woken = box_of(), []
    box.wake_with(lambda: woken.append(box.pending))
    box.add(message(0))
    box.add(message(1))
    assert woken == [1]
    box.wake_with(lambda: woken.append(-1))
    box.end()
    box.end()
    assert woken == [1, -1]


def test_after_the_end_readers_get_the_rest_and_then_the_reason() -> None:
    ordered, failed = box_of(), box_of()
    for box, error in ((ordered, None), (failed, ConnectionLostError("why"))):
        box.add(message(0))
        box.end(error)
        assert not box.is_over
        assert [msg.subject for msg in box.take_all()] == ["0"]
    assert ordered.is_over
    assert not failed.is_over
    with pytest.raises(UsageError, match="ended after 1 messages"):
        ordered.take_all()
    with pytest.raises(ConnectionLostError, match="why"):
        failed.take()


def test_a_chunk_ends_before_a_gap() -> None:
    box = box_of(max_msgs=2)
    for i in range(4):
        box.add(message(i))
    assert [msg.subject for msg in box.take_all()] == ["0", "1"]
    box.add(message(4))
    with pytest.raises(SlowConsumerError, match="2 message"):
        box.take_all()
    assert [msg.subject for msg in box.take_all()] == ["4"]


def test_a_stirred_reader_is_woken_once_and_finds_nothing() -> None:
    woken: list[int] = []
    box = Mailbox(b"1", "a", queue="", max_msgs=5, max_bytes=100)
    box.stir()  # nobody waits
    box.wake_with(lambda: woken.append(1))
    box.stir()
    box.stir()
    assert (woken, box.is_ready) == ([1], False)

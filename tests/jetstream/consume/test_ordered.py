"""Ordered consumers: in order and without gaps, whatever arrives; no server, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api import (
    ConsumerConfig,
    ConsumerInfo,
    SequenceInfo,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamState,
)
from slipstream.client.raw_columns import Packed
from slipstream.errors import ConsumerDeletedError, Error, MessageGapError, RemoteProtocolError, UsageError
from slipstream.jetstream.consume.ordered import MessageRun, OrderedState, template
from slipstream.jetstream.consume.status import ControlReply
from slipstream.wire import Msg
from tests.jetstream.frames import flow_control, heartbeat, message, message_v2, status


def info(name: str = "one", *, pending: int = 0, before: int = 0) -> ConsumerInfo:
    return ConsumerInfo(name=name, num_pending=pending, delivered=SequenceInfo(stream_seq=before))


def started(config: ConsumerConfig | None = None, *, before: int = 0) -> OrderedState:
    ordered = OrderedState(config or template())
    ordered.created(info(pending=3, before=before))
    return ordered


def seqs(found: object) -> list[int]:
    assert isinstance(found, MessageRun)
    return [int(msg.reply.split(".")[5]) for msg in found.each()]


def test_messages_in_order_are_returned_in_runs() -> None:
    ordered = started()
    assert ordered.initial_pending == 3
    ordered.feed([message(4, cseq=1), message(9, cseq=2)])
    ordered.feed([message(10, cseq=3)])
    assert seqs(ordered.take()) == [4, 9]
    assert seqs(ordered.take()) == [10]
    assert ordered.take() is None
    assert ordered.last_seq == 10


def test_a_run_has_the_metadata_of_the_reply_subjects_in_all_formats() -> None:
    ordered = started()
    ordered.feed([message(4, cseq=1, pending=9)])
    ordered.feed([message(5, cseq=2, pending=8), message(7, cseq=3, pending=7)])
    for consumer_seq, expected in ((1, [(4, 9)]), (3, [(5, 8), (7, 7)])):
        run = ordered.take()
        assert isinstance(run, MessageRun)
        assert run.stream == "S"
        assert list(zip(run.seqs, run.left, strict=True)) == expected
        assert ordered.consumer_seq == consumer_seq
    longer = started()
    for frames in ([message_v2(1)], [message_v2(2)], [message_v2(3, extra=".x")]):
        longer.feed(frames)
        run = longer.take()
        assert isinstance(run, MessageRun)
        assert (run.stream, run.seqs, run.times) == ("S", [longer.last_seq], [1_700_000_000_000_000_000])


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), max_size=6))
def test_packed_frames_give_the_same_runs_as_single_messages(chunks: list[list[int]]) -> None:
    """In order, doubled, with gaps: all the same."""
    one, other = started(), started()
    for chunk in chunks:
        msgs = [message(seq, cseq=seq, subject=f"a.{seq}", data=b"%d" % seq) for seq in chunk]
        one.feed(msgs)
        other.feed(
            Packed(
                b"7",
                [m.subject.encode() for m in msgs],
                [m.reply.encode() for m in msgs],
                [],
                [m.payload for m in msgs],
                len(msgs),
            )
        )
        while True:
            mine, theirs = one.take(), other.take()
            assert type(mine) is type(theirs)
            if not isinstance(mine, MessageRun) or not isinstance(theirs, MessageRun):
                assert str(mine) == str(theirs)
                break
            assert mine[1:] == theirs[1:]
            assert mine.each() == theirs.each()
            assert (mine.subjects(), mine.payloads()) == (theirs.subjects(), theirs.payloads())
            assert not any(mine.headers() + theirs.headers())
        assert (one.last_seq, one.consumer_seq) == (other.last_seq, other.consumer_seq)


def test_duplicate_frames_are_dropped() -> None:
    ordered = started()
    ordered.feed([message(1), message(1), message(2), message(1), message(3)])
    ordered.feed([message(3), message(2)])
    ordered.feed([message(4)])
    assert seqs(ordered.take()) == [1, 2, 3]
    assert seqs(ordered.take()) == [4]
    assert ordered.take() is None


def test_a_gap_discards_the_consumer_and_the_next_one_starts_behind_the_last_message() -> None:
    ordered = started(template("a.>"))
    ordered.feed([message(1), message(2), message(9, cseq=4), message(10, cseq=5)])
    assert seqs(ordered.take()) == [1, 2]
    gap = ordered.take()
    assert isinstance(gap, MessageGapError)
    assert ordered.discard() == "one"
    assert ordered.take() is None
    config = ordered.config("two", "_INBOX.2")
    assert (config.deliver_policy, config.opt_start_seq, config.filter_subject) == ("by_start_sequence", 3, "a.>")
    assert (config.name, config.deliver_subject, config.ack_policy) == ("two", "_INBOX.2", "none")
    ordered.created(info("two", pending=99))
    ordered.feed([message(3, cseq=1)])
    assert seqs(ordered.take()) == [3]
    assert ordered.initial_pending == 3
    assert ordered.resets == 1


def test_messages_before_one_with_a_malformed_reply_subject_are_returned_before_the_error() -> None:
    ordered = started()
    ordered.feed([message(1)])
    assert seqs(ordered.take()) == [1]
    ordered.feed([message(2), Msg("a", b"7", "$JS.ACK.S.one.1.a.b.c.d", b"", b""), message(4)])
    assert seqs(ordered.take()) == [2]
    assert isinstance(ordered.take(), RemoteProtocolError)
    assert ordered.last_seq == 2


def test_a_heartbeat_shows_a_gap_at_the_end() -> None:
    ordered = started()
    ordered.feed([message(1), heartbeat(1)])
    assert seqs(ordered.take()) == [1]
    assert ordered.take() is None
    ordered.feed([heartbeat(2)])
    assert isinstance(ordered.take(), MessageGapError)


def test_flow_control_is_replied_to_when_all_before_it_was_taken() -> None:
    ordered = started()
    ordered.feed([message(1), flow_control("fc.1"), message(2), heartbeat(2, stalled="fc.1"), flow_control("fc.2")])
    assert seqs(ordered.take()) == [1]
    assert ordered.take() == ControlReply("fc.1")
    assert seqs(ordered.take()) == [2]
    assert ordered.take() == ControlReply("fc.2")
    assert ordered.take() is None


def test_error_statuses_and_foreign_messages_discard_the_consumer() -> None:
    ordered = started()
    ordered.feed([message(1), status(409, "Consumer Deleted")])
    assert seqs(ordered.take()) == [1]
    assert isinstance(ordered.take(), ConsumerDeletedError)
    ordered = started()
    ordered.feed([Msg("a", b"7", "$JS.ACK.x", b"", b"")])
    assert isinstance(ordered.take(), Error)


def test_the_longer_format_of_the_ack_subject_is_accepted() -> None:
    ordered = started()
    ordered.feed([message_v2(1), message_v2(2, extra=".x")])
    assert seqs_v2(ordered.take()) == [1, 2]


def seqs_v2(found: object) -> list[int]:
    assert isinstance(found, MessageRun)
    return [int(msg.reply.split(".")[7]) for msg in found.each()]


@pytest.mark.parametrize(("policy", "begin"), [("new", 8), ("last", 8), ("all", 8)])
def test_a_consumer_lost_before_its_first_message_is_replaced_at_the_same_position(policy: str, begin: int) -> None:
    ordered = started(template(deliver_policy=policy), before=7)
    ordered.discard()
    config = ordered.config("two", "_INBOX.2")
    assert (config.deliver_policy, config.opt_start_seq) == ("by_start_sequence", begin)


def test_last_per_subject_is_requested_again_until_it_is_complete() -> None:
    ordered = started(template(deliver_policy="last_per_subject"), before=7)
    ordered.discard()
    assert ordered.config("two", "x").deliver_policy == "last_per_subject"
    ordered.created(info("two", pending=3))
    ordered.feed([message(20, cseq=1, pending=2)])
    assert seqs(ordered.take()) == [20]
    ordered.discard()
    assert ordered.config("three", "x").deliver_policy == "last_per_subject"
    ordered.created(info("three", pending=3))
    # 20 again; 21 was replaced by 24 meanwhile.
    ordered.feed([message(20, cseq=1, pending=2), message(22, cseq=2, pending=1), message(24, cseq=3)])
    assert seqs(ordered.take()) == [22, 24]
    ordered.discard()
    config = ordered.config("four", "x")
    assert (config.deliver_policy, config.opt_start_seq) == ("by_start_sequence", 25)


def test_last_per_subject_is_complete_when_as_many_arrived_as_there_were() -> None:
    ordered = started(template(deliver_policy="last_per_subject"))
    ordered.feed([message(seq, pending=5) for seq in (1, 2, 3)])  # more were stored meanwhile
    assert seqs(ordered.take()) == [1, 2, 3]
    ordered.discard()
    assert ordered.config("two", "x").opt_start_seq == 4


def test_templates_set_deliver_policy_and_filters() -> None:
    assert template().deliver_policy == "all"
    assert template("a", start_seq=5).opt_start_seq == 5
    assert template(start_seq=5).deliver_policy == "by_start_sequence"
    assert template(start_time=10**18).deliver_policy == "by_start_time"
    several = template(["a", "b.*"], headers_only=True, metadata={"who": "me"})
    assert (several.filter_subjects, several.filter_subject, several.headers_only) == (("a", "b.*"), "", True)
    for bad in (
        lambda: template(start_seq=5, start_time=1),
        lambda: template(start_seq=5, deliver_policy="new"),
        lambda: template(deliver_policy="latest"),
        lambda: template("a..b"),
        lambda: template(start_seq=-1),
        lambda: OrderedState(ConsumerConfig(durable_name="d")),
        lambda: OrderedState(ConsumerConfig(), heartbeat=0),
    ):
        with pytest.raises(UsageError):
            bad()


class Source:
    """A server with one stream: consumers are made on it, frames get lost, doubled, and cut off."""

    def __init__(self, count: int) -> None:
        self.count = count

    def frames(self, start: int) -> list[Msg]:
        return [message(seq, cseq=seq - start + 1) for seq in range(start, self.count + 1)]


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["drop", "double", "cut", "swap"])), max_size=12))
def test_each_message_is_returned_once_and_in_order_under_any_loss_and_duplication(
    faults: list[tuple[int, str]],
) -> None:
    source, ordered, got = Source(20), OrderedState(template()), list[int]()
    plan = list(faults)
    for _ in range(60):
        if ordered.is_broken:
            config = ordered.config("c", "_INBOX.1")
            start = config.opt_start_seq or 1
            frames = source.frames(start)
            ordered.created(info(pending=len(frames), before=start - 1))
            if plan:
                frames = spoiled(frames, *plan.pop())
            ordered.feed([*frames, heartbeat(source.count - start + 1)])
        found = ordered.take()
        if found is None:
            break
        if isinstance(found, MessageRun):
            got += seqs(found)
        elif isinstance(found, Error):
            ordered.discard()
    assert got == list(range(1, 21))


def spoiled(frames: list[Msg], at: int, fault: str) -> list[Msg]:
    if fault == "drop":
        return frames[:at] + frames[at + 1 :]
    if fault == "double":
        return frames[: at + 1] + frames[max(0, at - 2) :]
    if fault == "swap":
        return frames[:at] + frames[at : at + 2][::-1] + frames[at + 2 :]
    return frames[:at]


STORED = 1_700_000_000_000_000_000  # when the messages of `frames` were stored
SECOND = 1_000_000_000


def look(created: int, *, last: int, is_mirror: bool = False) -> StreamInfo:
    config = StreamConfig(name="S", mirror=StreamSource(name="O") if is_mirror else None)
    return StreamInfo(config=config, created=created, state=StreamState(last_seq=last))


@pytest.mark.parametrize(
    ("created", "last", "is_another"),
    [
        (STORED - SECOND, 10, False),
        (STORED + SECOND // 2, 10, False),  # clocks of servers differ
        (STORED + SECOND // 2, 9, True),
        (STORED + 2 * SECOND, 10, True),  # it has got further meanwhile, and its beginning would be skipped
        (STORED - SECOND, 9, False),  # a follower that lags
    ],
)
def test_a_stream_that_was_made_after_its_last_message_is_another_one(
    created: int, last: int, is_another: bool
) -> None:
    ordered = started()
    assert not ordered.needs_look
    ordered.feed([message(10, cseq=1)])
    ordered.take()
    assert ordered.needs_look
    for _ in range(2):
        assert ordered.is_another(look(created, last=last)) is is_another


def test_a_mirror_is_another_one_when_it_was_made_again_between_two_looks() -> None:
    ordered = started()
    ordered.feed([message(10, cseq=1)])
    ordered.take()
    for created, is_another in (
        (STORED + 5 * SECOND, False),
        (STORED + 5 * SECOND, False),
        (STORED + 6 * SECOND, True),
    ):
        assert ordered.is_another(look(created, last=10, is_mirror=True)) is is_another

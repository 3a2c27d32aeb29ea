"""Offsets and ranges: what a query wants and what a stream has, without either."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.api import StreamConfig, StreamInfo, StreamState
from slipstream.errors import UsageError
from slipstream.spark.options import EARLIEST, LATEST, At, Position, SourceOptions
from slipstream.spark.source import plan
from slipstream.spark.source.offsets import Offset, created_of, offset_of
from slipstream.spark.source.plan import DataLossError, Range

SECOND = 1_000_000_000
BORN, BORN_AGAIN = 1_700_000_000 * SECOND + 5, 1_700_000_001 * SECOND


def info(
    first: int = 1, last: int = 100, *, messages: int | None = None, created: int = BORN, **config: object
) -> StreamInfo:
    settings = {"name": "S", "allow_direct": True, **config}
    state = StreamState(first_seq=first, last_seq=last, messages=last - first + 1 if messages is None else messages)
    return StreamInfo(config=StreamConfig(**settings), created=created, state=state)  # type: ignore[arg-type]


def at(seq: int, created: int = BORN) -> Offset:
    return Offset(seq, created_of(info(created=created)))


def no_time(_: int) -> int:
    raise AssertionError("no time was asked for")


# Offsets


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_an_offset_survives_sparks_json(seq: int) -> None:
    offset = at(seq)
    assert offset_of(json.loads(json.dumps(offset.to_json()))) == offset
    assert json.dumps(offset.to_json()) == f'{{"seq": {seq}, "created": "2023-11-14T22:13:20.000000005Z"}}'
    first = offset._replace(begin=seq)
    assert offset_of(json.loads(json.dumps(first.to_json()))) == first != offset


@pytest.mark.parametrize(
    "value", [{}, {"seq": 1}, {"seq": -1, "created": "x"}, {"seq": True, "created": "x"}, {"seq": "1", "created": "x"}]
)
def test_foreign_offset_is_rejected(value: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="does the checkpoint belong to another source"):
        offset_of(value)


# Ranges


@settings(deadline=None)
@given(st.integers(1, 2**60), st.integers(0, 10**9), st.integers(0, 50))
@example(1, 0, 3)
def test_pieces_cover_the_range_without_gap_or_overlap_and_are_even(start: int, size: int, partitions: int) -> None:
    end = start + size - 1
    parts = plan.split(start, end, partitions=partitions)
    if size == 0:
        assert parts == []
        return
    assert parts[0].start == start
    assert parts[-1].end == end
    assert all(one.end + 1 == other.start for one, other in pairwise(parts))
    sizes = {part.end - part.start + 1 for part in parts}
    assert max(sizes) - min(sizes) <= 1
    if partitions:
        assert len(parts) == min(partitions, size)
    else:
        assert max(sizes) <= plan.LARGE_RANGE or len(parts) == plan.MAX_RANGES


def test_a_small_range_is_one_piece_and_a_larger_one_keeps_a_few_cores_busy() -> None:
    assert plan.split(11, 20) == [Range(11, 20)]
    assert plan.split(11, 10) == []
    assert [len(plan.split(1, size)) for size in (25_000, 60_000, 1_000_000, 10_000_000)] == [1, 3, 4, 40]


# Positions


def test_an_empty_stream_has_no_first_message() -> None:
    assert plan.first_seq(info(0, 0, messages=0)) == 1
    assert plan.first_seq(info(101, 100, messages=0)) == 101
    assert plan.first_seq(info(7, 100)) == 7


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=40),
    st.integers(-1, 90),
    st.integers(0, 3),
)
def test_the_first_message_at_or_after_a_time_is_found(steps: list[tuple[int, int]], time: int, tail: int) -> None:
    messages: list[tuple[int, int]] = []  # sequence and time: gaps between sequences, equal times
    seq = moment = 0
    for gap, pause in steps:
        seq, moment = seq + gap, moment + pause
        messages.append((seq, moment))
    first, last = (messages[0][0], seq + tail) if messages else (1, tail)
    newer = [(last + 1, moment + 1)]  # arrived meanwhile: not part of the answer

    def probe(wanted: int) -> tuple[int, int] | None:
        return next((message for message in messages + newer if message[0] >= wanted), None)

    found = plan.find_time(time, first, last, probe)
    before = [seq for seq, moment in messages if moment < time]
    after = [seq for seq, moment in messages if moment >= time]
    assert all(seq < found for seq in before)
    assert all(seq >= found for seq in after)


def test_positions_become_sequences() -> None:
    stream = info(10, 100)
    assert plan.resolve(EARLIEST, stream, at_time=no_time) == 10
    assert plan.resolve(LATEST, stream, at_time=no_time) == 101
    assert plan.resolve(Position(At.SEQUENCE, 42), stream, at_time=no_time) == 42
    assert plan.resolve(Position(At.TIME, 7), stream, at_time=lambda time: time * 2) == 14


# Batch


def batch(
    first: int = 1, last: int = 100, *, starting: Position = EARLIEST, ending: Position = LATEST, fail: bool = True
) -> Range:
    options = SourceOptions(stream="S", starting=starting, ending=ending, fail_on_data_loss=fail)
    return plan.batch_range(options, info(first, last), at_time=lambda time: time)


def test_a_batch_covers_what_is_there() -> None:
    assert batch(5, 100) == Range(5, 100)
    assert batch(starting=Position(At.SEQUENCE, 20), ending=Position(At.SEQUENCE, 30)) == Range(20, 30)
    assert batch(starting=Position(At.TIME, 20), ending=Position(At.TIME, 30)) == Range(20, 29)
    assert plan.split(*batch(starting=Position(At.SEQUENCE, 101))) == []


def test_a_batch_that_wants_removed_messages_is_an_error_that_names_them() -> None:
    early = Position(At.SEQUENCE, 3)
    with pytest.raises(DataLossError, match=r"messages 3 to 9 of stream 'S' were removed.*failOnDataLoss") as caught:
        batch(10, 100, starting=early)
    assert (caught.value.stream, caught.value.first, caught.value.last) == ("S", 3, 9)
    assert batch(10, 100, starting=early, fail=False) == Range(10, 100)
    with pytest.raises(DataLossError, match="messages 3 to 5"):
        batch(10, 100, starting=early, ending=Position(At.SEQUENCE, 5))
    assert plan.split(*batch(10, 100, starting=early, ending=Position(At.SEQUENCE, 5), fail=False)) == []


def test_batch_must_not_end_after_the_last_message() -> None:
    with pytest.raises(UsageError, match="'ending' must be at most 100 for stream 'S', got 101"):
        batch(ending=Position(At.SEQUENCE, 101))


# Micro-batches


def test_a_micro_batch_ends_at_the_last_message_the_limit_or_the_target() -> None:
    stream = info()

    def ends(start: int, *, limit: int = 0, target: int | None = None) -> int:
        goal = None if target is None else at(target)
        return plan.next_offset(at(start), stream, limit=limit, target=goal, fail=True).seq

    assert ends(0) == 100
    assert ends(0, limit=30) == 30
    assert ends(90, limit=30) == 100
    assert ends(0, target=60) == 60
    assert ends(50, limit=30, target=60) == 60
    assert ends(60, limit=30, target=60) == 60
    assert ends(100) == 100
    assert plan.next_offset(at(100), stream, limit=0, target=None, fail=True) is not None


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 100), st.integers(1, 100))
def test_limited_micro_batches_reach_the_target_and_stop(limit: int, start: int, first: int) -> None:
    stream, offset, steps = info(first, 100), at(max(start, first - 1)), 0
    while (following := plan.next_offset(offset, stream, limit=limit, target=at(100), fail=True)) != offset:
        assert 0 < following.seq - offset.seq <= limit
        assert plan.stream_range(offset, following, stream, fail=True) == Range(offset.seq + 1, following.seq)
        offset, steps = following, steps + 1
    assert offset.seq == 100
    assert steps <= 100


def test_removed_messages_end_a_streaming_query_or_are_skipped() -> None:
    stream = info(50, 100)
    with pytest.raises(DataLossError, match="messages 11 to 49"):
        plan.next_offset(at(10), stream, limit=5, target=None, fail=True)
    passed_over = plan.next_offset(at(10), stream, limit=5, target=None, fail=False)
    assert passed_over == at(54)._replace(skipped=39)
    assert passed_over.to_json()["skipped"] == 39
    assert offset_of(passed_over.to_json()) == passed_over
    assert plan.next_offset(passed_over, stream, limit=5, target=None, fail=False).skipped == 39  # it adds up
    assert plan.stream_range(at(10), at(54), stream, fail=False) == Range(50, 54)
    assert plan.next_offset(at(49), stream, limit=5, target=None, fail=True) == at(54)


def test_everything_removed_is_a_loss_too() -> None:
    purged = info(101, 100, messages=0)
    with pytest.raises(DataLossError, match="messages 11 to 100"):
        plan.next_offset(at(10), purged, limit=0, target=None, fail=True)
    assert plan.next_offset(at(100), purged, limit=0, target=None, fail=True) == at(100)


def test_query_catches_up_past_removed_messages() -> None:
    purged = info(101, 100, messages=0)
    end = at(100)._replace(skipped=90)
    for limit in (0, 5):
        assert plan.next_offset(at(10), purged, limit=limit, target=None, fail=False) == end
        assert plan.next_offset(end, purged, limit=limit, target=None, fail=False) == end
    later = info(101, 200)  # the batch is read again, and has no rows still
    for stream in (purged, later):
        part = plan.stream_range(at(10), end, stream, fail=False)
        assert plan.split(*part) == []
    assert plan.next_offset(end, later, limit=5, target=None, fail=False) == at(105)._replace(skipped=90)
    for stream in (purged, later):  # what came behind the target of this run is left to the next one
        end = plan.next_offset(at(10), stream, limit=0, target=at(60), fail=False)
        assert end == at(60)._replace(skipped=50)
        assert plan.split(*plan.stream_range(at(10), end, stream, fail=False)) == []
        assert plan.next_offset(end, stream, limit=0, target=at(60), fail=False) == end
    empty = info(1, 0, messages=0, created=BORN_AGAIN)
    assert plan.next_offset(at(10), empty, limit=0, target=None, fail=False) == at(10)


def test_recreated_stream_is_detected() -> None:
    new = info(1, 20, created=BORN_AGAIN)
    with pytest.raises(DataLossError, match="'S' was deleted and recreated"):
        plan.next_offset(at(10), new, limit=0, target=None, fail=True)
    end = plan.next_offset(at(10), new, limit=8, target=at(10), fail=False)
    assert end == at(8, BORN_AGAIN)
    assert plan.stream_range(at(10), end, new, fail=False) == Range(1, 8)
    with pytest.raises(DataLossError, match="deleted and recreated"):  # a batch of the old one can never be replayed
        plan.stream_range(at(0), at(10), new, fail=True)
    assert plan.stream_range(at(0), at(10), new, fail=False) == Range(11, 10)  # nothing is left of it


def test_a_range_is_read_from_the_stream_it_was_planned_for() -> None:
    plan.check_same(info(), at(0).created)
    with pytest.raises(DataLossError, match="deleted and recreated"):
        plan.check_same(info(created=BORN_AGAIN), at(0).created)


def test_stream_that_lost_its_end_is_an_error_in_any_case() -> None:
    with pytest.raises(DataLossError, match="ends at 100, but was already read to 120"):
        plan.next_offset(at(120), info(), limit=0, target=None, fail=False)


# What can be read


def test_only_streams_that_keep_their_messages_and_offer_direct_get_are_read() -> None:
    plan.check_readable(info())
    with pytest.raises(UsageError, match=r"'S' does not offer Direct Get: set 'allow_direct' to true"):
        plan.check_readable(info(allow_direct=False))
    for retention in ("workqueue", "interest"):
        with pytest.raises(UsageError, match=rf"{retention}' retention.*'limits' retention that has 'S' as source"):
            plan.check_readable(info(retention=retention))


# RangeCompleteness


@settings(deadline=None)
@given(st.sets(st.integers(1, 60)), st.integers(1, 61), st.integers(1, 20), st.booleans())
def test_what_was_removed_during_a_read_is_never_overlooked(
    kept: set[int], first_now: int, size: int, filtered: bool
) -> None:
    part = Range(5, 50)
    completeness = plan.RangeCompleteness(part, filtered=filtered)
    seen = [seq for seq in sorted(kept) if part.start <= seq <= part.end]
    for i in range(0, len(seen), size):
        chunk = seen[i : i + size]
        completeness.received(chunk[0], chunk[-1], len(chunk))
    missing = completeness.missing(first_now)
    unseen = set(range(part.start, min(first_now - 1, part.end) + 1)) - set(seen)
    if unseen:
        assert missing is not None
        assert all(missing.start <= seq <= missing.end for seq in unseen)
    elif not filtered and (size == 1 or first_now <= part.start):
        assert missing is None


def test_a_gap_above_the_first_sequence_is_an_ordinary_one() -> None:
    completeness = plan.RangeCompleteness(Range(1, 10), filtered=False)
    completeness.received(1, 10, 7)
    assert completeness.missing(1) is None
    assert completeness.missing(4) == Range(1, 3)


# Narrower reads


def test_pushed_bounds_cut_the_range_and_never_more() -> None:
    part = Range(10, 90)

    def cut(**bounds: int | bool) -> Range:
        return plan.narrowed(part, plan.ReadBounds(**bounds), at_time=lambda time: time)  # type: ignore[arg-type]

    assert cut() == part
    assert cut(first=20, last=30) == Range(20, 30)
    assert cut(first=1, last=200) == part
    assert cut(since=40, until=50) == Range(40, 50)
    assert plan.split(*cut(first=95)) == []
    assert plan.split(*cut(is_empty=True)) == []


def test_bytes_become_messages_by_the_streams_average() -> None:
    stream = StreamInfo(config=StreamConfig(name="S"), state=StreamState(messages=10, bytes=1000, last_seq=10))
    assert plan.rows_within(250, stream) == 2
    assert plan.rows_within(1, stream) == 1
    assert plan.rows_within(250, info(0, 0, messages=0)) == 1

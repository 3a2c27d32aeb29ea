"""Planning of reads: which ranges of sequences a query reads of a stream.

Pure arithmetic on a stream's info. A range is never planned over messages that are known to be removed: that is a
DataLossError with the range in it, or a skip if the user chose so (`failOnDataLoss`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from slipstream.api import Retention, StreamInfo
from slipstream.errors import Error, UsageError
from slipstream.spark.options import At, Position, SourceOptions
from slipstream.spark.source.offsets import Offset, created_of

# A task costs a connection and some scheduling, about 50 ms, in which 20 thousand messages could be read: so ranges are
# large, but even a small read is cut to keep a few cores busy. Measured with 1 million messages on 2 cores: 2 to 4
# ranges 320 thousand/s, 10 ranges 280, 20 ranges 230.
SMALL_RANGE = 25_000
LARGE_RANGE = 250_000
FEW = 4
MAX_RANGES = 1_000  # a long history is cut into larger pieces instead of more of them


class DataLossError(Error):
    """Messages were removed from the stream before they were read."""

    def __init__(self, message: str, *, stream: str, first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.stream = stream
        self.first = first
        self.last = last


class Range(NamedTuple):
    """The sequences from `start` to `end`, both included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Bounds that pushed-down filters put on a read. `subjects` None: no filter on subjects; empty: no message matches.
    The others are inclusive, in sequences and in nanoseconds; 0 is no bound."""

    subjects: tuple[str, ...] | None = None
    first: int = 0
    last: int = 0
    since: int = 0
    until: int = 0
    is_empty: bool = False


def split(start: int, end: int, *, partitions: int = 0) -> list[Range]:
    """Cut `start..end` into even pieces: as many as asked for, or as many as their size calls for."""
    size = end - start + 1
    if size <= 0:
        return []
    few, many = min(-(-size // SMALL_RANGE), FEW), min(-(-size // LARGE_RANGE), MAX_RANGES)
    pieces = min(partitions or max(few, many), size)
    cuts = [start + size * i // pieces for i in range(pieces + 1)]
    return [Range(low, high - 1) for low, high in pairwise(cuts)]


def check_readable(info: StreamInfo) -> None:
    """Raise UsageError if the stream cannot be read completely by Direct Get."""
    name, config = info.config.name, info.config
    if config.retention != Retention.LIMITS:
        raise UsageError(
            f"stream {name!r} has {config.retention!r} retention: its messages are removed when consumers ack them, so "
            f"no read is complete. Create a stream with 'limits' retention that has {name!r} as source, and read that"
        )
    if not config.allow_direct:
        raise UsageError(
            f"stream {name!r} does not offer Direct Get: set 'allow_direct' to true in its configuration "
            f"(update_stream, or `slipstream stream edit {name} --allow-direct`)"
        )


def first_seq(info: StreamInfo) -> int:
    """The first sequence that can be read; one past the last if the stream is empty."""
    state = info.state
    return state.first_seq if state.messages else state.last_seq + 1


def find_time(time: int, first: int, last: int, probe: Callable[[int], tuple[int, int] | None]) -> int:
    """The first sequence in `first..last` stored at `time` or later; `last + 1` if there is none.

    `probe(seq)` returns sequence and time of the first message at or after `seq`, None if there is none.
    """
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        found = probe(middle)
        if found is None or found[0] > last or found[1] >= time:
            high = middle
        else:
            low = found[0] + 1
    return low


def resolve(position: Position, info: StreamInfo, *, at_time: Callable[[int], int]) -> int:
    """The sequence of the first message at or after a position; `latest` is one past the last message."""
    if position.at is At.EARLIEST:
        return first_seq(info)
    if position.at is At.LATEST:
        return info.state.last_seq + 1
    return at_time(position.value) if position.at is At.TIME else position.value


def batch_range(
    options: SourceOptions,
    info: StreamInfo,
    *,
    at_time: Callable[[int], int],
    skipped: Callable[[Range], None] | None = None,
) -> Range:
    """What a batch read covers. An ending sequence is included; an ending time is not, so that periods adjoin.

    `skipped` is called with the range that is lost, if the user accepts that.
    """
    last = info.state.last_seq
    start = resolve(options.starting, info, at_time=at_time)
    ending = options.ending
    end = ending.value if ending.at is At.SEQUENCE else resolve(ending, info, at_time=at_time) - 1
    if ending.at is At.SEQUENCE and end > last:
        raise UsageError(f"option 'ending' must be at most {last} for stream {info.config.name!r}, got {end}")
    if options.starting.at is At.SEQUENCE and start > last + 1:
        raise UsageError(f"option 'starting' must be at most {last + 1} for stream {info.config.name!r}, got {start}")
    first = after_loss(start, end, info, fail=options.fail_on_data_loss)
    if first > start and skipped is not None:
        skipped(Range(start, min(first - 1, end)))
    return Range(first, end)


def narrowed(part: Range, bounds: ReadBounds, *, at_time: Callable[[int], int]) -> Range:
    """The range without what pushed-down filters exclude."""
    start, end = max(part.start, bounds.first), min(part.end, bounds.last) if bounds.last else part.end
    if bounds.is_empty or start > end:
        return Range(part.start, part.start - 1)
    if bounds.since:
        start = max(start, at_time(bounds.since))
    if bounds.until:
        end = min(end, at_time(bounds.until + 1) - 1)
    return Range(start, end)


def next_offset(start: Offset, info: StreamInfo, *, limit: int, target: Offset | None, fail: bool) -> Offset:
    """The end of the micro-batch after `start`: at most `limit` sequences further (0: no limit), never past `target`.

    Where every message of it is lost, it still ends there, without rows, so that the query catches up.
    """
    created = created_of(info)
    last = info.state.last_seq
    if target is not None and target.created == created:
        last = min(last, target.seq)
    base = stream_start(start, info, fail=fail) - 1
    end = min(last, base + limit) if limit else last
    if start.created != created:
        return Offset(end, created, start.skipped) if end > base else start
    return Offset(end, created, start.skipped + min(base, end) - start.seq) if end > start.seq else start


def rows_within(size: int, info: StreamInfo) -> int:
    """How many messages fit into `size` bytes, by the stream's average; at least one."""
    state = info.state
    return max(size * state.messages // state.bytes, 1) if state.bytes else 1


def stream_range(start: Offset, end: Offset, info: StreamInfo, *, fail: bool) -> Range:
    """The sequences of the micro-batch `(start, end]`. Empty for a stream that was recreated."""
    if end.created != created_of(info) and not fail:
        return Range(end.seq + 1, end.seq)
    check_same(info, end.created)
    return Range(stream_start(start, info, fail=fail), end.seq)


def stream_start(start: Offset, info: StreamInfo, *, fail: bool) -> int:
    """The first sequence to read after `start` and after what was lost."""
    if start.created != created_of(info):
        if fail:
            raise _recreated(info, start.created)
        return first_seq(info)
    if info.state.last_seq < start.seq:
        raise DataLossError(
            f"stream {info.config.name!r} ends at {info.state.last_seq}, but was already read to {start.seq}: "
            "did the server lose messages, or was it restored from a backup?",
            stream=info.config.name,
        )
    return after_loss(start.seq + 1, info.state.last_seq, info, fail=fail)


def after_loss(start: int, end: int, info: StreamInfo, *, fail: bool) -> int:
    """`start`, or the stream's first sequence where `start..end` lies below it and the user accepts that."""
    first = first_seq(info)
    if start >= first or start > end:
        return start
    if fail:
        raise lost(info.config.name, start, min(first - 1, end))
    return first


def lost(stream: str, first: int, last: int) -> DataLossError:
    """The error for messages `first..last` that were removed."""
    return DataLossError(
        f"messages {first} to {last} of stream {stream!r} were removed, by its limits or a purge, before they were "
        "read; set the option failOnDataLoss to false to continue with the remaining messages",
        stream=stream,
        first=first,
        last=last,
    )


def check_same(info: StreamInfo, created: str) -> None:
    """Raise DataLossError if the stream is not the one created at that time."""
    if created_of(info) != created:
        raise _recreated(info, created)


def _recreated(info: StreamInfo, created: str) -> DataLossError:
    return DataLossError(
        f"stream {info.config.name!r} was deleted and recreated: it was created {created_of(info)}, the query read "
        f"the one of {created}. Start with a new checkpoint, or set the option failOnDataLoss to false to read the "
        "new one from its first message",
        stream=info.config.name,
    )


class RangeCompleteness:
    """Tracks the read of a range, and tells afterwards whether limits may have removed messages of it meanwhile."""

    def __init__(self, part: Range, *, filtered: bool) -> None:
        self._part = part
        self._filtered = filtered
        self._next = part.start  # every sequence below was received

    def received(self, first: int, last: int, count: int) -> None:
        """A chunk of `count` messages from `first` to `last` arrived."""
        if first == self._next and last - first + 1 == count:
            self._next = last + 1

    def missing(self, first_seq_now: int) -> Range | None:
        """Sequences that may be lost, from the stream's first sequence after the read; None if none is.

        A gap above the first sequence is an ordinary one (deletes, limits per subject). Below it, only sequences that
        were received one by one are known to have been read.
        """
        start = self._part.start if self._filtered else self._next
        end = min(first_seq_now - 1, self._part.end)
        return Range(start, end) if start <= end else None

"""Starting point of a consumer by its deliver policy: a sequence, and for `last_per_subject` a list of them."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from struct import pack, unpack_from

from slipstream.api import ConsumerConfig, DeliverPolicy
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.consumers.filters import Filters
from slipstream.server.engine.ports import MOST_UNFORESEEN, LogSnapshot, LogState, Record, StreamLog, Walk, Work

REVIEWED = 128  # messages that are looked up between two pauses
LISTED = 8192  # sequences that are added to a list between two pauses


class SkipList:
    """The last messages of all subjects when the consumer began; everything from `resume` on follows them."""

    def __init__(self, seqs: array[int], resume: int) -> None:
        """`seqs`, an array of type Q, belongs to the list from now on: it is saved as it is, with each save."""
        self.resume = resume  # the first sequence behind the listed messages
        self._seqs = seqs
        self._at = 0

    def __len__(self) -> int:
        return len(self._seqs) - self._at

    @property
    def done(self) -> bool:
        return self._at >= len(self._seqs)

    def next(self, log: StreamLog, limit: int, work: Work) -> list[Record]:
        """The next of them, without those that were removed, up to a damaged one. Raises if it would be the first."""
        found: list[Record] = []
        for seq in self._seqs[self._at : self._at + limit]:
            try:
                record = log.get(seq)
            except CorruptRecordError:
                if not found:
                    raise
                return found
            if record is not None:
                found.append(record)
                if work.units > MOST_UNFORESEEN:
                    return found
        if not found:
            self._at = min(self._at + limit, len(self._seqs))
        return found

    def took(self, seq: int) -> None:
        """A message was delivered; those before it that were not have been removed."""
        self._at = bisect_left(self._seqs, seq) + 1

    def lost(self, seq: int) -> bool:
        """A message was removed from the stream; whether it was one of those to come."""
        at = bisect_left(self._seqs, seq, self._at)
        if at < len(self._seqs) and self._seqs[at] == seq:
            del self._seqs[at]
            return True
        return False

    def review(self, log: StreamLog, filters: Filters) -> None:
        """Drop those that were removed, or that the filters do not cover any more."""
        self._seqs = array("Q", [seq for seq in self._seqs[self._at :] if _is_wanted(log, seq, filters)])
        self._at = 0

    def review_walk(self, log: StreamLog, filters: Filters) -> Walk[None]:
        """The same in slices; nothing else must change the list meanwhile."""
        wanted = array("Q")
        rest = self._seqs[self._at :]
        for at in range(0, len(rest), REVIEWED):
            wanted.extend([seq for seq in rest[at : at + REVIEWED] if _is_wanted(log, seq, filters)])
            yield REVIEWED // 2
        self._seqs, self._at = wanted, 0

    def pack(self) -> bytes:
        rest = self._seqs[self._at :]
        return pack("<Q", self.resume) + _little(rest).tobytes() if rest else b""

    @classmethod
    def unpack(cls, data: bytes) -> SkipList | None:
        if len(data) < 16:
            return None
        seqs = array("Q")
        seqs.frombytes(data[8 : len(data) // 8 * 8])
        return cls(_little(seqs), unpack_from("<Q", data)[0])


def _little(seqs: array[int]) -> array[int]:
    """To the byte order of the store, or from it."""
    if sys.byteorder == "big":
        seqs.byteswap()
    return seqs


def exists(log: StreamLog, seq: int) -> bool:
    """Whether a message is in the stream, even if it is damaged."""
    try:
        return log.get(seq) is not None
    except CorruptRecordError:
        return True


def _is_wanted(log: StreamLog, seq: int, filters: Filters) -> bool:
    try:
        record = log.get(seq)
    except CorruptRecordError:
        return True
    return record is not None and filters.covers(record.subject)


def starting_point(
    config: ConsumerConfig, filters: Filters, log: StreamLog, *, after: int
) -> tuple[int, SkipList | None]:
    """The first stream sequence of interest; `after` was the last sequence when the consumer was requested."""
    seqs = array("Q")
    last = 0
    if config.deliver_policy == DeliverPolicy.LAST:
        last = filters.last(log)
    elif config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT:
        seqs.extend(log.multi_last(filters.patterns or (">",), limit=1 << 62) or [])
    return _start(config, log, log.committed, after=after, last=last, seqs=seqs)


def starting_walk(
    config: ConsumerConfig, filters: Filters, log: StreamLog, snapshot: LogSnapshot, *, after: int
) -> Walk[tuple[int, SkipList | None]]:
    """The same of a snapshot of now, in slices."""
    seqs = array("Q")
    last = 0
    at_time = _start(config, log, snapshot.committed, after=after, last=0, seqs=seqs)  # before others change the log
    if config.deliver_policy == DeliverPolicy.LAST:
        last = yield from filters.last_walk(snapshot)
    elif config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT:
        found = (yield from snapshot.multi_last(filters.patterns or (">",), limit=1 << 62)) or []
        for at in range(0, len(found), LISTED):
            seqs.extend(found[at : at + LISTED])
            yield LISTED // 64
    else:
        return at_time
    return _start(config, log, snapshot.committed, after=after, last=last, seqs=seqs)


def _start(
    config: ConsumerConfig, log: StreamLog, state: LogState, *, after: int, last: int, seqs: array[int]
) -> tuple[int, SkipList | None]:
    policy, skips = config.deliver_policy, None
    if policy == DeliverPolicy.BY_START_SEQUENCE:
        return max(config.opt_start_seq, state.first_seq), None
    if policy == DeliverPolicy.LAST:
        start = last or after + 1
    elif policy == DeliverPolicy.LAST_PER_SUBJECT:
        start = seqs[0] if seqs else state.last_seq + 1
        skips = SkipList(seqs, state.last_seq + 1) if seqs else None
    elif policy == DeliverPolicy.BY_START_TIME:
        start = log.time_to_seq(config.opt_start_time or 0)
    elif policy == DeliverPolicy.NEW:
        start = after + 1
    else:
        start = state.first_seq
    return max(min(start, state.last_seq + 1), state.first_seq, 1), skips

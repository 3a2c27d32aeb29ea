"""Snapshot of one log in LMDB, for walks in slices.

The snapshot is the readers' transaction of one moment, kept open (`env.Pin`), and a copy of the part of the log that is
in memory. Nothing that is committed afterwards changes either of them, so a walk may hold its cursors between slices
and answers as of that moment.

The copy is made with the first walk, at the latest before its first pause, and shared by all snapshots of the moment.
Walks that end before that (`last`, when one of the newest messages matches) cost no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import cast

from slipstream.server.engine.ports import (
    MOST_UNFORESEEN,
    LogState,
    Record,
    Walk,
    has_wildcard,
    matcher,
    matching,
    sorted_walk,
)
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.reader import LogReader, or_damaged
from slipstream.server.store.lmdb.records import literal_prefix
from slipstream.server.store.lmdb.segments import Base, Tuning
from slipstream.server.store.lmdb.view import LOOKED, View

PAUSE = 64  # units of work between two pauses; a row or message that matches is one
KEYS = 2048  # of messages, that are looked at between two pauses
LOOKED_UNITS = LOOKED // 8  # for rows and entries that are only looked at


class LmdbSnapshot:
    """The reader's view of one log at one moment."""

    def __init__(self, env: Environment, log: LogReader, base: Base, tuning: Tuning) -> None:
        self._log = log
        self._base = base
        self._tuning = tuning
        self._env = env
        self.committed: LogState = base.state
        self._pin = env.pin()
        self._is_open = True
        self._copy: LogReader | None = None

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._copy = None
            self._pin.release()

    def _reader(self) -> LogReader:
        if self._copy is None:
            pin = self._pin
            base = pin.bases.get(self._base.sid)
            if base is None:
                assert pin.epoch == self._env.epoch, "a snapshot is read from before the first pause on"
                base = pin.bases[self._base.sid] = self._base.copied()
            self._copy = LogReader(cast(Environment, pin), self._log.name, base, self._tuning)
        return self._copy

    def hold(self) -> None:
        self._reader()

    def get(self, seq: int) -> Record | None:
        return self._reader().get(seq)

    def last(self, pattern: str) -> Walk[int]:
        if not self.committed.messages:
            return 0
        recent = self._log.last_recent(pattern)
        if recent is not None:
            return recent
        view = self._reader().view
        best = done = 0
        for item in view.row_steps(*_chosen(pattern)):
            if item is None:
                yield LOOKED_UNITS
                continue
            subject, row = item
            if row[2] > best:
                best = max(best, view.last_in(subject, row))
                done += 1
                if done == PAUSE:
                    done = 0
                    yield PAUSE
        return best

    def next(self, pattern: str, seq: int) -> Walk[Record | None]:
        prefix, fits = _chosen(pattern)
        at, seq = self._log.probe_next(fits, seq)
        if at:
            return self._log.get(at)
        if seq > self.committed.last_seq:
            return None
        reader = self._reader()
        yield LOOKED_UNITS
        for hit in reader.seq_steps(prefix, fits, seq):
            if hit is not None:
                return reader.get(hit)
            yield LOOKED_UNITS
        return None

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> Walk[list[int] | None]:
        view = self._reader().view
        found: set[int] = set()
        work = self._env.work
        done, begun = 0, work.units
        # Filters with the same literal beginning share one walk over the subjects.
        groups: dict[str, dict[str, None]] = {}
        for pattern in patterns:
            if pattern and not has_wildcard(pattern):
                if seq := or_damaged(view.last_of, pattern, up_to):
                    found.add(seq)
                done += 1
                if done == PAUSE or work.units - begun > MOST_UNFORESEEN:
                    yield done
                    done, begun = 0, work.units
            else:
                groups.setdefault(literal_prefix(pattern), {})[pattern] = None
        for group in groups.values():
            prefix, fits, units = _chosen_of(tuple(group))
            for item in view.row_steps(prefix, fits):
                if item is None:
                    yield units
                    continue
                if seq := or_damaged(view.last_in, *item, up_to):
                    found.add(seq)
                    if len(found) > limit:
                        return None
                done += 1
                if done == PAUSE or work.units - begun > MOST_UNFORESEEN:
                    yield done
                    done, begun = 0, work.units
            done += 1  # a walk is not free, even if it finds nothing
            if done >= PAUSE:
                done = 0
                yield PAUSE
        return None if len(found) > limit else (yield from sorted_walk(list(found)))

    def count(self, patterns: Sequence[str], seq: int) -> Walk[int]:
        reader = self._reader()
        state, view = self.committed, reader.view
        if seq > state.last_seq or not state.messages:
            return 0
        if any(pattern in ("", ">") for pattern in patterns):
            return reader.count("", seq)
        if len(patterns) == 1 and not has_wildcard(patterns[0]):
            return (yield from self._count_subject(view, patterns[0], seq))
        prefix, fits, units = _chosen_of(patterns)
        total = done = 0
        if seq <= state.first_seq:
            for item in view.row_steps(prefix, fits):
                if item is None:
                    yield units
                    continue
                total += view.count_of(*item)
                done += 1
                if done == PAUSE:
                    done = 0
                    yield PAUSE
            return total
        for counted in reader.counts_from(prefix, fits, seq):
            if counted is None:
                yield units
            else:
                total += counted
        return total

    def _count_subject(self, view: View, subject: str, seq: int) -> Walk[int]:
        row = view.row(subject)
        if row is None or not row[0]:
            return 0
        if seq <= max(row[1], self.committed.first_seq):
            return view.count_of(subject, row)
        total = 0
        for total, _ in enumerate(view.counted(subject, seq, row[2]), 1):
            if not total % PAUSE:
                yield PAUSE // 2
        return total

    def subjects(self, pattern: str) -> Walk[list[tuple[str, int]]]:
        view = self._reader().view
        found: list[tuple[str, int]] = []
        done = 0
        for item in view.row_steps(*_chosen(pattern)):
            if item is None:
                yield LOOKED_UNITS
                continue
            if count := view.count_of(*item):
                found.append((item[0], count))
            done += 1
            if done == PAUSE:
                done = 0
                yield PAUSE // 2
        return (yield from sorted_walk(found))

    def gaps(self, limit: int) -> Walk[list[int]]:
        reader, state = self._reader(), self.committed
        found: list[int] = []
        expected = state.first_seq
        for looked, seq in enumerate(reader.all_seqs(), 1):
            if seq > expected:
                found += range(expected, min(seq, expected + limit - len(found)))
                if len(found) >= limit:
                    return found
            expected = seq + 1
            if not looked % KEYS:
                yield KEYS // 16
        if state.messages:
            found += range(expected, min(state.last_seq + 1, expected + limit - len(found)))
        return found


def _chosen(pattern: str) -> tuple[str, Callable[[str], bool]]:
    """What every subject begins with that matches the filter, and whether a subject does."""
    return literal_prefix(pattern), matcher(pattern or ">")


def _chosen_of(patterns: Sequence[str]) -> tuple[str, Callable[[str], bool], int]:
    """The same of several filters, and the units of work for `LOOKED` subjects."""
    beginnings = [literal_prefix(pattern) for pattern in patterns]
    fits, weight = matching(patterns)
    return commonprefix(beginnings), fits, LOOKED_UNITS * weight  # noqa: RUF071 - characters are meant, not paths

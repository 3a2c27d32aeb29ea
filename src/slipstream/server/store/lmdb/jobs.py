"""Background jobs of the LMDB store: index segments, flush subject rows, clear what was deleted.

Each job is cut into small steps, which later groups carry out inside their own transactions. A job can be dropped at
any step and begun again: what it has done so far stays true, and what is left to do follows from the log's base. So
jobs are never stored; after a crash, or a group that failed, they are planned from the base.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from slipstream.server.store.lmdb.env import (
    CONTROL,
    EXPIRIES,
    INDEX,
    INDEXED,
    JOURNAL,
    KEPT,
    MESSAGES,
    RETIRED,
    SEGMENT,
    SUBJECTS,
    Environment,
    control_key,
)
from slipstream.server.store.lmdb.records import INDEXED as INDEXED_RECORD
from slipstream.server.store.lmdb.records import pack_entries, pack_rows, seal, weigh
from slipstream.server.store.lmdb.segments import Base, Delta
from slipstream.server.store.lmdb.view import read_tail


class Job(Protocol):
    """Work that is done in steps."""

    def steps(self, env: Environment) -> Iterator[int]:
        """Do the work; yields the units done after each step. The next step may be in another transaction."""

    def settle(self) -> None:
        """The group that held the last step is committed."""


class Flushable(Protocol):
    """A log, as a flush sees it."""

    sealed: Delta | None

    @property
    def base(self) -> Base: ...


def _sorted(names: Iterable[str], step: int) -> Iterator[list[str] | int]:
    """Sort in small steps (yields the units of work done), then yield the names in lists.

    Runs are sorted one by one, and merged a piece at a time: what all runs have up to some name is complete, and
    sorting pieces that are in order already is a merge in C. `heapq.merge` takes several times as long.
    """
    rest = iter(names)
    runs: list[list[str]] = []
    while run := sorted(islice(rest, 16 * step)):
        runs.append(run)
        yield 4 * step
    at = [0] * len(runs)
    while runs:
        each = max(1, 4 * step // len(runs))  # names to take of a run: no run has more than that up to `bound`
        bound = min(run[min(start + each, len(run)) - 1] for run, start in zip(runs, at, strict=True))
        piece: list[str] = []
        for number, (run, start) in enumerate(zip(runs, at, strict=True)):
            end = bisect_right(run, bound, start, min(start + each, len(run)))
            piece += run[start:end]
            at[number] = end
        piece.sort()
        for start in range(0, len(piece), step):
            yield piece[start : start + step]
        left = [number for number, run in enumerate(runs) if at[number] < len(run)]
        if len(left) < len(runs):
            runs, at = [runs[number] for number in left], [at[number] for number in left]


def clear(env: Environment, table: int, prefix: bytes, end: bytes = b"") -> Iterator[int]:
    """Delete all keys of a table with a prefix (those before `end`, if it is given). Between two steps the file may be
    replaced, and its tables with it."""
    found = True
    while found:
        count = 0
        with env.write.cursor(db=env.tables()[table]) as cursor:
            found = cursor.set_range(prefix)
            while found and count < env.step:
                key, value = cursor.item()  # empty behind the last one
                found = key.startswith(prefix) and not (end and key >= end)
                if found:
                    env.forget(table, key, value)
                    found = cursor.delete()
                    count += 1
        if count:
            yield count


class FlushJob:
    """Write the changed rows of a log to the table of subjects, then drop the journal that stood in for them.

    It writes them as they are when it is made, between two groups. Rows that change again meanwhile wait for the next
    flush, and their journal is kept.
    """

    def __init__(self, log: Flushable, journal_next: int, cache: int) -> None:
        """`journal_next`: the number of the next journal record; `cache`: how many rows to keep in memory."""
        self._log = log
        self._base = log.base
        self._rows = self._base.begin_flush()
        self._cache = cache
        self._covered = self._base.journaled
        self._journal_next = journal_next

    def steps(self, env: Environment) -> Iterator[int]:
        log, base = self._log, self._base
        mark = control_key(JOURNAL, base.sid, self._journal_next)
        prefix = base.sid.to_bytes(4, "big")
        for part in _sorted(list(self._rows), env.step):
            if isinstance(part, int):
                yield part
                continue
            if log.base is not base or (log.sealed is not None and log.sealed.fresh):
                return  # the log has moved to a new id
            self._write(env, prefix, part)
            yield len(part)
        yield from clear(env, CONTROL, control_key(JOURNAL, base.sid), mark)

    def _write(self, env: Environment, prefix: bytes, part: list[str]) -> None:
        puts, gone, added = pack_rows(prefix, part, self._rows)
        keys = [key for key, _ in puts]
        keys += gone
        with env.write.cursor(db=env.subjects) as cursor:
            removed = weigh(cursor.getmulti(keys))  # in order: mostly on the page of the one before
            for key in gone:
                env.write.delete(key, db=env.subjects)
            cursor.putmulti(puts)
        if env.changed is not None:
            env.changed.append((SUBJECTS, keys))
        env.tally.subjects += added - removed

    def settle(self) -> None:
        self._base.end_flush(self._cache)
        self._base.journaled -= self._covered


def _group(messages: Iterable[tuple[str | None, int]], found: dict[str, int | list[int]]) -> None:
    """Add the sequences of messages to those of their subjects. Where there are many, most have one: those need no
    list."""
    for name, seq in messages:
        if name is not None:
            known = found.get(name)
            if known is None:
                found[name] = seq
            elif isinstance(known, int):
                found[name] = [known, seq]
            else:
                known.append(seq)


class SealJob:
    """Write the index of a segment that is full."""

    def __init__(self, base: Base, number: int) -> None:
        self._base = base
        self._number = number
        self._named = self._sum = 0
        self._is_written = False
        base.sealing.add(number)

    def steps(self, env: Environment) -> Iterator[int]:
        base, number = self._base, self._number
        prefix = base.sid.to_bytes(4, "big") + number.to_bytes(8, "big")
        yield from clear(env, INDEX, prefix)  # an earlier try may have been cut off
        part, start = read_tail(env, base).get(number), number * base.size
        if number in base.poison:  # was read from the disk just now: an index would not name what is damaged
            return
        found: dict[str, int | list[int]] = {}  # as of now: what is removed meanwhile is named nevertheless
        if part is not None:
            subjects, seqs, each = list(part.names), list(part.seqs), 8 * env.step
            for at in range(0, len(seqs), each):
                _group(zip(subjects[at : at + each], seqs[at : at + each], strict=True), found)
                yield 2 * env.step
        for names in _sorted(list(found), env.step):
            if isinstance(names, int):
                yield names
                continue
            puts, named, total = pack_entries(prefix, names, start, found)
            self._named += named
            self._sum += total
            with env.write.cursor(db=env.index) as cursor:
                cursor.putmulti(puts)
            if env.changed is not None:
                env.changed.append((INDEX, [key for key, _ in puts]))
            yield len(puts)
        key = control_key(INDEXED, base.sid, number)
        env.put_control(key, seal(key, INDEXED_RECORD.pack(self._named, self._sum)))
        self._is_written = True

    def settle(self) -> None:
        base, number = self._base, self._number
        base.sealing.discard(number)
        if not self._is_written:
            return
        base.unindexed.discard(number)
        if number in base.segments or number in base.dead:  # otherwise a DropJob follows
            base.indexed[number] = self._named
        if base.tail is not None:
            base.tail.pop(number, None)


class DropJob:
    """Delete the index of a segment that has no messages."""

    def __init__(self, base: Base, number: int) -> None:
        self._base = base
        self._number = number

    def steps(self, env: Environment) -> Iterator[int]:
        sid = self._base.sid
        yield from clear(env, INDEX, sid.to_bytes(4, "big") + self._number.to_bytes(8, "big"))
        env.delete_control(control_key(INDEXED, sid, self._number))

    def settle(self) -> None:
        self._base.dropping.discard(self._number)


class CleanupJob:
    """Delete all that is left of a stream that was deleted, or that moved to a new id."""

    def __init__(self, sid: int, retired: set[int]) -> None:
        """`retired` has the ids that are not cleared yet."""
        self._sid = sid
        self._retired = retired
        retired.add(sid)

    def steps(self, env: Environment) -> Iterator[int]:
        prefix = self._sid.to_bytes(4, "big")
        for table in (MESSAGES, INDEX, SUBJECTS, EXPIRIES):
            yield from clear(env, table, prefix)
        for kind in (SEGMENT, INDEXED, JOURNAL, KEPT):
            yield from clear(env, CONTROL, control_key(kind, self._sid))
        env.delete_control(control_key(RETIRED, self._sid))

    def settle(self) -> None:
        self._retired.discard(self._sid)

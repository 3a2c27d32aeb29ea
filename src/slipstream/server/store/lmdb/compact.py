"""Compaction: a copy of the store's file without free pages, made while the store is used, that replaces the file.

Theory of operation.

Deleting gives pages back to LMDB, never to the file system. So the content is copied to a new file beside the old one,
in slices that a thread works off, while groups are committed to the old one as always:

    COPY --> CATCH_UP --> VERIFY --> CATCH_UP --> READY --replace--> REPLACED --switch--> DONE
    in any phase but the last two an error, or a kill, leaves the old file as it is

- COPY reads the tables leaf by leaf, in order, each slice of the newest commit, and appends them to the copy: its pages
  are full. Groups note the keys that they change (`Environment.changed`). A key ahead of the copy's position is read
  later anyway; one behind it, or in the slice that is being read, is copied once more.
- CATCH_UP copies those keys again, as they are now, or deletes them. That may be repeated at will, so it does not
  matter whether a group that noted a key was committed, is about to be, or was abandoned.
- VERIFY reads the copy back from the disk, page by page and not through LMDB: structure, checksums, and the sum of each
  table, which must be that of what was written.
- READY: few keys are left. `replace` runs in the thread of commits while no group is under way: it copies the rest,
  compares the sums of three tables with those that the old file is signed with, and the number of entries of all of
  them with the old file's, syncs, and renames the copy to the name of the old file.
- `switch` moves the store to the open copy. Nothing is read or opened again: the streams in memory are the same.

A kill leaves the old file, and a copy that the next start removes; or, from the renaming on, the new one, which has
every group that was acknowledged: none is committed between the renaming and the switch. Pages are read as the scrubber
reads them, since LMDB may end the process at a damaged one, and the first damage ends the compaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto

import lmdb

from slipstream.errors import CorruptRecordError, StoreError, UsageError
from slipstream.server.store.lmdb.env import (
    CONTROL,
    COPY_DIR,
    EXPIRIES,
    STAMP,
    SUBJECTS,
    Environment,
    LmdbFile,
    open_file,
    remove_copy,
    sync_directory,
    translated,
)
from slipstream.server.store.lmdb.pages import TABLES, PageFile
from slipstream.server.store.lmdb.records import is_sound, weight

BYTES = 1024 * 1024  # of a slice, from which on it ends
KEYS = 20_000  # of a slice that catches up
MANY = 50_000  # changed keys from which on each slice copies some of them again, too: for the memory that they take
FEW = 2_000  # changed keys that may be left for the last step, which commits wait for
ROUNDS = 100  # slices that catch up in a row, after which the last step takes more
RESERVE = 16 * 1024 * 1024  # bytes that are left on the disk for the store itself
TRIES = 100  # to find the meta page of a transaction that commits go on behind

_MASK = (1 << 64) - 1
_END = (len(TABLES), b"")


class Phase(Enum):
    """What a compaction does next."""

    COPY = auto()
    CATCH_UP = auto()
    VERIFY = auto()
    READY = auto()
    REPLACED = auto()
    DONE = auto()
    FAILED = auto()


class Compaction:
    """One compaction of a store. `begin`, `finish` and `switch` are called on the loop; `work`, between the first two,
    and `close` in a thread; `replace` in the thread of commits."""

    def __init__(
        self,
        env: Environment,
        *,
        is_noting: Callable[[], bool],
        why_broken: Callable[[], str],
        before_replacing: Callable[[], None],
        break_store: Callable[[str], None],
    ) -> None:
        """`is_noting`: whether no group is under way that began before keys were noted. `why_broken`: why the store
        must not go on, if it must not. `before_replacing` is called in the thread of commits. `break_store`
        keeps it from committing groups."""
        self._env, self._is_noting, self._why_broken = env, is_noting, why_broken
        self._before_replacing, self._break = before_replacing, break_store
        if env.found or env.damaged or env.losses or env.faults:
            raise CorruptRecordError(f"the store in {env.path} is damaged: it cannot be compacted")
        self.before, used = env.file_usage
        with translated("compacting", env.path):
            self._check_space(used)
        self.after = 0
        self.phase = Phase.COPY
        self._is_verified = False
        self._is_working = False
        self._at: tuple[int, bytes] = (0, b"")  # the table, and the key, that the next slice of the copy begins with
        self._reached = self._at
        self._ahead: list[bytes] = []  # keys of the table that were changed while a slice of it was being read
        self._behind: list[set[bytes]] = [set() for _ in TABLES]  # keys to copy again
        self._sums = [0] * len(TABLES)  # of the copy
        self._reading: tuple[int, bytes] = (0, b"")  # the table, and the key, that the next slice read back begins with
        self._found = 0  # the sum of what was read back of that table
        self._rounds = 0
        self._file: LmdbFile | None = None
        self._source: PageFile | None = None
        self._written: PageFile | None = None
        self._replaced: lmdb.Environment | None = None  # the old file, to be closed
        self._old = -1  # a descriptor of the old file: its pages are freed when that is closed
        env.is_copied = True

    def _check_space(self, size: int) -> None:
        disk = os.statvfs(self._env.path)
        if disk.f_bavail * disk.f_frsize < size + RESERVE:
            raise StoreError(f"no space left on device for the copy of {self._env.path / 'data.mdb'}: {size} bytes")

    @property
    def is_active(self) -> bool:
        """Whether it still reads the file."""
        return self.phase not in (Phase.DONE, Phase.FAILED)

    # On the loop.

    def begin(self) -> bool:
        """Prepare a slice; False if it must wait for the group that is under way."""
        if self.phase not in (Phase.COPY, Phase.CATCH_UP, Phase.VERIFY):
            raise UsageError(f"a compaction in phase {self.phase.name} has no slices")
        self._is_working = self._file is not None or self._is_noting()
        return self._is_working

    def finish(self) -> bool:
        """The slice is done, or has failed; whether the copy may replace the file."""
        self._is_working = False
        number, key = self._reached
        if self._reached != self._at:
            behind = self._ahead if number != self._at[0] else (each for each in self._ahead if each < key)
            self._behind[self._at[0]].update(behind)
        self._ahead.clear()
        self._at = self._reached
        return self.phase is Phase.READY

    def finished_group(self, changed: Iterable[tuple[int, Iterable[bytes]]]) -> None:
        """A group was committed that has changed these keys."""
        table, begin = self._at
        for number, keys in changed:
            if number < table:
                self._behind[number].update(keys)
            elif number == table:
                for key in keys:
                    if key < begin:
                        self._behind[number].add(key)
                    elif self._is_working:
                        self._ahead.append(key)

    def switch(self) -> None:
        """Use the copy from here on, if it has replaced the file."""
        if self.phase is Phase.REPLACED:
            assert self._file is not None
            self._env.is_copied = False
            self._replaced = self._env.move_to(self._file)
            self.phase = Phase.DONE

    # In a thread.

    def work(self) -> None:
        """Do a slice."""
        with translated("compacting", self._env.path):
            if self._file is None:
                self._open()
            if self.phase is Phase.COPY:
                self._copy()
            elif self.phase is Phase.CATCH_UP:
                self._catch_up()
            else:
                self._verify()

    def close(self) -> None:
        """End the compaction, wherever it is: a copy that did not replace the file is removed."""
        for file in (self._source, self._written):
            if file is not None:
                file.close()
        self._source = self._written = None
        if self._replaced is not None:
            self._replaced.close()
            self._replaced = None
        if self._old >= 0:
            os.close(self._old)
            self._old = -1
        if self.phase is Phase.DONE:
            return
        if self.phase is not Phase.REPLACED:  # otherwise the file has its name
            self.phase = Phase.FAILED
            self._env.is_copied = False
            if self._file is not None:
                with suppress(StoreError):
                    remove_copy(self._env.path)
        if self._file is not None:
            self._file.handle.close()
            self._file = None

    def _open(self) -> None:
        remove_copy(self._env.path)
        folder = self._env.path / COPY_DIR
        folder.mkdir(mode=0o700)
        self._file = open_file(folder, map_size=self._env.map_size)
        self._source = PageFile(self._env.path / "data.mdb", walks=False)

    def _turn(self, file: PageFile, handle: lmdb.Environment) -> lmdb.Transaction[bytes]:
        """A transaction of the last commit, as of which the file is read."""
        for _ in range(TRIES):
            read = handle.begin()
            if file.turn_to(read.id()):
                return read
            read.abort()
        raise StoreError(f"the meta page of {self._env.path} cannot be read: {file.damage or 'commits overtake it'}")

    def _copy(self) -> None:
        assert self._source is not None
        assert self._file is not None
        if sum(map(len, self._behind)) > MANY:
            self._apply(KEYS)  # and go on: under a flood of changes there would be no end otherwise
        self._check_space(BYTES)
        number, key = self._at
        source, size = self._source, 0
        total = 0
        end: bytes | None = key
        read = self._turn(source, self._env.handle)
        try:
            with self._file.handle.begin(write=True) as copy, copy.cursor(db=self._file.tables[number]) as cursor:
                while end is not None and size < BYTES:
                    leaf = source.leaf(TABLES[number], end)
                    if source.damage:
                        raise CorruptRecordError(f"the store is damaged: {source.damage[0]}")
                    # Pages may have been divided in another way since the last slice.
                    entries = [each for each in leaf.entries if each[0] >= end and each[0] != STAMP]
                    for name, value in entries:
                        if number != EXPIRIES and not is_sound(name, value):
                            self._refuse(number, name)
                        total += weight(name, value)
                    cursor.putmulti(entries, append=True)
                    size += leaf.size
                    end = leaf.high
        finally:
            read.abort()
        self._sums[number] += total
        self._reached = (number, end) if end is not None else (number + 1, b"")
        if self._reached == _END:
            self.phase = Phase.CATCH_UP

    def _refuse(self, number: int, key: bytes) -> None:
        raise CorruptRecordError(
            f"the store is damaged: the record {key.hex()} of table {TABLES[number]!r} does not match its checksum"
        )

    def _catch_up(self) -> None:
        left = sum(map(len, self._behind))
        if left <= FEW or self._rounds == ROUNDS:
            self._rounds = 0
            self.phase = Phase.READY if self._is_verified else Phase.VERIFY
            return
        self._rounds += 1
        self._apply(KEYS)

    def _apply(self, limit: int) -> None:
        """Copy changed keys again, as of the last commit: those of a group that is not finished are noted later."""
        assert self._file is not None
        part: list[list[bytes]] = []
        for keys in self._behind:  # the loop adds to them meanwhile
            chosen = [keys.pop() for _ in range(min(limit, len(keys)))]
            limit -= len(chosen)
            part.append(sorted(chosen))
        read = self._env.handle.begin()
        try:
            with self._file.handle.begin(write=True) as copy:
                self._put_again(part, read, copy)
        finally:
            read.abort()

    def _put_again(self, part: list[list[bytes]], read: lmdb.Transaction[bytes], copy: lmdb.Transaction[bytes]) -> None:
        assert self._file is not None
        for number, keys in enumerate(part):
            source, target, change = self._env.tables()[number], self._file.tables[number], 0
            for key in keys:
                value, old = read.get(key, db=source), copy.get(key, db=target)
                gone = weight(key, old) if old is not None else 0
                if value is None:
                    copy.delete(key, db=target)
                else:
                    if number != EXPIRIES and not is_sound(key, value):
                        self._refuse(number, key)
                    copy.put(key, value, db=target)
                    change += weight(key, value)
                change -= gone
                if number == self._reading[0] and key < self._reading[1]:  # it was read back already
                    self._found += (weight(key, value) if value is not None else 0) - gone
            self._sums[number] += change

    def _verify(self) -> None:
        """Read a slice of the copy back."""
        assert self._file is not None
        if sum(map(len, self._behind)) > MANY:
            self._apply(KEYS)  # and go on: under a flood of changes there would be no end otherwise
        if self._written is None:
            self._written = PageFile(self._env.path / COPY_DIR / "data.mdb", walks=False)
        number, key = self._reading
        file, size = self._written, 0
        end: bytes | None = key
        read = self._turn(file, self._file.handle)
        try:
            while end is not None and size < BYTES:
                leaf = file.leaf(TABLES[number], end)
                for name, value in leaf.entries:
                    if name < end:  # pages were divided in another way since
                        continue
                    if number != EXPIRIES and not is_sound(name, value):
                        self._refuse(number, name)
                    self._found += weight(name, value)
                if file.damage:
                    raise CorruptRecordError(f"the copy is damaged: {file.damage[0]}")
                size += max(leaf.size, 1)
                end = leaf.high
        finally:
            read.abort()
        if end is not None:
            self._reading = (number, end)
            return
        if self._found != self._sums[number]:
            raise CorruptRecordError(f"table {TABLES[number]!r} of the copy is not what was written")
        self._found, self._reading = 0, (number + 1, b"")
        if self._reading == _END:
            self._is_verified = True
            self.phase = Phase.CATCH_UP

    # In the thread of commits, while no group is under way.

    def replace(self) -> None:
        """Copy the rest, compare, and rename the copy to the file."""
        if self.phase is not Phase.READY:
            raise UsageError(f"a compaction in phase {self.phase.name} cannot replace the file")
        assert self._file is not None
        env, file = self._env, self._file
        if why := self._why_broken():
            raise StoreError(why)
        self._before_replacing()
        with translated("compacting", env.path):
            read = env.handle.begin()
            try:
                with file.handle.begin(write=True) as copy:
                    self._put_again([sorted(keys) for keys in self._behind], read, copy)
                    copy.put(STAMP, env.committed_tally.stamp(copy.id()), db=file.tables[CONTROL])
                    self._compare(read, copy)
            finally:
                read.abort()
            file.handle.sync(True)
            self.after = (file.handle.info()["last_pgno"] + 1) * file.handle.stat()["psize"]
            self._old = os.open(env.path / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
            os.replace(env.path / COPY_DIR / "data.mdb", env.path / "data.mdb")
        self.phase = Phase.REPLACED
        try:
            with translated("compacting", env.path):
                sync_directory(env.path)
            remove_copy(env.path)  # the file of its lock stays open; no other process has any business there
        except StoreError:
            self._break(
                "a compaction has replaced the file, and that may not be on the disk; the store must be opened again"
            )
            raise

    def _compare(self, read: lmdb.Transaction[bytes], copy: lmdb.Transaction[bytes]) -> None:
        assert self._file is not None
        known = self._env.committed_tally
        for number, wanted in ((SUBJECTS, known.subjects), (CONTROL, known.control), (EXPIRIES, known.expiries)):
            if (self._sums[number] - wanted) & _MASK:
                raise CorruptRecordError(f"table {TABLES[number]!r} of the copy is not that of the last commit")
        for number, table in enumerate(self._env.tables()):
            there, wanted = copy.stat(self._file.tables[number])["entries"], read.stat(table)["entries"]
            if there != wanted:
                raise CorruptRecordError(f"table {TABLES[number]!r} of the copy has {there} entries, not {wanted}")

"""A disk with faults below the real LMDB: errors, and crashes that lose or tear what was not synced.

LMDB writes the pages of a transaction, syncs, then writes one of its two meta pages and syncs that. It never
overwrites a page that the last meta page refers to. A crash can therefore leave any subset of the new pages (each
whole or in parts, in any order) under the old meta page, or all of them under the old or the new one, and nothing
else. The image of the file as of the last sync is kept here; a crash in the middle of a commit makes one of these
files of it.

Whether a commit syncs is asked of the environment itself, so a store that was opened without `sync` loses what it
has not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from slipstream.server.engine.ports import Group, memory_size
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from tests.jetstream.reads.simulation.choices import Choices

PAGE = 4096
SECTOR = 512
MAP_SIZE = 1 << 24


class CrashError(BaseException):
    """The machine stops here. No part of the server may catch it."""


class Disk:
    """The file of a store, what of it is synced, and the faults to come."""

    def __init__(self, path: Path, choices: Choices) -> None:
        self.path = path
        self._file = path / "data.mdb"
        self._choices = choices
        self.image = b""  # as of the last sync
        self.is_synced = True  # whether that is all that was committed
        self.crash_in = -1  # operations until the crash; -1: none
        self.error_in = -1  # operations until an error
        self.is_full = False  # every write fails
        self.late_error = False  # the error at a commit comes after the commit has reached the disk
        self.is_ahead = False  # the file has a group of which the store was told that it failed
        self.operations = 0
        self.survivors = ""  # what the last crash left, in words

    def opened(self) -> None:
        """A store has the file open: what it wrote is synced."""
        self.image = self._file.read_bytes()
        self.is_synced = True
        self.is_ahead = False

    def operation(self, what: str) -> None:
        """A call that touches the disk: it may fail."""
        self.operations += 1
        if self.crash_in >= 0:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise CrashError(what)
        if self.error_in >= 0:
            self.error_in -= 1
            if self.error_in < 0:
                raise lmdb.DiskError(f"{what}: Input/output error")
        if self.is_full and what != "commit":
            raise lmdb.DiskError(f"{what}: No space left on device")

    def commit(self, transaction: lmdb.Transaction[bytes], *, syncs: bool) -> None:
        """Commit a transaction, or fail in the middle of it."""
        error = None
        try:
            self.operation("commit")
        except lmdb.DiskError as exc:
            error = exc
        except CrashError:
            before = self.image
            transaction.commit()
            self.image = self._torn(before, self._file.read_bytes())
            raise
        if error is not None and not self.late_error:
            transaction.abort()
            raise error
        transaction.commit()
        self.is_synced = syncs
        if syncs:
            self.image = self._file.read_bytes()
        if error is not None:
            self.is_ahead = True
            raise error

    def crash(self) -> None:
        """Leave the file as a crash leaves it; the store must be closed."""
        now = self._file.read_bytes()
        if now != self.image and not self.survivors:  # written, but never synced
            self.image = self._torn(self.image, now)
        if now != self.image:
            self._file.write_bytes(self.image)
        self.survivors = ""
        self.heal()

    def heal(self) -> None:
        """No faults from here on."""
        self.crash_in = self.error_in = -1
        self.is_full = self.late_error = False

    def _torn(self, old: bytes, new: bytes) -> bytes:
        """One of the files that a crash in the middle of a commit can leave."""
        kind = self._choices.below(4)
        if kind == 0:
            self.survivors = "nothing of the last transaction"
            return old
        if kind == 1:
            self.survivors = "all of the last transaction"
            return new
        image = bytearray(old.ljust(len(new), b"\0"))
        if kind == 2:
            self.survivors = "all pages but the meta page"
            image[2 * PAGE :] = new[2 * PAGE :]
            return bytes(image)
        self.survivors = "some pages, whole or torn, and not the meta page"
        for at in range(2 * PAGE, len(new), PAGE):
            if image[at : at + PAGE] == new[at : at + PAGE]:
                continue
            fate = self._choices.below(3)
            if fate == 1:
                image[at : at + PAGE] = new[at : at + PAGE]
            elif fate == 2:
                for sector in range(at, at + PAGE, SECTOR):
                    if self._choices.below(2):
                        image[sector : sector + SECTOR] = new[sector : sector + SECTOR]
        end = len(new) if self._choices.below(2) else len(old)
        return bytes(image[: max(end, len(old))])


class FaultyTransaction:
    """A write transaction whose every call may fail."""

    def __init__(self, transaction: Any, disk: Disk, *, syncs: bool) -> None:
        self._transaction, self._disk, self._syncs = transaction, disk, syncs

    def put(self, *args: Any, **options: Any) -> bool:
        self._disk.operation("put")
        return bool(self._transaction.put(*args, **options))

    def delete(self, *args: Any, **options: Any) -> bool:
        self._disk.operation("delete")
        return bool(self._transaction.delete(*args, **options))

    def cursor(self, *args: Any, **options: Any) -> Any:
        self._disk.operation("cursor")
        return self._transaction.cursor(*args, **options)

    def commit(self) -> None:
        self._disk.commit(self._transaction, syncs=self._syncs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)


class FaultyHandle:
    """An LMDB environment whose write transactions may fail."""

    def __init__(self, handle: Any, disk: Disk) -> None:
        self._handle, self._disk = handle, disk
        flags = handle.flags()
        self._syncs = bool(flags["sync"] and flags["metasync"])

    def begin(self, *args: Any, **options: Any) -> Any:
        if not options.get("write"):
            return self._handle.begin(*args, **options)
        self._disk.operation("begin")
        return FaultyTransaction(self._handle.begin(*args, **options), self._disk, syncs=self._syncs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class Hooks:
    """What the simulation wants to know of a store's groups."""

    def __init__(
        self,
        sealing: Callable[[], None],
        sealed: Callable[[], None],
        committed: Callable[[], None],
        finished: Callable[[], None],
        abandoned: Callable[[bool], None],
    ) -> None:
        self.sealing, self.sealed, self.committed = sealing, sealed, committed
        self.finished, self.abandoned = finished, abandoned


class SimulatedStore(LmdbStore):
    """The real store on a simulated disk."""

    hooks: Hooks

    def __init__(self, disk: Disk, tuning: Tuning) -> None:
        super().__init__(disk.path, map_size=MAP_SIZE, tuning=tuning)
        self._env.handle = FaultyHandle(self._env.handle, disk)  # type: ignore[assignment]
        self._finishing = False
        disk.opened()

    def seal(self) -> Group:
        self.hooks.sealing()
        group = super().seal()
        self.hooks.sealed()
        return group

    def commit(self, group: Group) -> None:
        super().commit(group)
        self.hooks.committed()

    def finish(self, group: Group) -> None:
        super().finish(group)
        self.hooks.finished()

    def abandon(self) -> None:
        super().abandon()
        self.hooks.abandoned(bool(self._broken))


class SimulatedMemory(MemoryStore):
    """The store of memory streams, with the same hooks."""

    hooks: Hooks

    def __init__(self) -> None:
        super().__init__(size_of=memory_size)

    def seal(self) -> Group:
        self.hooks.sealing()
        group = super().seal()
        self.hooks.sealed()
        return group

    def commit(self, group: Group) -> None:
        super().commit(group)
        self.hooks.committed()

    def finish(self, group: Group) -> None:
        super().finish(group)
        self.hooks.finished()

    def abandon(self) -> None:
        super().abandon()
        self.hooks.abandoned(False)

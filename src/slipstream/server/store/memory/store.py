"""The in-memory store: the model of the port, and the store of streams that need not survive the process.

A group is committed as soon as it is carried through: nothing here can fail. The durable store is tested against this
one. Giving back the memory of very many messages takes a while: what was purged or deleted as a whole is taken apart by
later groups, some thousand messages each (`backlog`).

Savepoints are for tests that begin from the same streams. A savepoint copies the list of streams and nothing else;
from then on each group that is finished adds to the newest savepoint how to undo it. So a savepoint costs the same
however much the streams hold, and rolling back costs what has changed since. Savepoints nest, as those of SQL do.
"""

from __future__ import annotations

from typing import Any, NoReturn

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import Group, Savepoints, StreamLog, Work, record_size
from slipstream.server.store.memory.index import MessageIndex
from slipstream.server.store.memory.log import Groups, LogUndo, MemoryGroup, MemoryLog, SizeOf

FREED = 8192  # messages and subjects that one group gives back


class Savepoint:
    """A moment of the store, and how to undo what was committed since (until the next savepoint)."""

    def __init__(self, streams: dict[str, tuple[MemoryLog, bytes]]) -> None:
        self.streams = streams
        self.undo: dict[MemoryLog, LogUndo] = {}

    def add(self, group: MemoryGroup) -> None:
        """A group is about to be finished."""
        for log in group.touched:
            undo = self.undo.get(log)
            if undo is None:
                undo = self.undo[log] = LogUndo(log.committed)
            if removed := group.tombstones.get(log):
                for seq, record in removed.messages.items():
                    if seq <= undo.state.last_seq:
                        undo.removed.insert(record)
            for key, value in group.kept.get(log, {}).items():
                undo.kept.setdefault(key, value)

    def roll_back(self) -> None:
        """Undo all of it."""
        for log, undo in self.undo.items():
            log.roll_back(undo)
        self.undo.clear()


class MemoryStore:
    """All streams of a server that keeps nothing on the disk."""

    def __init__(self, *, probe: int = 512, size_of: SizeOf = record_size) -> None:
        self._probe = probe  # messages that a filtered scan looks at before it goes by subject
        self.size_of = size_of
        self._streams: dict[str, tuple[MemoryLog, bytes]] = {}
        self._committed: dict[str, tuple[MemoryLog, bytes]] = {}
        self._groups = Groups()
        self._savepoints: list[Savepoint] = []
        self._refuse: list[MessageIndex] = []  # that nothing else refers to

    def measure(self, work: Work) -> None:
        """All of its work can be foreseen."""

    def streams(self) -> list[tuple[str, bytes]]:
        return [(name, config) for name, (_, config) in self._streams.items()]

    def create(self, name: str, config: bytes) -> StreamLog:
        if name in self._streams:
            raise UsageError(f"stream {name!r} already exists in the store")
        log = MemoryLog(self._groups, name, size_of=self.size_of, probe=self._probe)
        self._streams[name] = (log, config)
        self._groups.open.touch(log)
        return log

    def configure(self, name: str, config: bytes) -> None:
        log = self._entry(name)[0]
        self._streams[name] = (log, config)
        self._groups.open.touch(log)

    def delete(self, name: str) -> None:
        log = self._entry(name)[0]
        del self._streams[name]
        self._groups.open.touch(log)
        self._groups.open.deleted.append(log)
        log.deleted = True

    def log(self, name: str) -> StreamLog:
        return self._entry(name)[0]

    def _entry(self, name: str) -> tuple[MemoryLog, bytes]:
        entry = self._streams.get(name)
        if entry is None:
            raise StoreError(f"stream {name!r} does not exist in the store")
        return entry

    corrupt_records = 0
    named_records = 0

    def losses(self) -> list[tuple[str, int, int, int]]:
        return []

    def damaged(self) -> list[tuple[str, int]]:
        return []

    def faults(self) -> list[str]:
        return []

    scrubber = None
    file_usage = (0, 0)  # no file

    def compact(self) -> NoReturn:
        raise UsageError("streams in memory have no file that could be compacted")

    # Savepoints.

    @property
    def savepoints(self) -> Savepoints:
        return self

    def add_savepoint(self) -> int:
        if self._groups.sealed is not None or self._groups.open.size:
            raise UsageError("a savepoint must not be set while changes are uncommitted")
        self._savepoints.append(Savepoint(dict(self._committed)))
        return len(self._savepoints)

    def roll_back(self, number: int) -> None:
        if not 1 <= number <= len(self._savepoints):
            raise UsageError(f"savepoint must be one of {len(self._savepoints)} that are set, got {number}")
        self.abandon()
        for savepoint in reversed(self._savepoints[number - 1 :]):
            savepoint.roll_back()
        del self._savepoints[number:]
        self._streams = dict(self._savepoints[-1].streams)
        self._committed = dict(self._streams)

    # Groups.

    @property
    def pending(self) -> int:
        return self._groups.open.size

    @property
    def backlog(self) -> bool:
        return bool(self._refuse)

    def seal(self) -> Group:
        if self._groups.sealed is not None:
            raise UsageError("a sealed group is still under way; finish or abandon it first")
        self._free()
        group, self._groups.open = self._groups.open, MemoryGroup()
        for log in group.touched:
            group.touched[log] = log.state
            log.seal()
        group.streams = dict(self._streams)
        self._groups.sealed = group
        return group

    def begin(self, group: Group) -> None:
        self._check(group)

    def write_some(self, group: Group) -> bool:
        self._check(group)
        return True

    def commit(self, group: Group) -> None:
        self._check(group).committed = True

    def finish(self, group: Group) -> None:
        sealed = self._check(group)
        self._groups.sealed = None
        self._committed = sealed.streams
        savepoint = self._savepoints[-1] if self._savepoints else None
        if savepoint is not None:
            savepoint.add(sealed)
        for log, state in sealed.touched.items():
            removed = sealed.tombstones.get(log)
            log.finish(state, removed)
            if removed is not None:
                self._give_up(log, removed)
        for log in sealed.deleted:
            left = log.finish_deleted()
            if savepoint is not None:
                savepoint.undo[log].index = left
            self._give_up(log, left)
            self._groups.open.tombstones.pop(log, None)

    def _give_up(self, log: MemoryLog, index: MessageIndex) -> None:
        """A group that removed these messages is finished. Snapshots and savepoints may still refer to them."""
        if len(index.messages) > FREED and not log.snapshots and not self._savepoints:
            self._refuse.append(index)

    def _free(self) -> None:
        left = FREED
        while left > 0 and self._refuse:
            index = self._refuse[-1]
            left = _pop_some(index.by_subject, _pop_some(index.messages, left))
            if not index.by_subject:
                self._refuse.pop()

    def abandon(self) -> None:
        if self._groups.sealed is not None and self._groups.sealed.committed:
            self.finish(self._groups.sealed)
        groups = [group for group in (self._groups.sealed, self._groups.open) if group is not None]
        self._groups.sealed, self._groups.open = None, MemoryGroup()
        self._streams = dict(self._committed)
        for log in {log: None for group in groups for log in group.touched}:
            log.abandon(
                [removed for group in groups if (removed := group.tombstones.get(log))],
                [before for group in reversed(groups) if (before := group.kept.get(log))],
            )

    def close(self) -> None:
        """Nothing to close."""

    def _check(self, group: Group) -> MemoryGroup:
        if group is not self._groups.sealed or not isinstance(group, MemoryGroup):
            raise UsageError("group must be the one that was sealed last, and not finished yet")
        return group


def _pop_some(items: dict[Any, Any], most: int) -> int:
    """Take some items out of a dictionary; how many more may be taken elsewhere."""
    while items and most > 0:
        items.popitem()
        most -= 1
    return most

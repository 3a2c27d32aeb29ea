"""The LMDB environment of a store: its files, its lock, its tables and the readers' snapshot.

Exactly one process may use the files: LMDB itself would let a second one, or a forked child, write as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import lmdb

from slipstream.errors import StoreError
from slipstream.server.store.lmdb.segments import Base

# Kinds of keys in the control table; each is followed by the stream's id and, for some, a number.
META, STREAM, STATE, SEGMENT, INDEXED, JOURNAL, RETIRED, KEPT = b"m", b"s", b"t", b"g", b"x", b"j", b"d", b"k"

MAX_REPORTED = 10_000
FULL = 1024 * 1024  # bytes left on a disk that counts as full
MAX_PINS = 128  # snapshots of earlier moments that are read at the same time


def control_key(kind: bytes, sid: int, number: int | None = None) -> bytes:
    key = kind + sid.to_bytes(4, "big")
    return key if number is None else key + number.to_bytes(8, "big")


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """Raise LMDB's errors as StoreError."""
    try:
        yield
    except lmdb.MapFullError as exc:
        raise StoreError(f"the store is full while {doing}: the map size is reached ({exc})") from exc
    except lmdb.Error as exc:
        if _is_full(path, str(exc)):
            raise StoreError(f"no space left on device while {doing} in {path}") from exc
        raise StoreError(f"the disk failed while {doing}: {exc}") from exc


def _is_full(path: Path, text: str) -> bool:
    """Whether an error of LMDB is for want of space: a write that a full disk cut short is an I/O error there."""
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return True
    if os.strerror(errno.EIO) not in text:
        return False
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < FULL


class _Forked:
    """Replaces the snapshot in a forked child."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreError(f"the store was opened by process {self._pid}; its forked child cannot use it")


class Pin:
    """A snapshot that stays readable while groups are finished: what a walk in slices reads.

    It is the environment with the snapshot of one moment: everything but `read` and `epoch` is that of the environment.
    All users of one moment share one transaction, which ends with the last of them. Until then LMDB cannot use the
    pages again that were freed since: a pin is for fractions of a second, not for as long as a client likes.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.read, self.epoch = env.read, env.epoch
        self.users = 0
        self.bases: dict[int, Base] = {}  # of the streams that are read, as of that moment; by their ids

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    @property
    def corrupt_records(self) -> int:
        return self._env.corrupt_records

    @corrupt_records.setter
    def corrupt_records(self, count: int) -> None:
        self._env.corrupt_records = count

    def release(self) -> None:
        """A user has read what it needs."""
        self.users -= 1
        if not self.users:
            self._env.unpin(self)


class Environment:
    """The open environment. `read` is the snapshot of the last finished group."""

    def __init__(self, path: str | os.PathLike[str], *, map_size: int, step: int) -> None:
        self.path = Path(path)
        self.step = step  # units of work in one step of a job
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as exc:
            raise StoreError(f"the directory of the store, {self.path}, cannot be used: {exc}") from exc
        self.pid = os.getpid()
        try:
            with translated("opening the store", self.path):
                self._open(map_size)
        except BaseException:
            os.close(self._lock)
            raise
        _environments.add(self)

    def _open(self, map_size: int) -> None:
        self.handle = lmdb.open(
            str(self.path),
            map_size=map_size,
            max_dbs=8,
            max_readers=2 * MAX_PINS,
            max_spare_txns=2,
            mode=0o600,
            readahead=False,
            metasync=True,
            sync=True,
        )
        self.messages = self.handle.open_db(b"messages")  # stream id, sequence -> message
        self.index = self.handle.open_db(b"index")  # stream id, segment, subject -> offsets
        self.subjects = self.handle.open_db(b"subjects")  # stream id, subject -> row
        self.control = self.handle.open_db(b"control")
        self.expiries = self.handle.open_db(b"expiries")  # stream id, moment, sequence -> nothing
        for directory in (self.path, self.path.parent):  # LMDB syncs its file, not the file's name
            fd = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self.read = self.handle.begin(db=self.messages)
        self.epoch = 0  # how often the snapshot moved
        self._pins: dict[int, Pin] = {}  # snapshots that are in use, by their epochs
        self.transaction: lmdb.Transaction[bytes] | None = None  # of the group that is being written
        self.journal_next = 0  # number of the next journal record
        self.flushed: list[tuple[Base, list[str]]] = []  # rows that the group wrote to the table of subjects
        self.corrupt_records = 0
        self.damaged: dict[tuple[str, int], None] = {}  # messages that did not match their checksums
        self._open_for_use = True

    def _take_lock(self) -> int:
        """Lock the directory for this process, in a file with its pid. A link in its place, which another user may have
        made, would have the server overwrite the file that it leads to."""
        for name in ("store.lock", "data.mdb", "lock.mdb"):
            self._refuse_link(self.path / name)
        fd = os.open(self.path / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._refuse_link(fd)
        except BaseException:
            os.close(fd)
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StoreError(f"the store in {self.path} is in use by process {owner}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _refuse_link(self, file: Path | int) -> None:
        """Raise an error unless a file of the store is the server's own, and known by one name alone."""
        try:
            found = os.fstat(file) if isinstance(file, int) else os.lstat(file)
        except FileNotFoundError:
            return
        name = file.name if isinstance(file, Path) else "store.lock"
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise StoreError(f"{name} in {self.path} must be a file of its own, not a link or a directory")
        if found.st_uid != os.geteuid():
            raise StoreError(
                f"{name} in {self.path} must belong to the user of the server (uid {os.geteuid()}), "
                f"got uid {found.st_uid}"
            )

    @property
    def write(self) -> lmdb.Transaction[bytes]:
        """The transaction of the group that is being written."""
        assert self.transaction is not None
        return self.transaction

    def disown(self) -> None:
        """In a forked child: the files belong to the parent alone."""
        self.read = _Forked(self.pid)  # type: ignore[assignment]
        with suppress(OSError):
            os.close(self._lock)

    def report(self, stream: str, seq: int) -> None:
        """A message does not match its checksum."""
        self.corrupt_records += 1
        if len(self.damaged) < MAX_REPORTED:
            self.damaged[stream, seq] = None

    def check_owner(self) -> None:
        if os.getpid() != self.pid:
            raise StoreError(f"the store was opened by process {self.pid}; process {os.getpid()} cannot use it")

    def renew(self) -> None:
        """Move the snapshot to the last commit."""
        if self.epoch not in self._pins:
            self.read.abort()
        self.read = self.handle.begin(db=self.messages)
        self.epoch += 1

    def pin(self) -> Pin:
        """Keep the present snapshot readable until the pin is released. A new transaction would not do: it could be
        ahead of the last finished group."""
        pin = self._pins.get(self.epoch)
        if pin is None:
            pin = self._pins[self.epoch] = Pin(self)
        pin.users += 1
        return pin

    def unpin(self, pin: Pin) -> None:
        if self._pins.pop(pin.epoch, None) is not None and pin.epoch != self.epoch:
            pin.read.abort()

    @property
    def is_crowded(self) -> bool:
        """Whether there must not be a snapshot of one more moment."""
        return len(self._pins) >= MAX_PINS and self.epoch not in self._pins

    def begin(self) -> None:
        """Begin the transaction of a group."""
        self.transaction = self.handle.begin(write=True)

    @property
    def last_transaction(self) -> int:
        """The number of the last transaction that was committed."""
        number: int = self.handle.info()["last_txnid"]
        return number

    def close(self) -> None:
        if os.getpid() != self.pid or not self._open_for_use:
            return
        self._open_for_use = False
        for pin in self._pins.values():
            pin.read.abort()
        self._pins.clear()
        self.read.abort()
        self.handle.close()
        os.close(self._lock)


_environments: weakref.WeakSet[Environment] = weakref.WeakSet()


def _after_fork() -> None:
    for env in list(_environments):
        env.disown()


os.register_at_fork(after_in_child=_after_fork)

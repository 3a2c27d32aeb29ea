"""The LMDB environment of a store: its files, its lock, its tables and the readers' snapshot.

Exactly one process may use the files: LMDB itself would let a second one, or a forked child, write as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import lmdb

from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.ports import Work
from slipstream.server.store.lmdb.pages import TABLES, Damage, PageFile
from slipstream.server.store.lmdb.records import STAMP as STAMP_RECORD
from slipstream.server.store.lmdb.records import CorruptMessageError, body_of, seal, weight
from slipstream.server.store.lmdb.segments import Base

if TYPE_CHECKING:
    from lmdb import _Database as Table  # the binding's stubs have no public name for it

# Kinds of keys in the control table; each is followed by the stream's id and, for some, a number.
META, STREAM, STATE, SEGMENT, INDEXED, JOURNAL, RETIRED, KEPT = b"m", b"s", b"t", b"g", b"x", b"j", b"d", b"k"
STAMP = b"z"  # of the last commit
MESSAGES, INDEX, SUBJECTS, CONTROL, EXPIRIES = range(len(TABLES))
# Copies of the records without which a stream has no name are kept in the table of indexes, before those of all streams
# (their ids begin with 1): in another page, which is hardly ever written, and so early in the file.
COPY = bytes(4)

_MASK = (1 << 64) - 1

MADE = "store.made"  # an empty file: a store was made in this directory
COPY_DIR = "compact"  # where a compaction makes its copy; left behind by a crash, it is worth nothing
MAX_REPORTED = 10_000
FULL = 1024 * 1024  # bytes left on a disk that counts as full
MAX_PINS = 128  # snapshots of earlier moments that are read at the same time

# The walk over all pages before LMDB opens them takes some seconds per gigabyte: in larger files only their beginning
# and their size are looked at, and after a crash in still larger ones.
MAX_CHECKED = 1 << 30
MAX_CHECKED_AFTER_CRASH = 8 << 30


def damaged_store(path: Path, what: object) -> str:
    """The words for a store that cannot be opened."""
    return (
        f"the store in {path} is damaged: {what}. `slipstream server check {path}` lists what is lost, "
        f"`slipstream server salvage {path} NEW` copies the rest to a new directory"
    )


def control_key(kind: bytes, sid: int, number: int | None = None) -> bytes:
    key = kind + sid.to_bytes(4, "big")
    return key if number is None else key + number.to_bytes(8, "big")


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Keep servers away from a store while it is read. Raises StoreError if one has it."""
    try:
        fd = os.open(path / "store.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as exc:
        raise StoreError(f"the lock of the store in {path} cannot be read: {exc.strerror}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        raise StoreError(f"the store in {path} is in use by process {owner}; stop the server first") from None
    finally:
        os.close(fd)


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """Raise LMDB's errors, and those of the file system, as StoreError."""
    try:
        yield
    except lmdb.MapFullError as exc:
        raise StoreError(f"the store is full while {doing}: the map size is reached ({exc})") from exc
    except lmdb.Error as exc:
        if _is_full(path, str(exc)):
            raise StoreError(f"no space left on device while {doing} in {path}") from exc
        raise StoreError(f"the disk failed while {doing}: {exc}") from exc
    except SystemError as exc:  # py-lmdb: a cursor that deletes on a damaged page returns a result and sets an error
        if not isinstance(exc.__cause__, lmdb.Error):
            raise
        raise StoreError(f"the disk failed while {doing}: {exc.__cause__}") from exc
    except OSError as exc:
        raise StoreError(f"the disk failed while {doing} in {path}: {exc}") from exc


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


class _Interrupted:
    """Replaces a snapshot whose transaction LMDB has ended, until there is another of the same moment."""

    def __init__(
        self, revive: Callable[[_Interrupted], lmdb.Transaction[bytes] | None], number: int, handle: lmdb.Environment
    ) -> None:
        self._revive = revive
        self._number = number
        self.handle = handle

    def id(self) -> int:
        return self._number

    def abort(self) -> None:
        """It holds nothing."""

    def __getattr__(self, name: str) -> object:
        found = self._revive(self)
        if found is None:
            raise StoreError("a damaged page ended the reads of that moment; read again")
        return getattr(found, name)


class LmdbFile(NamedTuple):
    """An open file, and its tables in the order of `TABLES`."""

    handle: lmdb.Environment
    tables: tuple[Table, ...]


def open_file(path: Path, *, map_size: int) -> LmdbFile:
    """Open the file of LMDB in a directory, which is made if there is none: with all tables, or none."""
    handle = lmdb.open(
        str(path),
        map_size=map_size,
        max_dbs=8,
        max_readers=2 * MAX_PINS,
        max_spare_txns=2,
        mode=0o600,
        readahead=False,
        metasync=True,
        sync=True,
    )
    try:
        with handle.begin(write=True) as made:
            return LmdbFile(handle, tuple(handle.open_db(name.encode(), made) for name in TABLES))
    except BaseException:
        handle.close()
        raise


def remove_copy(path: Path) -> None:
    """Remove what a compaction has left in the directory of a store."""
    folder = path / COPY_DIR
    try:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
            return
        for name in ("data.mdb", "lock.mdb"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    except OSError as exc:
        raise StoreError(f"{folder}, which a compaction has left, cannot be removed: {exc}") from exc


def sync_directory(path: Path) -> None:
    """LMDB syncs its file, not the file's name."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Pin:
    """A snapshot that stays readable while groups are finished: what a walk in slices reads.

    It is the environment with the snapshot of one moment: everything but `read`, `epoch` and the file (which a
    compaction may replace meanwhile) is that of the environment.
    All users of one moment share one transaction, which ends with the last of them. Until then LMDB cannot use the
    pages again that were freed since: a pin is for fractions of a second, not for as long as a client likes.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.read: lmdb.Transaction[bytes] | _Forked = env.read
        self.epoch: int = env.epoch
        self.handle: lmdb.Environment = env.handle
        self.messages: Table = env.messages
        self.index: Table = env.index
        self.subjects: Table = env.subjects
        self.control: Table = env.control
        self.expiries: Table = env.expiries
        self.users: int = 0
        self.bases: dict[int, Base] = {}  # of the streams that are read, as of that moment; by their ids

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    @property
    def corrupt_records(self) -> int:
        return self._env.corrupt_records

    @corrupt_records.setter
    def corrupt_records(self, count: int) -> None:
        self._env.corrupt_records = count

    def raw_cursor(self, read: lmdb.Transaction[bytes]) -> AbstractContextManager[lmdb.Cursor[bytes | memoryview]]:
        return _raw_cursor(self.handle, self.messages, read)

    def release(self) -> None:
        """A user has read what it needs."""
        self.users -= 1
        if not self.users:
            self._env.unpin(self)


class Tally:
    """What the values of three tables add up to: the sums by which an older page is told from the one that was written.
    Every change of those tables is made by the environment, which keeps the sums of the transaction under way."""

    __slots__ = ("control", "expiries", "subjects")

    def __init__(self, control: int = 0, subjects: int = 0, expiries: int = 0) -> None:
        self.control: int = control
        self.subjects: int = subjects
        self.expiries: int = expiries

    def stamp(self, transaction: int) -> bytes:
        return seal(
            STAMP, STAMP_RECORD.pack(transaction, self.control & _MASK, self.subjects & _MASK, self.expiries & _MASK)
        )


class Environment:
    """The open environment. `read` is the snapshot of the last finished group."""

    def __init__(self, path: str | os.PathLike[str], *, map_size: int, step: int) -> None:
        self.path: Path = Path(path)
        self.step: int = step  # units of work in one step of a job
        self.work: Work = Work()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as exc:
            raise StoreError(f"the directory of the store, {self.path}, cannot be used: {exc}") from exc
        self.pid: int = os.getpid()
        try:
            self.found: list[Damage] = self._check_pages()
            # Messages in pages where they do not belong: removed ones, or second copies.
            self.strays: frozenset[bytes] = frozenset(
                key for damage in self.found if damage.table == "messages" for key in damage.keys
            )
            with translated("opening the store", self.path):
                self._open(map_size)
        except BaseException:
            os.close(self._lock)
            raise
        _environments.add(self)

    def _open(self, map_size: int) -> None:
        self.map_size: int = map_size
        remove_copy(self.path)  # of a compaction that was cut off
        self._use(open_file(self.path, map_size=map_size))
        self._mark_made()
        for directory in (self.path, self.path.parent):
            sync_directory(directory)
        self._old_files: list[lmdb.Environment] = []  # that were replaced, and are still read
        self.read: lmdb.Transaction[bytes] = self.handle.begin(db=self.messages)
        self.epoch: int = 0  # how often the snapshot moved
        self._pins: dict[int, Pin] = {}  # snapshots that are in use, by their epochs
        self.transaction: lmdb.Transaction[bytes] | None = None  # of the group that is being written
        self.journal_next: int = 0  # number of the next journal record
        self.tally: Tally = Tally()  # with the transaction under way
        self.committed_tally: Tally = Tally()
        self.corrupt_records: int = 0
        self.named_records: int = 0  # those of them that are listed below, or were until they were removed
        self.losses: dict[tuple[str, int, int], int] = {}  # stream, first and last sequence -> messages missing there
        self.damaged: dict[tuple[str, int], None] = {}  # messages that did not match their checksums
        self.faults: dict[str, None] = {}  # what the scrubber found beside messages, in words
        # While the file is copied: tables (by their place in `TABLES`) and keys that the group changes.
        self.is_copied: bool = False
        self.changed: list[tuple[int, Iterable[bytes]]] | None = None
        self._open_for_use = True

    def _check_pages(self) -> list[Damage]:
        """Damage that LMDB survives; other damage raises, before LMDB is let near the file."""
        path = self.path / "data.mdb"
        try:
            if not path.stat().st_size:
                return self._check_new("is empty")
            with PageFile(path) as file:
                is_small = file.size <= MAX_CHECKED or (self.was_killed and file.size <= MAX_CHECKED_AFTER_CRASH)
                found = file.check() if is_small or file.is_cut else file.damage
        except FileNotFoundError:
            return self._check_new("is not there")
        except OSError as exc:
            raise StoreError(f"{path} cannot be read: {exc}") from exc
        for damage in found:
            if damage.fatal:
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                raise CorruptRecordError(damaged_store(self.path, f"{damage}{more}"))
        for damage in found:
            # What LMDB does not find there is taken for absent: of messages and indexes that is noticed (`proof.py`).
            if damage.keys and damage.table not in ("messages", "index"):
                raise CorruptRecordError(damaged_store(self.path, damage))
        return found

    def _check_new(self, what: str) -> list[Damage]:
        """Without data: a new store, if none was ever made here."""
        if (self.path / MADE).exists():
            raise CorruptRecordError(
                f"the store in {self.path} is lost: data.mdb {what}, and there was one. Put a copy of it in its place, "
                f"or remove {self.path / MADE} to begin with an empty store"
            )
        return []

    def _mark_made(self) -> None:
        """From the first commit on, a directory without data is a store that was lost, and not a new one."""
        if (self.path / MADE).exists():
            return
        try:
            fd = os.open(self.path / MADE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise StoreError(f"{self.path / MADE} cannot be made: {exc.strerror}") from exc
        os.close(fd)

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
        # It says who has the store, and nothing after an orderly end.
        self.was_killed: bool = os.fstat(fd).st_size > 0
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

    def _use(self, file: LmdbFile) -> None:
        self.handle: lmdb.Environment = file.handle
        # Stream id, sequence -> message; stream id, segment, subject -> offsets; stream id, subject -> row; control
        # records; stream id, moment, sequence -> nothing.
        self.messages, self.index, self.subjects, self.control, self.expiries = file.tables

    def tables(self) -> tuple[Table, ...]:
        """In the order of `TABLES`."""
        return self.messages, self.index, self.subjects, self.control, self.expiries

    def move_to(self, file: LmdbFile) -> lmdb.Environment | None:
        """Use another file, which has the same content. Returns the old one, to be closed in a thread (it takes a while
        to unmap), or None if it is still read: then it is closed behind the last reader."""
        if self.epoch not in self._pins:
            self.read.abort()
        old = self.handle
        self._use(file)
        self.read = self.handle.begin(db=self.messages)
        self.epoch += 1
        if any(pin.handle is old for pin in self._pins.values()):
            self._old_files.append(old)
            return None
        return old

    def _close_old(self) -> None:
        used = [pin.handle for pin in self._pins.values()]
        for handle in [handle for handle in self._old_files if not any(handle is each for each in used)]:
            self._old_files.remove(handle)
            handle.close()

    @property
    def file_usage(self) -> tuple[int, int]:
        """Bytes of the file, and how many of them are in use."""
        page, used = 4096, 4  # meta pages, and some for the free list
        for table in self.tables():
            found = self.read.stat(table)
            page = found["psize"]
            used += found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return (self.handle.info()["last_pgno"] + 1) * page, used * page

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
        self.named_records += 1
        if len(self.damaged) < MAX_REPORTED:
            self.damaged[stream, seq] = None

    def unreadable(self, stream: str, seq: int, error: Exception) -> StoreError:
        """LMDB cannot read a page that a message is on; or another read could not, and this one was under way."""
        self.revive()
        if isinstance(error, lmdb.BadTxnError):
            return StoreError("a damaged page ended the reads of that moment; read again")
        self.report(stream, seq)
        return CorruptMessageError(stream, seq, f"cannot be read: {error}")

    def revive(self) -> None:
        """LMDB ends a transaction that meets a page it cannot read: others must not be refused for that."""
        dead = self.read
        try:
            dead.stat(self.control)
        except lmdb.BadTxnError:
            self._replace(dead, _Interrupted(self._revived, dead.id(), self.handle))
            self._revived(self.read)
        except StoreError:  # it was replaced, and is awaited
            return

    def _revived(self, dead: lmdb.Transaction[bytes] | _Interrupted) -> lmdb.Transaction[bytes] | None:
        """A transaction of the same moment. There is none if a group was committed that is not finished."""
        if isinstance(dead, _Interrupted) and dead.handle is not self.handle:  # the file was replaced since
            return None
        fresh = self.handle.begin(db=self.messages)
        if fresh.id() != dead.id():
            fresh.abort()
            return None
        self._replace(dead, fresh)
        return fresh

    def _replace(self, old: object, new: lmdb.Transaction[bytes] | _Interrupted) -> None:
        holders: tuple[Environment | Pin, ...] = (self, *self._pins.values())
        for holder in holders:
            if holder.read is old:
                holder.read = new  # type: ignore[assignment]

    def report_loss(self, stream: str, low: int, high: int, count: int) -> None:
        """Messages that must exist between two sequences do not."""
        if self.losses.get((stream, low, high)) != count:
            self.corrupt_records += 1
            self.named_records += 1
            if len(self.losses) < MAX_REPORTED:
                self.losses[stream, low, high] = count

    def forget_loss(self, stream: str, low: int, high: int) -> None:
        """What was missing between two sequences is not part of the stream any more."""
        for key in [key for key in self.losses if key[0] == stream and low <= key[1] and key[2] <= high]:
            del self.losses[key]

    def forget_removed(self, stream: str, first: int, keys: Iterable[bytes]) -> None:
        """Messages were removed: those before `first`, and single ones by their keys."""
        for key in keys:
            self.damaged.pop((stream, int.from_bytes(key[4:], "big")), None)
        for at in [at for at in self.damaged if at[0] == stream and at[1] < first]:
            del self.damaged[at]
        self.forget_loss(stream, 0, first - 1)

    def forget_stream(self, stream: str) -> None:
        """Nothing of what was stored of a stream is part of it any more."""
        for key in [key for key in self.damaged if key[0] == stream]:
            del self.damaged[key]
        for place in [place for place in self.losses if place[0] == stream]:
            del self.losses[place]

    # Control records, rows and expiries: every change of these tables is counted.

    def put_control(self, key: bytes, value: bytes) -> None:
        old = self.write.get(key, db=self.control)
        self.tally.control += weight(key, value) - (weight(key, old) if old is not None else 0)
        self.write.put(key, value, db=self.control)
        if self.changed is not None:
            self.changed.append((CONTROL, (key,)))

    def delete_control(self, key: bytes) -> None:
        old = self.write.get(key, db=self.control)
        if old is not None:
            self.tally.control -= weight(key, old)
            self.write.delete(key, db=self.control)
            if self.changed is not None:
                self.changed.append((CONTROL, (key,)))

    def put_copy(self, key: bytes, body: bytes) -> None:
        """Keep a second copy of a control record, for salvage."""
        self.write.put(COPY + key, seal(COPY + key, body), db=self.index)
        if self.changed is not None:
            self.changed.append((INDEX, (COPY + key,)))

    def delete_copy(self, key: bytes) -> None:
        self.write.delete(COPY + key, db=self.index)
        if self.changed is not None:
            self.changed.append((INDEX, (COPY + key,)))

    def has_copy(self, key: bytes) -> bool:
        return self.read.get(COPY + key, db=self.index) is not None

    def put_moment(self, key: bytes) -> None:
        if self.write.put(key, b"", db=self.expiries, overwrite=False):
            self.tally.expiries += weight(key, b"")
            if self.changed is not None:
                self.changed.append((EXPIRIES, (key,)))

    def delete_moment(self, key: bytes) -> None:
        if self.write.delete(key, db=self.expiries):
            self.tally.expiries -= weight(key, b"")
            if self.changed is not None:
                self.changed.append((EXPIRIES, (key,)))

    def forget(self, table: int, key: bytes, value: bytes) -> None:
        """An entry is about to be deleted through a cursor."""
        if table == CONTROL:
            self.tally.control -= weight(key, value)
        elif table == SUBJECTS:
            self.tally.subjects -= weight(key, value)
        elif table == EXPIRIES:
            self.tally.expiries -= weight(key, b"")
        if self.changed is not None:
            self.changed.append((table, (key,)))

    def put_stamp(self) -> None:
        """Sign the transaction: by its number an older page is found that has the signature, by the sums any other."""
        self.write.put(STAMP, self.tally.stamp(self.write.id()), db=self.control)

    def check_stamp(self) -> None:
        """Compare the tables with the stamp of the last commit. Raises CorruptRecordError."""
        stamped = self.read.get(STAMP, db=self.control)
        if stamped is None:
            raise CorruptRecordError("the stamp of the last commit is missing")
        number, *sums = STAMP_RECORD.unpack(body_of(STAMP, stamped, "the stamp of the last commit"))
        if number != self.last_transaction:
            raise CorruptRecordError(f"the last commit was {self.last_transaction}, and its records are of {number}")
        found = [self._sum(table) for table in (self.control, self.subjects, self.expiries)]
        found[0] -= weight(STAMP, stamped)
        for what, wanted, got in zip(("streams", "subjects", "expiries"), sums, found, strict=True):
            if wanted != got & _MASK:
                raise CorruptRecordError(f"the records of {what} are not those of the last commit")
        self.tally, self.committed_tally = Tally(*sums), Tally(*sums)

    def _sum(self, table: Table) -> int:
        with self.read.cursor(db=table) as cursor:
            return sum(starmap(weight, cursor.iternext()))

    def adopt_sums(self) -> None:
        """Take the tables as they are, in the transaction under way: those of a store that had no stamp yet."""
        self.tally = Tally(*(self._sum(table) for table in (self.control, self.subjects, self.expiries)))

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
            if self._old_files:
                self._close_old()

    @property
    def is_crowded(self) -> bool:
        """Whether there must not be a snapshot of one more moment."""
        return len(self._pins) >= MAX_PINS and self.epoch not in self._pins

    def raw_cursor(self, read: lmdb.Transaction[bytes]) -> AbstractContextManager[lmdb.Cursor[bytes | memoryview]]:
        """A cursor over the messages of a snapshot. It copies no values, unless another group was committed since: of a
        large message whose checksum is looked at, only the last page is read."""
        return _raw_cursor(self.handle, self.messages, read)

    def begin(self) -> None:
        """Begin the transaction of a group."""
        self.transaction = self.handle.begin(write=True)
        self.changed = [] if self.is_copied else None
        known = self.committed_tally
        self.tally = Tally(known.control, known.subjects, known.expiries)

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
        _environments.discard(
            self
        )  # a child of a later fork must not close a descriptor that is another file's by then
        self.read.abort()
        for handle in (self.handle, *self._old_files):
            handle.close()
        os.ftruncate(self._lock, 0)
        os.close(self._lock)


@contextmanager
def _raw_cursor(
    handle: lmdb.Environment, messages: Table, read: lmdb.Transaction[bytes]
) -> Iterator[lmdb.Cursor[bytes | memoryview]]:
    raw = handle.begin(db=messages, buffers=True)
    try:
        if raw.id() != read.id():
            with read.cursor(db=messages) as cursor:
                yield cursor
        else:
            with raw.cursor() as cursor:
                yield cursor
    finally:
        raw.abort()


_environments: weakref.WeakSet[Environment] = weakref.WeakSet()


def _after_fork() -> None:
    for env in list(_environments):
        env.disown()


os.register_at_fork(after_in_child=_after_fork)

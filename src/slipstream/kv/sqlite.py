"""A bucket in an SQLite database, in memory or in a file: the embedded backend, which needs no server.

It keeps the rules of a JetStream bucket: one sequence of revisions, history per key, rollup by purges, TTLs of the
bucket and of values, markers where limits remove the last value of a key. Every change is one transaction, synced to
disk before it returns (`synchronous=FULL`). Time is an argument. Not thread-safe: `_async/sqlite_storage.py` serializes
the calls. A file belongs to one process at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from slipstream.api import Storage, StreamConfig, StreamInfo, StreamState
from slipstream.api.times import nanoseconds
from slipstream.errors import (
    BucketNotFoundError,
    BucketOptionsError,
    ErrorCode,
    StoreError,
    StreamMessageTooLargeError,
    StreamNameInUseError,
    UsageError,
)
from slipstream.kv.bucket import BucketConfig, BucketStatus, differences
from slipstream.kv.entry import Entry, From, Operation, Start
from slipstream.kv.keys import any_of
from slipstream.kv.lifetime import rejected_ttl
from slipstream.kv.snapshot import forgotten_of, with_forgotten

BACKING_STORE = "SQLite"
CHUNK = 1000
MEMORY = ":memory:"
_SERVER_OPTIONS = ("replicas", "mirror", "sources", "placement", "republish", "compression", "stream", "subject_prefix")
_LAYOUT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS bucket (
    id INTEGER PRIMARY KEY CHECK (id = 1), layout INTEGER NOT NULL, name TEXT NOT NULL, config BLOB NOT NULL,
    created INTEGER NOT NULL, last_revision INTEGER NOT NULL, last_created INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    revision INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB NOT NULL, created INTEGER NOT NULL,
    operation TEXT NOT NULL, marker TEXT NOT NULL, expires INTEGER
);
CREATE INDEX IF NOT EXISTS by_key ON entries (key, revision);
CREATE INDEX IF NOT EXISTS by_expiry ON entries (expires) WHERE expires IS NOT NULL;
"""
_NEWER = "(SELECT count(*) FROM entries AS newer WHERE newer.key = entries.key AND newer.revision > entries.revision)"
_COLUMNS = f"key, value, revision, created, {_NEWER}, operation, marker, coalesce(expires, 0)"
_SIZE = "length(key) + length(value) + 32"  # of a row, as `max_bytes` counts it


def check_options(config: BucketConfig, *, is_file: bool) -> None:
    """Reject options that have no effect without a server."""
    for name in _SERVER_OPTIONS:
        value = getattr(config, name)
        if name in config.fields_set and value and (name, value) != ("replicas", 1):
            raise UsageError(f"{name} must not be set for a local bucket, which has no server, got {value!r}")
    kind = Storage.FILE.value if is_file else Storage.MEMORY.value
    if "storage" in config.fields_set and config.storage != kind:
        raise UsageError(f"storage of this local bucket must be {kind!r} or not set, got {config.storage!r}")


class SqliteBucket:
    """One bucket in one database."""

    def __init__(self, database: sqlite3.Connection, config: StreamConfig, bucket: str, created: int) -> None:
        self.bucket = bucket
        self.config: StreamConfig = config
        self.is_destroyed: bool = False
        self._db = database
        self._created = created
        self._bytes = self._one(f"SELECT coalesce(sum({_SIZE}), 0) FROM entries")

    @classmethod
    def open(cls, path: str, *, config: BucketConfig | None = None, now: int) -> SqliteBucket:
        """Open the bucket of a file (`:memory:`: in memory), or create it if a configuration is passed.

        Raises BucketOptionsError if it exists with other options, BucketNotFoundError if there is none.
        """
        try:
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")  # our feeds would miss changes of a second process
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.executescript(_SCHEMA)
            return cls._opened(database, path, config, now)
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error

    @classmethod
    def _opened(cls, database: sqlite3.Connection, path: str, config: BucketConfig | None, now: int) -> SqliteBucket:
        if config is not None:
            check_options(config, is_file=path != MEMORY)
        wanted = config.stream_config() if config else None
        row = database.execute("SELECT name, config, created, layout FROM bucket").fetchone()
        if row is None:
            if config is None or wanted is None:
                database.close()
                raise BucketNotFoundError(f"{path} contains no bucket")
            database.execute(
                "INSERT INTO bucket VALUES (1, ?, ?, ?, ?, 0, ?)",
                (_LAYOUT, config.bucket, wanted.to_json(), now, now),
            )
            return cls(database, wanted, config.bucket, now)
        name, stored, created, layout = row
        try:
            found = StreamConfig.from_json(stored)
        except ValueError as error:
            raise StoreError(f"{path}: the bucket's configuration cannot be read: {error}") from error
        if layout != _LAYOUT:
            database.close()
            raise StoreError(f"{path} has layout {layout}: this version reads {_LAYOUT}")
        if config is not None and wanted is not None:
            if name != config.bucket:
                database.close()
                raise StreamNameInUseError(f"{path} must contain bucket {config.bucket!r}, got {name!r}")
            if different := differences(wanted, found, config):
                database.close()
                raise BucketOptionsError(name, different)
        return cls(database, found, name, created)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def destroy(self) -> None:
        """Remove the bucket with everything in it; the empty file stays."""
        with self._transaction():
            self._db.execute("DELETE FROM entries")
            self._db.execute("DELETE FROM bucket")
        self.is_destroyed = True

    # Writing

    def append(
        self,
        key: str,
        value: bytes,
        *,
        operation: Operation = Operation.PUT,
        last: int | None = None,
        ttl: timedelta | None = None,
        now: int,
    ) -> int:
        """Record an entry; returns its revision."""
        limit = self.config.max_msg_size
        if 0 <= limit < len(value):
            raise StreamMessageTooLargeError(f"message size exceeds maximum allowed: {len(value)} of {limit} bytes")
        if ttl and (error := rejected_ttl(self.config, self.bucket, ttl)):
            raise error
        with self._transaction():
            self._expire(now)
            if last is not None:
                newest = self._one("SELECT coalesce(max(revision), 0) FROM entries WHERE key = ?", key)
                if newest != last:
                    raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=newest)
            revision = self._insert(key, value, operation, "", ttl, now)
            if operation is Operation.PURGE or ttl:
                self._remove("key = ? AND revision < ?", key, revision)
            else:
                self._keep_history(key)
            if self.config.max_bytes > 0:
                self._keep_size()
        return revision

    def _insert(
        self, key: str, value: bytes, operation: Operation, marker: str, ttl: timedelta | None, now: int
    ) -> int:
        spans = [span for span in (ttl, self.config.max_age) if span]  # no value outlives the bucket's TTL
        expires = now + nanoseconds(min(spans)) if spans else None
        self._db.execute("UPDATE bucket SET last_revision = last_revision + 1, last_created = ?", (now,))
        revision = self.last_revision
        self._db.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
            (revision, key, value, now, operation.value, marker, expires),
        )
        self._bytes += len(key) + len(value) + 32
        return revision

    def _keep_history(self, key: str) -> None:
        keep = self.config.max_msgs_per_subject
        oldest = self._db.execute(
            "SELECT revision FROM entries WHERE key = ? ORDER BY revision DESC LIMIT 1 OFFSET ?", (key, keep)
        ).fetchone()
        if oldest:
            self._remove("key = ? AND revision <= ?", key, oldest[0])

    def _keep_size(self) -> None:
        while self._bytes > self.config.max_bytes:
            self._remove("revision = (SELECT min(revision) FROM entries)")

    def _remove(self, where: str, *values: object) -> None:
        size = self._one(f"SELECT coalesce(sum({_SIZE}), 0) FROM entries WHERE {where}", *values)
        self._db.execute(f"DELETE FROM entries WHERE {where}", values)
        self._bytes -= size

    def forget(self, key: str, *, below: int) -> None:
        """Remove a key's entries under a revision."""
        with self._transaction():
            self._remove("key = ? AND revision < ?", key, below)

    def record_forgotten(self, revision: int) -> None:
        """Record that keys deleted up to a revision are removed for good."""
        if forgotten_of(self.config) < revision:
            self.config = with_forgotten(self.config, revision)
            with self._transaction():
                self._db.execute("UPDATE bucket SET config = ?", (self.config.to_json(),))

    def expire(self, now: int) -> bool:
        """Remove expired entries; whether there were any."""
        if not self._is_due(now):
            return False
        with self._transaction():
            self._expire(now)
        return True

    def next_expiry(self) -> int | None:
        """When the next entry expires; None if no entry does."""
        row = self._db.execute("SELECT min(expires) FROM entries").fetchone()
        return None if row[0] is None else int(row[0])

    def _is_due(self, now: int) -> bool:
        return self._db.execute("SELECT 1 FROM entries WHERE expires <= ? LIMIT 1", (now,)).fetchone() is not None

    def _expire(self, now: int) -> None:
        if not self._is_due(now):
            return
        marker_ttl = self.config.subject_delete_marker_ttl
        gone = self._db.execute(
            "SELECT key, operation, revision FROM entries WHERE expires <= ? ORDER BY revision", (now,)
        ).fetchall()
        self._remove("expires <= ?", now)
        if not marker_ttl:
            return
        last = {key: operation for key, operation, _ in gone}
        for key, operation in last.items():
            is_left = operation in (Operation.PURGE, Operation.EXPIRED)  # itself what would be left, as for a server
            if not is_left and not self._one("SELECT count(*) FROM entries WHERE key = ?", key):
                self._insert(key, b"", Operation.EXPIRED, "MaxAge", marker_ttl, now)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        size = self._bytes
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._bytes = size
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(f"bucket {self.bucket!r}: {error}") from error

    # Reading: the caller removes expired entries first (`expire`)

    def last(self, key: str) -> Entry[bytes] | None:
        """The newest entry of a key."""
        rows = self._rows("key = ?", "revision DESC", 1, key)
        return rows[0] if rows else None

    def at(self, revision: int) -> Entry[bytes] | None:
        """The entry of a revision."""
        rows = self._rows("revision = ?", "revision", 1, revision)
        return rows[0] if rows else None

    def read(self, patterns: Sequence[str], after: int, up_to: int) -> tuple[list[Entry[bytes]], int]:
        """A page of entries after one revision up to another, and the revision that the page reaches."""
        rows = self._rows("revision > ? AND revision <= ?", "revision", CHUNK, after, up_to)
        reached = rows[-1].revision if len(rows) == CHUNK else up_to
        return _matching(rows, patterns), reached

    def latest(self, patterns: Sequence[str], after: int, up_to: int) -> tuple[list[Entry[bytes]], int]:
        """The same for the newest entry of each key alone."""
        newest = "revision = (SELECT max(revision) FROM entries AS other WHERE other.key = entries.key)"
        rows = self._rows(f"revision > ? AND revision <= ? AND {newest}", "revision", CHUNK, after, up_to)
        reached = rows[-1].revision if len(rows) == CHUNK else up_to
        return _matching(rows, patterns), reached

    def count(self, patterns: Sequence[str], start: Start) -> int:
        """How many entries a feed with that start has to deliver first."""
        if start.kind is From.NEW:
            return 0
        read: Callable[..., tuple[list[Entry[bytes]], int]]
        read = self.latest if start.kind is From.LATEST else self.read
        total, at, up_to = 0, max(start.revision - 1, 0), self.last_revision
        while at < up_to:
            entries, at = read(patterns, at, up_to)
            total += len(entries)
        return total

    @property
    def last_revision(self) -> int:
        """The newest revision ever assigned. Raises BucketNotFoundError if the bucket was destroyed."""
        return self._one("SELECT last_revision FROM bucket")

    def status(self, *, now: int) -> BucketStatus:
        """The bucket's state in the form that a stream reports it."""
        row = self._db.execute("SELECT last_revision, last_created FROM bucket").fetchone()
        if row is None:
            raise BucketNotFoundError(f"bucket {self.bucket!r} was destroyed")
        first, messages, keys = self._db.execute(
            "SELECT coalesce(min(revision), ?), count(*), count(DISTINCT key) FROM entries",
            (row[0] + 1,),
        ).fetchone()
        state = StreamState(
            messages=messages,
            bytes=self._bytes,
            first_seq=first,
            last_seq=row[0],
            last_ts=row[1],
            num_subjects=keys,
            num_deleted=max(row[0] - first + 1 - messages, 0),
        )
        info = StreamInfo(config=self.config, created=self._created, state=state, ts=now)
        return BucketStatus(self.bucket, info, BACKING_STORE)

    def _rows(self, where: str, order: str, limit: int, *values: object) -> list[Entry[bytes]]:
        query = f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY {order} LIMIT ?"
        try:
            rows = self._db.execute(query, (*values, limit)).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"bucket {self.bucket!r}: {error}") from error
        age = nanoseconds(self.config.max_age)
        return [
            Entry(
                *(self.bucket, key, value, revision, created, delta, Operation(operation), marker, self.bucket),
                expires=0 if age and expires == created + age else expires,  # of the entry's own TTL alone
            )
            for key, value, revision, created, delta, operation, marker, expires in rows
        ]

    def _one(self, query: str, *values: object) -> int:
        try:
            row = self._db.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"bucket {self.bucket!r}: {error}") from error
        if row is None:
            raise BucketNotFoundError(f"bucket {self.bucket!r} was destroyed")
        return int(row[0])


def _matching(entries: list[Entry[bytes]], patterns: Sequence[str]) -> list[Entry[bytes]]:
    if tuple(patterns) == (">",):
        return entries
    is_wanted = any_of(patterns)
    return [entry for entry in entries if is_wanted(entry.key)]

"""Progress records of the stream sink: how far each task has come with its batch, kept in a bucket for retries.

A record has the sequence of the target stream at which the writing began, the number of attempts, and whether it is
done. It is written before the first row is sent. A later attempt, however late, reads the target from that sequence
and leaves out the rows it finds: the ids in the stream itself are the truth, and the stream's duplicate window only
covers attempts that run at the same time.

Records change by compare-and-set only: an attempt that was misled by a stale replica, or that has been superseded,
loses against the actual record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from slipstream.api import GetRequest, StreamInfo, encode_json
from slipstream.errors import (
    MessageNotFoundError,
    StreamNameInUseError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream._sync.stream import Stream
from slipstream.jetstream.reads.columns import Part
from slipstream.kv.bucket import STREAM_PREFIX, BucketConfig
from slipstream.spark.source.offsets import created_of

_MSG_ID = re.compile(rb"\r\nNats-Msg-Id: *([^\r\n]*)")
_RETRIES = 20


class Task(NamedTuple):
    """Identity of a task across its attempts: the query (or the single write), its batch, and the partition."""

    writer: str
    batch: int
    partition: int


class Begun(NamedTuple):
    """An attempt that has begun: rows may be in the stream after `begin`; `revision` is that of the record."""

    begin: int
    revision: int
    attempt: int
    is_done: bool

    @property
    def is_first(self) -> bool:
        """Whether this is the first attempt."""
        return self.attempt == 1


class Progress:
    """The records of one target stream."""

    def __init__(self, js: JetStream, bucket: str, stream: str) -> None:
        self._js = js
        self._bucket = bucket
        self._records = js.stream(STREAM_PREFIX + bucket)
        self._stream = stream
        self._prefix = f"$KV.{bucket}.sink.{blake2b(stream.encode(), digest_size=8).hexdigest()}"

    def prepare(self, replicas: int) -> None:
        """Create the bucket if it does not exist, with the replicas of its target: rows that survive the loss of a
        server are of no use to a retry whose record does not. An existing bucket is used as it is configured."""
        try:
            self._records.info()
            return
        except StreamNotFoundError:
            pass
        description = "what Spark has written, for retries"
        config = BucketConfig(bucket=self._bucket, description=description, replicas=replicas)
        with suppress(StreamNameInUseError):  # another writer has just created it, with other settings
            self._js.create_key_value(config)

    def begin(self, task: Task, target: StreamInfo) -> Begun:
        """Record that an attempt to write a batch begins, or find that the batch is done."""
        created = created_of(target)
        for _ in range(_RETRIES):
            revision, record = self._read(task)
            batch = record.get("batch", -1)
            if batch > task.batch:
                raise UsageError(
                    f"batch {task.batch} of this query cannot be written to stream {self._stream!r}: batch {batch} was "
                    "written already. Was an older checkpoint restored? Start with a new checkpoint"
                )
            if batch == task.batch and record.get("created") == created:
                begun = Begun(record["begin"], revision, record.get("attempt", 1) + 1, bool(record.get("done")))
                if begun.is_done:
                    return begun
            else:
                begun = Begun(target.state.last_seq, 0, 1, False)
            try:
                return begun._replace(revision=self._write(task, begun, created, revision))
            except WrongLastSequenceError:
                continue  # another attempt has just changed it, or a replica was behind
        raise UsageError(f"the progress of {task} keeps changing: do two queries share a checkpoint?")

    def done(self, task: Task, begun: Begun, target: StreamInfo) -> bool:
        """Record that the whole batch is in the stream; False if another attempt has begun meanwhile."""
        try:
            self._write(task, begun._replace(is_done=True), created_of(target), begun.revision)
        except WrongLastSequenceError:
            return False
        return True

    def forget(self, writer: str) -> None:
        """Purge the records of a write that is done and will not be retried, since a bucket may see many of them."""
        self._records.purge(subject=f"{self._prefix}.{writer}.*")

    def _read(self, task: Task) -> tuple[int, dict[str, Any]]:
        """The record and its revision, from the leader."""
        try:
            found = self._records.get_from_leader(GetRequest(last_by_subj=self._subject(task)))
        except MessageNotFoundError:
            return 0, {}
        return found.seq, json.loads(found.data)

    def _write(self, task: Task, begun: Begun, created: str, revision: int) -> int:
        record = {
            "stream": self._stream,
            "created": created,
            "batch": task.batch,
            "begin": begun.begin,
            "attempt": begun.attempt,
            "done": begun.is_done,
        }
        subject = self._subject(task)
        return self._js.publish(subject, encode_json(record), expected_last_subject_seq=revision).seq

    def _subject(self, task: Task) -> str:
        return f"{self._prefix}.{task.writer}.{task.partition}"


def written_ids(stream: Stream, info: StreamInfo, start: int, prefix: str) -> Iterator[str]:
    """The message ids with a prefix that the stream has from sequence `start` to its last message."""
    end = info.state.last_seq
    wanted = prefix.encode()
    for header in _headers(stream, info, max(start, info.state.first_seq), end):
        found = _MSG_ID.search(header)
        if found is not None and found[1].startswith(wanted):
            yield found[1].decode(errors="replace").strip()


def _headers(stream: Stream, info: StreamInfo, start: int, end: int) -> Iterator[bytes]:
    if info.config.allow_direct:
        for chunk in stream.read_columns(start=start, end=end, parts=Part.HEADER):
            yield from chunk.headers
        return
    while start <= end:  # slow, but only retries need it
        try:
            found = stream.get_from_leader(GetRequest(seq=start, next_by_subj=">"))
        except MessageNotFoundError:
            return
        if found.seq > end:
            return
        yield found.header
        start = found.seq + 1

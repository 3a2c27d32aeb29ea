"""How far a task has come with writing a batch is kept in a bucket, so that the next attempt knows, however late it is.

A record says at which sequence of the target the writing began, how many attempts there were, and whether it is done.
It is made before the first row is sent. An attempt that finds one reads the target from there and leaves out what it
finds: the ids in the stream itself are the truth, the duplicate window of the stream only covers attempts that run side
by side.

Records change by compare-and-set alone: a reader that a stale replica misled, and an attempt that has been replaced,
lose against the record that is really there.
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
    """Which piece of writing this is: the query (or the one write), its batch, and the partition of it."""

    writer: str
    batch: int
    partition: int


class Begun(NamedTuple):
    """Where writing stands: rows may be in the stream behind `begin`; `revision` is the record's own."""

    begin: int
    revision: int
    attempt: int
    is_done: bool

    @property
    def is_first(self) -> bool:
        """Whether nobody has tried it before."""
        return self.attempt == 1


class Progress:
    """The records of one target stream."""

    def __init__(self, js: JetStream, bucket: str, stream: str) -> None:
        self._js = js
        self._bucket = bucket
        self._records = js.stream(STREAM_PREFIX + bucket)
        self._stream = stream
        self._prefix = f"$KV.{bucket}.sink.{blake2b(stream.encode(), digest_size=8).hexdigest()}"

    def prepare(self) -> None:
        """Make the bucket, or find it there: as an operator has set it since, or as a user has made it."""
        try:
            self._records.info()
            return
        except StreamNotFoundError:
            pass
        config = BucketConfig(bucket=self._bucket, description="what Spark has written, for retries")
        with suppress(StreamNameInUseError):  # somebody was quicker, with other settings
            self._js.create_key_value(config)

    def begin(self, task: Task, target: StreamInfo) -> Begun:
        """Note that the writing of a batch begins, or begins again, or find out that it is done."""
        created = created_of(target)
        for _ in range(_RETRIES):
            revision, record = self._read(task)
            batch = record.get("batch", -1)
            if batch > task.batch:
                raise UsageError(
                    f"batch {task.batch} of this query is to be written to stream {self._stream!r}, but batch {batch} "
                    "already was: was an older checkpoint put back? Start with a new checkpoint"
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
                continue  # another attempt was quicker, or a replica was behind
        raise UsageError(f"the progress of {task} changes all the time: are there two queries with one checkpoint?")

    def done(self, task: Task, begun: Begun, target: StreamInfo) -> bool:
        """Note that the whole batch is in the stream; if another attempt has noted something since, that stands, and
        the answer is no."""
        try:
            self._write(task, begun._replace(is_done=True), created_of(target), begun.revision)
        except WrongLastSequenceError:
            return False
        return True

    def forget(self, writer: str) -> None:
        """Remove the records of a write that is over and that nobody will try again; without a trace, for there may be
        many of them in the life of a bucket."""
        self._records.purge(subject=f"{self._prefix}.{writer}.*")

    def _read(self, task: Task) -> tuple[int, dict[str, Any]]:
        """The record as the leader has it."""
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
    """The message ids that the stream has from `start` on, up to its last message; those that begin with `prefix`."""
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
    while start <= end:  # slow, but only a batch that is tried again asks
        try:
            found = stream.get_from_leader(GetRequest(seq=start, next_by_subj=">"))
        except MessageNotFoundError:
            return
        if found.seq > end:
            return
        yield found.header
        start = found.seq + 1

"""Atomic batches: messages that arrive one by one become a list to be stored together, or nothing at all.

A batch waits in memory until its commit; what waits is bounded in number, in time and in bytes, for each stream and
for the server. Its messages are judged when it is committed, in the order they were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slipstream.api.names import BATCH_COMMIT, REQUIRED_API_LEVEL
from slipstream.errors import ApiError, ErrorCode
from slipstream.server.engine.streams.features import API_LEVEL
from slipstream.server.engine.streams.publish_headers import PublishHeaders, is_number, remove_header, set_header
from slipstream.server.engine.timers import Timer, Timers

MAX_MESSAGES = 1000
MAX_OPEN = 50  # of one stream
MAX_OPEN_TOTAL = 1000
MAX_WAITING_BYTES = 256 * 1024 * 1024  # of all streams; nats-server keeps such messages in files
MAX_ID = 64
TIMEOUT = 10_000_000_000

Abandoned = Callable[[str, str, int], None]  # the batch's id, why, and when


class Staged(NamedTuple):
    """A message that waits for the commit of its batch."""

    subject: str
    header: bytes
    payload: bytes
    wanted: PublishHeaders


class BatchUsage:
    """What waits on the whole server."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0
        self.fast = 0  # batches of the other kind, of which nothing waits


class AtomicBatch:
    """One batch on its way."""

    __slots__ = ("bytes", "messages", "timer")

    def __init__(self) -> None:
        self.messages: list[Staged] = []
        self.bytes = 0
        self.timer: Timer | None = None


class AtomicBatches:
    """The batches of one stream."""

    def __init__(self, timers: Timers, usage: BatchUsage, abandoned: Abandoned) -> None:
        self._timers, self._usage, self._abandoned = timers, usage, abandoned
        self._open: dict[str, AtomicBatch] = {}

    def stage(self, message: Staged, now: int) -> list[Staged] | None:
        """Take a message in; all messages of the batch if this one commits it, None if it goes on."""
        wanted = message.wanted
        name, seq = wanted.batch, wanted.batch_seq
        if len(name) > MAX_ID:
            raise ErrorCode.ATOMIC_PUBLISH_INVALID_BATCH_ID.error()
        if not (seq.isascii() and seq.isdigit()) or len(seq) > 19:
            raise ErrorCode.ATOMIC_PUBLISH_MISSING_SEQ.error()
        number, ends = int(seq), wanted.batch_commit == "eob"
        batch = self._open.get(name)
        if batch is None:
            batch = self._begin(name, number, ends=ends)
        if wanted.batch_commit not in ("", "1", "eob"):
            self._end(name)
            raise ErrorCode.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT.error()
        try:
            check_level(wanted.api_level)
        except ApiError as error:
            raise self._given_up(name, "unsupported", error, now) from None
        if number != len(batch.messages) + 1 or (number == 1 and ends):
            raise self._given_up(name, "incomplete", _incomplete(), now)
        if number - ends > MAX_MESSAGES:
            raise self._given_up(name, "large", _too_large(), now)
        self._set_timer(name, batch, now)
        if not ends:
            self._add(name, batch, message, now)
        if not wanted.batch_commit:
            return None
        self._end(name)
        if ends:  # the last message commits: that is how it is kept
            last = batch.messages[-1]
            batch.messages[-1] = last._replace(header=set_header(last.header, BATCH_COMMIT, "1"))
        return batch.messages

    def stop(self) -> None:
        """The stream is gone, or everything that is not durable."""
        for name in list(self._open):
            self._end(name)

    def _begin(self, name: str, number: int, *, ends: bool) -> AtomicBatch:
        if number != 1:
            raise _too_large() if number - ends > MAX_MESSAGES else _incomplete()
        if len(self._open) >= MAX_OPEN or self._usage.batches >= MAX_OPEN_TOTAL:
            raise _too_many()
        self._usage.batches += 1
        batch = self._open[name] = AtomicBatch()
        return batch

    def _add(self, name: str, batch: AtomicBatch, message: Staged, now: int) -> None:
        size = len(message.subject) + len(message.header) + len(message.payload) + 256
        if self._usage.bytes + size > MAX_WAITING_BYTES:
            raise self._given_up(name, "large", _too_many(), now)
        if message.wanted.api_level:  # it was for us, not for the readers
            message = message._replace(header=remove_header(message.header, REQUIRED_API_LEVEL))
        batch.messages.append(message)
        batch.bytes += size
        self._usage.bytes += size

    def _set_timer(self, name: str, batch: AtomicBatch, now: int) -> None:
        if batch.timer is not None:
            batch.timer.cancel()

        def give_up(when: int) -> None:
            self._end(name)
            self._abandoned(name, "timeout", when)

        batch.timer = self._timers.at(now + TIMEOUT, give_up)

    def _given_up(self, name: str, reason: str, error: ApiError, now: int) -> ApiError:
        self._end(name)
        self._abandoned(name, reason, now)
        return error

    def _end(self, name: str) -> None:
        batch = self._open.pop(name)
        if batch.timer is not None:
            batch.timer.cancel()
        self._usage.batches -= 1
        self._usage.bytes -= batch.bytes


def check_level(wanted: str) -> None:
    """Whether we have the API level that a publisher asks for."""
    if wanted and not (is_number(wanted) and int(wanted) <= API_LEVEL):
        raise ErrorCode.REQUIRED_API_LEVEL.error()


def _incomplete() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH.error()


def _too_large() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_TOO_LARGE_BATCH.error(size=MAX_MESSAGES)


def _too_many() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT.error()

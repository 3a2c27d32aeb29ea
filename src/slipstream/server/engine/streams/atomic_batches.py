"""Atomic batches: messages that are staged one by one and stored together, or not at all.

A batch is staged in memory until its commit; staging is bounded in number, time and bytes, per stream and for the
server. The messages are checked when the batch is committed, in the order in which they were sent.
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
MAX_WAITING_BYTES = 256 * 1024 * 1024  # of all streams, and half of what may wait in memory at most
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
    """Open batches of the whole server."""

    def __init__(self, budget: int = -1) -> None:
        """`budget`: bytes that may wait in memory for all clients; -1 for no such limit."""
        self.limit: int = budget // 2 if budget >= 0 else MAX_WAITING_BYTES
        self.batches = 0
        self.bytes = 0
        self.fast = 0  # fast batches, which stage nothing


class AtomicBatch:
    """One open batch."""

    __slots__ = ("bytes", "messages", "timer")

    def __init__(self) -> None:
        self.messages: list[Staged] = []
        self.bytes: int = 0
        self.timer: Timer | None = None


class AtomicBatches:
    """The batches of one stream."""

    def __init__(self, timers: Timers, usage: BatchUsage, abandoned: Abandoned) -> None:
        self._timers, self._usage, self._abandoned = timers, usage, abandoned
        self._open: dict[str, AtomicBatch] = {}

    def stage(self, message: Staged, now: int) -> list[Staged] | None:
        """Stage a message; returns all messages of the batch if this one commits it, else None."""
        wanted = message.wanted
        name, seq = wanted.batch, wanted.batch_seq
        if len(name) > MAX_ID:
            raise ErrorCode.ATOMIC_PUBLISH_INVALID_BATCH_ID.error()
        if not (seq.isascii() and seq.isdigit()) or len(seq) > 19:
            raise ErrorCode.ATOMIC_PUBLISH_MISSING_SEQ.error()
        number, ends = int(seq), wanted.batch_commit == "eob"  # a message that only ends the batch is not stored
        batch = self._open.get(name)
        if batch is None:
            batch = self._begin(name, number, ends=ends)
        # From here on a violation ends the batch: its sender must begin again. The order is nats-server's.
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
        if ends:  # the commit header is stored with the last message
            last = batch.messages[-1]
            batch.messages[-1] = last._replace(header=set_header(last.header, BATCH_COMMIT, "1"))
        return batch.messages

    def stop(self) -> None:
        """Drop all open batches: the stream was deleted, or a group was lost."""
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
        size = len(message.subject) + len(message.header) + len(message.payload) + 256  # and the objects around them
        if self._usage.bytes + size > min(self._usage.limit, MAX_WAITING_BYTES):
            raise self._given_up(name, "large", _too_many(), now)
        if message.wanted.api_level:  # it is for the server, not for readers
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
    """Raise an error if this server does not have the API level that a publisher requires."""
    if wanted and not (is_number(wanted) and int(wanted) <= API_LEVEL):
        raise ErrorCode.REQUIRED_API_LEVEL.error()


def _incomplete() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH.error()


def _too_large() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_TOO_LARGE_BATCH.error(size=MAX_MESSAGES)


def _too_many() -> ApiError:
    return ErrorCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT.error()

"""Outbox of a sink: publishes blocks of messages with a bounded number in flight, and lists those rejected.

Unlike `JetStream.publisher` it goes on after a rejection: the caller decides what that means for its row. Nothing is
resent on a later connection: a lost one is an error, and Spark retries the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from slipstream.errors import Error, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.publish.bulk_window import BlockWindow, Draft, Rejected, too_large
from slipstream.jetstream.publish.fast_batches import FastBatchWindow
from slipstream.jetstream.requests import Ready

T = TypeVar("T")

MAX_BLOCK = 500  # messages sent together,
MAX_BLOCK_BYTES = 4 * 1024 * 1024  # or about so many bytes


def size_error(message: Draft, limit: int) -> UsageError | None:
    """The error for a message that is larger than the server accepts; None if it is not."""
    size = len(message[1]) + len(message[2])
    return too_large(size, limit) if size > limit else None


class Outbox(Generic[T]):
    """A window of publishes, each for an item of the caller. Every one is acknowledged or rejected, or an error is
    raised for all."""

    def __init__(self, js: JetStream, *, max_in_flight: int, timeout: float) -> None:
        self._client = js.client
        self._window: BlockWindow[T] = BlockWindow(max_in_flight)
        self.block: int = max(min(max_in_flight // 4, MAX_BLOCK), 1)  # small enough that some are always in flight
        self._timeout = timeout

    @property
    def acked(self) -> int:
        """How many are in the stream."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """How many of these were duplicates."""
        return self._window.duplicates

    @property
    def last_seq(self) -> int:
        """The sequence in the newest ack; 0 before the first."""
        return self._window.last_seq

    def send(self, messages: Sequence[Draft], items: Sequence[T]) -> None:
        """Publish messages, each for the item at its index; waits only while the window is full."""
        size = sum([len(payload) for _, payload, _ in messages])
        step = max(min(self.block, MAX_BLOCK_BYTES * len(messages) // max(size, 1)), 1)
        for at in range(0, len(messages), step):
            self.wait_for_window(step)
            self._publish(messages[at : at + step], items[at : at + step])

    def _publish(self, messages: Sequence[Draft], items: Sequence[T]) -> None:
        self._window.stage(items)
        self._client.start_many(messages, self._window)

    def wait_for_window(self, count: int) -> None:
        """Wait until so many messages, at most a `block`, fit into the window."""
        self._raise_failure()
        window = self._window
        if not window.has_capacity(count):
            self._wait(partial(window.has_capacity, count), "the window of publishes")
        if self._client.is_full:
            self._client.ready()

    def flush(self) -> None:
        """Wait until every publish was answered. The timeout is for the next answer, not for all of them."""
        while waiting := self._window.in_flight:
            self._wait(partial(self._window.fewer_than, waiting), "the acks of the publishes in flight")
        self._raise_failure()

    def refused(self) -> list[Rejected[T]]:
        """The publishes that were rejected since the last call."""
        found, self._window.rejected = self._window.rejected, []
        return found

    def _wait(self, ready: Ready, what: str) -> None:
        try:
            self._client.wait(ready, timeout=self._timeout, what=what)
        except BaseException as error:
            self._client.cancel(self._window.token)
            self._window.fail(error if isinstance(error, Error) else Error(f"interrupted while waiting for {what}"))
            raise
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._window.error is not None:
            raise self._window.error


class FastOutbox(Outbox[T]):
    """An outbox for a stream with `allow_batched`: blocks are fast batches, and a batch that fails is published again
    message by message. It does not count duplicates."""

    def __init__(self, js: JetStream, *, max_in_flight: int, timeout: float) -> None:
        super().__init__(js, max_in_flight=max_in_flight, timeout=timeout)
        inbox = self._client.new_inbox()
        self._blocks: FastBatchWindow[T] = FastBatchWindow(inbox)
        self._answers = self._client.subscribe(f"{inbox}.>")
        self._epoch = self._client.epoch

    @property
    def acked(self) -> int:
        return self._blocks.acked + self._window.acked

    @property
    def last_seq(self) -> int:
        return max(self._blocks.last_seq, self._window.last_seq)

    def _publish(self, messages: Sequence[Draft], items: Sequence[T]) -> None:
        self._client.publish_many(messages, self._blocks.sending(messages, items))

    def wait_for_window(self, count: int) -> None:
        while self._blocks.in_flight + self._window.in_flight + count > self._window.limit and self._blocks.in_flight:
            self._take_answers()
        super().wait_for_window(count)

    def flush(self) -> None:
        while self._blocks.in_flight:
            self._take_answers()
        super().flush()

    def _take_answers(self) -> None:
        """Wait for some answers. Messages that an ack does not cover are published again, one by one."""
        blocks = self._blocks
        for msg in self._answers.next_msgs(timeout=self._timeout, epoch=self._epoch):
            blocks.deliver(msg)
        while blocks.again:
            messages, items = blocks.again.pop()
            super().wait_for_window(len(messages))
            super()._publish(messages, items)

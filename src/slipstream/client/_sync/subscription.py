"""What blocking readers hold: messages, and subscriptions to take them from, by any thread."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from slipstream.client.base import FOREVER, BaseMessage, HeadersLike, not_taken, timed_out
from slipstream.client.mailbox import Mailbox
from slipstream.client.raw_columns import Packed
from slipstream.wire import Msg

if TYPE_CHECKING:
    from slipstream.client._sync.client import Client

T = TypeVar("T")


class Message(BaseMessage["Client"]):
    """One message."""

    def respond(self, payload: bytes = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to whoever asked."""
        self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], None]


class Subscription:
    """Messages of one subject: `for message in subscription`, `next`, or `next_chunk` for all that is there."""

    def __init__(self, client: Client, box: Mailbox) -> None:
        self._client = client
        self._box = box

    @property
    def subject(self) -> str:
        """The subject or filter."""
        return self._box.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._box.pending

    @property
    def dropped(self) -> int:
        """Messages that were dropped because too many waited to be taken."""
        return self._box.dropped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        box, client = self._box, self._client
        with client._lock:
            if box.items:
                return Message(box.take(), client)
        msg = self._take(lambda: None if box.is_over else box.take(), FOREVER)
        if msg is None:
            raise StopIteration
        return Message(msg, client)

    def next(self, *, timeout: float = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        return Message(self._take(self._box.take, timeout), self._client)

    def next_chunk(self, *, timeout: float = 5.0) -> list[Message]:
        """Every message that is there, at least one. Raises as `next` does."""
        return [Message(msg, self._client) for msg in self._take(self._box.take_all, timeout)]

    def next_msgs(self, *, timeout: float, epoch: int) -> list[Msg]:
        """As `next_chunk`, as the parser made them, for the rooms above. Raises ConnectionLostError once all is taken
        and the connection is not the one counted as `epoch` any more."""
        return self._take(self._box.take_all, timeout, epoch)

    def next_pieces(self, *, timeout: float, epoch: int) -> list[list[Msg] | Packed]:
        """As `next_msgs`, with packs as they came, once `pack` was called."""
        return self._take(self._box.take_pieces, timeout, epoch)

    def pack(self, reply_prefix: str) -> None:
        """Have messages with such reply subjects in packs from now on: for rooms above that take many at once."""
        with self._client._lock:
            self._client._core.pack(self._box, reply_prefix)

    def next_msg(self, *, timeout: float, epoch: int) -> Msg:
        """The same for one: others may wait for the rest."""
        return self._take(self._box.take, timeout, epoch)

    def take_now(self) -> list[Msg]:
        """What is here, without waiting; nothing if that is nothing."""
        with self._client._lock:
            return self._box.take_all() if self._box.items else []

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come; what is here can still be taken."""
        return self._box.is_ended

    @property
    def is_over(self) -> bool:
        """Whether nothing is here and nothing will come."""
        return self._box.is_ended and not self._box.items

    def drain_soon(self) -> None:
        """End the subscription as `drain` does, without waiting for it: what the server has sent can be taken later."""
        client = self._client
        with client._changed:
            if not self._box.is_ended and not client.is_closed:
                client._core.drain(self._box)
                client._write()
                client._stir()

    def end(self) -> None:
        """End the subscription at once, as `unsubscribe` does, wherever there is no way to wait."""
        if not self._client.is_closed:
            self._client._unsubscribe(self._box, 0)

    def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. What is there can still be taken."""
        self._client._unsubscribe(self._box, max_msgs)

    def drain(self, *, timeout: float = 5.0) -> None:
        """End the subscription after everything that the server has sent for it.

        Returns when all of it is here and, with a callback, handled; iteration ends after what is here.
        """
        client, box = self._client, self._box
        deadline = client.now() + timeout
        client._drained(box, timeout)
        if not client._until(lambda: client._is_handled(box), max(0.0, deadline - client.now())):
            raise not_taken([box], timeout)

    def _take(self, take: Callable[[], T], timeout: float, epoch: int | None = None) -> T:
        """Wait until there is something and take it, in one step under the lock: another thread may read as well."""
        taken: list[T] = []

        def ready() -> bool:
            if self._box.is_ready:
                taken.append(take())
            return bool(taken)

        if not self._client._until(ready, timeout, epoch=epoch):
            raise timed_out(f"subscription of {self.subject!r}", timeout)
        return taken[0]

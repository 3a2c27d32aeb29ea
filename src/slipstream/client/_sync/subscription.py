"""Messages and subscriptions of the blocking driver, and the thread that calls back.

Invariant: waiting and taking are one step under the lock, so that several threads may read one subscription.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from slipstream.client._sync.clock import uptime
from slipstream.client._sync.connection import Connection
from slipstream.client._sync.tasks import finish
from slipstream.client.base import FOREVER, BaseMessage, BaseSubscription, HeadersLike, drain_timeout, timed_out
from slipstream.client.mailbox import Mailbox
from slipstream.client.raw_columns import Packed
from slipstream.client.reporter import failure_of
from slipstream.client.silence import SilenceAlarm
from slipstream.codecs import Codec
from slipstream.errors import Error, SlowConsumerError
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_seconds

T = TypeVar("T")


class SubscriptionClient(Protocol):
    """What messages and subscriptions need of their client."""

    def publish(
        self, subject: str, payload: object = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None: ...

    @property
    def codec(self) -> Codec[Any]: ...

    def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None: ...

    def now(self) -> float: ...

    @property
    def is_closed(self) -> bool: ...


class Message(BaseMessage[SubscriptionClient]):
    """One message."""

    def respond(self, payload: object = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to the reply subject: bytes, or an object, which the codec encodes."""
        self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], None]


class Dispatcher:
    """Calls back for all subscriptions of a client, in one thread, which is started for the first of them."""

    def __init__(self, client: SubscriptionClient, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self._callbacks: dict[bytes, tuple[Mailbox, Callback]] = {}
        self._ready: deque[bytes] = deque()  # sids with messages for their callback
        self._thread: threading.Thread | None = None

    def add(self, box: Mailbox, callback: Callback) -> None:
        """Read this mailbox from now on. The lock is held."""
        if self._thread is None:
            self._thread = self._connection.start_thread(self._run, "callbacks")
        self._callbacks[box.sid] = (box, callback)
        self._await(box)

    def has_handled(self, box: Mailbox) -> bool:
        """Whether no callback will be called for a subscription that ended; its own thread cannot wait for itself."""
        return box.sid not in self._callbacks or threading.current_thread() is self._thread

    def _await(self, box: Mailbox) -> None:
        if box.is_ready:
            self._ready.append(box.sid)
        else:
            box.wake_with(lambda: self._ready.append(box.sid))

    def _run(self) -> None:
        connection, client = self._connection, self._client
        while not connection.closing.is_set():
            try:
                connection.until(lambda: bool(self._ready), FOREVER)
            except Error:
                return  # closed
            with connection.lock:
                sid = self._ready.popleft()
                box, callback = self._callbacks[sid]
                if not box.is_ready:  # woken because the connection is lost: the next one brings more
                    self._await(box)
                    continue
                try:
                    msgs = box.take_all()
                except SlowConsumerError:
                    msgs = []  # reported when the gap began
                except Error:
                    del self._callbacks[sid]  # the end
                    connection.stir()
                    continue
            for msg in msgs:
                if connection.closing.is_set():
                    return
                try:
                    finish(callback(Message(msg, client)))
                except BaseException as exc:  # the user's code; an exit would end this thread alone, and silently
                    what = f"the callback of the subscription of {box.subject!r}"
                    connection.reporter.callback_failed(str(connection.session.server), what, failure_of(exc))
            with connection.lock:
                self._await(box)


class Subscription(BaseSubscription):
    """Messages of one subject: `for message in subscription`, `next`, or `next_chunk` for all that arrived."""

    def __init__(
        self, client: SubscriptionClient, connection: Connection, box: Mailbox, dispatcher: Dispatcher | None = None
    ) -> None:
        super().__init__(box)
        box.made_at = uptime()
        self._client = client
        self._connection = connection
        self._dispatcher = dispatcher  # of its callback, if it has one

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
        with self._connection.lock:
            if box.items:
                return Message(box.take(), client)
        msg = self._take(lambda: None if box.is_over else box.take(), FOREVER)
        if msg is None:
            raise StopIteration
        return Message(msg, client)

    def next(self, *, timeout: Duration = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        timeout = check_seconds(timeout)
        return Message(self._take(self._box.take, timeout), self._client)

    def next_chunk(self, *, timeout: Duration = 5.0) -> list[Message]:
        """Every message that has arrived, at least one. Raises as `next` does."""
        timeout = check_seconds(timeout)
        return [Message(msg, self._client) for msg in self._take(self._box.take_all, timeout)]

    def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. Pending messages can still be taken."""
        self._connection.unsubscribe(self._box, max_msgs)

    def drain(self, *, timeout: Duration = 5.0) -> None:
        """End the subscription after everything that the server has sent for it.

        Returns when all of it has arrived and, with a callback, was handled; iteration ends after what is pending.
        """
        timeout = check_seconds(timeout)
        client, connection, box, dispatcher = self._client, self._connection, self._box, self._dispatcher
        deadline = client.now() + timeout
        with connection.lock:
            ping, epoch = connection.session.drain(box), connection.session.epoch
        if not connection.until(lambda: ping.is_answered, timeout, epoch=epoch):
            raise timed_out(f"the drain of {box.subject!r}", timeout)
        if dispatcher is None:
            return
        if not connection.until(lambda: dispatcher.has_handled(box), max(0.0, deadline - client.now())):
            raise drain_timeout([box], timeout)

    # For the layers above, which take the parser's events

    def next_msg(self, *, timeout: float, epoch: int) -> Msg:
        """As `next`. Raises ConnectionLostError once all is taken and the connection of that `epoch` is lost."""
        return self._take(self._box.take, timeout, epoch)

    def next_msgs(self, *, timeout: float, epoch: int) -> list[Msg]:
        """As `next_chunk`. Raises as `next_msg` does."""
        return self._take(self._box.take_all, timeout, epoch)

    def next_dated(self, *, timeout: float, epoch: int) -> tuple[Msg, float]:
        """As `next_msg`, with a time by `uptime` before it was sent, if it was requested over this subscription."""
        return self._take(self._box.take_dated, timeout, epoch)

    def next_all_dated(self, *, timeout: float, epoch: int) -> tuple[list[Msg], float]:
        """As `next_msgs`, with such a time for all of them."""
        return self._take(self._box.take_all_dated, timeout, epoch)

    def next_pieces(self, *, timeout: float, epoch: int) -> list[list[Msg] | Packed]:
        """As `next_msgs`, with messages in columns where `pack` asked for them."""
        return self._take(self._box.take_pieces, timeout, epoch)

    def pack(self, reply_prefix: str) -> None:
        """Deliver messages with such reply subjects in columns from now on."""
        with self._connection.lock:
            self._connection.session.subscriptions.pack(self._box, reply_prefix)

    def answer_on_arrival(self, subject_of: Callable[[Msg], str]) -> None:
        """Answer messages that want no more than that as they arrive: see `Subscriptions.answer_on_arrival`."""
        with self._connection.lock:
            self._connection.session.subscriptions.answer_on_arrival(self._box, subject_of)

    def take_now(self) -> tuple[list[Msg], float]:
        """Every message that has arrived, perhaps none, without waiting, and a time as `next_dated` has it."""
        with self._connection.lock:
            return self._box.take_all_dated() if self._box.items else ([], math.inf)

    def watch_silence(self, timeout: float, call: Callable[[], None]) -> None:
        """Call a function each time that nothing has arrived for `timeout` seconds, until the end of the subscription.

        Once per silence; the time without a connection does not count. The keeper calls the function.
        """
        connection = self._connection
        connection.watch(SilenceAlarm(self._box, connection.session, timeout, call, now=self._client.now()))

    def drain_soon(self) -> None:
        """End the subscription as `drain` does, without waiting: what the server has sent can be taken later."""
        self._connection.drain_soon(self._box)

    def end(self) -> None:
        """End the subscription at once, as `unsubscribe` does, where there is no way to wait."""
        if not self._client.is_closed:
            self._connection.unsubscribe(self._box, 0)

    # Waiting

    def _take(self, take: Callable[[], T], timeout: float, epoch: int | None = None) -> T:
        """Wait until there is something and take it, in one step under the lock: another thread may read as well."""
        taken: list[T] = []

        def ready() -> bool:
            if self._box.is_ready:
                taken.append(take())
            return bool(taken)

        if not self._connection.until(ready, timeout, epoch=epoch):
            raise timed_out(f"a message on {self.subject!r}", timeout)
        return taken[0]

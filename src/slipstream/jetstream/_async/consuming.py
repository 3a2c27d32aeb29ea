"""A running handler of a pull consumer's messages: what `Consumer.consume` returns.

Theory of operation. One `PullLoop` brings the messages; `concurrency` workers (tasks, or threads in the blocking twin)
take them one at a time and call the handler. Only one worker reads at a time, so what is prefetched stays in the loop,
which knows what may still be handed over. With an order per subject, a worker that reads a message whose subject is
busy puts it behind that one and reads on; the worker that is done with a subject takes what waits for it. At most
`MAX_WAITING` messages wait so. When it is stopped, those that wait are put aside; they are given back, or kept for the
next call, in the order of the stream and before what was prefetched, which is behind them.

Invariants: a message that is in a handler, or waits for its subject, or in the loop while all workers are busy, is kept
in progress; one that the server may have redelivered meanwhile is not handled. A handler's exception ends nothing but
the handler; whatever does end the workers is raised by `wait`. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from slipstream.client._async.clock import uptime
from slipstream.client._async.signals import TERMINATION, Signals, on_signals
from slipstream.client._async.tasks import Guard, Lock, Signal, check_handler, enter_if_free, finish
from slipstream.client.base import FOREVER
from slipstream.client.reporter import failure_of
from slipstream.errors import ConsumerDeletedError, ConsumerGoneError, Error, RequestTimeoutError, UsageError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.failures import Failures
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream._async.progress import ProgressKeeper
from slipstream.jetstream._async.pull_loop import PullLoop
from slipstream.jetstream.consume.error_policy import Decider, Policy, check_on_error
from slipstream.jetstream.consume.inbox import DRAIN_TIMEOUT
from slipstream.jetstream.consume.subject_order import SubjectOrder
from slipstream.jetstream.consume.worker_stats import WorkerStats
from slipstream.wire.arguments import Duration, check_seconds

MAX_WAITING = 256  # messages that wait for their subjects, at most
LOOK = 1.0  # seconds: a task that is cancelled before it has begun does not say that it ended
QUIET = 2.0  # seconds without a message after which a stop does not wait for more that it could give back

logger = logging.getLogger("slipstream.consumer")


class WorkerOptions(NamedTuple):
    """How the messages are handled: the arguments of `consume`."""

    concurrency: int = 1
    is_ordered: bool = False
    policy: Policy | Decider = check_on_error("leave")
    auto_ack: bool = False
    keep_in_progress: bool = True

    @classmethod
    def of(
        cls, concurrency: int, ordered_by: str | None, on_error: object, auto_ack: bool, keep_in_progress: bool
    ) -> Self:
        """The options, checked."""
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise UsageError(f"concurrency must be a whole number of at least 1, got {concurrency!r}")
        if ordered_by not in (None, "subject"):
            raise UsageError(f"ordered_by must be None or 'subject', got {ordered_by!r}")
        return cls(concurrency, ordered_by is not None, check_on_error(on_error), auto_ack, keep_in_progress)


class Consuming:
    """A running `consume()`. `stop` ends it after the running handlers, `drain` after all messages that have arrived.

    `wait` returns when it has ended, and raises the error that ended it. `stats` counts what happened so far.
    """

    def __init__(self, consumer: ConsumerHandle, loop: PullLoop, callback: Callback, options: WorkerOptions) -> None:
        check_handler(callback)
        self._consumer = consumer
        self._client = loop.client
        self._loop = loop
        self._callback = callback
        self._options = options
        self._reading = Guard()  # around what reads from the loop
        self._lock = Lock()  # around the counters and queues, where several threads change them
        self._order: SubjectOrder[JsMessage] | None = SubjectOrder() if options.is_ordered else None
        self._moved = Signal()  # set when fewer messages wait for their subjects
        self._ended = Signal()  # set once
        self._is_alone = options.concurrency == 1 and not options.is_ordered
        self._keeper = ProgressKeeper(consumer)
        self._is_renewing = False  # what was prefetched: a single worker must not take from the loop past its guard
        self._aside: list[JsMessage] = []  # waited for their subjects, or were read, when it was stopped
        self._last: deque[JsMessage] = deque()  # cannot be given back: the server would not redeliver them
        self._is_stopped = False
        self._is_draining = False
        self._gives_back = False
        self._give_back_until = 0.0
        self._is_returned = False  # what was prefetched is given back, or that was given up
        self._error: BaseException | None = None
        self._first = f"$JS.ACK.{consumer.stream}.{consumer.name}.1."  # how the reply of a first delivery begins
        self.stats: WorkerStats = WorkerStats(pull=loop.stats)
        self._failures = Failures(consumer, options.policy, self.stats, lambda: self._is_stopped)
        self._running = options.concurrency
        with self._lock:  # a thread waits for the list, which tells it that it is one of ours
            self._workers = [
                self._client.spawn(self._run, f"consume {loop.name} {number}")
                for number in range(1, options.concurrency + 1)
            ]
        if options.keep_in_progress and consumer.wants_acks:
            self._client.spawn(self._keep_in_progress, f"progress of {loop.name}")

    def __repr__(self) -> str:
        return f"<Consuming of {self._loop.name!r}{', stopped' if self._is_stopped else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether the handler has been called for the last time."""
        return bool(self._ended.count) or all(worker.is_done for worker in self._workers)

    async def wait(self, *, timeout: Duration = FOREVER) -> None:
        """Wait for the end: `stop` or `drain` was called, or the client closed. Raises the error that ended it.

        So a program whose work is this handler notices that its consumer or stream was deleted, and that a handler
        raised SystemExit or KeyboardInterrupt.
        """
        timeout = check_seconds(timeout)
        if self._is_own:
            raise UsageError(f"wait() must not be called by the handler of {self._name}: it would wait for itself")
        if not await self._has_ended(timeout):
            raise RequestTimeoutError(f"{self._name} is still running after {timeout:g} s")
        self._raise_error()

    async def stop(self, *, give_back: bool = False, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """Take no more messages and wait for running handlers. Raises the error that ended it before.

        Messages that arrived and were not handled are for the next call on the consumer. With `give_back` they are
        negatively acknowledged at once, so that other workers get them; those that the server would not redeliver are
        handled. If handlers are still running after `timeout`, their messages are returned as well, and tasks are
        cancelled. It ends in time even without a connection, or if the server does not answer.
        """
        timeout = check_seconds(timeout)
        deadline = self._client.now() + timeout
        with self._lock:
            self._give_back_until = deadline
            self._gives_back = self._gives_back or give_back
            self._is_stopped = True
        self._moved.set()
        self._loop.stop()
        if give_back and not self._is_own:
            # Beside this call: whatever the server does, it ends in time.
            giving = self._client.spawn(self._give_back_waiting, f"give back {self._loop.name}")
            if not await giving.join(timeout):
                giving.cancel()
        try:
            await self._join(max(deadline - self._client.now(), 0.0), timeout)
        except RequestTimeoutError:
            if give_back:
                await self._give_up()
            raise

    async def drain(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """Send no more requests and wait until everything that arrived is handled. Raises as `stop` does."""
        timeout = check_seconds(timeout)
        self._is_draining = True
        self._loop.stop()
        await self._join(timeout, timeout)

    @contextmanager
    def drain_on_signals(
        self, *, signals: Sequence[Signals] = TERMINATION, timeout: Duration = DRAIN_TIMEOUT
    ) -> Iterator[None]:
        """Stop when the process is asked to end: `with consuming.drain_on_signals(): await consuming.wait()`.

        It is `stop(give_back=True, timeout=timeout)`. Only the main thread can do this. A second signal has its usual
        effect. Several workers may do so at once.
        """
        timeout = check_seconds(timeout)
        with on_signals(signals, partial(self._stop_on_signal, timeout)):
            yield

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # The end

    @property
    def _name(self) -> str:
        return f"consume() of consumer {self._loop.name!r}"

    @property
    def _is_own(self) -> bool:
        """Whether the caller is a handler: it cannot wait for its own end."""
        return any(worker.is_own for worker in self._workers)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        # Not `PullLoop.is_stopped`, which is also set by its end.
        if not self._is_stopped and not self._is_draining and (error := self._client.end_error) is not None:
            raise error

    async def _has_ended(self, timeout: float) -> bool:
        """Wait for the end; False on timeout."""
        deadline = self._client.now() + timeout
        while not self.is_done:
            left = deadline - self._client.now()
            if left <= 0:
                return False
            await self._ended.wait(0, min(left, LOOK))
        return True

    async def _join(self, seconds: float, timeout: float) -> None:
        if self._is_own:
            return
        if not await self._has_ended(seconds):
            raise RequestTimeoutError(f"{self._name}: the callback is still running after {timeout:g} s")
        self._raise_error()

    async def _give_back_waiting(self) -> None:
        """Give back what was prefetched, while handlers still run: they may take long."""
        try:
            async with self._reading:
                await self._return_prefetched()
        except Error as error:  # raised by `stop`
            self._end(error)

    async def _return_prefetched(self) -> None:
        """Give back what was prefetched, and keep the rest to be handled; the reader alone calls it, once.

        Not without a connection: what the server sent over the last one is redelivered in any case.
        """
        client = self._client
        self._loop.stop()  # another thread may be about to: what is given back must not come back by our own requests
        with self._lock:
            is_first, self._is_returned = not self._is_returned, True
            waiting = self._take_unhandled() if is_first else []
        for waited in waiting:  # they are before those that were prefetched
            if not client.is_connected:
                self._aside.append(waited)
            elif await self._give_back(waited):
                self._keeper.release(waited)
            else:
                self._last.append(waited)
        while is_first and client.is_connected and (left := self._give_back_until - client.now()) > 0:
            message = await self._loop.next(min(left / 2, QUIET))
            if message is None:
                return
            if await self._give_back(message):
                continue
            with self._lock:
                self._keeper.hold_waiting(message)
                self._last.append(message)

    def _take_unhandled(self) -> list[JsMessage]:
        """Take what was read and is not in a handler, in the order of the stream."""
        waiting = self._order.take_waiting() if self._order is not None else []
        unhandled = [*self._aside, *waiting, *self._last]
        self._aside.clear()
        self._last.clear()
        self.stats.waiting = 0
        wants_acks = self._consumer.wants_acks
        return sorted((one for one in unhandled if not (wants_acks and one.is_settled)), key=lambda one: one.seq)

    async def _give_back(self, message: JsMessage) -> bool:
        """Have the server redeliver a message at once; False if it would not."""
        if message.is_settled or self._keeper.is_last_delivery(message):
            return False
        await message.nak()
        with self._lock:
            self.stats.returned += 1
        return True

    async def _give_up(self) -> None:
        """Give back the messages of handlers that did not end in time, and do not wait for these any longer."""
        running = sorted(self._keeper.held(), key=lambda message: message.seq)
        for message in running:
            await self._give_back(message)
        for worker in self._workers:
            worker.cancel()
        logger.error(
            "%s: %d handlers did not end in time; their messages are returned to the server", self._name, len(running)
        )

    def _stop_on_signal(self, timeout: float, name: str) -> None:
        logger.info("%s: %s, stopping after %d running handlers", self._name, name, self.stats.in_flight)
        self._client.spawn(partial(self._stop_in_time, timeout), f"stop of {self._loop.name}")

    async def _stop_in_time(self, timeout: float) -> None:
        try:
            await self.stop(give_back=True, timeout=timeout)
        except BaseException as error:  # also what a handler raised: `wait` raises it, not this
            if self._client.is_own_end(error):
                raise
            self._error = self._error or error
        finally:
            self._ended.set()  # a thread whose handler still runs does not say so

    def _end(self, error: BaseException) -> None:
        """The workers end because of an error: those that handle a message still finish that."""
        if self._error is None:
            self._error = error
            consumer = f"consumer {self._loop.name!r} of stream {self._consumer.stream!r}"
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, ConsumerDeletedError | ConsumerGoneError):
                why = f"{consumer} was deleted (status {error.code} {error.description})"
            logger.error("%s has ended: %s", self._name, why)
        with self._lock:
            self._is_stopped = True
        self._moved.set()
        self._loop.stop()
        if isinstance(error, Error):
            self._client.report(error)

    # Handling

    async def _run(self) -> None:
        with self._lock:
            pass
        try:
            while not await self._work():
                logger.warning("%s: a worker was cancelled while it waited for a message; it continues", self._name)
        except BaseException as error:  # also of the user's code: SystemExit, KeyboardInterrupt
            if self._client.is_own_end(error):
                raise
            self._end(error)
        finally:
            with self._lock:
                self._running -= 1
                is_last = not self._running
            if is_last:
                await self._close()

    async def _work(self) -> bool:
        """Handle messages until the end; False if the program cancelled this task, as a late watchdog does."""
        try:
            while (message := self._take_waiting() or await self._take()) is not None:
                await self._handle(message)
                while self._order is not None and (message := self._next_of(message.subject)) is not None:
                    await self._handle(message)
        except BaseException as error:
            if isinstance(error, Exception) or _is_exit(error) or self._client.is_own_end(error):
                raise
            return False
        return True

    async def _close(self) -> None:
        try:
            async with self._reading:  # `stop` may still give messages back
                with self._lock:
                    self._is_returned = True
                    unhandled = self._take_unhandled()
                self._loop.put_back(unhandled, self._keeper.since(unhandled))
                self._loop.close()
        finally:
            self._ended.set()

    def _take_waiting(self) -> JsMessage | None:
        """The next message of a single worker, if one waits: the fast way."""
        if not self._is_alone:
            return None
        with self._lock:  # no other worker reads from the loop, and `stop` does not begin to
            return None if self._is_stopped or self._is_renewing else self._loop.take_waiting()

    async def _take(self) -> JsMessage | None:
        """The next message to handle; None at the end."""
        order = self._order
        async with self._reading:
            while not self._is_stopped:
                if order is not None and order.waiting >= MAX_WAITING:
                    await self._wait_for_subjects(order)
                    continue
                message = await self._read_next()
                if message is None:
                    break
                if order is None and self._gives_back and await self._give_back(message):
                    continue
                if order is None or self._is_next(order, message):
                    return message
            if self._gives_back:  # a worker must not end before it is known what is left to be handled
                await self._return_prefetched()
        while (last := self._next_last()) is not None:
            if order is None or self._is_next(order, last):
                break
        return last

    def _next_last(self) -> JsMessage | None:
        with self._lock:
            return self._last.popleft() if self._last else None

    async def _read_next(self) -> JsMessage | None:
        """The next message of the loop; None at the end. It does not wait for a connection when it was stopped."""
        client, loop = self._client, self._loop
        while True:
            is_ending = loop.is_stopped or client.is_closed or client.is_draining
            message = await loop.next(None if is_ending and client.is_connected else LOOK)
            if message is not None or is_ending or self._is_stopped:
                return message

    async def _wait_for_subjects(self, order: SubjectOrder[JsMessage]) -> None:
        """Wait until fewer messages wait for their subjects; those in the loop are renewed meanwhile."""
        seen = self._moved.count
        if order.waiting >= MAX_WAITING and not self._is_stopped:
            await self._moved.wait(seen, min(self._consumer.ack_rules.renew_after, FOREVER))
            await self._loop.renew_waiting()

    async def _keep_in_progress(self) -> None:
        while await self._keeper.next_round(self._ended):
            self._keeper.renew_all()
            await self._renew_prefetched()

    async def _renew_prefetched(self) -> None:
        """Renew what waits in the loop while all workers are busy; one that reads does so itself."""
        if self._is_stopped or not await enter_if_free(self._reading):
            return
        try:
            with self._lock:
                self._is_renewing = True
            await self._loop.renew_waiting()
        finally:
            with self._lock:
                self._is_renewing = False
            self._reading.release()

    def _is_next(self, order: SubjectOrder[JsMessage], message: JsMessage) -> bool:
        """Whether a message may be handled now; if not, it waits for its subject, or was put aside."""
        with self._lock:
            is_aside = self._is_stopped and not self._is_returned  # others of its subject may be
            is_next = not is_aside and order.add(message.subject, message)
            if is_aside:
                self._aside.append(message)
            if not is_next:
                self._keeper.hold_waiting(message)
            self.stats.waiting = order.waiting
        return is_next

    def _next_of(self, subject: str) -> JsMessage | None:
        """The next message that waited for a subject, which is done with now."""
        order = self._order
        while order is not None:
            with self._lock:
                message = order.done(subject)
                self.stats.waiting = order.waiting
                is_aside = self._is_stopped and not self._is_returned
                if is_aside and message is not None:
                    self._aside.append(message)
            self._moved.set()
            if message is None:
                return None
            if is_aside:
                continue
            if self._keeper.begin(message):
                return message
            self.stats.pull.expired += 1
        return None

    async def _handle(self, message: JsMessage) -> None:
        stats, keeper, reply, began = self.stats, self._keeper, message.reply, uptime()
        keeper.hold(message, began)
        handled = failed = 0  # both 0 for a handler that was cancelled: its message is left, or was given back
        with self._lock:
            stats.in_flight += 1
            stats.last_reply = reply
            if not reply.startswith(self._first) and _is_redelivered(message):
                stats.redelivered += 1
        try:
            try:
                await finish(self._callback(message))
            except BaseException as error:
                if self._client.is_own_end(error):
                    raise
                failed = 1
                if _is_exit(error):
                    raise
                await self._settle(message, failure_of(error))
            else:
                handled = 1
                if self._options.auto_ack and not message.is_settled:
                    await self._settle(message)
        finally:
            keeper.release(message)
            with self._lock:
                stats.in_flight -= 1
                stats.seconds += uptime() - began
                stats.handled += handled
                stats.failed += failed

    async def _settle(self, message: JsMessage, error: Exception | None = None) -> None:
        """Acknowledge a message, or do what the policy says; should that fail, the message is left."""
        try:
            if error is None:
                await message.ack()
            else:
                await self._failures.settle(message, error)
        except BaseException as failure:  # there is no connection, and its buffer is full; or it was cancelled
            if self._client.is_own_end(failure) or _is_exit(failure):
                raise
            if not self._client.is_closed:
                what = "the ack" if error is None else "what on_error says"
                self._client.callback_failed(
                    f"{what} of consumer {self._loop.name!r} for {message.describe()}", failure_of(failure)
                )


def _is_redelivered(message: JsMessage) -> bool:
    return message.reply.startswith("$JS.ACK.") and message.num_delivered > 1


def _is_exit(error: BaseException) -> bool:
    """Whether an exception of the user's code is to end the worker, and the program behind `wait`."""
    return isinstance(error, SystemExit | KeyboardInterrupt)

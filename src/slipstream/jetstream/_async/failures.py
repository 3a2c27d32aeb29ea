"""Handling of messages whose handlers failed: carries out the error policy of `consume()`.

Each failure is logged first, with all that helps. Invariants: a message that its handler has settled stays as it is; a
message is terminated for a dead letter only when a stream has stored that letter, and on its last delivery it is not
given up before. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from slipstream.client._async.tasks import Lock, result_of
from slipstream.client.reporter import failure_of
from slipstream.errors import ApiError, ConnectionClosedError, Error, ErrorCode, StreamLookupError, UsageError
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.dead_letter import Extent, letter_headers, letter_id, reason_of
from slipstream.jetstream.consume.error_policy import (
    DeadLetter,
    Decider,
    Decision,
    NakAfter,
    Policy,
    Term,
    dead_letter_of,
    decide,
    delay_after,
    policy_of,
)
from slipstream.jetstream.consume.worker_stats import WorkerStats
from slipstream.wire.subjects import matches

# Seconds until a dead letter that could not be stored is tried again, before its message is left to be redelivered. A
# lost connection is no reason to handle the message once more; its id keeps the letter from being stored twice.
PAUSES = (0.1, 1.0)
# The same for its message, after each delivery. The stream may have stored the letter, and only the ack was lost: all
# are well below half of the duplicate window, which is two minutes unless the stream says otherwise.
DELAYS = (1.0, 5.0, 30.0)
MOST_UNSURE = 10_000  # ids of dead letters

logger = logging.getLogger("slipstream.consumer")


class Failures:
    """The error policy of one consumer's handlers. `is_stopping` tells whether to give up waiting for a stream."""

    def __init__(
        self, consumer: ConsumerHandle, policy: Policy | Decider, stats: WorkerStats, is_stopping: Callable[[], bool]
    ) -> None:
        self._consumer = consumer
        self._context = consumer.context
        self._client = consumer.client
        self._policy = policy
        self._stats = stats
        self._is_stopping = is_stopping
        self._lock = Lock()  # several threads may count at once
        self._unsure: set[str] = set()  # ids of dead letters that may have been stored: no answer said so

    async def settle(self, message: JsMessage, error: Exception) -> None:
        """Log a failure and do what the policy says."""
        which = message.describe()
        self._client.callback_failed(f"the callback of consumer {self._consumer.name!r} for {which}", error)
        if self._is_done(message):
            logger.warning("%s was settled by its handler before the handler failed; nothing more is done", which)
            return
        try:
            decision = await self._decide(message, error)
            if not self._is_done(message):  # by the function that decides
                await self._carry_out(decision, message, error)
        except ConnectionClosedError:
            return  # it is left unacknowledged
        except Error as failure:
            self._client.report(failure)

    async def _decide(self, message: JsMessage, error: Exception) -> Decision:
        policy = self._policy
        if callable(policy):
            try:
                chosen = policy_of(await result_of(policy(message, error)), "the result of on_error")
            except BaseException as failure:  # the user's code
                if self._client.is_own_end(failure) or isinstance(failure, SystemExit | KeyboardInterrupt):
                    raise
                what = f"on_error of consumer {self._consumer.name!r} for {message.describe()}"
                self._client.callback_failed(what, failure_of(failure))
                chosen = policy_of("leave")
        else:
            chosen = policy
        is_last = self._is_last(message)
        return decide(chosen, delivered=message.num_delivered, is_last=is_last)

    def _is_last(self, message: JsMessage) -> bool:
        """Whether the server does not deliver it again, whatever is done here."""
        return not self._consumer.wants_acks or self._consumer.ack_rules.is_last(message.num_delivered)

    def _is_done(self, message: JsMessage) -> bool:
        """Whether the program has settled it. There is nothing to settle where the consumer wants no acks."""
        return message.is_settled and self._consumer.wants_acks

    async def _carry_out(self, decision: Decision, message: JsMessage, error: Exception) -> None:
        which = message.describe()
        if isinstance(decision, DeadLetter):
            await self._bury(decision, message, error)
        elif not self._consumer.wants_acks:
            logger.error("%s is not redelivered: its consumer has ack_policy none", which)
        elif isinstance(decision, NakAfter):
            await message.nak(decision.delay)
            if self._is_last(message):
                logger.error("%s is not redelivered: its consumer's max_deliver is reached", which)
            else:
                logger.warning("%s is redelivered in %g s", which, decision.delay)
        elif isinstance(decision, Term):
            await message.term(decision.reason or reason_of(error))
            logger.warning("%s is terminated", which)

    async def _bury(self, letter: DeadLetter, message: JsMessage, error: Exception) -> None:
        """Store the dead letter, then terminate the message."""
        tried, which = 0, message.describe()
        while not self._is_done(message):  # given back meanwhile, by a stop
            failure = await self._store(letter, message, error)
            if failure is None:
                if self._consumer.wants_acks:
                    await message.term(reason_of(error))
                logger.warning("%s is stored as a dead letter on %r", which, letter.subject)
                return
            tried += 1
            logger.error("%s could not be stored as a dead letter on %r: %s", which, letter.subject, failure)
            is_last, is_final = self._is_last(message), isinstance(failure, UsageError) or self._is_stopping()
            if not is_last and (is_final or tried > len(PAUSES)):
                await message.nak(delay_after(DELAYS, message.num_delivered))
                return
            if is_final:
                logger.error("%s is left in its stream: this was its last delivery", which)
                return
            await self._client.sleep(delay_after((*PAUSES, *DELAYS), tried))

    async def _store(self, letter: DeadLetter, message: JsMessage, error: Exception) -> Error | None:
        """Publish the dead letter; returns the error if that failed. One that is too large goes without some of it."""
        at, info, failure = message.metadata, self._consumer.cached_info, None
        msg_id = letter_id(at, info.created if info is not None else 0)
        for extent in Extent:
            data = b"" if extent == Extent.NO_PAYLOAD else message.data
            try:
                headers = letter_headers(
                    message.headers,
                    at,
                    error,
                    subject=message.subject,
                    now=datetime.now(UTC),
                    extent=extent,
                    size=len(message.data),
                )
                ack = await self._context.run(requests.publish(letter.subject, data, headers=headers, msg_id=msg_id))
            except ConnectionClosedError:
                raise
            except Error as refusal:
                failure = refusal
                if not _is_too_large(refusal):
                    self._note_unsure(msg_id)
                    return failure
            else:
                self._count(msg_id, is_duplicate=ack.duplicate)
                return None
        return failure

    def _note_unsure(self, msg_id: str) -> None:
        with self._lock:
            if len(self._unsure) >= MOST_UNSURE:
                self._unsure.clear()
            self._unsure.add(msg_id)

    def _count(self, msg_id: str, *, is_duplicate: bool) -> None:
        """Count a letter, unless it was counted when it was stored, here or by another worker."""
        with self._lock:
            if not is_duplicate or msg_id in self._unsure:
                self._stats.dead_lettered += 1
            self._unsure.discard(msg_id)


def _is_too_large(error: Error) -> bool:
    """Whether a smaller letter may be stored: the connection's limit, or the stream's."""
    return isinstance(error, UsageError) or (
        isinstance(error, ApiError) and error.err_code == ErrorCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM
    )


async def check_dead_letters(consumer: ConsumerHandle, policy: Policy | Decider) -> None:
    """Raise now what would otherwise be found with the first dead letter: its subject cannot take any."""
    letter = dead_letter_of(policy)
    if letter is None:
        return
    try:
        stream = await consumer.context.stream_name_of(letter.subject)
    except StreamLookupError as error:
        if not error.streams:
            text = f"a stream must listen on the subject of dead letters, got {letter.subject!r}: none does"
            raise UsageError(text) from error
        return
    except Error:
        return  # a program may be allowed to publish, and not to ask
    info = consumer.cached_info
    if stream == consumer.stream and info is not None:
        filters = info.config.filter_subjects or (info.config.filter_subject or ">",)
        if any(matches(pattern, letter.subject) for pattern in filters):
            raise UsageError(
                f"dead letters must not be delivered to their own consumer, got {letter.subject!r}, which consumer "
                f"{consumer.name!r} of stream {stream!r} delivers: use another stream or a filter"
            )

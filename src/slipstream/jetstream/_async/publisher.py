"""A publisher over the asyncio client: a window of publishes in flight, each of them acknowledged.

The window itself is pure (`publish/ack_window`); this module sends and waits. The blocking twin is generated from this
file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

from slipstream.api import PubAck
from slipstream.client._async.opening import Openable
from slipstream.codecs.payloads import encode_payload
from slipstream.errors import ConnectionLostError, Error
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.repeats import RepeatCheck
from slipstream.jetstream.publish.ack_window import AckWindow, PublishAcks
from slipstream.jetstream.publish.repeats import is_repeatable
from slipstream.jetstream.publish.sent import FailedPublish, PendingAck, Sent
from slipstream.wire import Headers
from slipstream.wire.arguments import Duration, check_integer, check_seconds
from slipstream.wire.headers import HeaderValues

RETRY_WAIT = 0.25  # seconds before the first retry of a publish that no stream took


class Publisher(Openable):
    """A window of publishes in flight; use it as a context manager, which waits for the last ack.

    Every message is acknowledged or its failure raised: by the `publish` or `flush` that sees it, at the latest on the
    way out.
    """

    def __init__(
        self,
        context: JetStreamContext,
        *,
        max_in_flight: int,
        timeout: Duration,
        retries: int = 0,
        retry_wait: Duration = RETRY_WAIT,
    ) -> None:
        check_integer(max_in_flight, "max_in_flight", least=1)
        check_integer(retries, "retries")
        self._context = context
        self._client = context.client
        self._codec = context.codec
        self._retries = retries
        self._retry_wait = check_seconds(retry_wait, "retry_wait")
        self._window = AckWindow(max_in_flight, None if context.session is None else context.note_ack)
        self._acks = context.client.shared(PublishAcks)
        self._timeout = check_seconds(timeout)
        self._counted = (0, 0, 0)  # sent, acked, duplicates that are in the statistics of the connection

    def __repr__(self) -> str:
        return f"<Publisher of {self._client!r}, {self._window.in_flight} in flight>"

    @property
    def acked(self) -> int:
        """How many messages were acknowledged so far."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """How many of them the stream had already, by their message ids."""
        return self._window.duplicates

    @property
    def failures(self) -> list[FailedPublish]:
        """The messages that were rejected, in the order of their answers."""
        return self._window.failures

    @property
    def last_ack(self) -> PubAck | None:
        """The newest ack; pass its `seq` to a read as `min_last_seq` to see the message."""
        return self._window.last_ack

    async def publish(
        self,
        subject: str,
        payload: object = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Duration | None = None,
        rollup: str | None = None,
    ) -> None:
        """Send one message; waits only while the window is full. Raises the first failure of an earlier message.

        The payload is bytes, or an object, which the codec encodes.
        """
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._codec, subject, payload, headers)
        is_plain = (
            headers is None
            and msg_id is None
            and expected_stream is None
            and expected_last_seq is None
            and expected_last_subject_seq is None
            and expected_last_msg_id is None
            and ttl is None
            and rollup is None
        )
        window = self._window
        if is_plain and not self._retries and not window.failures and window.takes_next():
            entry = window, Sent(window.sent, subject)
            self._client.start_one(subject, payload, self._acks, entry)
            window.sent += 1
            return
        header = b""
        if not is_plain:
            header = requests.publish(
                subject,
                b"",
                headers=headers,
                msg_id=msg_id,
                expected_stream=expected_stream,
                expected_last_seq=expected_last_seq,
                expected_last_subject_seq=expected_last_subject_seq,
                expected_last_msg_id=expected_last_msg_id,
                ttl=ttl,
                rollup=rollup,
            ).header
        if not window.takes_next():
            await self._wait(window.takes_next, "a free slot in the publish window")
        if window.failures:
            raise self._failure()
        if self._retries:
            await self._resend()
        self._start(subject, payload, header)

    async def send(
        self,
        subject: str,
        payload: object = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        ttl: Duration | None = None,
    ) -> PendingAck:
        """As `publish`, for a message whose own ack matters: `result(pending)` waits for it and raises its failure."""
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._codec, subject, payload, headers)
        header = requests.publish(
            subject,
            b"",
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            ttl=ttl,
        ).header
        window, pending = self._window, PendingAck()
        if not window.takes_next():
            await self._wait(window.takes_next, "a free slot in the publish window")
        self._start(subject, payload, header, pending)
        return pending

    def _start(self, subject: str, payload: bytes, header: bytes, pending: PendingAck | None = None) -> None:
        """Send a message; its payload is kept only if it may have to be sent again."""
        window, client = self._window, self._client
        tries = 0 if pending else self._retries
        if header and is_repeatable(header):
            now, server_id = client.now(), client.server_info.server_id
            sent = Sent(window.sent, subject, pending, payload, header, tries, now, server_id)
        else:
            sent = Sent(window.sent, subject, pending, payload if tries else b"", header, tries)
        client.start_one(subject, payload, self._acks, (window, sent), header=header)
        window.sent += 1

    async def result(self, pending: PendingAck) -> PubAck:
        """The ack of a message that `send` sent; raises its failure."""
        await self._wait(pending.is_done, "the ack of a publish")
        return pending.result()

    async def _resend(self) -> None:
        """Resend messages that no stream took (503), after a pause that grows."""
        window = self._window
        while window.to_resend:
            tries = window.to_resend[0].tries
            await self._client.sleep(self._retry_wait * 2 ** (self._retries - 1 - tries))
            for _ in range(len(window.to_resend)):
                sent = window.to_resend.popleft()
                self._client.start_one(sent.subject, sent.payload, self._acks, (window, sent), header=sent.header)

    async def flush(self) -> None:
        """Wait until every message sent so far was answered; raises the first failure.

        The timeout is for the next ack, not for all of them: a slow server is not a silent one.
        """
        while waiting := self._window.in_flight:
            if self._window.in_doubt:
                await self._repeat_lost()
                continue
            if self._window.to_resend:
                await self._resend()
                continue
            await self._wait(partial(self._window.fewer_than, waiting), "the acks of the publishes in flight")
        self._count()
        if self._window.failures:
            raise self._failure()

    def _count(self) -> None:
        """Add what happened since the last time to the statistics of the connection."""
        counts, window = self._context.publish_counts, self._window
        sent, acked, duplicates = self._counted
        self._counted = (window.sent, window.acked, window.duplicates)
        counts.published += window.sent - sent
        counts.acked += window.acked - acked
        counts.duplicates += window.duplicates - duplicates

    async def _wait(self, ready: requests.Ready, what: str) -> None:
        """Wait until `ready()`; over a lost connection, if what was in flight may be sent again."""
        window = self._window
        try:
            while not ready():
                if window.in_doubt:
                    await self._repeat_lost()
                    continue
                try:
                    await self._client.wait(lambda: ready() or bool(window.in_doubt), timeout=self._timeout, what=what)
                except ConnectionLostError:
                    if not window.in_doubt:
                        raise
        except BaseException as error:
            self._forget(error if isinstance(error, Error) else Error(f"abandoned while waiting for {what}"))
            raise

    async def _repeat_lost(self) -> None:
        """Send again what was in flight when the connection was lost, in order, where the streams know the ids."""
        window, client = self._window, self._client
        check = RepeatCheck(self._context, client.now() + self._timeout)
        for sent in sorted(window.in_doubt, key=lambda sent: sent.position):
            assert sent.sent_at is not None
            until = await check.safe_until(sent.subject, sent.header, sent_at=sent.sent_at, server_id=sent.server_id)
            if not until:
                window.in_doubt.remove(sent)
                window.fail_in_doubt(sent)
                continue
            epoch = client.epoch
            token = client.start_one(sent.subject, sent.payload, self._acks, (window, sent), header=sent.header)
            if client.epoch != epoch or not client.is_connected:  # it must not be kept for a later connection
                if not self._acks.drop(token):  # it was answered before, or is in doubt once more
                    window.in_doubt.remove(sent)
                client.cancel(str(token))
                return
            window.in_doubt.remove(sent)

    def _forget(self, error: Error) -> None:
        """Stop waiting for the publishes in flight; whether they were stored is unknown."""
        for token in self._window.forget(error):
            self._acks.drop(token)
            self._client.cancel(str(token))
        self._count()

    def _failure(self) -> Error:
        first = self._window.failures[0]
        first.error.add_note(
            f"message {first.position} on {first.subject!r}; {len(self._window.failures)} of {self._window.sent} failed"
        )
        return first.error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flush()
        else:
            self._forget(Error("abandoned: the block that published it raised"))

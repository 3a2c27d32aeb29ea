"""JetStream over the asyncio client: `JetStream` publishes and makes streams, `Stream` reads one.

Thin: requests, decoders and flow control are pure and live beside this module; here they are sent and waited for. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from slipstream.api import AccountInfo, PubAck, StreamConfig, StreamInfo, names
from slipstream.client._async.client import Client
from slipstream.errors import Error, NoStreamError, StreamLookupError, UsageError
from slipstream.jetstream import requests
from slipstream.jetstream._async.atomic_batch import AtomicBatch, rest
from slipstream.jetstream._async.reads import StreamReads
from slipstream.jetstream._async.stream import StreamConsumers
from slipstream.jetstream._async.subscribe import Subscribing
from slipstream.jetstream._async.trusted_read import ask
from slipstream.jetstream.consumer_requests import ConsumerApi
from slipstream.jetstream.publish.ack_window import AckWindow, FailedPublish, PendingAck, Sent
from slipstream.jetstream.reads.read_state import ReadState, ReadStats, ledger_of
from slipstream.jetstream.reads.session import SessionState
from slipstream.wire import Headers
from slipstream.wire.headers import HeaderValues

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0
DEFAULT_WINDOW = 4096
RETRIES = 2  # of a publish that no stream was there to take,
RETRY_WAIT = 0.25  # and the first pause before that, in seconds


class JetStream(Subscribing):
    """JetStream of one account: publish, and streams by name."""

    def __init__(self, client: Client, *, prefix: str = "", domain: str = "", timeout: float = DEFAULT_TIMEOUT) -> None:
        self._client = client
        self._api = requests.Api(names.api_prefix(prefix=prefix, domain=domain))
        self._consumer_api = ConsumerApi(self._api.prefix)
        self._timeout = timeout
        self._ledger: ReadState = ledger_of(client)
        self._state: SessionState | None = None  # of a session

    @property
    def client(self) -> Client:
        """The connection beneath."""
        return self._client

    @property
    def prefix(self) -> str:
        """The subject prefix of the API."""
        return self._api.prefix

    @property
    def timeout(self) -> float:
        """In seconds, for calls that do not say another."""
        return self._timeout

    @property
    def read_figures(self) -> ReadStats:
        """How the reads of this connection went so far: at once, retried, with the leader's help, failed."""
        return self._ledger.figures

    def session(self, token: str = "") -> Session:
        """Read-your-writes and monotonic reads without bookkeeping: `async with js.session() as s`.

        `s` does all that this object does; what is written and read through it is seen by every later read through it.
        With the `token` of another session, also of another process, it goes on where that one was.
        """
        return Session(self, token)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_msg_id: str | None = None,
        ttl: timedelta | None = None,
        rollup: str | None = None,
        timeout: float | None = None,
        retries: int = RETRIES,
        retry_wait: float = RETRY_WAIT,
    ) -> PubAck:
        """Store one message and wait until the stream has it. For many messages use `publisher()`.

        Where nobody is there to take it (a stream's leader may be changing) it is tried `retries` times more, after
        pauses from `retry_wait` seconds on.

        Raises WrongLastSequenceError if what was expected is stale, NoStreamError if no stream listens on `subject`.
        """
        call = requests.publish(
            subject,
            payload,
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
        )
        tried = 0
        while True:
            try:
                ack = await self.run(call, timeout=timeout)
            except NoStreamError:
                if tried >= retries:
                    raise
                await rest(self._client, retry_wait * 2**tried)
                tried += 1
            else:
                self._noted(ack)
                return ack

    def publisher(
        self,
        *,
        max_in_flight: int = DEFAULT_WINDOW,
        timeout: float | None = None,
        retries: int = 0,
        retry_wait: float = RETRY_WAIT,
    ) -> Publisher:
        """Publish many messages, each acknowledged, with up to `max_in_flight` acks outstanding: the fast way.

        With `retries`, messages that no stream was there to take are sent again, behind those that followed them.
        """
        timeout = self._timeout if timeout is None else timeout
        return Publisher(self, max_in_flight=max_in_flight, timeout=timeout, retries=retries, retry_wait=retry_wait)

    def atomic_batch(self, *, timeout: float | None = None) -> AtomicBatch:
        """Messages for one stream that are all stored or none: `async with js.atomic_batch() as batch`.

        The stream must have `allow_atomic`, which needs nats-server 2.12 or newer.
        """
        return AtomicBatch(self, timeout=self._timeout if timeout is None else timeout)

    async def create_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Make a stream, or find it made with the same configuration."""
        info = await self.run(self._api.create_stream(config), timeout=timeout)
        name = info.config.name
        notes = self._ledger.stream(self._api.prefix, name)
        if self._state is not None:
            self._state.made(name, notes.created, self._state.seen(name))
            self._state.made(name, info.created, info.state.last_seq)
        notes.made(info, self._client.now())
        return Stream(self, name)

    async def update_stream(self, config: StreamConfig, *, timeout: float | None = None) -> StreamInfo:
        """Change a stream's configuration."""
        return await self.run(self._api.update_stream(config), timeout=timeout)

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a stream and all its messages."""
        await self.run(self._api.delete_stream(name), timeout=timeout)

    async def stream_names(self, *, subject: str = "", timeout: float | None = None) -> AsyncIterator[str]:
        """The names of all streams, or of those that listen on a subject; asked for page by page."""
        async for name in self.each(partial(self._api.stream_names, subject=subject), timeout=timeout):
            yield name

    async def streams(self, *, subject: str = "", timeout: float | None = None) -> AsyncIterator[StreamInfo]:
        """The infos of all streams, or of those that listen on a subject; asked for page by page."""
        async for info in self.each(partial(self._api.stream_list, subject=subject), timeout=timeout):
            yield info

    async def account_info(self, *, timeout: float | None = None) -> AccountInfo:
        """What this account uses of JetStream and what it may use."""
        return await self.run(self._api.account_info(), timeout=timeout)

    def stream(self, name: str) -> Stream:
        """A handle on the stream of that name; nothing is asked of the server yet."""
        return Stream(self, requests.check_name(name))

    async def stream_of(self, subject: str, *, timeout: float | None = None) -> Stream:
        """The one stream that listens on a subject; raises StreamLookupError if it is none or several."""
        found = await self.run(self._consumer_api.streams_of(subject), timeout=timeout)
        if len(found) != 1:
            raise StreamLookupError(subject, found)
        return Stream(self, found[0])

    async def each(self, ask: requests.AskPage[T], *, timeout: float | None = None) -> AsyncIterator[T]:
        """The items of a list that the server hands out page by page."""
        seen = 0
        while True:
            page = await self.run(ask(offset=seen), timeout=timeout)
            for item in page.items:
                yield item
            seen += len(page.items)
            if not page.items or seen >= page.total:
                return

    async def run(self, call: requests.Call[T], *, timeout: float | None = None) -> T:
        """Send a request and decode its answer."""
        return await ask(self._client, call, self._timeout if timeout is None else timeout)

    def _noted(self, ack: PubAck) -> None:
        if self._state is not None:
            self._state.note(ack.stream, ack.seq)


class Session(JetStream):
    """JetStream with a memory: every read has seen all that was written and read through it before.

    Messages that are deleted or purged in place are not covered, nor is what happens outside of the session.
    """

    def __init__(self, js: JetStream, token: str = "") -> None:
        vars(self).update(vars(js))
        self._state: SessionState = SessionState(token)

    def seen(self, stream: str) -> int:
        """The highest sequence that was written to or read from a stream; 0 for none."""
        return self._state.seen(stream)

    def note(self, stream: str, seq: int) -> None:
        """A message with that sequence was seen elsewhere: by a consumer, or told by somebody."""
        self._state.note(requests.check_name(stream), requests.check_seq(seq, "seq"))

    def token(self) -> str:
        """The session as a small text, for `js.session(token)` here or in another process."""
        return self._state.token()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to be given back: a session is a memory, no resource."""


class Publisher:
    """A window of publishes in flight; use it as a context manager, which waits for the last ack.

    Every message is acknowledged or its failure raised: by the `publish` or `flush` that sees it, at the latest on the
    way out.
    """

    def __init__(
        self, js: JetStream, *, max_in_flight: int, timeout: float, retries: int = 0, retry_wait: float = RETRY_WAIT
    ) -> None:
        if max_in_flight < 1:
            raise UsageError(f"bad max_in_flight {max_in_flight}: at least 1 is allowed")
        if retries < 0 or retry_wait < 0:
            raise UsageError(f"bad retries {retries} or retry_wait {retry_wait}: 0 or more are allowed")
        self._client = js.client
        self._retries = retries
        self._retry_wait = retry_wait
        self._window = AckWindow(max_in_flight, None if js._state is None else js._noted)
        self._timeout = timeout

    @property
    def acked(self) -> int:
        """How many messages were acknowledged so far."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """How many of them the stream already had."""
        return self._window.duplicates

    @property
    def failures(self) -> list[FailedPublish]:
        """The messages that were refused, in the order of their answers."""
        return self._window.failures

    @property
    def last_ack(self) -> PubAck | None:
        """The newest ack; its `seq` is what a read may ask for with `min_last_seq`."""
        return self._window.last_ack

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_msg_id: str | None = None,
        ttl: timedelta | None = None,
        rollup: str | None = None,
    ) -> None:
        """Send one message; waits only while the window is full. Raises the first failure of an earlier message."""
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
        window = self._window
        if not window.has_room():
            await self._wait(window.has_room, "room in the window of publishes")
        if window.failures:
            raise self._failure()
        if self._retries:
            await self._try_again()
            sent = Sent(window.sent, subject, None, payload, header, self._retries)
            window.sent += 1
            window.sending_once_more(self._client.start(subject, payload, window, header=header), sent)
        else:
            window.sending(self._client.start(subject, payload, window, header=header), subject)

    async def send(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        ttl: timedelta | None = None,
    ) -> PendingAck:
        """As `publish` for a message whose own ack matters: `result(pending)` waits for it, and raises its failure."""
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
        if not window.has_room():
            await self._wait(window.has_room, "room in the window of publishes")
        window.sending(self._client.start(subject, payload, window, header=header), subject, pending)
        return pending

    async def result(self, pending: PendingAck) -> PubAck:
        """The ack of a message that `send` sent; raises its failure."""
        await self._wait(pending.is_done, "the ack of a publish")
        return pending.result()

    async def _try_again(self) -> None:
        """Send once more what nobody was there to take, after a pause that grows."""
        window = self._window
        while window.again:
            tries = window.again[0].tries
            await rest(self._client, self._retry_wait * 2 ** (self._retries - 1 - tries))
            for _ in range(len(window.again)):
                sent = window.again.popleft()
                token = self._client.start(sent.subject, sent.payload, window, header=sent.header)
                window.sending_once_more(token, sent)

    async def flush(self) -> None:
        """Wait until every message sent so far was answered; raises the first failure.

        The timeout is for the next ack, not for all of them: a slow server is no silent one.
        """
        while waiting := self._window.in_flight:
            if self._window.again:
                await self._try_again()
                continue
            await self._wait(partial(self._window.fewer_than, waiting), "the acks of the publishes in flight")
        if self._window.failures:
            raise self._failure()

    async def _wait(self, ready: requests.Ready, what: str) -> None:
        try:
            await self._client.wait(ready, timeout=self._timeout, what=what)
        except BaseException as error:
            self._forget(error if isinstance(error, Error) else Error(f"given up while waiting for {what}"))
            raise

    def _forget(self, error: Error) -> None:
        """Whether what is in flight was stored is not known; nobody waits for it any more."""
        for token in self._window.forget(error):
            self._client.cancel(token)

    def _failure(self) -> Error:
        first = self._window.failures[0]
        first.error.add_note(
            f"message {first.place} on {first.subject!r}; {len(self._window.failures)} of {self._window.sent} failed"
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
            self._forget(Error("given up: the block that published it raised"))


class Stream(StreamReads, StreamConsumers):
    """One stream: what it is, its messages (`StreamReads`) and its consumers (`StreamConsumers`)."""

    def __init__(self, js: JetStream, name: str) -> None:
        self._js = js
        self._client = js.client
        self._api = js._api
        self._direct = js._api.direct_subject(name)
        self.name = name

    async def info(
        self, *, subjects_filter: str = "", deleted_details: bool = False, timeout: float | None = None
    ) -> StreamInfo:
        """The stream's configuration and state, from its leader."""
        call = self._api.stream_info(self.name, subjects_filter=subjects_filter, deleted_details=deleted_details)
        return await self._js.run(call, timeout=timeout)

    async def subjects(self, pattern: str = ">", *, timeout: float | None = None) -> AsyncIterator[str]:
        """The subjects that the stream has messages of and that match, asked for page by page."""
        async for subject in self._js.each(partial(self._api.subject_names, self.name, pattern), timeout=timeout):
            yield subject

    async def delete(self, *, timeout: float | None = None) -> None:
        """Remove the stream and all its messages."""
        await self._js.run(self._api.delete_stream(self.name), timeout=timeout)

    async def purge(
        self, *, subject: str = "", below: int | None = None, keep: int = 0, timeout: float | None = None
    ) -> int:
        """Remove messages, and tell how many: all, those that match `subject`, those under the sequence `below`, or all
        but the newest `keep`. Not covered by `min_last_seq`: the last sequence stays what it was."""
        call = self._api.purge_stream(self.name, subject=subject, below=below, keep=keep)
        return 0 if call is None else await self._js.run(call, timeout=timeout)

    async def delete_message(self, seq: int, *, erase: bool = True, timeout: float | None = None) -> None:
        """Remove one message. Not covered by `min_last_seq`: the last sequence stays what it was."""
        await self._js.run(self._api.delete_message(self.name, seq, erase=erase), timeout=timeout)

"""JetStream over the asyncio client: `JetStream` publishes and makes streams, `Stream` reads one.

Thin: requests, decoders and flow control are pure and live beside this module; here they are sent and waited for. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from slipstream.api import AccountInfo, GetRequest, PubAck, StreamConfig, StreamInfo, encode_json, names
from slipstream.client.aio import Client
from slipstream.errors import AuthorizationError, Error, MessageNotFoundError, UsageError
from slipstream.jetstream import calls
from slipstream.jetstream.aio_asking import Asking, ask
from slipstream.jetstream.aio_leader import LeaderRead
from slipstream.jetstream.aio_many import ManyRead
from slipstream.jetstream.aio_reads import TrustedRead
from slipstream.jetstream.batch import RangeReader
from slipstream.jetstream.columns import Columns
from slipstream.jetstream.direct import StoredMessage, decode_one
from slipstream.jetstream.ledger import Ledger, ReadFigures, ledger_of
from slipstream.jetstream.patience import Patience
from slipstream.jetstream.session import SessionState
from slipstream.jetstream.window import AckWindow, FailedPublish
from slipstream.wire import Headers, check_filter, has_wildcard
from slipstream.wire.headers import HeaderValues

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
R = TypeVar("R", bound=Asking)

DEFAULT_TIMEOUT = 5.0
DEFAULT_WINDOW = 4096


class JetStream:
    """JetStream of one account: publish, and streams by name."""

    def __init__(self, client: Client, *, prefix: str = "", domain: str = "", timeout: float = DEFAULT_TIMEOUT) -> None:
        self._client = client
        self._api = calls.Api(names.api_prefix(prefix=prefix, domain=domain))
        self._timeout = timeout
        self._ledger: Ledger = ledger_of(client)
        self._state: SessionState | None = None  # of a session

    @property
    def client(self) -> Client:
        """The connection beneath."""
        return self._client

    @property
    def read_figures(self) -> ReadFigures:
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
    ) -> PubAck:
        """Store one message and wait until the stream has it. For many messages use `publisher()`.

        Raises WrongLastSequenceError if what was expected is stale, NoStreamError if no stream listens on `subject`.
        """
        call = calls.publish(
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
        ack = await self.run(call, timeout=timeout)
        if self._state is not None:
            self._state.note(ack.stream, ack.seq)
        return ack

    def publisher(self, *, max_in_flight: int = DEFAULT_WINDOW, timeout: float | None = None) -> Publisher:
        """Publish many messages, each acknowledged, with up to `max_in_flight` acks outstanding: the fast way."""
        return Publisher(self, max_in_flight=max_in_flight, timeout=self._timeout if timeout is None else timeout)

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
        seen = 0
        while True:
            page = await self.run(self._api.stream_names(subject=subject, offset=seen), timeout=timeout)
            for name in page.items:
                yield name
            seen += len(page.items)
            if not page.items or seen >= page.total:
                return

    async def streams(self, *, subject: str = "", timeout: float | None = None) -> AsyncIterator[StreamInfo]:
        """The infos of all streams, or of those that listen on a subject; asked for page by page."""
        seen = 0
        while True:
            page = await self.run(self._api.stream_list(subject=subject, offset=seen), timeout=timeout)
            for info in page.items:
                yield info
            seen += len(page.items)
            if not page.items or seen >= page.total:
                return

    async def account_info(self, *, timeout: float | None = None) -> AccountInfo:
        """What this account uses of JetStream and what it may use."""
        return await self.run(self._api.account_info(), timeout=timeout)

    def stream(self, name: str) -> Stream:
        """A handle on the stream of that name; nothing is asked of the server yet."""
        return Stream(self, calls.check_name(name))

    async def run(self, call: calls.Call[T], *, timeout: float | None = None) -> T:
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
        self._client = js._client
        self._api = js._api
        self._timeout = js._timeout
        self._ledger = js._ledger
        self._state: SessionState = SessionState(token)

    def seen(self, stream: str) -> int:
        """The highest sequence that was written to or read from a stream; 0 for none."""
        return self._state.seen(stream)

    def note(self, stream: str, seq: int) -> None:
        """A message with that sequence was seen elsewhere: by a consumer, or told by somebody."""
        self._state.note(calls.check_name(stream), calls.check_seq(seq, "seq"))

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

    def __init__(self, js: JetStream, *, max_in_flight: int, timeout: float) -> None:
        if max_in_flight < 1:
            raise UsageError(f"bad max_in_flight {max_in_flight}: at least 1 is allowed")
        self._client = js.client
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
    ) -> None:
        """Send one message; waits only while the window is full. Raises the first failure of an earlier message."""
        window = self._window
        if headers is None and msg_id is None and expected_stream is None:
            header = b""
        else:
            header = calls.publish(subject, b"", headers=headers, msg_id=msg_id, expected_stream=expected_stream).header
        if not window.has_room():
            await self._wait(window.has_room, "room in the window of publishes")
        if window.failures:
            raise self._failure()
        window.sending(self._client.start(subject, payload, window, header=header), subject)

    async def flush(self) -> None:
        """Wait until every message sent so far was answered; raises the first failure.

        The timeout is for the next ack, not for all of them: a slow server is no silent one.
        """
        while waiting := self._window.in_flight:
            await self._wait(partial(self._window.fewer_than, waiting), "the acks of the publishes in flight")
        if self._window.failures:
            raise self._failure()

    async def _wait(self, ready: calls.Ready, what: str) -> None:
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


class Stream:
    """One stream: its info, and its messages by Direct Get.

    Where a call takes `min_last_seq`, the answer is at least as new as that sequence, whichever replica gives it; if
    that cannot be had in time, StaleReadError is raised and no data returned. Deletes and purges of messages do not
    move a stream's sequence and are not covered. With `from_leader` the leader answers, and nobody else.

    Four errors say four things: MessageNotFoundError (it is not there), StaleReadError (nobody was new enough, or could
    prove it), BadRequestError (the server did not understand), and RequestTimeoutError or DirectGetNotAllowedError
    (nobody answers; the second says which setting is missing).
    """

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

    async def delete(self, *, timeout: float | None = None) -> None:
        """Remove the stream and all its messages."""
        await self._js.run(self._api.delete_stream(self.name), timeout=timeout)

    async def purge(self, *, subject: str = "", below: int = 0, keep: int = 0, timeout: float | None = None) -> int:
        """Remove messages, and tell how many: all, those that match `subject`, those under the sequence `below`, or all
        but the newest `keep`. Not covered by `min_last_seq`: the last sequence stays what it was."""
        return await self._js.run(
            self._api.purge_stream(self.name, subject=subject, below=below, keep=keep), timeout=timeout
        )

    async def delete_message(self, seq: int, *, erase: bool = True, timeout: float | None = None) -> None:
        """Remove one message. Not covered by `min_last_seq`: the last sequence stays what it was."""
        await self._js.run(self._api.delete_message(self.name, seq, erase=erase), timeout=timeout)

    async def get(
        self, seq: int, *, min_last_seq: int = 0, from_leader: bool = False, timeout: float | None = None
    ) -> StoredMessage:
        """The message with that sequence. Raises MessageNotFoundError if there is none (any more)."""
        calls.check_seq(seq, "seq", least=1)
        request = GetRequest(seq=seq)
        if from_leader:
            return await self._get_by_leader(request, min_last_seq, timeout)
        if not self._wants(min_last_seq):
            return await self._plain(self._direct, encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            if await read.keeps_min_last_seq():
                return await read.native(self._direct, request)
            return await read.by_seq(seq)

    async def get_next(
        self,
        subject: str,
        *,
        seq: int = 1,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> StoredMessage:
        """The first message at or after `seq` whose subject matches."""
        calls.check_seq(seq, "seq")
        request = GetRequest(seq=seq, next_by_subj=check_filter(subject))
        if from_leader:
            return await self._get_by_leader(request, min_last_seq, timeout)
        if not self._wants(min_last_seq):
            return await self._plain(self._direct, encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            if await read.keeps_min_last_seq():
                return await read.native(self._direct, request)
            return await read.next(subject, seq)

    async def get_last(
        self, subject: str, *, min_last_seq: int = 0, from_leader: bool = False, timeout: float | None = None
    ) -> StoredMessage:
        """The newest message whose subject matches. Raises MessageNotFoundError if there is none."""
        is_literal = not has_wildcard(check_filter(subject))
        if from_leader:
            return await self._get_by_leader(GetRequest(last_by_subj=subject), min_last_seq, timeout)
        asked = self._api.direct_subject(self.name, subject) if is_literal else self._direct
        request = GetRequest(last_by_subj="" if is_literal else subject)
        if not self._wants(min_last_seq):
            return await self._plain(asked, b"" if is_literal else encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            try:
                if await read.keeps_min_last_seq():
                    return await read.native(asked, request)
                return await read.last(subject)
            except AuthorizationError:
                if not is_literal:
                    raise
                return await read.last_by_appended(asked)

    async def get_last_many(
        self,
        subjects: Sequence[str],
        *,
        up_to_seq: int = 0,
        up_to_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> dict[str, StoredMessage]:
        """Subject to newest message, for any number of subjects and patterns; those without a message are left out.

        With `up_to_seq` or `up_to_time` (nanoseconds since the epoch) the newest up to there. It is not one state of
        the stream: subjects are read in pieces, each of which is at or after `min_last_seq`.
        """
        if isinstance(subjects, str):
            raise UsageError(f"bad subjects {subjects!r}: a sequence of subjects is allowed, not one text")
        if (up_to_time is not None and (up_to_seq or from_leader)) or (up_to_seq and from_leader):
            raise UsageError("up_to_seq, up_to_time and from_leader: one of them is allowed")
        asked = tuple(check_filter(subject) for subject in subjects)
        calls.check_seq(up_to_seq, "up_to_seq")
        read = self._read(ManyRead, min_last_seq, timeout)
        with self._counted(read):
            if from_leader:
                return await read.newest_by_leader(asked)
            read.bound(up_to_seq=up_to_seq, up_to_time=up_to_time)
            found = await read.newest(asked)
        for message in found.values():
            self._note(message.seq)
        return found

    async def get_from_leader(self, request: GetRequest, *, timeout: float | None = None) -> StoredMessage:
        """Message Get as it is: answered by the stream's leader alone, or by one that does not know it was deposed."""
        return await self._js.run(self._api.message_get(self.name, request), timeout=timeout)

    async def get_last_from_leader(self, subject: str, *, timeout: float | None = None) -> StoredMessage:
        """The newest message whose subject matches, as the stream's leader has it."""
        return await self.get_from_leader(GetRequest(last_by_subj=check_filter(subject)), timeout=timeout)

    async def read(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Every message that matches `subject`, in order, from `start` (or `start_time`, nanoseconds since 1970) to
        `end` (inclusive; 0: to the last)."""
        chunks = self.read_columns(
            start=start,
            end=end,
            subject=subject,
            start_time=start_time,
            min_last_seq=min_last_seq,
            from_leader=from_leader,
            timeout=timeout,
        )
        async for columns in chunks:
            for message in columns.messages():
                yield message

    async def read_chunks(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[list[StoredMessage]]:
        """The same in lists, as they arrive."""
        chunks = self.read_columns(
            start=start,
            end=end,
            subject=subject,
            start_time=start_time,
            min_last_seq=min_last_seq,
            from_leader=from_leader,
            timeout=timeout,
        )
        async for columns in chunks:
            yield columns.messages()

    async def read_columns(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Columns]:
        """The same in columns, as they arrive: the fast way.

        `timeout` is for each wait, not for the whole read. A range with an `end` is complete, whichever replica
        answered: one that is behind is asked again, not believed.
        """
        if subject:
            check_filter(subject)
        for what, seq in (("start", start), ("end", end), ("min_last_seq", min_last_seq)):
            calls.check_seq(seq, what)
        if start_time is not None and (start > 1 or from_leader):
            raise UsageError("start_time together with start or from_leader: one of them is allowed")
        if end and start > end:
            return
        read = self._read(LeaderRead, min_last_seq, timeout)
        wanted = read.wanted
        with self._counted(read):
            goal = end or wanted
            trusting = bool(goal) and not from_leader and await read.keeps_min_last_seq()
            reader = RangeReader(
                start=start, end=end, subject=subject, at_least=wanted, since=start_time or 0, trusting=trusting
            )
            chunks = read.pages(reader) if from_leader else read.columns(reader, plain=trusting or not goal)
            async for columns in chunks:
                read.reached = columns.seqs[-1]
                yield columns

    # How it is read

    async def _plain(self, asked: str, body: bytes, timeout: float | None) -> StoredMessage:
        """A Direct Get of whichever replica answers."""
        js = self._js
        call = calls.Call(asked, body, partial(decode_one, asked=asked))
        try:
            found = await ask(self._client, call, js._timeout if timeout is None else timeout)
        except MessageNotFoundError:
            js._ledger.at_once += 1
            raise
        except Error:
            js._ledger.failed += 1
            raise
        js._ledger.at_once += 1
        if js._state is not None:
            js._state.note(self.name, found.seq)
        return found

    async def _get_by_leader(self, request: GetRequest, min_last_seq: int, timeout: float | None) -> StoredMessage:
        read = self._read(LeaderRead, min_last_seq, timeout)
        with self._counted(read):
            return await read.get(request)

    def _wants(self, min_last_seq: int) -> bool:
        """Whether the answer must be new enough, for the caller or for the session."""
        state = self._js._state
        return bool(calls.check_seq(min_last_seq, "min_last_seq")) or (state is not None and state.seen(self.name) > 0)

    def _note(self, seq: int) -> None:
        if self._js._state is not None:
            self._js._state.note(self.name, seq)

    def _read(self, kind: type[R], min_last_seq: int, timeout: float | None) -> R:
        js = self._js
        wanted = calls.check_seq(min_last_seq, "min_last_seq")
        patience = Patience(js._timeout if timeout is None else timeout, self._client.now)
        return kind(
            self._client, self._api, self.name, wanted=wanted, patience=patience, ledger=js._ledger, session=js._state
        )

    @contextmanager
    def _counted(self, read: Asking) -> Iterator[None]:
        """A read belongs to the figures, and to the session, however it ends."""
        ledger = self._js._ledger
        try:
            yield
        except (MessageNotFoundError, GeneratorExit):
            ledger.count(tries=read.tries, with_leader=read.with_leader)
            self._note(read.reached)
            raise
        except BaseException:
            ledger.failed += 1
            raise
        ledger.count(tries=read.tries, with_leader=read.with_leader)
        self._note(read.reached)

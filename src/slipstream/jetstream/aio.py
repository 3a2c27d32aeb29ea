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

import msgspec

from slipstream.api import AccountInfo, GetRequest, PubAck, StreamConfig, StreamInfo, encode_json, names
from slipstream.client.aio import Client
from slipstream.errors import (
    Error,
    MessageNotFoundError,
    RequestTimeoutError,
    StaleReadError,
    UsageError,
)
from slipstream.jetstream import calls
from slipstream.jetstream.batch import RangeReader, State
from slipstream.jetstream.columns import ColumnPage, Columns
from slipstream.jetstream.direct import StoredMessage, decode_one
from slipstream.jetstream.patience import Patience
from slipstream.jetstream.window import AckWindow, FailedPublish
from slipstream.wire import Headers, Msg, check_filter, has_wildcard
from slipstream.wire.headers import HeaderValues

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0
DEFAULT_WINDOW = 4096


class JetStream:
    """JetStream of one account: publish, and streams by name."""

    def __init__(self, client: Client, *, prefix: str = "", domain: str = "", timeout: float = DEFAULT_TIMEOUT) -> None:
        self._client = client
        self._api = calls.Api(names.api_prefix(prefix=prefix, domain=domain))
        self._timeout = timeout
        self._min_last_seq_kept: dict[str, bool] = {}  # by server: what it did when it was asked

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
        return await self.run(call, timeout=timeout)

    def publisher(self, *, max_in_flight: int = DEFAULT_WINDOW, timeout: float | None = None) -> Publisher:
        """Publish many messages, each acknowledged, with up to `max_in_flight` acks outstanding: the fast way."""
        return Publisher(self, max_in_flight=max_in_flight, timeout=self._timeout if timeout is None else timeout)

    async def create_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Make a stream, or find it made with the same configuration."""
        info = await self.run(self._api.create_stream(config), timeout=timeout)
        return Stream(self, info.config.name)

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
        answer = calls.Answer()
        timeout = self._timeout if timeout is None else timeout
        token = self._client.start(call.subject, call.payload, answer, header=call.header)
        try:
            await self._client.wait(answer.ready, timeout=timeout, what=f"an answer on {call.subject}")
        finally:
            self._client.cancel(token)
        return call.decode(answer.take())

    async def _keeps_min_last_seq(self, stream: str, patience: Patience) -> bool:
        """Whether the server in front of us honours `min_last_seq`; asked once per server, of the server itself."""
        server = self._client.server_info.server_id
        known = self._min_last_seq_kept.get(server)
        if known is None:
            call = self._api.probe_min_last_seq(stream)
            known = self._min_last_seq_kept[server] = await self.run(call, timeout=patience.left())
        return known

    async def _ask(self, subject: str, request: GetRequest | None, patience: Patience) -> Msg:
        body = encode_json(request) if request is not None else b""
        try:
            return await self.run(calls.Call(subject, body, lambda msg: msg), timeout=patience.left())
        except RequestTimeoutError as error:
            raise patience.why(error) from error


class Publisher:
    """A window of publishes in flight; use it as a context manager, which waits for the last ack.

    Every message is acknowledged or its failure raised: by the `publish` or `flush` that sees it, at the latest on the
    way out.
    """

    def __init__(self, js: JetStream, *, max_in_flight: int, timeout: float) -> None:
        if max_in_flight < 1:
            raise UsageError(f"bad max_in_flight {max_in_flight}: at least 1 is allowed")
        self._client = js.client
        self._window = AckWindow(max_in_flight)
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
    move a stream's sequence and are not covered.
    """

    def __init__(self, js: JetStream, name: str) -> None:
        self._js = js
        self._client = js.client
        self._api = js._api
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

    async def get(self, seq: int, *, min_last_seq: int = 0, timeout: float | None = None) -> StoredMessage:
        """The message with that sequence. Raises MessageNotFoundError if there is none (any more)."""
        return await self._get(GetRequest(seq=calls.check_seq(seq, "seq", least=1), min_last_seq=min_last_seq), timeout)

    async def get_next(
        self, subject: str, *, seq: int = 1, min_last_seq: int = 0, timeout: float | None = None
    ) -> StoredMessage:
        """The first message at or after `seq` whose subject matches."""
        start = calls.check_seq(seq, "seq")
        request = GetRequest(seq=start, next_by_subj=check_filter(subject), min_last_seq=min_last_seq)
        return await self._get(request, timeout)

    async def get_last(self, subject: str, *, min_last_seq: int = 0, timeout: float | None = None) -> StoredMessage:
        """The newest message whose subject matches. Raises MessageNotFoundError if there is none."""
        if has_wildcard(check_filter(subject)):
            return await self._get(GetRequest(last_by_subj=subject, min_last_seq=min_last_seq), timeout)
        asked = self._api.direct_subject(self.name, subject)
        request = GetRequest(min_last_seq=min_last_seq) if calls.check_seq(min_last_seq, "min_last_seq") else None
        patience = self._patience(timeout)
        if request is not None and not await self._js._keeps_min_last_seq(self.name, patience):
            return await self._prove_last(subject, min_last_seq, patience)
        while True:
            reply = await self._js._ask(asked, request, patience)
            try:
                return decode_one(reply, asked=asked, min_last_seq=min_last_seq)
            except StaleReadError as error:
                await self._pause(patience, error)

    async def get_from_leader(self, request: GetRequest, *, timeout: float | None = None) -> StoredMessage:
        """Message Get: answered by the stream's leader alone."""
        return await self._js.run(self._api.message_get(self.name, request), timeout=timeout)

    async def get_last_from_leader(self, subject: str, *, timeout: float | None = None) -> StoredMessage:
        """The newest message whose subject matches, as the stream's leader has it."""
        return await self.get_from_leader(GetRequest(last_by_subj=check_filter(subject)), timeout=timeout)

    async def read(
        self, *, start: int = 1, end: int = 0, subject: str = "", min_last_seq: int = 0, timeout: float | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Every message from `start` to `end` (inclusive; 0: to the last) that matches `subject`, in order."""
        chunks = self.read_chunks(start=start, end=end, subject=subject, min_last_seq=min_last_seq, timeout=timeout)
        async for chunk in chunks:
            for message in chunk:
                yield message

    async def read_chunks(
        self, *, start: int = 1, end: int = 0, subject: str = "", min_last_seq: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[StoredMessage]]:
        """The same in lists, as they arrive."""
        chunks = self.read_columns(start=start, end=end, subject=subject, min_last_seq=min_last_seq, timeout=timeout)
        async for columns in chunks:
            yield columns.messages()

    async def read_columns(
        self, *, start: int = 1, end: int = 0, subject: str = "", min_last_seq: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Columns]:
        """The same in columns, as they arrive: the fast way.

        `timeout` is for each wait, not for the whole read. A range with an `end` is complete, whichever replica
        answered: one that is behind is asked again, not believed.
        """
        if subject:
            check_filter(subject)
        for what, seq in (("start", start), ("end", end), ("min_last_seq", min_last_seq)):
            calls.check_seq(seq, what)
        if end and start > end:
            return
        patience = self._patience(timeout)
        trusting = bool(end or min_last_seq) and await self._js._keeps_min_last_seq(self.name, patience)
        reader = RangeReader(start=start, end=end, subject=subject, at_least=min_last_seq, trusting=trusting)
        page, token = self._next_page(reader)
        try:
            while not reader.is_done:
                try:
                    if reader.state is State.DOUBTFUL:
                        await self._settle(reader, patience)
                        page, token = self._next_page(reader)
                        continue
                    await self._wait(page.ready, patience)
                    columns, over = reader.feed(page)
                except StaleReadError as error:
                    await self._pause(patience, error)
                    page, token = self._next_page(reader)
                    continue
                if over and reader.state is State.READING:
                    page, token = self._next_page(reader)  # it is under way while this one is handled
                if columns.seqs:
                    yield columns
                    patience = self._patience(timeout)
        finally:
            self._client.cancel(token)

    def _next_page(self, reader: RangeReader) -> tuple[ColumnPage, str]:
        asked = self._api.direct_subject(self.name)
        page = reader.page(asked)
        return page, self._client.start_bulk(asked, encode_json(reader.request()), page)

    async def _settle(self, reader: RangeReader, patience: Patience) -> None:
        """A responder ended early: find out from the leader whether it lagged or the rest of the range is gone."""
        request = GetRequest(seq=reader.next_seq, next_by_subj=reader.pattern)
        try:
            following = (await self.get_from_leader(request, timeout=patience.left())).seq
        except MessageNotFoundError:
            following = 0
        last = (await self.info(timeout=patience.left())).state.last_seq
        reader.settle(last, following)
        if reader.state is State.DOUBTFUL or following:
            behind = f"{self.name}: read to {reader.next_seq - 1}, wanted {reader.goal}, its leader has {last}"
            await self._pause(patience, StaleReadError(behind, stream=self.name, min_last_seq=reader.goal))

    async def _get(self, request: GetRequest, timeout: float | None) -> StoredMessage:
        asked = self._api.direct_subject(self.name)
        patience = self._patience(timeout)
        wanted = calls.check_seq(request.min_last_seq, "min_last_seq")
        trusting = not wanted or await self._js._keeps_min_last_seq(self.name, patience)
        while True:
            reply = await self._js._ask(asked, request, patience)
            try:
                found = decode_one(reply, asked=asked, min_last_seq=wanted)
            except StaleReadError as error:
                await self._pause(patience, error)
            except MessageNotFoundError:
                if trusting:
                    raise
                return await self._prove_by_leader(request, patience)
            else:
                # A message of a given sequence never changes; one chosen by subject may be an old one.
                if trusting or found.seq >= wanted or not (request.last_by_subj or request.next_by_subj):
                    return found
                return await self._prove_by_leader(request, patience)

    async def _prove_by_leader(self, request: GetRequest, patience: Patience) -> StoredMessage:
        """The leader's answer, once the leader is known to have the wanted sequence; a deposed one is asked again."""
        wanted = request.min_last_seq
        request = msgspec.structs.replace(request, min_last_seq=0)  # a released server refuses fields it does not know
        while True:
            last = (await self.info(timeout=patience.left())).state.last_seq
            if last >= wanted:
                return await self.get_from_leader(request, timeout=patience.left())
            behind = f"{self.name}: its leader has {last}, wanted {wanted}"
            await self._pause(patience, StaleReadError(behind, stream=self.name, min_last_seq=wanted))

    async def _prove_last(self, subject: str, wanted: int, patience: Patience) -> StoredMessage:
        """The last message of a literal subject from a server that ignores `min_last_seq`, proven to be new enough.

        The end of a multi-subject get carries the responder's own last sequence: at least `wanted`, or the answer is
        not used. An anchor, a subject known to have a message, makes that end come also when `subject` has none.
        """
        asked = self._api.direct_subject(self.name)
        anchor = ""
        while True:
            wanted_subjects = (subject, anchor) if anchor and anchor != subject else (subject,)
            page = ColumnPage(asked)
            body = encode_json(GetRequest(multi_last=wanted_subjects, batch=len(wanted_subjects)))
            token = self._client.start_bulk(asked, body, page)
            try:
                await self._wait(page.is_finished, patience)
            finally:
                self._client.cancel(token)
            found = page.take()
            seen = -1 if page.end is None else page.end.up_to_seq
            if seen >= wanted:
                for message in found.messages():
                    if message.subject == subject:
                        return message
                raise MessageNotFoundError(f"{asked}: no message on {subject}")
            if not found.seqs and not anchor:
                anchor = await self._find_anchor(wanted, patience)
                if not anchor:
                    raise MessageNotFoundError(f"{asked}: the stream is empty")
                continue
            behind = f"{self.name}: a replica with last sequence {seen} answered, wanted {wanted}"
            await self._pause(patience, StaleReadError(behind, stream=self.name, min_last_seq=wanted))

    async def _find_anchor(self, wanted: int, patience: Patience) -> str:
        """A subject that has a message; empty if the leader, new enough, says that there is none at all."""
        while True:
            try:
                return (await self._get(GetRequest(last_by_subj=">"), patience.left())).subject
            except MessageNotFoundError:
                state = (await self.info(timeout=patience.left())).state
            if state.last_seq >= wanted and not state.messages:
                return ""
            behind = f"{self.name}: its leader has {state.last_seq}, wanted {wanted}"
            await self._pause(patience, StaleReadError(behind, stream=self.name, min_last_seq=wanted))

    def _patience(self, timeout: float | None) -> Patience:
        return Patience(self._js._timeout if timeout is None else timeout, self._client.now)

    async def _wait(self, ready: calls.Ready, patience: Patience) -> None:
        try:
            await self._client.wait(ready, timeout=patience.left(), what=f"messages of {self.name}")
        except RequestTimeoutError as error:
            raise patience.why(error) from error

    async def _pause(self, patience: Patience, error: StaleReadError) -> None:
        """Wait a little before asking again; raises `error` when the time is up."""
        delay = patience.next_pause(error)
        if delay is None:
            raise error
        try:
            await self._client.wait(lambda: False, timeout=delay, what="a replica to catch up")
        except RequestTimeoutError:
            return

"""The context that the parts of one JetStream handle share: connection, API subjects, session, read statistics.

Streams, consumers, publishers and reads get it as an argument and keep nothing of each other. The blocking twin is
generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from slipstream.api import PubAck, names
from slipstream.client._async.client import Client
from slipstream.codecs import Codec
from slipstream.codecs.payloads import check_codec
from slipstream.errors import Error, StreamLookupError
from slipstream.jetstream import requests
from slipstream.jetstream.consume.ack_subject import BaseJsMessage
from slipstream.jetstream.consumer_requests import ConsumerApi
from slipstream.jetstream.publish.counts import PublishCounts
from slipstream.jetstream.reads.read_state import MOVE_INTERVAL, ReadState
from slipstream.jetstream.reads.session import SessionState
from slipstream.wire.arguments import Duration, check_seconds, check_timeout

T = TypeVar("T")


class JetStreamContext:
    """One connection, one API prefix, one default timeout, one codec, and the session if there is one."""

    __slots__ = ("api", "client", "codec", "consumer_api", "publish_counts", "read_state", "session", "timeout")

    def __init__(
        self,
        client: Client,
        prefix: str,
        *,
        timeout: float,
        session: SessionState | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        self.client: Client = client
        self.codec: Codec[Any] = check_codec(codec) or client.codec
        self.api: requests.Api = requests.Api(prefix)
        self.consumer_api: ConsumerApi = ConsumerApi(prefix)
        self.timeout: float = timeout
        self.session: SessionState | None = session
        self.publish_counts: PublishCounts = client.shared(PublishCounts)
        # One per connection, whatever the number of contexts on it.
        self.read_state: ReadState = client.shared(ReadState)

    @property
    def prefix(self) -> str:
        """The subject prefix of the API."""
        return self.api.prefix

    @property
    def server_keeps_min(self) -> bool | None:
        """Whether servers here keep `min_last_seq` themselves, if that is known: an answer then need not be proven."""
        return self.read_state.keeps_min.get((self.client.server_info.server_id, self.api.prefix))

    @server_keeps_min.setter
    def server_keeps_min(self, keeps: bool) -> None:
        self.read_state.keeps_min[self.client.server_info.server_id, self.api.prefix] = keeps

    def in_session(self, session: SessionState) -> JetStreamContext:
        """The same context for a session: its publishes and reads are noted there."""
        return JetStreamContext(self.client, self.api.prefix, timeout=self.timeout, session=session, codec=self.codec)

    async def run(self, call: requests.Call[T], *, timeout: Duration | None = None) -> T:
        """Send a request and decode its answer."""
        limit = self.timeout if timeout is None else check_seconds(timeout)
        msg = await self.client.exchange(
            call.subject, call.payload, header=call.header, timeout=limit, what=call.awaited
        )
        return call.decode(msg)

    def leave_server(self, silence: Error) -> bool:
        """Move the connection to another server of the cluster, if there is one and it did not just come from one."""
        state, now = self.read_state, self.client.now()
        is_due = state.moved_at is None or now - state.moved_at >= MOVE_INTERVAL
        if not is_due or not self.client.leave_server(silence):
            return False
        state.moved_at = now
        state.moves += 1
        return True

    async def each(self, ask: requests.AskPage[T], *, timeout: Duration | None = None) -> AsyncIterator[T]:
        """The items of a list that the server returns page by page."""
        seen, timeout = 0, check_timeout(timeout)
        while True:
            page = await self.run(ask(offset=seen), timeout=timeout)
            for item in page.items:
                yield item
            seen += len(page.items)
            if not page.items or seen >= page.total:
                return

    async def stream_name_of(self, subject: str, *, timeout: Duration | None = None) -> str:
        """The name of the one stream that listens on a subject; raises StreamLookupError if it is none or several."""
        found = await self.run(self.consumer_api.streams_of(subject), timeout=timeout)
        if len(found) != 1:
            raise StreamLookupError(subject, found)
        return found[0]

    def note(
        self, stream: str, seq: int, subject: str = "", *, is_own_write: bool = False, breaks_run: bool = False
    ) -> None:
        """Tell the session, if there is one, of a message that was written or read: see `SessionState.note`."""
        if self.session is not None:
            self._know_generation(self.session, stream)
            self.session.note(stream, seq, subject, is_own_write=is_own_write, breaks_run=breaks_run)

    def note_state(self, stream: str, as_of: int, subject: str = "", seq: int = 0) -> None:
        """Tell the session, if there is one, what a read proved: see `SessionState.note_state`."""
        if self.session is not None:
            self._know_generation(self.session, stream)
            self.session.note_state(stream, as_of, subject, seq)

    def note_many(self, stream: str, subjects: Sequence[str], seqs: Sequence[int]) -> None:
        """Tell the session, if there is one, of messages that were read, in the order of their sequences."""
        if self.session is not None:
            self._know_generation(self.session, stream)
            self.session.note_many(stream, subjects, seqs)

    def note_ack(self, ack: PubAck, subject: str = "", header: bytes = b"") -> None:
        """Tell the session, if there is one, of a publish that was stored, with its header."""
        if self.session is None:
            return
        if ack.duplicate:  # the message of that sequence may have been published to another subject
            self.note(ack.stream, ack.seq)
        else:
            is_rollup = bool(header) and names.ROLLUP.lower().encode() in header.lower()
            self.note(ack.stream, ack.seq, subject, is_own_write=True, breaks_run=is_rollup)

    def note_messages(self, stream: str, messages: Sequence[BaseJsMessage[Client]]) -> None:
        """Tell the session, if there is one, of a consumer's messages before the program gets them."""
        if self.session is None or not messages:
            return
        newest = max(messages, key=_seq_of)
        self.note(stream, _seq_of(newest), newest.subject)

    def _know_generation(self, session: SessionState, stream: str) -> None:
        """What is noted now is of the stream that the connection knows, or of one made since: never of an older one."""
        if not session.created(stream) and (created := self.read_state.stream(self.prefix, stream).created):
            session.made(stream, created, 0)


def _seq_of(message: BaseJsMessage[Client]) -> int:
    """Its sequence; 0 for what another program published to the subject that a consumer delivers to."""
    return message.seq if message.reply.startswith("$JS.ACK.") else 0

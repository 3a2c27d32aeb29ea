"""An atomic batch over the asyncio client: messages for one stream, all stored or none.

Each message carries the batch's id and its number; the last one, held back until then, commits. The server drops a
batch that is not committed. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from slipstream.api import PubAck, names
from slipstream.client._async.opening import Openable
from slipstream.codecs.payloads import encode_payload
from slipstream.errors import UsageError
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.consume.inbox import consumer_name
from slipstream.wire import Headers
from slipstream.wire.arguments import Duration, check_seconds
from slipstream.wire.headers import HeaderValues


class AtomicBatch(Openable):
    """A batch that is being sent. Leaving `async with` commits it; an error in the block discards it.

    Expectations of the stream are checked when the batch is committed, for all messages together.
    """

    def __init__(self, context: JetStreamContext, *, timeout: Duration) -> None:
        self._context = context
        self._client = context.client
        self._timeout = check_seconds(timeout)
        self._id = consumer_name(context.client.new_inbox())
        self._held: tuple[str, bytes, Headers] | None = None  # the last message: it will have to commit
        self._sent = 0
        self._earlier: list[tuple[str, bytes]] = []  # subject and header of the messages before it, for a session
        self._is_over = False
        self.ack: PubAck | None = None

    def __repr__(self) -> str:
        return f"<AtomicBatch of {self._sent} messages{', over' if self._is_over else ''}>"

    @property
    def id(self) -> str:
        """The batch's id, as the server knows it."""
        return self._id

    def __len__(self) -> int:
        return self._sent + (self._held is not None)

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
        ttl: Duration | None = None,
    ) -> None:
        """Add a message: bytes, or an object, which the codec encodes.

        The first one is a request, which raises if the stream does not take batches.
        """
        self._check_open()
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._context.codec, subject, payload, headers)
        call = requests.publish(
            subject,
            payload,
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            ttl=ttl,
        )
        if self._held is not None:
            await self._send_held()
        self._held = (call.subject, payload, Headers.parse(call.header))

    async def commit(self) -> PubAck:
        """Store all messages; the ack is that of the last one, with the batch's id and size."""
        self._check_open()
        if self._held is None:
            raise UsageError("atomic batch must have at least one message to be committed, got none")
        self._is_over = True
        subject, payload, headers = self._held
        header = self._header(headers, commit=True)
        call = requests.Call(subject, payload, partial(requests.decode_publish, subject=subject, header=header), header)
        self.ack = await self._context.run(call, timeout=self._timeout)
        self._note(self.ack, subject, headers)
        return self.ack

    def _note(self, ack: PubAck, subject: str, headers: Headers) -> None:
        """Tell the session, if there is one, of every message: those of a batch are stored without a gap."""
        note = self._context.note_ack
        if ack.count == len(self._earlier) + 1:
            for seq, earlier in enumerate(self._earlier, ack.seq - len(self._earlier)):
                note(msgspec.structs.replace(ack, seq=seq), *earlier)
        note(ack, subject, headers.encode())

    def discard(self) -> None:
        """Store none of the messages."""
        self._is_over = True

    async def _send_held(self) -> None:
        assert self._held is not None
        subject, payload, headers = self._held
        header = self._header(headers)
        if self._sent:
            await self._client.publish(subject, payload, headers=Headers.parse(header))
        else:
            decode = partial(requests.decode_batch_start, subject=subject)
            await self._context.run(requests.Call(subject, payload, decode, header), timeout=self._timeout)
        self._sent += 1
        if self._context.session is not None:
            self._earlier.append((subject, header))

    def _header(self, headers: Headers, *, commit: bool = False) -> bytes:
        batch = [(names.BATCH_ID, self._id), (names.BATCH_SEQUENCE, str(self._sent + 1))]
        if commit:
            batch.append((names.BATCH_COMMIT, "1"))
        return Headers([*headers.items(), *batch]).encode()

    def _check_open(self) -> None:
        if self._is_over:
            raise UsageError("atomic batch is already committed or discarded; begin another")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._is_over and self._held is not None:
            await self.commit()

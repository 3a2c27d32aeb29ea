"""Snapshot and restore of a stream over the asyncio client: the server's own archive, in chunks.

Only the kind of server that made an archive can restore it. Chunks are acknowledged one by one, so that neither side
runs ahead of the other. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from slipstream.api import StreamConfig, StreamInfo, encode_json
from slipstream.errors import RemoteProtocolError, SnapshotError
from slipstream.jetstream import requests
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.requests import Call
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_timeout

CHUNK_SIZE = 128 * 1024
MAX_PENDING = 64 * 1024 * 1024
OK_STATUS = 204


class Snapshot:
    """A snapshot of a stream: iterate over its bytes once; then `config` and `state` describe them.

    The bytes are a whole snapshot only if the iteration ends without an error.
    """

    def __init__(self, js: JetStream, name: str, *, consumers: bool, chunk_size: int, timeout: Duration | None) -> None:
        self._js = js
        self._name = requests.check_name(name)
        self._body = {"no_consumers": not consumers, "chunk_size": chunk_size, "jsck": False}
        self._timeout = check_timeout(timeout)
        self.config: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Snapshot of {self._name!r}>"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        client = self._js.client
        timeout = self._js.timeout if self._timeout is None else self._timeout
        inbox = client.new_inbox() + ".snapshot"
        async with await client.subscribe(inbox, max_pending_bytes=MAX_PENDING) as chunks:
            await self._begin(inbox, timeout)
            while True:
                message = await chunks.next(timeout=timeout)
                status = message.status
                if status is not None and status.code != OK_STATUS:
                    raise SnapshotError(f"the snapshot of {self._name} ended early: {status.code} {status.description}")
                if not message.data:
                    return
                if message.reply:
                    await client.publish(message.reply)
                yield message.data

    async def _begin(self, inbox: str, timeout: float) -> None:
        def decode(msg: Msg) -> dict[str, Any]:
            return requests.api_body(msg)

        subject = f"{self._js.prefix}.STREAM.SNAPSHOT.{self._name}"
        call = Call(subject, encode_json({**self._body, "deliver_subject": inbox}), decode)
        answer = await self._js.run(call, timeout=timeout)
        config, state = answer.get("config"), answer.get("state")
        if not isinstance(config, dict) or not isinstance(state, dict):
            raise RemoteProtocolError("the answer to a snapshot request has no configuration or no state")
        self.config, self.state = config, state


async def restore(
    js: JetStream,
    config: StreamConfig | Mapping[str, Any],
    state: Mapping[str, Any],
    data: Iterable[bytes] | AsyncIterable[bytes],
    *,
    timeout: float | None = None,
) -> StreamInfo:
    """Create a stream from a snapshot's bytes; raises the server's error if it cannot be created."""
    wanted = config.to_dict() if isinstance(config, StreamConfig) else config
    name = requests.check_name(str(wanted.get("name", "")))

    def target(msg: Msg) -> str:
        return msgspec.convert(requests.api_body(msg).get("deliver_subject"), str)

    request = Call(f"{js.prefix}.STREAM.RESTORE.{name}", encode_json({"config": wanted, "state": state}), target)
    subject = await js.run(request, timeout=timeout)
    async for piece in _pieces(data):
        for at in range(0, len(piece), CHUNK_SIZE):
            await js.run(Call(subject, piece[at : at + CHUNK_SIZE], _check_chunk), timeout=timeout)
    return await js.run(Call(subject, b"", requests.decode_stream_info), timeout=timeout)


def _check_chunk(msg: Msg) -> None:
    if msg.payload:
        requests.api_body(msg)  # raises the server's error


async def _pieces(data: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if hasattr(data, "__aiter__"):
        async for piece in data:
            yield piece
    else:
        for piece in data:
            yield piece

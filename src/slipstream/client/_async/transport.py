"""An asyncio transport: bytes of the socket are handed to the connection, unless it has moved on to another link."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from slipstream.client.layers.stack import LayerStack
from slipstream.errors import ConnectionLostError

if TYPE_CHECKING:
    from slipstream.client._async.connection import Connection

READ_SIZE = 64 * 1024
CLOSE_TIMEOUT = 0.5  # for the last bytes to leave; a server that does not read is cut off then


class Transport(asyncio.BufferedProtocol):
    """One transport; what happens on it is handed to the client, unless the client has moved on to another.

    The buffer is ours, and smaller than what loops read at once: its pages stay in the cache, which is a tenth of the
    time a subscriber takes for a message.
    """

    def __init__(self, client: Connection) -> None:
        self._client = client
        self.transport: asyncio.Transport | None = None
        self.channel: LayerStack | None = None  # None: plain bytes
        self.is_paused = False
        self._buffer = memoryview(bytearray(READ_SIZE))
        self.closed: asyncio.Future[None] = client._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._client._opened(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._client._received(self, bytes(self._buffer[:size]))

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._client._resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        error = ConnectionLostError(f"connection lost: {exc}" if exc else "the server closed the connection")
        error.__cause__ = exc
        self._client._lost(self, error)

    def send(self, data: bytes) -> None:
        """Give the transport what the session sends."""
        assert self.transport is not None
        if self.channel is not None:
            self.channel.send(data)
            data = self.channel.take()
        self.transport.write(data)

    def speak(self) -> None:
        """Give the transport what the channel itself has to say."""
        if self.channel is not None and self.transport is not None and (data := self.channel.take()):
            self.transport.write(data)

    async def finish(self, rest: bytes) -> None:
        """Send the rest and wait until the server hangs up: closing with its bytes unread could take ours with them."""
        if self.transport is None:
            return
        if rest:
            self.send(rest)
        if self.channel is not None:
            self.channel.finish()
            self.speak()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.transport.close()
        await asyncio.wait((self.closed,), timeout=CLOSE_TIMEOUT)

    def cut(self) -> None:
        """Close at once, without sending what is left."""
        if self.transport is not None:
            self.transport.abort()

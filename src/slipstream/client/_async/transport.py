"""An asyncio transport with the layers (TLS, WebSocket) of one connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol, cast

from slipstream.client.layers.stack import LayerStack
from slipstream.errors import ConnectionLostError, Error

READ_SIZE = 64 * 1024
CLOSE_TIMEOUT = 0.5  # for the last bytes to be sent; a server that does not read them is cut off


class TransportOwner(Protocol):
    """What a transport reports to. It ignores a transport that it has given up."""

    def opened(self, transport: Transport) -> None: ...

    def received(self, transport: Transport, data: bytes) -> None: ...

    def resumed(self, transport: Transport) -> None:
        """It takes bytes again."""
        ...

    def lost(self, transport: Transport, error: Error) -> None: ...


class Transport(asyncio.BufferedProtocol):
    """One socket of an event loop, and what is wrapped around its bytes.

    The buffer is ours, and smaller than what loops read at once: its pages stay in the cache, which is a tenth of the
    time a subscriber takes for a message.
    """

    def __init__(self, owner: TransportOwner, closed: asyncio.Future[None]) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._closed = closed
        self._buffer = memoryview(bytearray(READ_SIZE))
        self.layers: LayerStack | None = None  # None: plain bytes
        self.is_writable: bool = False  # open, and not full

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.is_writable = True
        self._owner.opened(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._owner.received(self, bytes(self._buffer[:size]))

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._owner.resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        error = ConnectionLostError(f"connection lost: {exc}" if exc else "the server closed the connection")
        error.__cause__ = exc
        self._owner.lost(self, error)

    # Called by the connection

    def limit_buffer(self, size: int) -> None:
        """Count as full from `size` unsent bytes on."""
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=size)

    def send(self, data: bytes) -> None:
        """Send bytes of the session."""
        assert self._transport is not None
        if self.layers is not None:
            self.layers.send(data)
            data = self.layers.take()
        self._transport.write(data)

    def send_layers(self) -> None:
        """Send what the layers themselves have to say: handshakes, alerts, closing frames."""
        if self.layers is not None and self._transport is not None and (data := self.layers.take()):
            self._transport.write(data)

    async def finish(self, rest: bytes) -> None:
        """Send the rest and wait until the server closes: closing with its bytes unread could discard ours."""
        if self._transport is None:
            return
        if rest:
            self.send(rest)
        if self.layers is not None:
            self.layers.finish()
            self.send_layers()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            with suppress(OSError):  # reset by the server, which the event loop has not noticed yet
                self._transport.write_eof()
        else:
            self._transport.close()
        await asyncio.wait((self._closed,), timeout=CLOSE_TIMEOUT)

    def abort(self) -> None:
        """Close at once, without sending what is left."""
        if self._transport is not None:
            self._transport.abort()

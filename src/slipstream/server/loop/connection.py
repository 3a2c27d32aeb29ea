"""One client's socket: bytes in slices, TLS after INFO, backpressure in both directions.

Everything between the NATS protocol and the socket (TLS, WebSocket frames) ends here; the driver sees parsed events
and writes protocol bytes.

Reading stops for three reasons, and goes on when none holds: the open group is full or too much waits in memory
(`pause` and `resume`, so that a flood of publishes neither starves readers nor grows memory), the client's secret is
being compared with a hash (`authenticating`: what it sends before the result must not be carried out), or many others
are sending large messages (`wait_for_slot`). Output that a client does not read makes the engine hold its batches back;
after `write_deadline` without any progress the client is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple, Protocol, cast

from slipstream.server.engine.core.session import Listener
from slipstream.server.engine.engine import Engine
from slipstream.server.loop.tls import Tls, certificate_of
from slipstream.wire import Event, Parser, Side

log: logging.Logger = logging.getLogger("slipstream.server")

SLICE = 48 * 1024  # bytes of one client per turn: about a millisecond of publishes, then others get in
WRITE_HIGH = 128 * 1024  # unsent bytes at which batches for a client wait; uvloop offers less only once per round
LINGER = 2.0  # seconds for a client that is disconnected to read the reason
LINGER_BYTES = 64 * 1024  # unsent bytes beyond which it would not get that far


class ConnectionHandler(Protocol):
    """What a connection reports to: the driver."""

    is_overloaded: bool  # too much waits in memory: carry nothing out before the next turn

    def accept(self, connection: Connection) -> bool:
        """A client has connected; False if there are too many."""

    def data(self, connection: Connection, events: Sequence[Event], size: int) -> None:
        """A client has sent `size` bytes with these events."""

    def defer(self, connection: Connection) -> None:
        """Pause the connection until the next turn."""

    def upgraded(self, connection: Connection) -> None:
        """The TLS handshake is complete."""

    def lost(self, connection: Connection) -> None:
        """The connection is closed."""

    def wake(self) -> None:
        """The engine has something to do: have a turn soon."""

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine that ends with the server."""


class ConnectionLimits(NamedTuple):
    """Limits of each connection."""

    max_control_line: int
    write_deadline: float  # seconds; 0 for none


class Connection(asyncio.Protocol):
    """One client's socket."""

    def __init__(
        self,
        handler: ConnectionHandler,
        engine: Engine,
        listener: Listener,
        limits: ConnectionLimits,
        tls: Tls | None = None,
    ) -> None:
        self._handler = handler
        self._engine = engine
        self.listener = listener
        self._tls = tls
        self._write_deadline = limits.write_deadline
        self._parser = Parser(
            Side.CLIENT, max_payload=engine.settings.max_payload, max_control_line=limits.max_control_line
        )
        self.cid = 0
        self.transport: asyncio.Transport | None = None  # None during the TLS handshake
        self.inbound_filter: Callable[[bytes], bytes] | None = None  # a fault of a test: what arrives of some bytes
        self._plain: asyncio.Transport | None = None  # the transport below TLS
        self._is_reading = True  # not all transports can be asked
        self._is_paused = False
        self._is_authenticating = False
        self._waits_for_slot = False
        # Bytes, as `memory.PendingBytes` counts them.
        self.unsent: int = 0
        self.held: int = 0
        self._is_held_back = False
        self._stuck_bytes = 0  # unsent when the write deadline was set
        self._deadline: asyncio.TimerHandle | None = None
        self._backlog = b""  # bytes that were read and wait for their turn
        self._backlog_at = 0

    def change(self, limits: ConnectionLimits) -> None:
        """Apply changed limits; the control line's holds for new connections."""
        self._write_deadline = limits.write_deadline
        self._parser.max_payload = self._engine.settings.max_payload

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))  # uvloop's does not inherit from it
        if self._tls is None or self._tls.first:
            self.accept()
        else:
            self._handler.spawn(self._upgrade(self._tls))

    def accept(self) -> bool:
        """The client may speak NATS now; False if there are too many."""
        if not self._handler.accept(self):
            return False
        self._report_tls()
        return True

    def _report_tls(self) -> None:
        """Tell the engine the TLS version and the client's certificate."""
        transport = self.transport
        tunnel = transport.get_extra_info("ssl_object") if transport is not None else None
        if tunnel is None:
            return
        cipher = tunnel.cipher()
        self._engine.secured(
            self.cid, certificate_of(tunnel.getpeercert()), tunnel.version() or "", cipher[0] if cipher else ""
        )

    def _use(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._is_reading = True
        high = min(WRITE_HIGH, self._engine.settings.max_pending_bytes // 4)
        transport.set_write_buffer_limits(high=high, low=high // 4)

    async def _upgrade(self, tls: Tls) -> None:
        """INFO in plain text, everything else through TLS. There is no await between the two: bytes that the client
        sends after INFO must be read by TLS and not by us. (`pause_reading` in `connection_made` has no effect on
        uvloop, so this runs in a task.)"""
        if self.transport is None or self.transport.is_closing() or not self._handler.accept(self):
            return
        self._plain, self.transport = self.transport, None
        assert self._plain is not None
        try:
            upgraded = await asyncio.get_running_loop().start_tls(
                self._plain, self, tls.context, server_side=True, ssl_handshake_timeout=tls.timeout
            )
        except Exception as exc:  # no TLS, a bad certificate, too slow, gone: it concerns this client only
            log.error("%s - TLS handshake error: %s", self.label, exc)
            upgraded = None
        if upgraded is None:
            self._plain.abort()
            self._handler.lost(self)
            return
        self._use(upgraded)
        self._report_tls()
        if not self._may_read:
            self._set_reading(False)
        self._handler.upgraded(self)

    @property
    def upgrades_to_tls(self) -> bool:
        """Whether INFO must be written in plain text, before the TLS handshake."""
        return self._tls is not None and not self._tls.first

    @property
    def label(self) -> str:
        """The client in the log."""
        transport = self.transport or self._plain
        peer = transport.get_extra_info("peername") if transport is not None else None
        return f"{peer[0]}:{peer[1]} - cid:{self.cid}" if isinstance(peer, tuple) else f"cid:{self.cid}"

    @property
    def name(self) -> str:
        """The client's name, as its CONNECT had it."""
        return self._engine.client_name(self.cid)

    # Reading.

    def data_received(self, data: bytes) -> None:
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """Handle bytes of the NATS protocol."""
        if not self.cid:
            return
        if self.inbound_filter is not None:
            data = self.inbound_filter(data)
        if len(data) <= SLICE and not self._backlog and self._may_read and not self._handler.is_overloaded:
            self._handler.data(self, self._parser.feed(data), len(data))
            return
        self._backlog = self._backlog[self._backlog_at :] + data
        self._backlog_at = 0
        self._set_reading(False)
        self._next_slice()

    def _next_slice(self) -> None:
        """Handle a slice of the backlog; the rest in later turns, after other clients."""
        if not self._may_read or not self._backlog:
            return
        if self._handler.is_overloaded:
            self._handler.defer(self)
            return
        piece = self._backlog[self._backlog_at : self._backlog_at + SLICE]
        self._backlog_at += len(piece)
        self._handler.data(self, self._parser.feed(piece), len(piece))
        if self._backlog_at < len(self._backlog):
            asyncio.get_running_loop().call_soon(self._next_slice)
        else:
            self._backlog, self._backlog_at = b"", 0
            self._set_reading(self._may_read)

    @property
    def _may_read(self) -> bool:
        return not (self._is_paused or self._is_authenticating or self._is_held_back or self._waits_for_slot)

    @property
    def incomplete(self) -> int:
        """Bytes of an incomplete frame."""
        return self._parser.buffered

    @property
    def input_size(self) -> int:
        """Bytes that were read and not carried out."""
        return self._parser.buffered + len(self._backlog) - self._backlog_at

    def measure(self) -> None:
        """Bring `unsent` and `held` up to date."""
        self.held = self.input_size
        self.unsent = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if self._plain is not None:  # below TLS
            self.unsent += self._plain.get_write_buffer_size()

    def pause(self) -> bool:
        """Read nothing more until `resume`; False if it is paused already."""
        if self._is_paused:
            return False
        self._is_paused = True
        self._set_reading(False)
        return True

    def resume(self) -> None:
        """Read again."""
        self._is_paused = False
        self._go_on()

    def authenticating(self, yes: bool) -> None:
        """Read nothing more until it is known who this is (or go on)."""
        self._is_authenticating = yes
        if yes:
            self._set_reading(False)
        else:
            self._go_on()

    def hold_back(self, yes: bool) -> None:
        """Read nothing more until the engine has handled what was read (or go on)."""
        if self._is_held_back == yes:
            return
        self._is_held_back = yes
        if yes:
            self._set_reading(False)
        else:
            self._go_on()

    def wait_for_slot(self, yes: bool) -> None:
        """Read nothing more until there is a slot for its large frame (or go on)."""
        self._waits_for_slot = yes
        if yes:
            self._set_reading(False)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if not self._may_read:
            return
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._next_slice)
        else:
            self._set_reading(True)

    def _set_reading(self, yes: bool) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or self._is_reading == yes:
            return
        self._is_reading = yes
        if yes:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._backlog, self._backlog_at = b"", 0
        self._cancel_deadline()
        self._handler.lost(self)
        self.transport = self._plain = None  # they refer to each other: what they hold is freed at once

    # Writing.

    def send(self, data: bytes) -> None:
        """Write bytes that the engine does not know of, if the client is still there."""
        if self.transport is not None and not self.transport.is_closing():
            self.write(data)

    def write(self, data: bytes) -> int:
        """Write bytes of the NATS protocol; returns how many bytes are unsent."""
        transport = self.transport
        assert transport is not None
        transport.write(data)
        return transport.get_write_buffer_size()

    def write_parts(self, parts: Sequence[bytes]) -> int:
        """As `write`, without a copy where the transport can: for large messages, which clients share."""
        transport = self.transport
        assert transport is not None
        transport.writelines(parts)
        return transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._engine.congested(self.cid, True)
        self._set_deadline()

    def resume_writing(self) -> None:
        self._cancel_deadline()
        self._engine.congested(self.cid, False)
        self._handler.wake()

    def _set_deadline(self) -> None:
        if self.transport is not None and self._write_deadline:
            self._stuck_bytes = self.transport.get_write_buffer_size()
            self._deadline = asyncio.get_running_loop().call_later(self._write_deadline, self._overdue)

    def _overdue(self) -> None:
        self._deadline = None
        if self.transport is None or self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() < self._stuck_bytes:  # slow, but it reads
            self._set_deadline()
            return
        log.info("%s - slow consumer detected: write deadline of %gs exceeded", self.label, self._write_deadline)
        self._engine.close(self.cid, "Slow Consumer")
        self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # The end.

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        transport = self.transport if self.transport is not None else self._plain
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Close once the unsent bytes are written, within `LINGER` seconds; at once if they are many."""
        transport = self.transport
        if transport is None and self._plain is not None:
            self._plain.abort()  # during the handshake: nothing may be sent in plain text
            return
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > LINGER_BYTES:
            transport.abort()
            return
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER, transport.abort)

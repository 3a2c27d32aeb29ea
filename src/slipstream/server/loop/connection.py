"""A socket becomes a client of the engine: bytes in slices, TLS after INFO, backpressure both ways.

Whatever lies between the NATS protocol and the socket (TLS, a WebSocket) ends here: the driver hands over bytes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, cast

from slipstream.server.engine.auth.authenticator import Certificate
from slipstream.server.engine.core.session import Listener
from slipstream.server.loop.tls import Tls, certificate_of
from slipstream.wire import Parser, Side

if TYPE_CHECKING:
    from slipstream.server.loop.driver import Driver

log = logging.getLogger("slipstream.server")

SLICE = 48 * 1024  # bytes of one client per turn: about a millisecond of publishes, then others get in
WRITE_HIGH = 512 * 1024  # bytes unsent at which batches for a client wait
LINGER = 2.0  # seconds a client that is cut off has to read why


class Connection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, driver: Driver, door: Listener) -> None:
        self._driver = driver
        self.door = door
        self._parser = Parser(
            Side.CLIENT, max_payload=driver.engine.settings.max_payload, max_control_line=driver.max_control_line
        )
        self.cid = 0
        self.transport: asyncio.Transport | None = None  # None while TLS is being agreed on
        self._plain: asyncio.Transport | None = None  # what is below TLS
        self._flowing = True  # whether the transport reads; not all transports can be asked
        self._full = False  # the group that it fills is full
        self._waiting = False  # it is not known yet who it is
        self._stuck = 0  # bytes unsent when writing stopped
        self._deadline: asyncio.TimerHandle | None = None
        self._rest = b""  # bytes that were read and wait for their turn
        self._at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))  # uvloop's is none by inheritance
        tls = self._driver.tls
        if tls is None or tls.first:
            self.accept()
        else:
            self._driver.spawn(self._upgrade(tls))

    def accept(self) -> bool:
        """The client is there; False if it is one too many."""
        if not self._driver.accept(self):
            return False
        self._tell_secured()
        return True

    def _tell_secured(self) -> None:
        """What TLS knows of the client, if it is spoken."""
        transport = self.transport
        tunnel = transport.get_extra_info("ssl_object") if transport is not None else None
        if tunnel is None:
            return
        certificate: Certificate | None = certificate_of(tunnel.getpeercert())
        cipher = tunnel.cipher()
        self._driver.engine.secured(self.cid, certificate, tunnel.version() or "", cipher[0] if cipher else "")

    def _use(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._flowing = True
        high = min(WRITE_HIGH, self._driver.engine.settings.max_pending_bytes // 4)
        transport.set_write_buffer_limits(high=high, low=high // 4)

    async def _upgrade(self, tls: Tls) -> None:
        """INFO in plain text, everything else through TLS. No wait is between the two: whatever the client answers to
        INFO is read by TLS and not by us. (To stop reading in `connection_made` has no effect on uvloop.)"""
        if self.transport is None or self.transport.is_closing() or not self._driver.accept(self):
            return
        self._plain, self.transport = self.transport, None
        assert self._plain is not None
        try:
            upgraded = await asyncio.get_running_loop().start_tls(
                self._plain, self, tls.context, server_side=True, ssl_handshake_timeout=tls.timeout
            )
        except (OSError, ssl.SSLError, Exception) as exc:  # no TLS, no certificate, too slow, gone: the client's affair
            log.error("%s - TLS handshake error: %s", self.label, exc)
            upgraded = None
        if upgraded is None:
            self._plain.abort()
            self._driver.lost(self)
            return
        self._use(upgraded)
        self._tell_secured()
        if self._full or self._waiting:
            self._reading(False)
        self._driver.upgraded(self)

    @property
    def label(self) -> str:
        """The client in the log."""
        transport = self.transport or self._plain
        peer = transport.get_extra_info("peername") if transport is not None else None
        return f"{peer[0]}:{peer[1]} - cid:{self.cid}" if isinstance(peer, tuple) else f"cid:{self.cid}"

    def data_received(self, data: bytes) -> None:
        self.take(data)

    def take(self, data: bytes) -> None:
        """Bytes of the protocol, out of whatever wrapped them."""
        if not self.cid:
            return
        if self._driver.faults is not None:
            data = self._driver.faults.received(self, data)
        if len(data) <= SLICE and not self._rest:
            self._driver.data(self, self._parser.feed(data), len(data))
            return
        self._rest = self._rest[self._at :] + data
        self._at = 0
        self._reading(False)
        self._go_on()

    def _go_on(self) -> None:
        """Handle the next slice of what was read."""
        if self._full or self._waiting or not self._rest:
            return
        piece = self._rest[self._at : self._at + SLICE]
        self._at += len(piece)
        self._driver.data(self, self._parser.feed(piece), len(piece))
        if self._at < len(self._rest):
            self._driver.soon(self._go_on)
        else:
            self._rest, self._at = b"", 0
            self._reading(not self._full and not self._waiting)

    def hold(self) -> bool:
        """Take nothing more from the client until `resume`; False if that is so already."""
        if self._full:
            return False
        self._full = True
        self._reading(False)
        return True

    def resume(self) -> None:
        self._full = False
        self._resume()

    def wait(self, yes: bool) -> None:
        """Take nothing more until it is known who this is (or go on)."""
        self._waiting = yes
        if yes:
            self._reading(False)
        else:
            self._resume()

    def _resume(self) -> None:
        if self._full or self._waiting:
            return
        if self._rest:
            self._driver.soon(self._go_on)
        else:
            self._reading(True)

    def _reading(self, yes: bool) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or self._flowing == yes:
            return
        self._flowing = yes
        if yes:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._rest = b""
        self._stop_clock()
        self._driver.lost(self)

    @property
    def name(self) -> str:
        """What the client calls itself."""
        return self._driver.engine.client_name(self.cid)

    def send(self, data: bytes) -> None:
        """Write, past the engine."""
        if self.transport is not None and not self.transport.is_closing():
            self.write(data)

    def abort(self) -> None:
        """End at once, without a word."""
        transport = self.transport if self.transport is not None else self._plain
        if transport is not None:
            transport.abort()

    def write(self, data: bytes) -> int:
        """Send bytes of the protocol; how many are unsent now."""
        transport = self.transport
        assert transport is not None
        transport.write(data)
        return transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._driver.engine.congested(self.cid, True)
        self._watch()

    def resume_writing(self) -> None:
        self._stop_clock()
        self._driver.engine.congested(self.cid, False)
        self._driver.wake()

    def _watch(self) -> None:
        """Nothing at all may be stuck for longer than the write deadline."""
        if self.transport is not None and self._driver.write_deadline:
            self._stuck = self.transport.get_write_buffer_size()
            self._deadline = asyncio.get_running_loop().call_later(self._driver.write_deadline, self._overdue)

    def _overdue(self) -> None:
        self._deadline = None
        if self.transport is None or self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() < self._stuck:
            self._watch()
            return
        log.info("%s - slow consumer detected: write deadline of %gs exceeded", self.label, self._driver.write_deadline)
        self._driver.engine.close(self.cid, "Slow Consumer")
        self.transport.abort()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def close(self) -> None:
        """Send what is queued, but do not wait for it for long."""
        transport = self.transport
        if transport is None and self._plain is not None:
            self._plain.abort()  # in plain text it can be told nothing
            return
        if transport is None or transport.is_closing():
            return
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER, transport.abort)

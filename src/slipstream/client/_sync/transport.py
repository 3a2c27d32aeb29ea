"""A non-blocking socket with the layers (TLS, WebSocket) of one connection, and a way to wake its reader."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress

from slipstream.client.layers.stack import LayerStack

READ_SIZE = 64 * 1024
LONGEST = 1e6  # seconds: the longest wait that operating systems take


class Transport:
    """One socket, or none: not connected. The connection's lock guards all but `read`, which is the pump's."""

    def __init__(self, sock: socket.socket | None = None, layers: LayerStack | None = None) -> None:
        self._sock = sock
        self.layers = layers  # None: plain bytes
        self._rest = memoryview(b"")
        self._awaits_space = False  # the selector looks for space in the socket's buffer, too
        if sock is None:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    @property
    def is_open(self) -> bool:
        """Whether there is a socket."""
        return self._sock is not None

    @property
    def unsent(self) -> int:
        """Bytes that the socket did not take yet."""
        return len(self._rest)

    def put(self, data: bytes) -> None:
        """Take bytes of the session, to be written next; nothing else is unsent."""
        if self.layers is not None:
            self.layers.send(data)
            data = self.layers.take()
        self._rest = memoryview(data)

    def put_layers(self) -> None:
        """Take what the layers themselves have to say (handshakes, alerts), behind what is unsent."""
        if self.layers is not None and (data := self.layers.take()):
            self._rest = memoryview(bytes(self._rest) + data)

    def write(self) -> bool:
        """Write what is unsent; False when the socket did not take all of it."""
        assert self._sock is not None
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except BlockingIOError:
            return False
        return True

    def read(self, timeout: float) -> bytes | None:
        """Wait for bytes and read them; None after `timeout`, when woken, and when there is space to write."""
        sock = self._sock
        assert sock is not None
        try:
            return sock.recv(READ_SIZE)
        except BlockingIOError:
            pass
        if self._awaits_space != bool(self._rest):
            self._awaits_space = not self._awaits_space
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._awaits_space else 0)
            self._selector.modify(sock, events)
        for key, events in self._selector.select(min(timeout, LONGEST)):
            if key.fileobj is self._woken:
                self._woken.recv(64)
            elif events & selectors.EVENT_READ:
                return sock.recv(READ_SIZE)
        return None

    def wake(self) -> None:
        """Wake the thread in `read`."""
        with suppress(BlockingIOError):  # full of wake-ups already
            self._waker.send(b"!")

    def hang_up(self) -> None:
        """Shut the connection down; the thread in `read` notices."""
        if self._sock is not None:
            with suppress(OSError):  # the peer was quicker
                self._sock.shutdown(socket.SHUT_RDWR)

    def finish(self, timeout: float, *, is_read: bool) -> None:
        """Wait until the server closes: closing with its bytes unread could discard our last ones."""
        if self._sock is None:
            return
        with suppress(OSError):  # reset by the server, or not closed in time
            if self.layers is not None:
                self.layers.finish()
                self.put_layers()
                self.write()
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(timeout)
            while not is_read and self._sock.recv(READ_SIZE):
                pass

    def discard(self) -> None:
        """Close everything; no thread reads any more."""
        if self._sock is not None:
            self._selector.close()
            self._waker.close()
            self._woken.close()
            self._sock.close()
            self._sock = None

"""A socket that does not block, with a way to wake the thread that waits for it."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress

from slipstream.client.layers.stack import LayerStack

READ_SIZE = 64 * 1024
LONGEST = 1e6  # seconds: what the operating system's waits take


class Transport:
    """A socket that does not block, with a way to wake whoever waits for it. Without a socket: not connected."""

    def __init__(self, sock: socket.socket | None = None, channel: LayerStack | None = None) -> None:
        self._sock = sock
        self.channel = channel  # None: plain bytes
        self._rest = memoryview(b"")
        self._wants_room = False
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
        return self._sock is not None

    @property
    def unsent(self) -> int:
        return len(self._rest)

    def put(self, data: bytes) -> None:
        """Take what the session sends; nothing else is unsent."""
        if self.channel is not None:
            self.channel.send(data)
            data = self.channel.take()
        self._rest = memoryview(data)

    def speak(self) -> None:
        """Take what the channel itself has to say, behind what is unsent."""
        if self.channel is not None and (data := self.channel.take()):
            self._rest = memoryview(bytes(self._rest) + data)

    def write(self) -> bool:
        """Send the rest; False when the socket did not take all of it."""
        assert self._sock is not None
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except BlockingIOError:
            return False
        return True

    def read(self, timeout: float) -> bytes | None:
        """What has arrived, after waiting for it; None when nothing has, or when it is worth looking around again."""
        sock = self._sock
        assert sock is not None
        try:
            return sock.recv(READ_SIZE)
        except BlockingIOError:
            pass
        if self._wants_room != bool(self._rest):
            self._wants_room = not self._wants_room
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._wants_room else 0)
            self._selector.modify(sock, events)
        for key, events in self._selector.select(min(timeout, LONGEST)):
            if key.fileobj is self._woken:
                self._woken.recv(64)
            elif events & selectors.EVENT_READ:
                return sock.recv(READ_SIZE)
        return None

    def nudge(self) -> None:
        """Wake the thread in `read`."""
        with suppress(BlockingIOError):  # plenty of wake-ups wait already
            self._waker.send(b"!")

    def hang_up(self) -> None:
        """End the connection; the thread in `read` notices."""
        if self._sock is not None:
            with suppress(OSError):  # the peer was quicker
                self._sock.shutdown(socket.SHUT_RDWR)

    def finish(self, timeout: float, *, is_read: bool) -> None:
        """Wait until the server hangs up: closing with its bytes unread could take our last ones with them."""
        if self._sock is None:
            return
        with suppress(OSError):  # it hung up hard, or not in time
            if self.channel is not None:
                self.channel.finish()
                self.speak()
                self.write()
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(timeout)
            while not is_read and self._sock.recv(READ_SIZE):
                pass

    def discard(self) -> None:
        """Close everything; nobody reads any more."""
        if self._sock is not None:
            self._selector.close()
            self._waker.close()
            self._woken.close()
            self._sock.close()
            self._sock = None

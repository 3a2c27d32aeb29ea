"""A scripted server for faults, and one blocking face for both drivers, so that a scenario is written once for all."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self

from slipstream.client._async import client as aio
from slipstream.client._async.opening import Opening
from slipstream.client._sync import client as blocking

PUB = re.compile(rb"H?PUB (\S+) (\S+) (?:(\d+) )?(\d+)\r\n")
LIMIT = 30.0  # seconds for anything at all
INFO = b'INFO {"server_id":"S","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576}\r\n'


class Peer:
    """The server's end of one connection, as a script uses it."""

    def __init__(self, conn: socket.socket) -> None:
        conn.settimeout(LIMIT)
        self._conn = conn
        self._seen = bytearray()

    def send(self, data: bytes) -> None:
        self._conn.sendall(data)

    def expect(self, end: bytes) -> bytes:
        """Everything up to and with `end`."""
        begin = 0
        while (at := self._seen.find(end, begin)) < 0:
            begin = max(0, len(self._seen) - len(end))
            data = self._conn.recv(1 << 20)
            assert data, f"the client hung up before {end!r}, it sent {bytes(self._seen[-1000:])!r}"
            self._seen += data
        head = bytes(self._seen[: at + len(end)])
        del self._seen[: at + len(end)]
        return head

    def greet(self, info: bytes = INFO) -> bytes:
        """The whole handshake; returns what the client sent."""
        self.send(info)
        said = self.expect(b"PING\r\n")
        self.send(b"PONG\r\n")
        return said

    def answer_requests(self, answer: Callable[[bytes, bytes, bytes], bytes]) -> None:
        """Greet, and send what `answer` makes of each request (subject, inbox, payload) until the client
        hangs up. Subscriptions are ignored: the inbox has the sid 1."""
        self.greet()
        said = b""
        while True:
            try:
                said += self.expect(b"\r\n")
            except AssertionError:  # the client hung up
                return
            found = PUB.search(said)
            if said.endswith(b"PING\r\n"):
                self.send(b"PONG\r\n")
                said = b""
            elif found is not None:
                body = said[found.end() :]
                while len(body) < int(found[4]) + 2:
                    body += self.expect(b"\r\n")
                self.send(answer(found[1], found[2], body[int(found[3] or 0) : int(found[4])]))
                said = b""

    def reset(self) -> None:
        """Close the connection in such a way that what the client sends next is an error at once."""
        self._conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._conn.close()

    def until_closed(self) -> bytes:
        """Everything the client still sends."""
        try:
            while data := self._conn.recv(65536):
                self._seen += data
        except ConnectionError:
            pass
        return bytes(self._seen)


class FakeServer:
    """Listens on a free port; connection after connection is handed to the next script."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT)
        self.port = self._listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(scripts,), daemon=True)

    def _run(self, scripts: tuple[Callable[[Peer], None], ...]) -> None:
        try:
            for script in scripts:
                conn, _ = self._listener.accept()
                with conn:
                    script(Peer(conn))
        except BaseException as exc:
            self.error = exc
        finally:
            self._listener.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the script did not end"
        if self.error is not None and error is None:
            raise self.error


class Face:
    """An object of the asyncio driver as its blocking twin would be: awaits run on a loop in another thread."""

    def __init__(self, real: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._real = real
        self._loop = loop

    def _run(self, awaitable: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(LIMIT):
                return await awaitable

        return self._wrap(asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(2 * LIMIT))

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(one) for one in value]
        faced = (aio.Client, aio.Subscription, aio.Message, AsyncGenerator)
        return Face(value, self._loop) if isinstance(value, faced) else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(value):
                return self._run(value(*args, **kwargs))

            async def inside() -> Any:  # the driver is not made for calls from other threads
                found = value(*args, **kwargs)
                return await found if isinstance(found, Opening) else found

            return self._run(inside())

        return call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._run(self._real.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._real.__aexit__(kind, error, trace))


class Driver:
    """`connect` of one driver, blocking in any case."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None) -> None:
        self.name = name
        self._loop = loop

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        if self._loop is None:
            return blocking.connect(*args, **kwargs)

        async def open_() -> aio.Client:
            return await aio.connect(*args, **kwargs)

        return Face(None, self._loop)._run(open_())


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until another thread has done its part."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen in time")

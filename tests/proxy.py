"""A proxy between a client and a server, for tests: it cuts connections, and loses or doubles what the server sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

Fault = Callable[[bytes], list[bytes]]


def whole(frame: bytes) -> list[bytes]:
    """No fault: the frame as it is."""
    return [frame]


class Proxy:
    """Frames of the server go through `fault`, which returns what the client gets; bytes of the client are recorded."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.removeprefix("nats://").rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fault: Fault = whole
        self.is_refusing = False
        self.delay = 0.0  # for each frame of the server
        self.latency = 0.0  # of what clients send, however much that is
        self.url = ""
        self.sent = bytearray()  # by clients
        self.received = bytearray()  # by clients
        self.hold = b""  # what a client sends with this in it waits for `release`, once
        self.holding = asyncio.Event()
        self.release = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        for work in (self._upstream(reader, back), self._downstream(there, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self.sent += data
                if self.hold and self.hold in data:
                    self.hold = b""
                    self.holding.set()
                    await self.release.wait()
                    self.holding.clear()
                if self.latency:
                    asyncio.get_running_loop().call_later(self.latency, writer.write, data)
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _downstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                frame = line
                if line.startswith((b"MSG ", b"HMSG ")):
                    frame += await reader.readexactly(int(line.split()[-1]) + 2)
                if self.delay:
                    await asyncio.sleep(self.delay)
                for piece in self.fault(frame):
                    self.received += piece
                    writer.write(piece)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """End every connection, hard."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """A proxy in front of a server; its `url` is for clients."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=16 * 1024 * 1024)
    proxy.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        for task in list(proxy._tasks):
            task.cancel()
        await asyncio.gather(*proxy._tasks, return_exceptions=True)

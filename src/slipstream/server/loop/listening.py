"""Listening sockets: bound and listening from the first moment, accepted from when the server is ready.

A socket that is only bound can be lost: another process, or another listener of this server, may bind the same port
with SO_REUSEADDR and listen first, and the clients, with their passwords, would reach it. So `listen` is called at
once, and an error is raised where it happens. Clients that connect while the stores are loaded wait in the kernel's
queue.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from slipstream.server.loop.tls import Tls

BACKLOG = 1024


class ListeningSockets:
    """The sockets of one listener: one for each address of its host, all on one port."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self.port: int = int(sockets[0].getsockname()[1])

    @classmethod
    async def open(cls, host: str, port: int) -> ListeningSockets:
        """Listen; port 0 takes a free one. An OSError says where it is not possible, and why."""
        loop = asyncio.get_running_loop()
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as exc:
            raise OSError(exc.errno, f"cannot listen on {shown}: {exc.strerror}") from exc
        sockets: list[socket.socket] = []
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                target = (address[0], port, *address[2:])
                sockets.append(_listening(family, kind, proto, target))
                port = sockets[0].getsockname()[1]
        except OSError as exc:
            for sock in sockets:
                sock.close()
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            if exc.errno == errno.EADDRINUSE:
                reason += " (is a server running on that port?)"
            raise OSError(exc.errno, f"cannot listen on {shown}: {reason}") from exc
        return cls(sockets)

    async def serve(self, protocol: Callable[[], asyncio.Protocol], tls: Tls | None) -> None:
        """Accept connections, with TLS from the first byte if there is any."""
        loop = asyncio.get_running_loop()
        while self._sockets:
            server = await loop.create_server(
                protocol,
                sock=self._sockets[0],
                backlog=BACKLOG,
                ssl=tls.context if tls is not None else None,
                ssl_handshake_timeout=tls.timeout if tls is not None else None,
            )
            del self._sockets[0]
            self._servers.append(server)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers, self._sockets = [], []


def _listening(family: int, kind: int, proto: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock

"""A console on a free port, served by a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import uvicorn

from slipstream.console.access import Access
from slipstream.console.app import Console


class Site(NamedTuple):
    base: str
    token: str

    @property
    def address(self) -> str:
        return f"{self.base}/?token={self.token}"


@contextlib.contextmanager
def console(url: str, *, write: bool = False) -> Iterator[Site]:
    """A running console of the server at `url`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        access = Access(frozenset({host}))
        app = Console({"servers": url}, {}, access, write=write).app()
        config = uvicorn.Config(
            app, lifespan="on", log_level="warning", access_log=False, timeout_graceful_shutdown=1, loop="asyncio"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield Site(f"http://{host}", access.token)
        finally:
            server.should_exit = True
            thread.join(30)

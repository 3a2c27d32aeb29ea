"""Serving the console: in the foreground for `slipstream console`, or beside a server or a pipeline in a thread.

There is no access log: the first address has the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from slipstream import Error, UsageError
from slipstream.console.access import Access
from slipstream.console.app import application
from slipstream.console.state import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
START_TIMEOUT = 20.0
SHORTEST_TOKEN = 20  # characters: it is all that is between the console and other users of the machine


class Site:
    """A console that listens, and is served by one of the methods."""

    def __init__(self, settings: Settings, *, host: str = "127.0.0.1", port: int = 0, token: str = "") -> None:
        self._listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = self._listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        names = {shown, "localhost", "127.0.0.1"} if host in LOOPBACK else {shown}
        self.access: Access = Access(frozenset(f"{name}:{port}" for name in names), token)
        self.base: str = f"http://{shown}:{port}"
        config = uvicorn.Config(
            application(settings, self.access), lifespan="on", log_level="warning", access_log=False,
            server_header=False, timeout_graceful_shutdown=2, loop="asyncio",
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"{self.base}/?token={self.access.token}"

    def serve(self) -> None:
        """Serve until a signal ends it."""
        with self._listener:
            asyncio.run(self._server.serve(sockets=[self._listener]))

    @contextlib.contextmanager
    def in_background(self) -> Iterator[Site]:
        """Serve in a thread while the block runs. Raises an Error if the console cannot start."""
        problem: list[BaseException] = []

        def run() -> None:
            # In a thread uvicorn leaves signals to the program that the console accompanies.
            try:
                asyncio.run(self._server.serve(sockets=[self._listener]))
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=run, name="slipstream-console", daemon=True)
        thread.start()
        deadline = START_TIMEOUT
        while not self._server.started and thread.is_alive() and deadline > 0:
            thread.join(0.02)
            deadline -= 0.02
        if not self._server.started:
            self._server.should_exit = True
            self._listener.close()
            raise Error(f"the console did not start{f': {problem[0]}' if problem else ''}")
        try:
            yield self
        finally:
            self._server.should_exit = True
            thread.join(10)
            self._listener.close()


def read_token(path: str) -> str:
    """The token in a file that only its owner may read; a new one is made if there is no file."""
    file = Path(path).expanduser()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if file.stat().st_mode & 0o077:
            raise UsageError(
                f"other users can read {file}, which contains the console's token; run chmod 600 on it"
            ) from None
        token = file.read_text("utf-8").strip()
        if len(token) < SHORTEST_TOKEN or not token.isascii() or any(char.isspace() for char in token):
            raise UsageError(
                f"the token in {file} must have at least {SHORTEST_TOKEN} characters and no spaces"
            ) from None
        return token
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(f"{token}\n")
    return token

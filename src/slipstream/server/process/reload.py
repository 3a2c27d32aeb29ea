"""Reload of a process: the configuration file is read again, and applied to server, log and files, or not at all."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.server.process import logs
from slipstream.server.process.options import ProcessOptions
from slipstream.server.server import Server

log: logging.Logger = logging.getLogger("slipstream.server")


class ProcessFiles:
    """The pid and ports files."""

    def __init__(self) -> None:
        self._written: dict[Path, None] = {}

    def write(self, options: ProcessOptions, server: Server) -> None:
        """Write the files that the options name, and remove those that they named before."""
        wanted: dict[Path, str] = {}
        if options.pid_file:
            wanted[Path(options.pid_file)] = f"{os.getpid()}"
        if options.ports_file_dir:
            ports = {"nats": [server.url], "monitoring": [server.http_url], "websocket": [server.websocket_url]}
            content = json.dumps({name: urls for name, urls in ports.items() if urls[0]})
            wanted[Path(options.ports_file_dir, f"slipstream_{os.getpid()}.ports")] = content
        for path, content in wanted.items():
            _write(path, content)
        for path in [path for path in self._written if path not in wanted]:
            path.unlink(missing_ok=True)
        self._written = dict.fromkeys(wanted)

    def remove(self) -> None:
        for path in self._written:
            path.unlink(missing_ok=True)


class Reloader:
    """Reads and applies the configuration of a running server."""

    def __init__(self, server: Server, files: ProcessFiles, read: Callable[[], ProcessOptions]) -> None:
        """`read` reads the configuration file, with the flags of the command line."""
        self._server, self._files, self._read = server, files, read

    def __call__(self) -> None:
        """Raises a UsageError, and changes nothing, if the configuration cannot be applied."""
        options = self._read()
        handler = logs.open_handler(options)
        try:
            self._server.reload(options.server)
        except BaseException:
            handler.close()
            raise
        logs.use(handler, options)
        try:
            self._files.write(options, self._server)
        except UsageError as exc:  # the server works without them
            log.error("%s", exc)
        log.info("Reloaded server configuration")


def _write(path: Path, content: str) -> None:
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(content)
        temporary.replace(path)  # atomic: a reader never sees half of it
    except OSError as exc:
        raise UsageError(f"cannot write {str(path)!r}: {exc}") from exc

"""`slipstream console`: the web console, for any NATS server."""

from __future__ import annotations

import argparse
import asyncio
import socket

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.errors import UsageError


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "console",
        _run,
        "serve a web console for a NATS server",
        examples="  slipstream console\n  slipstream console --context prod --port 9000",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--write", action="store_true", help="allow changes: publish, edit keys, pause consumers")


def _port(text: str) -> int:
    port = values.whole(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"a port is at most 65535, got {port}")
    return port


def _run(shell: Shell) -> None:
    try:
        import uvicorn

        from slipstream.console.access import Access
        from slipstream.console.app import Console
    except ImportError as error:
        raise UsageError("the console needs its extra: pip install 'slipstream-jetstream[console]'") from error
    options = shell.options
    with socket.create_server((options.host, options.port)) as listener:
        port = listener.getsockname()[1]
        names = {options.host, "localhost", "127.0.0.1"} if options.host in ("127.0.0.1", "::1") else {options.host}
        access = Access(frozenset(f"{name}:{port}" for name in names))
        console = Console(shell.connect_arguments(), shell.jetstream_arguments(), access, write=options.write)
        # No access log: the first address has the token.
        config = uvicorn.Config(console.app(), lifespan="on", log_level="warning", access_log=False,
                                server_header=False, timeout_graceful_shutdown=2)  # fmt: skip
        with shell.connect():  # an error is reported before an address is
            pass
        print(f"http://{options.host}:{port}/?token={access.token}", flush=True)
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))

"""`slipstream server`: the embedded server as a process (`slipstream.server.process.command`), with a console if asked,
and commands that inspect a running server of any kind.

The flags of a server are those of nats-server, which argparse cannot read: `main` passes them on unparsed.
`server check NAME` probes a running server; `server check DIR` and `server check store DIR` check a store on disk.
The console is a client like any other, in its own thread: it logs in as the server's `user` or `token` where one
is configured in plain text, and otherwise without a login.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from slipstream.cli import values
from slipstream.errors import Error, UsageError

if TYPE_CHECKING:
    from slipstream.cli.common import Commands, Shell
    from slipstream.server import Server
    from slipstream.server.process.flags import Flags

NAME = "server"
_CLIENT_COMMANDS = ("info", "ls", "list", "ping", "report")  # commands for a running server


def is_for_client(arguments: Sequence[str]) -> bool:
    """Whether the words after `server` are one of the commands that are parsed as all others are."""
    if arguments and arguments[0] in _CLIENT_COMMANDS:
        return True
    if arguments[:1] != ["check"]:
        return False
    target = arguments[1] if len(arguments) > 1 else ""
    return target in _probes() or not (os.sep in target or os.path.exists(target))


def _probes() -> tuple[str, ...]:
    from slipstream.cli.observe.probes import NAMES

    return (*NAMES, "store", "-h", "--help", "")


def add(commands: Commands) -> None:
    """Declare the commands."""
    from slipstream.cli.observe import probes, server_info, system

    group = commands.group(NAME, "run a JetStream server, or inspect a running one", run=_show_flags)
    group.section("run").add(
        "run", _show_flags, "without a command: run a server, with nats-server's flags (slipstream server --help)"
    )
    server_info.add(group.section("inspect a running server"))
    system.add(group.section("inspect all servers, as a user of the system account"))
    checks = probes.add(group.section("inspect a running server"))
    parser = checks.section("stores").add("store", _check, "check the store of a stopped server for damage")
    parser.add_argument("directory", metavar="DIR")
    parser = group.section("repair").add("salvage", _salvage, "copy the intact data of a damaged store")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("target", metavar="NEW", help="a new directory")
    parser = group.section("repair").add(
        "compact", _compact, "give the free space in the store of a stopped server back"
    )
    parser.add_argument("directory", metavar="DIR")


def serve(arguments: list[str]) -> int:
    """Run a server until a signal stops it, or check a store; returns the exit code."""
    from slipstream.server.process import command, flags

    if not any(word.lstrip("-").startswith("console") for word in arguments):
        return command.main(arguments)
    found = flags.parse(arguments)
    if not found.is_on("console"):
        if found.is_set("console_port") or found.is_set("console_write"):
            raise UsageError("--console_port and --console_write need --console")
        return command.main(arguments)
    return _serve_with_console(arguments, found)


def _serve_with_console(arguments: list[str], flags: Flags) -> int:
    from slipstream.cli.observe.console import check_console
    from slipstream.server.process import command

    check_console()
    try:
        port = values.whole(flags.text("console_port") or "0")
    except Exception as error:
        raise UsageError(f"--console_port must be a port, got {flags.text('console_port')!r}") from error
    if port > 65535:
        raise UsageError(f"--console_port must be at most 65535, got {port}")
    with ExitStack() as stack:
        return command.main(
            arguments, started=lambda server: _start(stack, server, port, write=flags.is_on("console_write"))
        )


def _start(stack: ExitStack, server: Server, port: int, *, write: bool) -> None:
    """Start the console once the server listens; it connects as soon as the loop, which runs this, goes on."""
    from slipstream.cli.observe.console import open_site

    def find() -> tuple[dict[str, Any], dict[str, Any]]:
        return {"servers": server.url, "name": "slipstream-console", **login}, {}

    login = _login(server)
    try:
        site = open_site(port=port, find=find, write=write, monitors=_monitors(server))
        stack.enter_context(site.in_background())
    except (Error, OSError) as error:  # the server is more important than its window
        print(f"slipstream: the console did not start: {error}", flush=True)
        return
    print(f"Console: {site.address}", flush=True)


def _login(server: Server) -> dict[str, Any]:
    """A login of the server's own options that is not a hash."""
    options = server.options
    if options.user and not options.password.startswith("$2"):
        return {"user": options.user, "password": options.password}
    return {"token": options.token} if options.token and not options.token.startswith("$2") else {}


def _monitors(server: Server) -> list[str]:
    """The monitoring address, where there is one."""
    return [server.http_url] if server.options.http_port is not None else []


def _show_flags(_: Shell) -> int:
    return serve(["--help"])


def _check(shell: Shell) -> int:
    return serve(["check", shell.options.directory])


def _salvage(shell: Shell) -> int:
    return serve(["salvage", shell.options.directory, shell.options.target])


def _compact(shell: Shell) -> int:
    return serve(["compact", shell.options.directory])

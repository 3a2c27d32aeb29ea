"""The process of `slipstream server`: flags and configuration, log, signals, pid and ports files.

SIGTERM and SIGINT stop the server once everything it received is durable and answered; SIGUSR2 starts lame duck mode;
SIGHUP reloads the configuration.
The log goes to stderr, in nats-server's format, with the lines that scripts wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from slipstream.errors import Error, UsageError
from slipstream.form import DESCRIPTION
from slipstream.server.options import COMMAND_DEFAULTS
from slipstream.server.process import flags as command_line
from slipstream.server.process import logs, recovery
from slipstream.server.process.config_file import read_config
from slipstream.server.process.options import ProcessOptions
from slipstream.server.process.private_dir import default_root, make_private
from slipstream.server.process.reload import ProcessFiles, Reloader
from slipstream.server.process.signals import send_signal
from slipstream.server.server import Server, new_loop
from slipstream.version import VERSION

log: logging.Logger = logging.getLogger("slipstream.server")


def main(argv: Sequence[str], *, started: Callable[[Server], None] | None = None) -> int:
    """Run a server until a signal stops it; `started` is called once it listens. Returns the exit code."""
    if argv and argv[0] in recovery.USAGE:
        return recovery.main(argv[0], argv[1:])
    flags = command_line.parse(argv)
    if (signalled := flags.text("signal")) is not None:
        send_signal(signalled)
        return 0
    if flags.is_on("help"):
        print(command_line.help_text(), end="")
        return 0
    if flags.is_on("version"):
        print(f"slipstream: v{VERSION}")
        return 0
    path = flags.text("config")
    # A file says what the server has, as with nats-server. Without one it is started for JetStream, most of the time;
    # nats-server itself has JetStream only if it is asked for, and software under test may rely on that.
    defaults = ProcessOptions(server=replace(COMMAND_DEFAULTS, jetstream=not flags.text("compat")))
    is_default = not path and not flags.is_set("jetstream")

    def read() -> ProcessOptions:
        found = command_line.apply(flags, read_config(path) if path else defaults)
        found.server.check()
        return found

    options = read()
    if flags.is_on("test"):
        if not path:
            raise UsageError("-t needs a configuration file (-c FILE)")
        print(f"slipstream: configuration file {path} is valid", file=sys.stderr)
        return 0
    logs.set_up(options)
    try:
        if path:
            log.info("Using configuration file: %s", path)
        configured = options.server.data_dir
        options = _with_data_dir(options, is_default=is_default)
        found = options.server.data_dir
        if configured is None and found is not None:
            log.warning("No storage directory is configured (-sd DIR), streams are stored in %s", found)
            for folder in (Path(found).parent, Path(found)):
                make_private(folder)
        _run(options, started, (lambda: _with_data_dir(read(), is_default=is_default)) if path else None)
    except Error as exc:
        log.critical("%s", exc)
        return 1
    except OSError as exc:  # a port in use, a directory that cannot be written
        log.critical("%s", exc.strerror if exc.filename is None and exc.strerror else exc)
        return 1
    finally:
        logs.take_down()
    return 0


def _with_data_dir(options: ProcessOptions, *, is_default: bool) -> ProcessOptions:
    """A command keeps file streams on disk, even if no directory is configured.

    Several servers may run side by side where JetStream is on by default: each port has its own directory, and a server
    on a free port, which no later one continues, keeps its streams in memory.
    """
    server = options.server
    if not server.jetstream:
        return replace(options, server=replace(server, data_dir=None))
    if server.data_dir is not None or (is_default and server.port < 1):
        return options
    name = "jetstream" if not is_default or server.port == COMMAND_DEFAULTS.port else f"jetstream-{server.port}"
    return replace(options, server=replace(server, data_dir=default_root() / name))


def _run(
    options: ProcessOptions,
    started: Callable[[Server], None] | None,
    read: Callable[[], ProcessOptions] | None,
) -> None:
    # Stored messages are many small objects that live long: looking through all of them for cycles, as Python does by
    # default every few thousand allocations, takes a third of the time of a memory stream under load.
    gc.set_threshold(100_000, 50, 50)
    if options.server.data_dir is not None:
        try:
            Path(options.server.data_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(f"could not create storage directory {str(options.server.data_dir)!r}: {exc}") from exc
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(options, started, read))


async def _serve(
    options: ProcessOptions,
    started: Callable[[Server], None] | None,
    read: Callable[[], ProcessOptions] | None,
) -> None:
    ending = asyncio.Event()
    server = Server.of(options.server)
    settings = server.settings
    log.info("Starting slipstream server")
    log.info("  Version:  %s (as nats-server %s), %s", VERSION, settings.version, DESCRIPTION)
    log.info("  Name:     %s", settings.server_name)
    log.info("  ID:       %s", settings.server_id)
    if options.server.jetstream:
        log.info("  JetStream store: %s", options.server.data_dir or "memory (-sd DIR stores streams there)")
    else:
        log.info("  JetStream: off (-js enables it, -sd DIR stores streams there)")
    async with server:
        files = ProcessFiles()
        try:
            files.write(options, server)
            server.reloader = Reloader(server, files, read) if read is not None else None
            with _signals(server, ending):
                log.info("Server is ready")
                if options.server.jetstream:
                    log.info("Connect with: slipstream -s %s stream ls", server.url)
                if started is not None:
                    started(server)
                await ending.wait()
                log.info("Initiating Shutdown...")
        finally:
            files.remove()
    log.info("Server Exiting..")


@contextlib.contextmanager
def _signals(server: Server, ending: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    retiring: list[asyncio.Task[None]] = []

    async def retire() -> None:
        await server.lame_duck()
        ending.set()

    def begin() -> None:
        if not retiring:
            log.info("Entering lame duck mode, stop accepting new clients")
            retiring.append(loop.create_task(retire()))

    def reload() -> None:
        try:
            if server.reloader is None:
                raise UsageError("the server was not started with a configuration file (-c FILE)")
            server.reloader()
        except UsageError as exc:
            log.error("Failed to reload server configuration: %s", exc)

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ending.set)
    if hasattr(signal, "SIGUSR2"):
        loop.add_signal_handler(signal.SIGUSR2, begin)
        loop.add_signal_handler(signal.SIGHUP, reload)
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)  # a log file that was moved away is reopened without it
    try:
        yield
    finally:
        for task in retiring:
            task.cancel()

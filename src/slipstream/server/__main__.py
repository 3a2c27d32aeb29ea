"""`python -m slipstream.server`: a server as a process of its own, until SIGTERM or SIGINT; SIGUSR2 for lame duck."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys

from slipstream.server.net import Server, new_loop


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slipstream.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4222, help="0 takes a free one")
    parser.add_argument("--data-dir", default=None, help="where streams with file storage are kept; without: in memory")
    parser.add_argument("--name", default="")
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default="")
    parser.add_argument("--token", default="")
    parser.add_argument("--faults", action="store_true", help="take orders of tests on $SLIPSTREAM.FAULTS.<order>")
    parser.add_argument("--virtual-time", action="store_true", help="a clock that only orders move; with --faults")
    return parser.parse_args(argv)


async def _serve(options: argparse.Namespace) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ending.set)
    async with Server(
        options.host,
        options.port,
        data_dir=options.data_dir,
        name=options.name,
        user=options.user,
        password=options.password,
        token=options.token,
        faults=options.faults,
        virtual_time=options.virtual_time,
    ) as server:
        retiring: list[asyncio.Task[None]] = []

        async def retire() -> None:
            await server.lame_duck()
            ending.set()

        def begin() -> None:
            if not retiring:
                retiring.append(loop.create_task(retire()))

        if hasattr(signal, "SIGUSR2"):
            loop.add_signal_handler(signal.SIGUSR2, begin)
        print(f"listening on {server.url}", flush=True)
        await ending.wait()
        for task in retiring:
            task.cancel()


def main(argv: list[str] | None = None) -> None:
    """Run until told to stop."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    options = _arguments(argv)
    # Stored messages are many small objects that live long: looking through all of them for cycles, as Python does by
    # default every few thousand allocations, takes a third of the time of a memory stream under load.
    gc.set_threshold(100_000, 50, 50)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(options))


if __name__ == "__main__":
    main()

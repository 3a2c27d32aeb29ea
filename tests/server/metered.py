"""A server in a process of its own that measures the turns of its loop: `python -m tests.server.metered DIR`.

A turn is what runs between two waits of the loop for events, and counts in CPU time of the loop's thread, so that other
processes of the machine do not matter. The process writes its port, and then for each line of its input the CPU times
of the turns since the last one. It ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.server import Server, WebSocketOptions
from slipstream.wire import Event, Msg, Parser, Pong, Side, Violation, pub

TIMEOUT = 300.0
MAX_INCOMING = 1 << 26  # a report may be larger than what a client may publish


class TurnMeter(selectors.DefaultSelector):
    """A selector that notes how much CPU time went by between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []
        self.begin()

    def begin(self) -> None:
        """What this turn took so far does not count: a report on very many turns takes a while itself."""
        self._began = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns.append(time.thread_time() - self._began)
        ready = super().select(timeout)
        self._began = time.thread_time()
        return ready


async def serve(meter: TurnMeter, directory: str) -> None:
    async with Server(port=0, data_dir=directory, websocket=WebSocketOptions(port=0)) as server:
        print(server.port, server.websocket_port, flush=True)
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
        while await lines.get():
            turns, meter.turns = meter.turns, []
            print(json.dumps(turns), flush=True)
            meter.begin()


def main() -> None:
    if "--no-gc" in sys.argv:  # what is measured is our work: a pass over the heap may fall into any turn
        gc.disable()
    meter = TurnMeter()
    loop = asyncio.SelectorEventLoop(meter)
    try:
        loop.run_until_complete(serve(meter, sys.argv[1]))
    finally:
        loop.close()


class RawClient:
    """A blocking client of bytes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._parser = Parser(Side.SERVER, max_payload=MAX_INCOMING)
        self._events: list[Event] = []
        self._asked = 0
        self.inbox = f"_INBOX.{self._socket.getsockname()[1]}."
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self.send(b"SUB %b> 1\r\n" % self.inbox.encode())
        self.flush()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        """The next events of a kind; others are dropped."""
        found = []
        while True:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, Violation):  # the parser takes nothing after it: waiting would not end
                    raise ValueError(f"the server sent what a client cannot read: {event.reason}")
                if isinstance(event, kind):
                    found.append(event)
                    if len(found) == count:
                        return found
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._events += self._parser.feed(data)

    def flush(self) -> None:
        """Wait until the server has handled everything so far."""
        self.send(b"PING\r\n")
        self.wait_for(Pong)

    def ask(self, subject: str, body: bytes | dict[str, Any] = b"", header: bytes = b"") -> Msg:
        """A request; its answer."""
        self._asked += 1
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(pub(subject, payload, f"{self.inbox}{self._asked}", header))
        (answer,) = self.wait_for(Msg)
        return answer  # type: ignore[no-any-return]

    def api(self, subject: str, body: bytes | dict[str, Any] = b"") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(f"$JS.API.{subject}", body).payload)
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        self._socket.close()


class MeteredServer:
    """The server of this module, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        assert process.stdout is not None
        self.port, self.websocket_port = map(int, process.stdout.readline().split())

    def errors(self) -> str:
        """What it has written to its standard error: warnings and worse of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def turns(self) -> list[float]:
        """CPU seconds of every turn since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("turns\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    @property
    def cpu(self) -> float:
        """CPU seconds of the process so far."""
        return time.clock_gettime((~self._process.pid << 3) | 2)  # what clock_getcpuclockid(3) returns on Linux

    @property
    def memory(self) -> int:
        """Bytes of the process that are in memory and not of a file."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


@contextmanager
def metered_server(directory: Path, *, collects: bool = False) -> Iterator[MeteredServer]:
    """A server in a process of its own, with its streams in a directory; `collects`: garbage, in any turn."""
    command = [sys.executable, "-m", "tests.server.metered", str(directory), *([] if collects else ["--no-gc"])]
    log = directory.with_name(f"{directory.name}.log")
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield MeteredServer(process, log)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


if __name__ == "__main__":
    main()

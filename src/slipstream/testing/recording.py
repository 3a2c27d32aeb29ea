"""Messages that clients published while a test recorded them, and waiting for them.

The server's thread appends, the test's thread reads: a recording is a sequence that only grows, until `clear`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, overload

from slipstream import Headers
from slipstream.errors import UsageError
from slipstream.wire.arguments import Duration, check_seconds

GRACE = 30.0  # seconds beyond its own timeout after which a wait gives up on the server

Result = TypeVar("Result")


class RecordedMessage(NamedTuple):
    """A message that a client published."""

    subject: str
    data: bytes
    reply: str  # empty without one
    header: bytes
    time: int  # when it arrived, by the server's clock, in nanoseconds since the epoch

    @property
    def headers(self) -> Headers:
        """The headers it was published with."""
        return Headers.parse(self.header)

    def text(self) -> str:
        """The payload as text in UTF-8."""
        return self.data.decode()

    def json(self) -> Any:
        """The payload as JSON."""
        import json

        return json.loads(self.data)


class Recording(Sequence[RecordedMessage]):
    """Messages on a subject, in the order in which they arrived at the server.

    Core publishes are not acknowledged: `wait` for them, or `flush()` the client, before you look.
    """

    def __init__(self, subject: str, until: Callable[[Callable[[], bool], float], Future[bool]]) -> None:
        """`until(is_done, timeout)` waits on the server's thread; its future says whether that came true."""
        self.subject = subject
        self._until = until
        self._messages: list[RecordedMessage] = []

    def __repr__(self) -> str:
        return f"<Recording of {self.subject!r}, {len(self)} messages>"

    def add(self, subject: str, reply: str, header: bytes, payload: bytes, time: int) -> None:
        """A message arrived; called on the server's thread."""
        self._messages.append(RecordedMessage(subject, bytes(payload), reply, bytes(header), time))

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[RecordedMessage]:
        return iter(list(self._messages))

    @overload
    def __getitem__(self, at: int) -> RecordedMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[RecordedMessage]: ...
    def __getitem__(self, at: int | slice) -> RecordedMessage | list[RecordedMessage]:
        return self._messages[at]

    @property
    def subjects(self) -> list[str]:
        """The subject of each message."""
        return [message.subject for message in self]

    @property
    def data(self) -> list[bytes]:
        """The payload of each message."""
        return [message.data for message in self]

    def clear(self) -> None:
        """Forget the messages so far."""
        self._messages.clear()

    def wait(self, count: int = 1, *, timeout: Duration = 5.0) -> list[RecordedMessage]:
        """Wait until `count` messages were recorded, and return all of them; AssertionError if they do not arrive in
        time."""
        refuse_in_loop("wait", "wait_async")
        timeout = check_seconds(timeout)
        return self._waited(result_of(self._until(lambda: len(self) >= count, timeout), timeout), count, timeout)

    async def wait_async(self, count: int = 1, *, timeout: Duration = 5.0) -> list[RecordedMessage]:
        """As `wait`, for asyncio."""
        timeout = check_seconds(timeout)
        done = await asyncio.wrap_future(self._until(lambda: len(self) >= count, timeout))
        return self._waited(done, count, timeout)

    def _waited(self, done: bool, count: int, timeout: float) -> list[RecordedMessage]:
        if not done:
            seen = f": {', '.join(self.subjects[:10])}" if len(self) else ""
            raise AssertionError(
                f"{len(self)} of {count} messages on {self.subject!r} were published within {timeout:g} s{seen}"
            )
        return list(self)


def refuse_in_loop(call: str, instead: str) -> None:
    """Reject a wait that would block an event loop, on which the program under test may run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{call}() would block the running event loop; use `await {instead}()`")


def result_of(future: Future[Result], timeout: float) -> Result:
    """The result of a wait on the server's thread."""
    return future.result(timeout + GRACE)

"""Readers of received bytes that go before the parser: they take whole frames of their own and make columns of them.

The parser makes one event of each frame, which is what most readers want. Where thousands of alike frames arrive in a
row (a Direct Get batch, the acks of publishers, an ordered consumer, a pull loop), taking them together is two to three
times as fast. A reader takes its own frames at the front of a chunk only; what it leaves is the parser's.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.wire import Parser

Scan = Callable[[bytes, int], tuple[int, int]]
"""Take the whole frames at a position; returns where they end and how many they were."""


class RawScanner:
    """The raw readers of one client, by token (requests) or sid (subscriptions)."""

    def __init__(self) -> None:
        self.msgs: int = 0  # taken so far
        self.readers: dict[str | bytes, Scan] = {}
        self._parser: Parser | None = None

    def attach(self, parser: Parser) -> None:
        """Read what this parser receives: the server has accepted us, and may send messages."""
        self._parser = parser
        self._install()

    def detach(self) -> None:
        """Read nothing until there is another connection."""
        if self._parser is not None:
            self._parser.scan = None
            self._parser = None

    def add(self, key: str | bytes, scan: Scan) -> None:
        """Let `scan` look at each chunk."""
        self.readers[key] = scan
        self._install()

    def remove(self, key: str | bytes) -> None:
        """It has read enough, if it read at all."""
        if self.readers.pop(key, None) is not None:
            self._install()

    def _install(self) -> None:
        # Without readers the parser is not slowed down by so much as a call.
        if self._parser is not None:
            self._parser.scan = self._scan if self.readers else None

    def _scan(self, data: bytes) -> int:
        """Let the readers take their frames from the front of `data`, in turns, until none of them takes anything."""
        pos, before = 0, -1
        while pos != before:
            before = pos
            for scan in list(self.readers.values()):
                pos, count = scan(data, pos)
                self.msgs += count
        return pos

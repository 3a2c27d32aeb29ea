"""The servers of one cluster, those of the caller and those learned from INFO, in the order they are tried.

Pure. A server that rejected our credentials twice in a row is not tried again. One that was left because it is cut off
from its cluster accepts connections all the same: for a while it is tried after all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.client.address import Address

MAX_REJECTIONS = 2
AVOIDED = 60.0  # seconds: how long a nats-server may take to notice that it is cut off, or that a route is back


class ServerPool:
    """The servers of one cluster in the order in which they are tried, round robin."""

    def __init__(self, configured: Sequence[Address]) -> None:
        self._configured = list(dict.fromkeys(configured))
        self._learned: list[Address] = []
        self._rejections: dict[Address, int] = {}
        self._last: Address | None = None
        self._avoided: dict[Address, float] = {}  # servers that were left, until when
        self._tried: set[Address] = set()  # since a connection was accepted

    def __len__(self) -> int:
        return len(self.servers)

    @property
    def servers(self) -> list[Address]:
        """Every server that may be tried."""
        known = [*self._configured, *(server for server in self._learned if server not in self._configured)]
        return [server for server in known if self._rejections.get(server, 0) < MAX_REJECTIONS]

    def next(self, now: float = 0.0) -> Address:
        """The server after the one returned last; one that was left is passed over until each other one was tried."""
        servers = self.servers
        index = servers.index(self._last) + 1 if self._last in servers else 0
        turn = [*servers[index:], *servers[:index]]
        if self._avoided:
            self._avoided = {server: until for server, until in self._avoided.items() if until > now}
            others = [server for server in turn if server not in self._avoided and server not in self._tried]
            turn = others or turn
        self._last = turn[0]
        self._tried.add(self._last)
        return self._last

    def leave(self, server: Address, now: float) -> None:
        """The server is connected to us and silent: it may be cut off from its cluster."""
        self._avoided[server] = now + AVOIDED

    def learn(self, addresses: Sequence[Address]) -> bool:
        """Replace the servers learned before by a new list; whether it has any that were unknown."""
        known = {*self._configured, *self._learned}
        self._learned = list(dict.fromkeys(addresses))
        return not known.issuperset(self._learned)

    def rejected(self, server: Address) -> None:
        """The server rejected our credentials."""
        self._rejections[server] = self._rejections.get(server, 0) + 1

    def accepted(self, server: Address) -> None:
        """The server accepted the connection."""
        self._rejections.pop(server, None)
        self._tried.clear()

"""The servers of one cluster, those of the caller and those learned from INFO, in the order they are tried.

Pure. A server that rejected our credentials twice in a row is not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.client.address import Address

MAX_REJECTIONS = 2


class ServerPool:
    """The servers of one cluster in the order in which they are tried, round robin."""

    def __init__(self, configured: Sequence[Address]) -> None:
        self._configured = list(dict.fromkeys(configured))
        self._learned: list[Address] = []
        self._rejections: dict[Address, int] = {}
        self._last: Address | None = None

    def __len__(self) -> int:
        return len(self.servers)

    @property
    def servers(self) -> list[Address]:
        """Every server that may be tried."""
        known = [*self._configured, *(server for server in self._learned if server not in self._configured)]
        return [server for server in known if self._rejections.get(server, 0) < MAX_REJECTIONS]

    def next(self) -> Address:
        """The server after the one returned last."""
        servers = self.servers
        index = servers.index(self._last) + 1 if self._last in servers else 0
        self._last = servers[index % len(servers)]
        return self._last

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

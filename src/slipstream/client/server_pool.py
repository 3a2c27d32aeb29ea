"""The servers of one cluster, those of the caller and those learned from INFO, in the order they are tried.

Pure. A server that rejected our credentials twice in a row is not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.client.address import Address

MAX_REFUSALS = 2


class ServerPool:
    """The servers of one cluster in the order they are tried, round and round."""

    def __init__(self, given: Sequence[Address]) -> None:
        self._given = list(dict.fromkeys(given))
        self._learned: list[Address] = []
        self._refusals: dict[Address, int] = {}
        self._last: Address | None = None

    def __len__(self) -> int:
        return len(self.servers)

    @property
    def servers(self) -> list[Address]:
        """Every server that may be tried."""
        known = [*self._given, *(server for server in self._learned if server not in self._given)]
        return [server for server in known if self._refusals.get(server, 0) < MAX_REFUSALS]

    def next(self) -> Address:
        """The server after the one given out last."""
        servers = self.servers
        index = servers.index(self._last) + 1 if self._last in servers else 0
        self._last = servers[index % len(servers)]
        return self._last

    def learn(self, addresses: Sequence[Address]) -> bool:
        """A server listed its cluster; the list replaces the one before. Whether there is anything new in it."""
        known = {*self._given, *self._learned}
        self._learned = list(dict.fromkeys(addresses))
        return not known.issuperset(self._learned)

    def refused(self, server: Address) -> None:
        """The server did not accept our credentials."""
        self._refusals[server] = self._refusals.get(server, 0) + 1

    def accepted(self, server: Address) -> None:
        """The server let us in."""
        self._refusals.pop(server, None)

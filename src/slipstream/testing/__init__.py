"""A real server for tests: on a free port in milliseconds, with replicas to hold, faults to inject, time to move.

    with TestServer() as server:
        client = connect_blocking(server.url)

The server runs in a thread of its own, so that any client, in blocking or async code, in any test framework, can use
it. Installing Slipstream registers the pytest fixtures of `slipstream.testing.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.testing.server import Replica, TestServer

__all__ = ["Replica", "TestServer"]


def __getattr__(name: str) -> object:
    """Load the server on first use: pytest imports this package with the plugin in every run."""
    if name in __all__:
        from slipstream.testing import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

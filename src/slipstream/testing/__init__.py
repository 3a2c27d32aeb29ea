"""A real server for tests: on a free port in milliseconds, with replicas to hold, faults to inject, time to move.

    with TestServer() as server:
        client = connect_blocking(server.url)

The server runs in its own thread, so that any client, in blocking or async code, in any test framework, can use it.
Installing Slipstream registers the pytest fixtures of `slipstream.testing.plugin`; `ServerMixin` is for unittest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.testing.cases import ServerMixin
    from slipstream.testing.controls import ConsumerCounts, Replica, ServerControls
    from slipstream.testing.recording import RecordedMessage, Recording
    from slipstream.testing.server import ServerSnapshot, TestAccount, TestServer

__all__ = [
    "ConsumerCounts",
    "RecordedMessage",
    "Recording",
    "Replica",
    "ServerControls",
    "ServerMixin",
    "ServerSnapshot",
    "TestAccount",
    "TestServer",
]

_MODULES = {"ServerMixin": "cases", "RecordedMessage": "recording", "Recording": "recording"} | dict.fromkeys(
    ("ConsumerCounts", "Replica", "ServerControls"), "controls"
)


def __getattr__(name: str) -> object:
    """Load the server on first use: pytest imports this package with the plugin in every run."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'server')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

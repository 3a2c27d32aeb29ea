"""The interface of a layer between the session and the socket, such as TLS or a WebSocket."""

from __future__ import annotations

from typing import Protocol


class Layer(Protocol):
    """One way of wrapping bytes. What it has to send, its own words and wrapped ones, waits until it is taken."""

    @property
    def is_ready(self) -> bool:
        """Whether its handshake is done."""
        ...

    def begin(self) -> None:
        """Start the handshake: what lies below is ready."""
        ...

    def received(self, data: bytes) -> bytes:
        """Unwrap what arrived. Raises an Error when the connection is of no use any more."""
        ...

    def send(self, data: bytes) -> None:
        """Wrap what is to be sent."""
        ...

    def finish(self) -> None:
        """Say that nothing follows."""
        ...

    def take(self) -> bytes:
        """The wrapped bytes so far."""
        ...

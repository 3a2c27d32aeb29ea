"""The layers between the session and the socket: none, TLS, a WebSocket, or a WebSocket in TLS. Pure.

Invariant: an upper layer sends nothing before the one below it is ready, and receives nothing before it has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream.client.address import Address
from slipstream.client.layers.websocket import WebSocket


class Layer(Protocol):
    """One way of wrapping bytes. What it sends, of its own and wrapped, is buffered until it is taken."""

    @property
    def is_ready(self) -> bool:
        """Whether its handshake is done."""
        ...

    def begin(self) -> None:
        """Start the handshake: the layer below is ready."""
        ...

    def received(self, data: bytes) -> bytes:
        """Unwrap what arrived. Raises an Error when the connection is unusable."""
        ...

    def send(self, data: bytes) -> None:
        """Wrap what is to be sent."""
        ...

    def finish(self) -> None:
        """Announce the end of the data."""
        ...

    def take(self) -> bytes:
        """The wrapped bytes so far."""
        ...


class TlsMaker(Protocol):
    """Makes the TLS layer of a connection."""

    def layer(self, server: Address) -> Layer:
        """The TLS to `server`. Raises CredentialsError."""
        ...


class LayerStack:
    """The layers of one connection, the lowest first."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._begun = 0
        self._advance()

    @property
    def is_ready(self) -> bool:
        """Whether the session's own bytes can go through."""
        return all(layer.is_ready for layer in self._layers)

    def _advance(self) -> None:
        while self._begun < len(self._layers) and (self._begun == 0 or self._layers[self._begun - 1].is_ready):
            self._layers[self._begun].begin()
            self._begun += 1

    def received(self, data: bytes) -> bytes:
        """Unwrap what arrived; there may be an answer to `take`."""
        for layer in self._layers:
            data = layer.received(data)
            if not layer.is_ready:
                return b""
            self._advance()
        return data

    def send(self, data: bytes) -> None:
        """What the session sends; the layers are ready."""
        self._layers[-1].send(data)

    def finish(self) -> None:
        """Announce the end of the data in every layer, from the top."""
        for layer in self._layers[self._begun - 1 :: -1]:
            layer.finish()
            self._sink_down()

    def take(self) -> bytes:
        """Everything for the socket."""
        self._sink_down()
        return self._layers[0].take()

    def _sink_down(self) -> None:
        """Wrap what each layer sends in those below it."""
        for index in range(self._begun - 1, 0, -1):
            if data := self._layers[index].take():
                self._layers[index - 1].send(data)


def layers_for(server: Address, *, tls: TlsMaker, tls_first: bool, random: Callable[[int], bytes]) -> LayerStack | None:
    """What a connection to `server` begins with; None for plain bytes. TLS after INFO is added later, if at all."""
    layers: list[Layer] = []
    if server.scheme == "wss" or (tls_first and not server.is_websocket):
        layers.append(tls.layer(server))
    if server.is_websocket:
        layers.append(WebSocket(server.netloc, server.path, random=random))
    return LayerStack(layers) if layers else None

"""What lies between the session and the socket: nothing, TLS, a WebSocket, or a WebSocket in TLS. Pure.

Invariant: an upper layer says nothing before the one below it is ready, and hears nothing before it has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.client.address import Address
from slipstream.client.layers.layer import Layer
from slipstream.client.layers.websocket import WebSocket
from slipstream.client.options import Options


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
        """What arrived, without its wrapping; there may be an answer to `take`."""
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
        """The last words of every layer, from the top."""
        for layer in self._layers[self._begun - 1 :: -1]:
            layer.finish()
            self._sink_down()

    def take(self) -> bytes:
        """Everything for the socket."""
        self._sink_down()
        return self._layers[0].take()

    def _sink_down(self) -> None:
        """What a layer has to say goes through those below it."""
        for index in range(self._begun - 1, 0, -1):
            if data := self._layers[index].take():
                self._layers[index - 1].send(data)


def layers_for(server: Address, options: Options, *, random: Callable[[int], bytes]) -> LayerStack | None:
    """What a connection to `server` begins with; None for plain bytes. TLS after INFO comes later, if at all."""
    layers: list[Layer] = []
    if server.scheme == "wss" or (options.tls_first and not server.is_websocket):
        layers.append(tls_layer(server, options))
    if server.is_websocket:
        layers.append(WebSocket(server.netloc, server.path, random=random))
    return LayerStack(layers) if layers else None


def tls_layer(server: Address, options: Options) -> Layer:
    """The TLS of one connection. Raises CredentialsError."""
    assert options.tls is not None, "every driver brings it"
    return options.tls.layer(server)

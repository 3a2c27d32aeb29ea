"""A real cluster of three: its servers are learned from INFO, and one of them takes over when the known one is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ConnectionClosedError, Error
from tests.client.conftest import RealServer
from tests.client.support import Driver, eventually
from tests.ports import free_port

MakeServer = Callable[..., RealServer]


def three(make_server: MakeServer, *more: str) -> list[RealServer]:
    """Servers that know each other and tell clients so."""
    ports = [free_port() for _ in range(3)]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    return [
        make_server("--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{port}", "--routes", routes, *more)
        for port in ports
    ]


def test_learned_servers_take_over_when_the_known_one_is_lost(driver: Driver, make_server: MakeServer) -> None:
    servers = three(make_server)
    events: list[str] = []
    with driver.connect(servers[0].url, reconnect_wait=0.02, on_event=lambda event: events.append(event.kind)) as nc:
        eventually(lambda: len(nc.servers) == 3)
        assert {url.rpartition(":")[2] for url in nc.servers} == {str(server.port) for server in servers}
        sub = nc.subscribe("a")
        nc.flush()
        servers[0].stop()
        eventually(lambda: nc.stats.reconnects == 1 and nc.is_connected)
        assert nc.server_info.port in {server.port for server in servers[1:]}
        nc.publish("a", b"still here")
        assert sub.next().data == b"still here"
        left = next(server for server in servers[1:] if server.port == nc.server_info.port)
        left.stop()
        eventually(lambda: nc.stats.reconnects == 2 and nc.is_connected)
        nc.publish("a", b"and again")
        assert sub.next().data == b"and again"


def test_a_lame_duck_of_a_cluster_is_left_for_a_learned_server(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    config = tmp_path / "hasty.conf"
    config.write_text('lame_duck_duration: "30s", lame_duck_grace_period: "500ms"')
    servers = three(make_server, "-c", str(config))
    with driver.connect(servers[0].url, reconnect_wait=0.02) as nc:
        eventually(lambda: len(nc.servers) == 3)
        sub = nc.subscribe("a")
        nc.flush()
        servers[0].send(signal.SIGUSR2)
        eventually(lambda: nc.is_connected and nc.server_info.port != servers[0].port)
        nc.publish("a", b"elsewhere")
        assert sub.next().data == b"elsewhere"


@pytest.mark.parametrize("call", ["next", "next_chunk"])
def test_a_reader_raises_when_another_thread_closes_the_client(driver: Driver, nats_url: str, call: str) -> None:
    raised: list[Error] = []
    nc = driver.connect(nats_url)
    sub = nc.subscribe("nothing.comes")

    def read() -> None:
        try:
            getattr(sub, call)(timeout=20)
        except Error as exc:
            raised.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    nc.flush()
    nc.close()
    reader.join(20)
    assert [type(error) for error in raised] == [ConnectionClosedError]
    with pytest.raises(ConnectionClosedError):
        getattr(sub, call)()
    assert list(_rest(sub)) == []


def _rest(sub: Any) -> Any:
    """Iteration ends where the client was closed by order."""
    return iter(sub)

"""Connections of drivers and executors: their secrets come from the environment only."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream import Context, Contexts
from slipstream.errors import Error
from slipstream.spark.connect import open_jetstream
from slipstream.spark.option_reader import Connection
from tests.servers import real_server


@pytest.mark.parametrize(
    ("config", "environ"),
    [
        ("authorization { token: hush }", {"NATS_TOKEN": "hush"}),
        ("authorization { user: me, password: hush }", {"NATS_USER": "me", "NATS_PASSWORD": "hush"}),
    ],
)
def test_a_server_with_secrets_is_reached_by_the_environment(config: str, environ: dict[str, str]) -> None:
    with real_server(config=config) as url:
        connection = Connection(servers=(url,), timeout=5.0)
        with open_jetstream(connection, environ) as js:
            assert js.client.server_info.max_payload > 0
        with pytest.raises(Error) as caught, open_jetstream(connection, dict.fromkeys(environ, "wrong")):
            pass
        assert "hush" not in str(caught.value)


def test_a_context_says_where_and_who_unless_the_options_do(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "nats")
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with real_server(config='authorization { token: hush }\njetstream { domain: "east" }') as url:
        contexts.save(Context(name="east", url=url, token="hush", jetstream_domain="east"))
        contexts.save(Context(name="astray", url="nats://127.0.0.1:1", token="hush", jetstream_domain="west"))
        with open_jetstream(Connection(context="east"), environ) as js:
            assert js.prefix == "$JS.east.API"
            assert js.account_info().domain == "east"
        told = Connection(context="astray", servers=(url,), domain="east")
        with open_jetstream(told, environ) as js:
            assert js.account_info().domain == "east"


def test_unreachable_server_is_named() -> None:
    with pytest.raises(Error, match=r"127\.0\.0\.1:1"), open_jetstream(Connection(servers=("nats://127.0.0.1:1",)), {}):
        pass

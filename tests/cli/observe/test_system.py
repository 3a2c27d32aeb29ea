"""`server ls`, `ping` and `report`: what servers tell users of the system account, on either server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.server import Server
from tests.cli.support import Cli
from tests.servers import real_server

CONFIG = """
server_name: first
jetstream {{ store_dir: "{store}" }}
accounts {{
  APP {{ jetstream: enabled, users: [{{ user: app, password: app }}] }}
  SYS {{ users: [{{ user: admin, password: s3cret }}] }}
}}
system_account: SYS
"""


@pytest.fixture(params=["ours", "real"])
def system_cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cli]:
    text = CONFIG.format(store=tmp_path / "store")
    if request.param == "real":
        with real_server(config=text, jetstream=False) as url:
            yield Cli(url, tmp_path)
        return
    config = tmp_path / "server.conf"
    config.write_text("host: 127.0.0.1\nport: -1\n" + text)
    with Server.from_config(config) as server:
        yield Cli(server.url, tmp_path)


ADMIN = ("--user", "admin", "--password", "s3cret")
APP = ("--user", "app", "--password", "app")


def test_servers_are_listed_and_pinged(system_cli: Cli) -> None:
    listed = system_cli.ok("server", "ls", *ADMIN).out
    assert "first" in listed
    (server,) = system_cli.ok("server", "list", *ADMIN, "--json", "--expect", "1").json
    assert server["name"] == "first"
    assert server["statsz"]["connections"] >= 1
    done = system_cli.ok("server", "ping", *ADMIN)
    assert done.out.startswith("first: ")
    assert "1 server answered" in done.err
    (ping,) = system_cli.ok("server", "ping", *ADMIN, "--json").json
    assert ping["rtt_ms"] > 0


def test_reports_have_a_row_for_each(system_cli: Cli) -> None:
    system_cli.ok("stream", "add", "ORDERS", "--subjects", "orders.>", *APP)
    system_cli.ok("pub", "-J", "orders.1", "x", *APP)
    assert "slipstream" in system_cli.ok("server", "report", "connections", *ADMIN).out
    accounts = system_cli.ok("server", "report", "accounts", *ADMIN, "--json").json[0]["data"]
    assert {"APP", "SYS"} <= set(accounts["accounts"])
    assert "APP" in system_cli.ok("server", "report", "accounts", *ADMIN).out
    (jetstream,) = system_cli.ok("server", "report", "jetstream", *ADMIN, "--json").json
    assert (jetstream["data"]["streams"], jetstream["data"]["messages"]) == (1, 1)
    assert "first" in system_cli.ok("server", "report", "jetstream", *ADMIN).out
    assert system_cli.run("server", "report", "weather", *ADMIN).code == 2


def test_users_of_other_accounts_are_told_what_they_lack(system_cli: Cli) -> None:
    done = system_cli.run("server", "ls", *APP, "--timeout", "1s")
    assert done.code == 2
    assert "system account" in done.err
    assert len(done.err.splitlines()) == 1

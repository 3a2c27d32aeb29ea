"""Configurations as options: every key is carried out or rejected, with its position."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.server import AccountLimits, AccountOptions, Permissions, Responses, User
from slipstream.server.options import WebSocketOptions
from slipstream.server.process.conf.load import ANYONE, load
from slipstream.server.process.conf.tree import ConfigError, parse
from slipstream.server.process.config_file import read_config
from slipstream.server.process.options import ProcessOptions


def loaded(text: str) -> ProcessOptions:
    return load(parse(text, "f.conf", read=str, environment=lambda _: None), str)


def test_an_empty_configuration_is_the_default() -> None:
    assert loaded("") == ProcessOptions()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("listen: 0.0.0.0:4333", "0.0.0.0", 4333),
        ("listen: 4333", "127.0.0.1", 4333),
        ("listen: ':4333'", "127.0.0.1", 4333),
        ("listen: '[::1]:-1'", "::1", -1),
        ("host: localhost\nport: 5", "localhost", 5),
        ("net: ::1", "::1", 4222),
    ],
)
def test_listen_host_and_port_keys(text: str, host: str, port: int) -> None:
    server = loaded(text).server
    assert (server.host, server.port) == (host, port)


def test_limits_and_times() -> None:
    server = loaded("""
        server_name: s1, max_payload: 2MB, max_pending: 10Mb, max_connections: 10, max_subscriptions: 5
        max_control_line: 1KB, write_deadline: "5s", ping_interval: "1m30s", ping_max: 3
        lame_duck_duration: "1m", lame_duck_grace_period: 5, http: localhost:8222
    """).server
    assert (server.name, server.max_payload, server.max_pending_bytes) == ("s1", 2 << 20, 10 << 20)
    assert (server.max_connections, server.max_subscriptions, server.max_control_line) == (10, 5, 1024)
    assert (server.write_deadline, server.ping_interval, server.max_pings_out) == (5.0, 90.0, 3)
    assert (server.lame_duck_duration, server.lame_duck_grace) == (60.0, 5.0)
    assert (server.http_host, server.http_port) == ("localhost", 8222)
    assert loaded("monitor_port: 8223").server.http_port == 8223


def test_jetstream() -> None:
    server = loaded("jetstream {store_dir: /x, max_mem: 1G, max_file: 10GB, domain: hub, sync_interval: always}").server
    assert server.jetstream
    assert (server.data_dir, server.domain) == ("/x", "hub")
    assert (server.max_memory, server.max_storage) == (10**9, 10 << 30)
    assert loaded("jetstream: enabled").server.jetstream
    assert not loaded("jetstream: false\nstore_dir: /y").server.jetstream
    assert loaded("jetstream: true\nstore_dir: /y").server.data_dir == "/y"


def test_users_permissions_and_accounts() -> None:
    server = loaded("""
        DEFAULTS: {publish: "a.>"}
        authorization {
            timeout: 5
            default_permissions: $DEFAULTS
            users: [
                {user: a, password: pw}
                {username: b, pass: pw, permissions: {
                    pub: {allow: [x, y], deny: z}, sub: ["q v1", "r"], allow_responses: {max: 5, expires: "1m"}}}
                {user: c, password: pw, permissions: {allow_responses: true}, clients: [websocket, MQTT]}
            ]
        }
        accounts {
            A {
                jetstream: {max_mem: 1K, max_file: 2K, max_streams: 3, max_consumers: 4}
                limits: {max_conn: 1, max_subs: 2, max_pay: 3}
                users: [{user: d, password: pw}]
                exports: [{service: x}]
            }
            B { jetstream: enabled }
            C {}
        }
        no_auth_user: d
    """).server
    assert server.auth_timeout == 5.0
    assert server.no_auth_user == "d"
    assert server.users == (
        User(name="a", password="pw", permissions=Permissions(publish=("a.>",))),
        User(
            name="b",
            password="pw",
            permissions=Permissions(
                publish=("x", "y"),
                publish_deny=("z",),
                subscribe=("q v1", "r"),
                responses=Responses(max_msgs=5, expires=timedelta(minutes=1)),
            ),
        ),
        User(
            name="c",
            password="pw",
            permissions=Permissions(responses=Responses()),
            connection_types=("WEBSOCKET",),
        ),
        User(name="d", password="pw", account="A"),
    )
    limits = AccountLimits(max_memory=1000, max_storage=2000, max_streams=3, max_consumers=4)
    assert server.accounts == (
        AccountOptions(name="A", jetstream=limits, max_connections=1, max_subscriptions=2, max_payload=3),
        AccountOptions(name="B"),
        AccountOptions(name="C", jetstream=None),
        AccountOptions(name="$G", jetstream=None),
    )


def test_only_the_no_auth_user_may_have_no_password() -> None:
    server = loaded("no_auth_user: d\naccounts { A { users: [{user: d}] } }").server
    assert server.users == (User(name="d", account="A", anyone=True),)
    with pytest.raises(ConfigError, match="user 'e' has no password"):
        loaded("no_auth_user: d\naccounts { A { users: [{user: d}, {user: e}] } }")


def test_one_user_or_one_token() -> None:
    assert loaded("authorization {user: u, password: p}").server.users == (User(name="u", password="p"),)
    assert loaded("authorization {token: t}").server.users == (User(token="t"),)
    with pytest.raises(ConfigError, match="mutually exclusive"):
        loaded("authorization {user: u, password: p, token: t}")


def test_any_client_is_accepted_if_only_the_system_account_has_users() -> None:
    server = loaded("accounts { SYS { users: [{user: s, password: p}] } }\nsystem_account: SYS").server
    assert server.no_auth_user == ANYONE
    assert server.system_account == "SYS"
    assert loaded("accounts { A { users: [{user: s, password: p}] } }").server.no_auth_user == ""


def test_tls_and_websocket() -> None:
    server = loaded("""
        tls {
            cert_file: c, key_file: k, ca_file: a, verify_and_map: true, timeout: 3
            handshake_first: true, min_version: "1.3"
        }
        websocket {
            listen: "0.0.0.0:8080", no_tls: true, same_origin: true, allowed_origins: ["http://a"], headers {X: y}
        }
    """).server
    assert (server.tls_cert, server.tls_key, server.tls_ca) == ("c", "k", "a")
    assert (server.tls_verify, server.tls_map, server.tls_first) == (True, True, True)
    assert (server.tls_timeout, server.tls_min_version) == (3.0, "1.3")
    assert server.websocket == WebSocketOptions(
        host="0.0.0.0", port=8080, same_origin=True, allowed_origins=("http://a",), headers={"X": "y"}
    )
    mapped = loaded(
        "tls {cert_file: c, key_file: k, ca_file: a, verify_and_map: true}\nauthorization {users: [{user: 'CN=x'}]}"
    )
    assert mapped.server.users == (User(name="CN=x", certificate=True),)


def test_the_process() -> None:
    options = loaded("debug: true, trace: true, logtime: false, log_file: /l, pid_file: /p, ports_file_dir: /d")
    assert (options.debug, options.server.trace, options.log_time) == (True, True, False)
    assert (options.log_file, options.pid_file, options.ports_file_dir) == ("/l", "/p", "/d")


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("port: 1\nnonsense: 2", "2:1", "unknown field 'nonsense' in the configuration"),
        ("cluster {port: 1}", "1:1", "'cluster' is not supported: this server is a single process"),
        ("Leafnodes {}", "1:1", "'Leafnodes' is not supported"),
        ("mqtt {}", "1:1", "'mqtt' is not supported"),
        ("jetstream {\n key: x}", "2:2", "'key' is not supported: the store is not encrypted"),
        ("jetstream {\n x: x}", "2:2", "unknown field 'x' in jetstream"),
        ("accounts {A {\n imports: []}}", "2:2", "'imports' is not supported"),
        ("accounts {A {\n users: [{user: a, password: b, x: 1}]}}", "2:33", "unknown field 'x' in user"),
        ("authorization {auth_callout {}}", "1:16", "'auth_callout' is not supported"),
        ("authorization {users: [{user: a}]}", "1:24", "user 'a' has no password"),
        ("authorization {users: [{nkey: UABC}]}", "1:24", "an nkey public key must"),
        ("authorization {users: [{user: a, password: b, permissions: {publish: 'a..b'}}]}", "1:60", "a..b"),
        ("authorization {users: {}}", "1:23", "'users' must be an array of maps, got a map"),
        ("authorization {token: 123}", "1:23", "'token' must be a string (in quotes), got a number"),
        ("max_payload: big", "1:14", "'max_payload' must be a whole number, got a string"),
        ("max_payload: 0", "1:14", "'max_payload' must be at least 1, got 0"),
        ("ping_interval: 'soon'", "1:16", "'ping_interval' must be a number of seconds or a duration"),
        ("listen: nowhere", "1:9", "'listen' must be 'host:port' or a port, got 'nowhere'"),
        ("port: 70000", "1:1", "'port' must be a port up to 65535, or -1 for a free one, got 70000"),
        ("debug: maybe", "1:8", "'debug' must be true or false, got a string"),
        ("tls {cert_file: a}", "1:5", "TLS needs 'cert_file' and 'key_file'"),
        ("tls {cert_file: a, key_file: b, verify: true}", "1:5", "'verify' needs 'ca_file'"),
        ("tls {cert_file: a, key_file: b, cipher_suites: []}", "1:33", "'cipher_suites' is not supported"),
        (
            "tls {cert_file: a, key_file: b, handshake_first: auto}",
            "1:50",
            "'handshake_first' must be true or false, got a string",
        ),
        ("websocket {port: 1}", "1:11", "'websocket' needs 'tls', or 'no_tls: true'"),
        ("websocket {port: 1, no_tls: true, jwt_cookie: x}", "1:35", "'jwt_cookie' is not supported"),
        ("resolver: MEMORY", "1:1", "need an 'operator'"),
        ("operator: x\nresolver: URL(http://x)", "2:11", "'resolver' must be MEMORY"),
        ("operator: /nonexistent", "1:11", "cannot read the operator JWT"),
        ("max_pending: 10", "1:1", "max_payload must be at most max_pending_bytes (10), got 1048576"),
        ("lame_duck_duration: 1, lame_duck_grace_period: 2", "1:1", "grace"),
        ("no_auth_user: x, authorization {users: x}", "1:40", "'users' must be an array of maps, got a string"),
    ],
)
def test_a_key_that_cannot_be_carried_out_is_rejected_with_its_position(text: str, position: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    assert str(caught.value).startswith(f"f.conf:{position}: "), str(caught.value)
    assert message in str(caught.value)


def test_a_variable_is_not_an_unknown_field() -> None:
    assert loaded("PORT: 5\nport: $PORT").server.port == 5
    assert loaded("authorization {P: {publish: a}, users: [{user: u, password: p, permissions: $P}]}").server.users


def test_a_secret_of_the_wrong_kind_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("authorization {token: 987654321}")
    assert "987654321" not in str(caught.value)


def test_files_are_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users.conf").write_text("users: [{user: a, password: $SECRET}]")
    path = tmp_path / "main.conf"
    path.write_text("authorization { include users.conf }")
    monkeypatch.setenv("SECRET", "s3cret")
    assert read_config(path).server.users == (User(name="a", password="s3cret"),)
    with pytest.raises(UsageError, match="cannot read the configuration"):
        read_config(tmp_path / "nope.conf")
    path.write_text("no_auth_user: x\nauthorization {user: a, password: b}")
    with pytest.raises(UsageError, match="no_auth_user 'x' is not among the users"):
        read_config(path).server.check()


def test_the_configuration_in_the_documentation_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("READER_PASSWORD", "secret")
    page = Path(__file__).parents[4] / "docs" / "howto" / "server.md"
    sample, system = [
        block for block in re.findall(r"```text\n(.*?)```", page.read_text(), re.S) if "accounts {" in block
    ]
    path = tmp_path / "server.conf"
    path.write_text(sample)
    server = read_config(path).server
    assert server.domain == "edge"
    assert [user.name for user in server.users] == ["shop", "", "reader"]
    assert server.websocket is not None
    assert server.authenticator().accounts["ORDERS"].max_connections == 100
    path.write_text(system)
    assert [(user.name, user.account) for user in read_config(path).server.users] == [("app", "APP"), ("admin", "SYS")]

"""The monitoring endpoints: nats-server's names and shapes, held against the real one's; and HTTP done wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slipstream
from slipstream.server import Server
from slipstream.server.engine.monitoring.endpoints import duration, uptime
from slipstream.server.process.config_file import read_config
from tests.server.process.test_command import Process, running
from tests.servers import real_binary

CONFIG = """
accounts {
    A { users: [{user: a, password: pw}], jetstream: enabled }
    B { users: [{user: b, password: pw}] }
}
server_name: mon1
max_payload: 1000
"""


class Site:
    """One server's endpoints."""

    def __init__(self, http_port: int, port: int) -> None:
        self._http = http_port
        self.url = f"nats://127.0.0.1:{port}"

    def get(self, path: str, status: int = 200) -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._http, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == status, body
            return json.loads(body) if answer.headers["Content-Type"].startswith("application/json") else body


@pytest.fixture(scope="module")
def sites() -> Iterator[tuple[Site, Site]]:
    """The real server and ours, with the same configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.conf")
        path.write_text(CONFIG)
        ours = Server.of(dataclasses.replace(read_config(path).server, port=0, http_port=0, jetstream=True))
        flags = ("-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-c", str(path), "-js", "-sd", f"{folder}/store")
        with running(*flags, command=[real_binary()]) as real, ours:
            yield Site(_http_port(real), real.port), Site(ours.http_port, ours.port)


def _http_port(process: Process) -> int:
    found = re.search(r"Starting http monitor on \S+:(\d+)", process.log)
    assert found
    return int(found[1])


def test_varz_has_the_same_fields_and_the_same_settings(sites: tuple[Site, Site]) -> None:
    real, ours = (site.get("/varz") for site in sites)
    missing = {"git_commit", "config_load_time", "config_digest", "slow_consumer_stats", "disk_io_wait_stats"}
    missing |= {"stale_connection_stats", "feature_flags"}
    assert set(real) - set(ours) <= missing
    same = ("server_name", "version", "proto", "max_payload", "auth_required", "ping_max", "ping_interval")
    assert {name: real[name] for name in same} == {name: ours[name] for name in same}
    for name in set(real) & set(ours):
        assert type(real[name]) is type(ours[name]) or {type(real[name]), type(ours[name])} == {int, float}, name
    assert ours["mem"] > 1_000_000
    assert ours["slipstream"]


def test_a_connection_is_shown_alike(sites: tuple[Site, Site]) -> None:
    seen = []
    for site in sites:
        with slipstream.connect_blocking(site.url, user="a", password="pw", name="me") as client:
            sub = client.subscribe("x.*", queue="q")
            client.publish("x.1", b"hello", headers={"A": "b"})
            client.publish("nobody.listens", b"12345")
            sub.next(timeout=10)
            page = site.get("/connz?subs=1&auth=1")
            detail = site.get("/connz?subs=detail")["connections"][0]
            other = site.get("/connz?acc=B")
            empty = site.get("/connz?offset=5&limit=2")
        (one,) = page["connections"]
        keys = (
            "kind",
            "type",
            "ip",
            "in_msgs",
            "out_msgs",
            "in_bytes",
            "subscriptions",
            "name",
            "authorized_user",
            "account",
        )
        shown = {key: one[key] for key in keys}
        listed = [entry for entry in detail["subscriptions_list_detail"] if not entry["subject"].startswith("_INBOX")]
        details = [{key: entry.get(key) for key in ("account", "subject", "qgroup", "msgs")} for entry in listed]
        pages = [
            {key: what[key] for key in ("num_connections", "total", "offset", "limit")} for what in (page, other, empty)
        ]
        fields = set(one) - {"rtt"}
        subjects = [s for s in one["subscriptions_list"] if not s.startswith("_INBOX")]
        seen.append((shown, details, pages, fields, subjects, set(page)))
    assert seen[0] == seen[1]


def test_closed_connections_are_listed_with_the_reason(sites: tuple[Site, Site]) -> None:
    for site in sites:
        port = int(site.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rb") as file:
            sock.sendall(b'CONNECT {"user":"a","pass":"no"}\r\n')
            assert b"Authorization Violation" in file.read()
        for _ in range(500):  # the server sees the end a moment after us
            reasons = [one["reason"] for one in site.get("/connz?state=closed&sort=stop")["connections"]]
            if any(reason.startswith("Authentication Failure") for reason in reasons):
                break
        else:
            raise AssertionError("the reason is not told")


def test_subscriptions_and_accounts_are_shown_alike(sites: tuple[Site, Site]) -> None:
    seen = []
    for site in sites:
        with slipstream.connect_blocking(site.url, user="b", password="pw") as client:
            client.subscribe("y.*")
            client.subscribe("z")
            client.flush()
            subs = site.get("/subsz?subs=1&acc=B&test=y.1")
            assert site.get("/subscriptionsz")["num_subscriptions"] > 0
            listed = [entry["subject"] for entry in subs["subscriptions_list"]]
        accounts = site.get("/accountz")
        detail = site.get("/accountz?acc=A")["account_detail"]
        keys = ("account_name", "is_system", "jetstream_enabled", "client_connections")
        accounts["accounts"] = [name for name in accounts["accounts"] if name in ("A", "B", "$G", "$SYS")]
        seen.append(
            (listed, set(accounts["accounts"]), accounts["system_account"], {key: detail.get(key) for key in keys})
        )
    assert seen[0] == seen[1]


def test_jetstream_is_shown_alike(sites: tuple[Site, Site]) -> None:
    seen: list[Any] = []
    ours = sites[1]
    for site in sites:
        with slipstream.connect_blocking(site.url, user="a", password="pw") as client:
            js = client.jetstream()
            js.create_stream(slipstream.StreamConfig(name="S", subjects=("s",), storage="memory"))
            js.publish("s", b"x")
            js.stream("S").create_consumer(slipstream.ConsumerConfig(durable_name="D"))
        found = site.get("/jsz?accounts=1&streams=1")
        keys = ("streams", "messages", "consumers", "accounts", "total", "bytes")
        (detail,) = (one for one in found["account_details"] if one["name"] == "A")
        names = [stream["name"] for stream in detail["stream_detail"]]
        seen.append(({key: found[key] for key in keys}, names))
        assert site.get("/healthz") == {"status": "ok"}
        assert site.get("/healthz?js-enabled-only=true") == {"status": "ok"}
        site.get("/healthz?stream=S", 400)
        site.get("/healthz?account=A&consumer=D", 400)
        for flags in ("", "&consumers=1", "&consumers=1&config=1"):
            (detail,) = site.get(f"/jsz?acc=A&streams=1{flags}")["account_details"]
            (stream,) = detail["stream_detail"]
            seen.append(("config" in stream, [(one["name"], one["num_pending"], "config" in one)
                                              for one in stream.get("consumer_detail", ())]))  # fmt: skip
        assert site.get("/healthz?account=Q", 404)["error"] == 'JetStream account "Q" not found'
        assert site.get("/healthz?account=Q&details=1", 404)["errors"][0]["type"] == "ACCOUNT"
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert ours.get("/healthz?account=A&stream=S") == {"status": "ok"}
    ours.get("/healthz?account=A&stream=NOPE", 404)
    assert ours.get("/healthz?account=A&stream=S&consumer=D") == {"status": "ok"}
    missing = ours.get("/healthz?account=A&stream=S&consumer=NO", 404)
    assert missing["error"] == 'JetStream consumer "NO" not found for stream "S" on account "A"'


def test_without_jetstream_the_endpoints_are_there_all_the_same() -> None:
    with Server(jetstream=False, http_port=0) as server:
        site = Site(server.http_port, server.port)
        assert site.get("/healthz") == {"status": "ok"}
        assert site.get("/healthz?js-enabled-only=1") == {"status": "ok"}  # it is not meant to be
        assert site.get("/healthz?account=A") == {"status": "ok"}
        assert site.get("/jsz")["disabled"]
        site.get("//[", 404)
        assert b"varz" in site.get("/")
        assert server.http_url == f"http://127.0.0.1:{server.http_port}"
        site.get("/nope", 404)
        for bad in ("/connz?sort=wrong", "/connz?limit=-1", "/connz?subs=perhaps", "/connz?state=x", "/subsz?test=a..b",
                    "/connz?sort=stop", "/accountz?acc=NOPE", "/connz?cid=x"):  # fmt: skip
            site.get(bad, 400)


def test_damaged_records_make_the_server_unhealthy() -> None:
    with Server(http_port=0) as server:
        engine = server._running.engine
        engine.journals[0].store.corrupt_records = 2  # type: ignore[misc]
        found = Site(server.http_port, server.port).get("/healthz", 503)
        assert found["status"] == "unavailable"
        assert "do not match their checksums were read 2 times" in found["error"]


@pytest.mark.parametrize(
    "order", ["cid", "start", "subs", "pending", "msgs_to", "bytes_from", "last", "idle", "uptime", "rtt"]
)
def test_connections_are_sorted(order: str) -> None:
    with (
        Server(http_port=0) as server,
        slipstream.connect_blocking(server.url) as one,
        slipstream.connect_blocking(server.url) as two,
    ):
        two.subscribe("a")
        two.flush()
        one.publish("a", b"x" * 10)
        one.flush()
        found = Site(server.http_port, server.port).get(f"/connz?sort={order}&state=any")
        assert len(found["connections"]) == 2
        if order in ("subs", "msgs_to"):
            assert [entry["cid"] for entry in found["connections"]] == [2, 1]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /varz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"GET /varz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (b"GET /varz HTTP/9\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 10_000, b"400"),
        (b"GET /varz HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /varz HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /connz?" + b"a=1&" * 100 + b" HTTP/1.1\r\nConnection: close\r\n\r\n", b"400"),
    ],
)
def test_http_done_wrong_is_refused_and_the_connection_closed(data: bytes, status: bytes) -> None:
    with Server(http_port=0) as server, socket.create_connection(("127.0.0.1", server.http_port), timeout=10) as sock:
        sock.sendall(data)
        seen = b""
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(1 << 16):
                seen += part
        assert seen.split()[1] == status
        assert data[:4] != b"HEAD" or seen.endswith(b"\r\n\r\n")


def test_several_requests_go_over_one_connection() -> None:
    with Server(http_port=0) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert json.loads(connection.getresponse().read()) == {"status": "ok"}
        connection.request("GET", "/varz")
        assert json.loads(connection.getresponse().read())["http_req_stats"] == {"/healthz": 3, "/varz": 1}
        connection.close()


def test_a_client_that_asks_much_and_reads_nothing_gets_little() -> None:
    with Server(http_port=0) as server, socket.create_connection(("127.0.0.1", server.http_port), timeout=10) as sock:
        sock.settimeout(2)
        with pytest.raises(TimeoutError):  # the server does not read on: 24 MB are more than the sockets hold
            sock.sendall(b"GET /varz HTTP/1.1\r\n\r\n" * 1_000_000)
        with slipstream.connect_blocking(server.url) as client:
            client.flush(timeout=10)
        site = Site(server.http_port, server.port)
        assert site.get("/varz")["http_req_stats"]["/varz"] < 50_000
        sock.settimeout(10)
        assert b"HTTP/1.1 200 OK" in sock.recv(1 << 16)


def test_times_are_written_as_nats_server_writes_them() -> None:
    assert [uptime(n * 10**9) for n in (0, 59, 61, 3661, 90061)] == ["0s", "59s", "1m1s", "1h1m1s", "1d1h1m1s"]
    assert [duration(n) for n in (5, 1500, 2_500_000, 3_000_000_000)] == ["5ns", "1.5µs", "2.5ms", "3s"]

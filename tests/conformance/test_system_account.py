"""The system account and audit advisories: nats-server's subjects and fields, held against the real one's.

The same steps run on the real server and on ours. Of each event and response the fields are compared, and the values of
those that do not depend on the server, its machine or the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.conformance.test_config import both

CONFIG = """
server_name: s1
accounts {
    A { jetstream: enabled, users: [
        {user: a, password: pw}
        {user: narrow, password: pw, permissions: {
            publish: [">"], subscribe: {allow: ["_INBOX.>", "x.* group"], deny: "secret.>"}
            allow_responses: {max: 3, expires: "1m"} }}
    ]}
    B { users: [{user: b, password: pw}] }
    SYS { users: [{user: sys, password: pw}, {user: listener, password: pw, permissions: {publish: "_INBOX.>"}}] }
}
system_account: SYS
"""
TIMEOUT = 10.0
# What no two servers, runs or machines have in common; and what is left out (docs/compatibility.md).
_VARIABLE = """
    id seq time timestamp start stop rtt server_id now port mem cpu bytes uptime idle last_activity
    num_subscriptions subscriptions cid total_connections created ts first_ts last_ts update_time
    config_load_time num_cache num_inserts num_removes num_matches cache_hit_rate max_fanout avg_fanout
    pending_bytes out_bytes in_bytes out_msgs in_msgs msgs max_memory max_storage in_client_msgs in_client_bytes
    out_client_msgs out_client_bytes total sid level errors connections active_accounts
"""
VARIABLE = frozenset(_VARIABLE.split())
LEFT_OUT = frozenset((
    "feature_flags", "sync_interval", "strict", "store_dir", "default_max_consumers", "git_commit", "config_digest",
    "config_load_time", "slow_consumer_stats", "stale_connection_stats", "disk_io_wait_stats", "imports", "rtt",
))  # fmt: skip
ADDED = frozenset((
    "slipstream", "sync_always", "max_subscriptions", "max_pending_total", "pending_bytes_peak", "pending_cut_off",
    "damage",
))  # fmt: skip


def shape(value: Any) -> Any:
    """A body without variable values and fields that only one of the servers has."""
    if isinstance(value, dict):
        return {
            key: f"<{key}>" if key in VARIABLE and not isinstance(item, dict | list) else shape(item)
            for key, item in sorted(value.items())
            if key not in LEFT_OUT and key not in ADDED
        }
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)  # nats-server lists permissions in any order
    return [shape(item) for item in value] if isinstance(value, list) else value


class Site:
    """One of the two servers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[Client] = []

    async def connect(self, user: str, **options: Any) -> Client:
        async def ignore(_: Exception) -> None: ...

        options = {"password": "pw", "name": f"client of {user}", "allow_reconnect": False} | options
        client = await nats.connect(self._url, user=user, connect_timeout=10, error_cb=ignore, **options)
        self._clients.append(client)
        return client

    async def fail_to_log_in(self, user: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self._url.rpartition(":")[2]))
        about = {"user": user, "pass": "wrong", "name": "refused", "lang": "none", "version": "1", "protocol": 1}
        writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(about).encode())
        while await asyncio.wait_for(reader.readline(), TIMEOUT):
            pass
        writer.close()

    async def listen(self, client: Client, *subjects: str) -> asyncio.Queue[Msg]:
        heard: asyncio.Queue[Msg] = asyncio.Queue()
        for subject in subjects:
            await client.subscribe(subject, cb=heard.put)
        await client.flush()
        return heard

    async def ask(self, client: Client, subject: str, body: Any = None) -> Any:
        answer = await client.request(subject, b"" if body is None else json.dumps(body).encode(), timeout=TIMEOUT)
        return json.loads(answer.data)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@contextlib.asynccontextmanager
async def site(port: int) -> AsyncIterator[Site]:
    found = Site(f"nats://127.0.0.1:{port}")
    try:
        yield found
    finally:
        await found.close()


async def same(scenario: Callable[[Site], Awaitable[Any]]) -> Any:
    """The scenario has the same outcome on both servers."""
    seen = []
    with both(CONFIG, jetstream=True) as ports:
        for port in ports:
            async with site(port) as each:
                seen.append(await scenario(each))
    assert differences(seen[0], seen[1]) == []
    return seen[0]


def differences(real: Any, ours: Any, where: str = "") -> list[str]:
    """Where two outcomes differ."""
    if isinstance(real, dict) and isinstance(ours, dict):
        fields = sorted(real.keys() | ours.keys())
        return [each for key in fields for each in differences(real.get(key), ours.get(key), f"{where}.{key}")]
    if isinstance(real, list | tuple) and isinstance(ours, list | tuple) and len(real) == len(ours):
        pairs = enumerate(zip(real, ours, strict=True))
        return [each for i, (one, other) in pairs for each in differences(one, other, f"{where}[{i}]")]
    return [] if real == ours else [f"{where}: nats-server {real!r}, ours {ours!r}"]


async def heard(queue: asyncio.Queue[Msg]) -> tuple[str, Any]:
    message = await asyncio.wait_for(queue.get(), TIMEOUT)
    body = json.loads(message.data)
    own = body["server"]["id"] if isinstance(body.get("server"), dict) else "\0"
    return message.subject.replace(own, "ID"), shape(body)


async def test_clients_that_connect_leave_and_are_refused_are_reported() -> None:
    async def scenario(site: Site) -> Any:
        sys = await site.connect("sys")
        queue = await site.listen(sys, "$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.*.CLIENT.>")
        app = await site.connect("a")
        seen = [await heard(queue)]
        await app.publish("x", b"12345")
        await app.flush()
        await app.close()
        seen.append(await heard(queue))
        await site.fail_to_log_in("b")
        return [*seen, await heard(queue), await heard(queue)]

    connected, left, refused, closed = await same(scenario)
    assert connected[0] == "$SYS.ACCOUNT.A.CONNECT"
    assert connected[1]["client"]["user"] == "a"
    assert left[1]["reason"] == "Client Closed"
    assert refused[0] == "$SYS.SERVER.ID.CLIENT.AUTH.ERR"
    assert refused[1]["client"]["user"] == "b"
    assert "wrong" not in json.dumps(refused)
    assert closed[0] == "$SYS.ACCOUNT.$G.DISCONNECT"


async def test_connections_of_an_account_and_statistics_are_reported() -> None:
    async def scenario(site: Site) -> Any:
        sys = await site.connect("sys")
        queue = await site.listen(sys, "$SYS.ACCOUNT.B.SERVER.CONNS", "$SYS.SERVER.ACCOUNT.B.CONNS")
        await site.connect("b")
        seen = sorted([await heard(queue), await heard(queue)], key=lambda one: one[0])
        statistics = await site.listen(sys, "$SYS.SERVER.*.STATSZ")
        return [*seen, await heard(statistics)]

    await same(scenario)


KINDS = "STATSZ VARZ CONNZ SUBSZ JSZ ACCOUNTZ HEALTHZ LEAFZ RAFTZ GATEWAYZ IDZ"
REQUESTS: list[tuple[str, Any]] = [
    ("SERVER.PING", None),
    *((f"SERVER.{at}.{kind}", None) for at in ("PING", "ID") for kind in KINDS.split()),
    ("SERVER.PING.CONNZ", {"auth": True, "acc": "A"}),
    ("SERVER.PING.CONNZ", {"sort": "nonsense"}),
    ("SERVER.PING.JSZ", {"accounts": True, "streams": True, "consumer": True, "config": True}),
    ("SERVER.PING.HEALTHZ", {"account": "A", "stream": "S"}),
    ("SERVER.PING.HEALTHZ", {"account": "A", "stream": "NONE"}),
    ("SERVER.PING.VARZ", {"server_name": "s1", "exact_match": True}),
    ("ACCOUNT.A.INFO", None), ("ACCOUNT.A.CONNZ", None), ("ACCOUNT.A.JSZ", None), ("ACCOUNT.A.STATZ", None),
    ("ACCOUNT.A.CONNS", None), ("ACCOUNT.A.LEAFZ", None), ("ACCOUNT.A.STATZ", {"accounts": ["B"]}),
    ("ACCOUNT.NONE.INFO", None),
    ("ACCOUNT.PING.STATZ", {"accounts": ["A"]}),
    ("USER.INFO", None),
    ("SERVER.ID.KICK", {"cid": 12345}),
]  # fmt: skip


async def test_services_of_the_system_account_answer_alike() -> None:
    async def scenario(site: Site) -> Any:
        sys, app = await site.connect("sys"), await site.connect("a")
        js = app.jetstream()
        await js.add_stream(name="S", subjects=["s.>"])
        await js.add_consumer("S", durable_name="d")
        seen = []
        own = sys._server_info["server_id"]
        for name, body in REQUESTS:
            answer = await site.ask(sys, f"$SYS.REQ.{name.replace('ID.', f'{own}.')}", body)
            if isinstance(names := answer.get("data", {}), dict) and names is not None and "accounts" in names:
                names["accounts"] = sorted(names["accounts"]) if isinstance(names["accounts"], list) else "<accounts>"
            seen.append((name, body, _scrubbed(answer)))
        for name in ("SERVER.PING.NONE", "ACCOUNT.A.NONE", "SERVER.OTHER.VARZ"):
            with pytest.raises(nats.errors.NoRespondersError):
                await site.ask(sys, f"$SYS.REQ.{name}")
        for body in (
            {"server_name": "other"},
            {"domain": "hub"},
            {"cluster": "c"},
            {"server_name": "s", "exact_match": True},
        ):
            with pytest.raises(nats.errors.TimeoutError):
                await sys.request("$SYS.REQ.SERVER.PING.VARZ", json.dumps(body).encode(), timeout=0.2)
        return seen

    seen = await same(scenario)
    assert len(seen) == len(REQUESTS)


def _scrubbed(answer: Any) -> Any:
    """A response without what is said to differ: the order of fields, Go's runtime, numbers that are 2^64 - 1."""
    data = answer.get("data")
    if isinstance(data, dict):
        data.pop("pending_bytes", None)  # of the whole server: ours alone reports it
        for part in (data, *data.get("account_details", ())):
            for name in (
                "reserved_memory",
                "reserved_storage",
                "api",
                "go",
                "tls_timeout",
                "http_req_stats",
                "server_name",
            ):
                part.pop(name, None)
        for part in data.get("account_details", ()):
            del part["accounts"]
        for part in (data, *data.get("account_details", ())):
            for stream in part.get("stream_detail", ()):
                stream.pop("cluster", None)
                stream.get("config", {}).pop("metadata", None)
                for consumer in stream.get("consumer_detail", ()):
                    consumer.get("config", {}).pop("metadata", None)
                    consumer.pop("cluster", None)
        data.pop("accounts", None) if not isinstance(data.get("accounts"), list) else None
        data.get("jetstream", {}).get("stats", {}).pop("api", None) if isinstance(data.get("jetstream"), dict) else None
    if answer.get("data", 0) is None:  # next to an error
        del answer["data"]
    answer.get("statsz", {}).get("jetstream", {}).get("stats", {}).pop("api", None)
    return shape(answer)


async def test_users_of_other_accounts_see_themselves_and_their_account_only() -> None:
    async def scenario(site: Site) -> Any:
        app, narrow = await site.connect("a"), await site.connect("narrow")
        await site.connect("b")
        seen = [shape(await site.ask(client, "$SYS.REQ.USER.INFO")) for client in (app, narrow)]
        seen[1]["data"]["permissions"]["subscribe"]["allow"].sort()  # nats-server's order is any
        for body in (None, {"acc": "B"}):
            answer = await site.ask(app, "$SYS.REQ.ACCOUNT.PING.CONNZ", body)
            seen.append(sorted(one["name"] for one in answer["data"]["connections"]))
        answer = await site.ask(app, "$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": ["B"]})
        seen.append([one["acc"] for one in answer["data"]["account_statz"]])
        for name in ("SERVER.PING", "SERVER.PING.VARZ", "SERVER.PING.STATSZ", "ACCOUNT.A.INFO", "ACCOUNT.B.CONNZ"):
            with pytest.raises(nats.errors.NoRespondersError):
                await site.ask(app, f"$SYS.REQ.{name}")
        return seen

    whole, restricted, *_ = seen = await same(scenario)
    assert whole["data"] == {"user": "a", "account": "A", "account_name": "A"}
    assert restricted["data"]["permissions"]["subscribe"]["deny"] == ["secret.>"]
    assert seen[2] == seen[3] == ["client of a", "client of narrow"]
    assert seen[4] == ["A"]


async def test_system_users_need_permission_to_ask() -> None:
    async def scenario(site: Site) -> Any:
        limited = await site.connect("listener")
        with pytest.raises(nats.errors.TimeoutError):
            await limited.request("$SYS.REQ.SERVER.PING.VARZ", b"", timeout=0.3)
        return str(limited.last_error)

    assert "permissions violation" in (await same(scenario)).lower()


async def test_a_client_can_be_kicked() -> None:
    async def scenario(site: Site) -> Any:
        sys, app = await site.connect("sys"), await site.connect("a")
        queue = await site.listen(sys, "$SYS.ACCOUNT.A.DISCONNECT")
        own = sys._server_info["server_id"]
        answer = await site.ask(sys, f"$SYS.REQ.SERVER.{own}.KICK", {"cid": app.client_id})
        _, left = await heard(queue)
        return shape(answer), left["reason"]

    assert (await same(scenario))[1] == "Kicked"


async def test_api_requests_are_audited_with_and_without_a_reply() -> None:
    async def scenario(site: Site) -> Any:
        listener, app, other = await site.connect("a"), await site.connect("a", name="app"), await site.connect("b")
        queue = await site.listen(listener, "$JS.EVENT.ADVISORY.API")
        elsewhere = await site.listen(other, "$JS.EVENT.>")
        config = {"name": "S", "subjects": ["s.>"]}
        calls = [
            ("STREAM.CREATE.S", config), ("STREAM.INFO.S", None), ("STREAM.INFO.NONE", None), ("STREAM.NAMES", None),
            ("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "ack_policy": "explicit"}}),
            ("STREAM.MSG.GET.S", {"seq": 1}), ("STREAM.MSG.GET.S", {"seq": 2}),  # no message is shown
            ("STREAM.PURGE.S", None), ("CONSUMER.DELETE.S.c", None), ("INFO", None),
            ("STREAM.CREATE.S", "no JSON object"),
        ]  # fmt: skip
        seen = []
        for call, body in calls:
            await site.ask(app, f"$JS.API.{call}", body)
            if body != {"seq": 1}:
                seen.append(await heard(queue))
            if call == "STREAM.CREATE.S":
                await app.request("s.x", b"secret", timeout=TIMEOUT)
        await app.publish("$JS.API.STREAM.DELETE.S", b"")
        seen.append(await heard(queue))
        for _, advisory in seen:
            for name in ("request", "response"):
                if name in advisory:
                    found = json.loads(advisory[name])
                    if "limits" not in found and isinstance(found, dict):
                        found.get("config", {}).pop("metadata", None)
                        found.get("error", {}).pop("description", None)
                        found.pop("cluster", None)
                        advisory[name] = shape(found)
                    else:
                        advisory[name] = sorted(found) if isinstance(found, dict) else found
        assert elsewhere.empty()
        return seen

    seen = await same(scenario)
    assert seen[0][1]["client"]["name"] == "app"
    assert seen[-1][1]["subject"] == "$JS.API.STREAM.DELETE.S"
    assert "request" not in seen[1][1]
    assert "secret" not in json.dumps(seen)

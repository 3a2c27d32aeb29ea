"""The console's server side: who is refused, what is read, and that nothing is left behind on the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import slipstream
from slipstream.console.app import VIEWS
from slipstream.testing import TestServer
from tests.console.support import Site, console

EVIL = "<script>window.pwned=1</script>"


@pytest.fixture(scope="module")
def js(url: str) -> Iterator[slipstream.BlockingJetStream]:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"], description=EVIL)
        with js.publisher() as publisher:
            for number in range(1, 3001):
                subject = "orders.rare" if number in (7, 2000) else f"orders.{number % 3}"
                publisher.publish(subject, str(number).encode())
        stream.delete_message(1500)
        stream.create_consumer("workers")
        kv = js.create_key_value("settings", history=5)
        kv.put("theme", b"light")
        kv.put("theme", b"dark")
        js.create_object_store("files").put("a/b.bin", b"x" * 1000)
        yield js


@pytest.fixture(scope="module")
def site(url: str, js: slipstream.BlockingJetStream) -> Iterator[Site]:
    assert js.publish_stats.published
    with console(url) as site:
        yield site


@pytest.fixture
def browser(site: Site) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.base, timeout=30) as client:
        assert client.get(f"/?token={site.token}").status_code == 303
        yield client


def test_requests_without_the_cookie_are_refused(site: Site) -> None:
    paths = ["/", "/static/app.js", "/api/about", "/api/live", "/api/streams/ORDERS", "/api/objects/files/download"]
    with httpx.Client(base_url=site.base, timeout=30) as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert client.get(path, params={"token": site.token[:-1] + "x"}).status_code == 401
        assert client.post("/api/publish", json={"subject": "orders.x"}).status_code == 401
        entered = client.get("/", params={"token": site.token})
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert site.token.lower() not in cookie
        assert entered.headers["location"] == "/"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost"}, 421),
    ],
)
def test_requests_from_elsewhere_are_refused(
    browser: httpx.Client, site: Site, headers: dict[str, str], status: int
) -> None:
    assert browser.get("/api/about").status_code == 200
    assert browser.get("/api/about", headers=headers).status_code == status
    assert browser.get(f"/?token={site.token}", headers=headers).status_code == status


def test_a_websocket_is_refused_without_an_error_in_the_log(
    browser: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {
        "Origin": "http://evil.example",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    with caplog.at_level("ERROR"):
        assert browser.get("/api/live", headers=headers).status_code == 403
    assert not caplog.records


def test_a_read_only_console_refuses_every_change(browser: httpx.Client, js: slipstream.BlockingJetStream) -> None:
    before = js.stream("ORDERS").info().state.last_seq
    for path, body in {
        "/api/publish": {"subject": "orders.x", "data": "y"},
        "/api/buckets/settings/put": {"key": "theme", "value": "x", "last": 2},
        "/api/buckets/settings/delete": {"key": "theme", "last": 2},
        "/api/consumers/ORDERS/workers/pause": {"seconds": 60},
        "/api/faults/hold": {"stream": "ORDERS"},
        "/api/streams/ORDERS/config": {"shown": {}, "wanted": {}},
        "/api/objects/files/upload?name=x": {},
    }.items():
        answer = browser.post(path, json=body)
        assert answer.status_code == 403, path
        assert "read-only" in answer.json()["error"]
        assert browser.get(path).status_code == 405
    assert js.stream("ORDERS").info().state.last_seq == before


def test_files_outside_the_page_are_not_served(browser: httpx.Client) -> None:
    assert browser.get("/static/app.js").status_code == 200
    for path in ("/static/..%2fapp.py", "/static/%2e%2e%2fapp.py", "/static/nothing.js", "/static/"):
        assert browser.get(path).status_code == 404, path


def test_messages_are_paged_both_ways(browser: httpx.Client) -> None:
    def page(**query: object) -> list[int]:
        answer = browser.get("/api/streams/ORDERS/messages", params={"subject": "", **query})  # type: ignore[dict-item]
        assert answer.status_code == 200, answer.text
        return [message["seq"] for message in answer.json()["messages"]]

    assert page() == list(range(2951, 3001))
    assert page(before=2951) == list(range(2901, 2951))
    assert page(after=1490)[:12] == [*range(1490, 1500), 1501, 1502]
    assert page(before=1505) == [*range(1454, 1500), *range(1501, 1505)]
    assert page(before=20) == list(range(1, 20))
    assert page(subject="orders.rare") == [7, 2000]
    assert page(subject="orders.rare", before=2000) == [7]
    assert page(subject="orders.rare", after=8) == [2000]
    assert page(subject="orders.none") == []
    assert page(time="2020-01-01T00:00:00Z")[:2] == [1, 2]
    assert browser.get("/api/streams/ORDERS/messages", params={"after": "x"}).status_code == 400
    assert browser.get("/api/streams/NOPE").status_code == 404


def test_reading_leaves_no_consumer_behind(browser: httpx.Client, js: slipstream.BlockingJetStream) -> None:
    for path in (
        "/api/streams/ORDERS", "/api/streams/ORDERS/subjects", "/api/streams/ORDERS/messages?subject=",
        "/api/buckets/settings/keys", "/api/trust/ORDERS?subject=orders.1",
    ):  # fmt: skip
        assert browser.get(path).status_code == 200, path
    assert [one.name for one in js.stream("ORDERS").consumers()] == ["workers"]
    assert js.stream("KV_settings").info().state.consumer_count == 0


def test_buckets_objects_and_trust_are_shown(browser: httpx.Client) -> None:
    assert browser.get("/api/buckets").json() == ["settings"]
    assert browser.get("/api/buckets/settings/keys").json() == {"keys": ["theme"], "more": False}
    history = browser.get("/api/buckets/settings/entry?key=theme").json()["history"]
    assert [entry["text"] for entry in history] == ["dark", "light"]
    assert browser.get("/api/objects/files").json()["objects"][0]["size"] == 1000
    download = browser.get("/api/objects/files/download", params={"name": "a/b.bin"})
    assert download.content == b"x" * 1000
    assert download.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in download.headers["content-security-policy"]
    found = browser.get("/api/trust/ORDERS?subject=orders.1").json()
    assert found["trusted"]["seq"] == 2998
    assert {one["seq"] for one in found["plain"]} == {2998}
    rows = browser.get("/api/streams/ORDERS/subjects?prefix=orders").json()["rows"]
    assert {row["token"]: row["messages"] for row in rows}["rare"] == 2


def test_live_statistics_are_events(site: Site, browser: httpx.Client) -> None:
    with browser.stream("GET", "/api/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        line = next(line for line in answer.iter_lines() if line)
    assert line.startswith("data: ")
    assert "ORDERS" in line
    assert site.token not in line


def test_with_write_changes_are_made_and_conflicts_are_told() -> None:
    with TestServer() as server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream("S", subjects=["s"], num_replicas=3).create_consumer("c")
        kv = js.create_key_value("b")
        with console(server.url, write=True) as site, httpx.Client(base_url=site.base, timeout=30) as browser:
            browser.get(f"/?token={site.token}")
            assert browser.post("/api/publish", json={"subject": "s", "data": "x"}).json()["seq"] == 1
            put = "/api/buckets/b/put"
            assert browser.post(put, json={"key": "k", "value": "1", "last": 0}).json() == {"revision": 1}
            kv.put("k", b"2")
            conflict = browser.post(put, json={"key": "k", "value": "3", "last": 1})
            assert conflict.status_code == 409
            assert conflict.json()["current"]["text"] == "2"
            assert kv.get("k").value == b"2"
            form = browser.post(put, content=b'{"key":"k"}', headers={"Content-Type": "text/plain"})
            assert form.status_code == 415
            assert browser.post("/api/consumers/S/c/pause", json={"seconds": 60}).json() == {"paused": True}
            assert browser.post("/api/consumers/S/c/pause", json={"seconds": 0}).json() == {"paused": False}
            config = browser.get("/api/streams/S").json()["config"]
            change = {"shown": config, "wanted": config | {"max_msgs": 100, "description": EVIL}}
            changed = browser.post("/api/streams/S/config", json=change)
            assert changed.status_code == 200, changed.text
            assert js.stream("S").info().config.max_msgs == 100
            assert browser.post("/api/streams/S/config", json=change).status_code == 409  # it is another one by now
            renamed = {"shown": changed.json(), "wanted": changed.json() | {"name": "T"}}
            assert browser.post("/api/streams/S/config", json=renamed).status_code == 400
            assert browser.post("/api/publish", json={}).status_code == 400
            store = js.create_object_store("o")
            body = b"x" * 300_000
            kind = {"Content-Type": "application/octet-stream"}
            stored = browser.post("/api/objects/o/upload?name=big", content=body, headers=kind)
            assert stored.json() == {"name": "big", "size": 300_000}, stored.text
            assert store.get_bytes("big") == body
            assert browser.post("/api/objects/o/upload?name=x", json={}).status_code == 415
            held = next(one.name for one in server.replicas("S") if not one.leads)
            assert browser.post("/api/faults/hold", json={"stream": "S", "replica": held}).status_code == 200
            js.publish("s", b"new")
            found = browser.get("/api/trust/S?subject=s").json()
            assert found["trusted"]["seq"] == 2
            assert {one["seq"] for one in found["plain"]} <= {1, 2}
            assert any(one["held"] for one in found["replicas"])
            for _ in range(5):  # whoever answers: no page has a hole
                page = browser.get("/api/streams/S/messages?subject=").json()
                assert [message["seq"] for message in page["messages"]] == [1, 2]


def filled(path: str) -> str:
    """An address of the API with names in its places."""
    for place, name in {"stream": "ORDERS", "consumer": "workers", "bucket": "settings", "pipeline": "p"}.items():
        path = path.replace(f"{{{place}}}", name)
    return path.replace("{command}", "hold")


def test_every_endpoint_checks_cookie_origin_host_and_write(
    site: Site, browser: httpx.Client, js: slipstream.BlockingJetStream
) -> None:
    """Whatever is declared later is checked as well."""
    before = js.stream("ORDERS").info().state.last_seq, js.stream("KV_settings").info().state.last_seq
    endpoints = [endpoint for view in VIEWS for endpoint in view.ENDPOINTS]
    assert len(endpoints) > 30
    with httpx.Client(base_url=site.base, timeout=30) as stranger:
        for endpoint in endpoints:
            _check_endpoint(endpoint, site, browser, stranger)
    after = js.stream("ORDERS").info().state.last_seq, js.stream("KV_settings").info().state.last_seq
    assert after == before


def _check_endpoint(endpoint: Any, site: Site, browser: httpx.Client, stranger: httpx.Client) -> None:
    path, method = filled(endpoint.path), "POST" if endpoint.writes else "GET"
    kind = {"Content-Type": endpoint.body} if endpoint.writes else {}

    def ask(client: httpx.Client, **headers: str) -> int:
        with client.stream(method, path, content=b"{}" if endpoint.writes else None, headers=kind | headers) as answer:
            assert "default-src 'none'" in answer.headers["content-security-policy"], path
            assert answer.headers["x-content-type-options"] == "nosniff"
            return answer.status_code

    assert ask(stranger) == 401, path
    for cookie in ("", "x", site.token, "a" * 64):
        assert ask(stranger, Cookie=f"{cookie_name(browser)}={cookie}") == 401, path
    assert ask(browser, Origin="http://evil.example") == 403, path
    assert ask(browser, Origin=site.base.replace("127.0.0.1", "localhost")) == 403, path
    assert ask(browser, **{"Sec-Fetch-Site": "cross-site"}) == 403, path
    assert ask(browser, Host="evil.example") == 421, path
    if endpoint.writes:
        assert ask(browser) == 403, path  # a read-only console
    for verb in ("GET", "PUT", "DELETE", "PATCH") if endpoint.writes else ("POST", "PUT", "DELETE"):
        assert browser.request(verb, path).status_code == 405, (verb, path)


def cookie_name(browser: httpx.Client) -> str:
    return next(iter(browser.cookies))


def test_names_with_control_characters_and_wildcards_reach_no_other_subject(
    url: str, browser: httpx.Client, js: slipstream.BlockingJetStream
) -> None:
    with slipstream.connect_blocking(url) as client, client.subscribe("stolen.>") as stolen:
        client.flush()
        for name in ("X%0d%0aPUB stolen.x 2%0d%0ahi", "ORDERS stolen.x", "*", ">", "ORDERS.workers", "%00", "a" * 5000):
            for path in ("{}", "{}/subjects", "{}/messages", "{}/at?time=2026-01-01T00:00:00Z", "{}/search?text=x"):
                status = browser.get(f"/api/streams/{path.format(name)}").status_code
                assert 400 <= status < 600, (name, path)
            for path in (f"/api/buckets/{name}/tree", f"/api/objects/{name}", f"/api/trust/{name}?subject=x"):
                assert 400 <= browser.get(path).status_code < 600, path
        with pytest.raises(slipstream.RequestTimeoutError):
            stolen.next(timeout=0.2)
    assert js.stream("ORDERS").info().state.consumer_count == 1
    for query in ("after=-1", "after=1e3", "before=99999999999999999999", "time=never", "subject=a b"):
        assert browser.get(f"/api/streams/ORDERS/messages?{query}").status_code == 400, query

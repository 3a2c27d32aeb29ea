"""What the views answer on both servers: resets, copies, trees, codecs, previews, pipelines, metrics."""

from __future__ import annotations

import json
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import slipstream
from slipstream.console.monitoring import check_monitor, monitor_name
from slipstream.console.pipeline_file import PipelineFile
from slipstream.kv.codecs import Encrypted, Json, Keyring
from slipstream.server import Server
from tests.console.support import console, dead_letter, recorded_pipeline

BYTES = {"Content-Type": "application/octet-stream"}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture(scope="module")
def js(url: str) -> Iterator[slipstream.BlockingJetStream]:
    with slipstream.connect_blocking(url, name="shop") as client:
        yield client.jetstream()


@contextmanager
def opened(url: str, **settings: Any) -> Iterator[httpx.Client]:
    with console(url, **settings) as site, httpx.Client(base_url=site.base, timeout=30) as browser:
        assert browser.get(f"/?token={site.token}").status_code == 303
        yield browser


def test_consumer_is_reset_to_a_sequence_and_to_a_time(url: str, js: slipstream.BlockingJetStream) -> None:
    stream = js.create_stream("RESET", subjects=["reset"])
    for number in range(10):
        js.publish("reset", str(number).encode())
    consumer = stream.create_consumer("c")
    for message in consumer.fetch(8):
        message.ack_sync()
    sixth = stream.get(6).timestamp
    with opened(url, write=True) as browser:
        path = "/api/consumers/RESET/c/reset"
        assert browser.post(path, json={"seq": 3}).json() == {"seq": 3, "pending": 8}
        assert [message.seq for message in consumer.fetch(2)] == [3, 4]
        assert browser.post(path, json={"time": sixth.isoformat()}).json()["seq"] == 6
        assert next(iter(consumer.fetch(1))).seq == 6
        assert browser.get("/api/streams/RESET/at", params={"time": sixth.isoformat()}).json() == {"seq": 6, "last": 10}
        # Behind the last message: it waits for the next one.
        assert browser.post(path, json={"time": "2999-01-01T00:00:00Z"}).json() == {"seq": 11, "pending": 0}
        for wrong in ({}, {"seq": 0}, {"seq": -1}, {"seq": "x"}, {"seq": True}, {"time": "yesterday"}):
            assert browser.post(path, json=wrong).status_code == 400, wrong
        assert browser.post("/api/consumers/RESET/none/reset", json={"seq": 1}).status_code in (404, 409)
        # What a server without that request needs: the same consumer, made again where it shall begin.
        assert browser.post(path, json={"seq": 9, "recreate": True}).json() == {"seq": 9, "pending": 2}
        assert [message.seq for message in stream.consumer("c").fetch(2)] == [9, 10]


def test_server_that_cannot_reset_is_told_in_words(url: str, js: slipstream.BlockingJetStream) -> None:
    js.create_stream("OLD", subjects=["old"]).create_consumer("c")
    with opened(url, write=True, jetstream={"prefix": "NOT.THERE"}) as browser:  # as a server that does not know it
        answer = browser.post("/api/consumers/OLD/c/reset", json={"seq": 1})
    assert answer.status_code == 409
    assert answer.json()["recreate"] is True
    assert "cannot reset" in answer.json()["error"]


def test_copy_of_a_message_is_sent_byte_for_byte_without_instructions(
    url: str, js: slipstream.BlockingJetStream
) -> None:
    stream = js.create_stream("COPY", subjects=["copy.>"])
    js.publish("copy.a", b"\xff\x00\xfe", headers={"X": "1"}, msg_id="once")
    with opened(url, write=True) as browser:
        body = {"subject": "copy.b", "copy": {"stream": "COPY", "seq": 1}}
        assert browser.post("/api/publish", json=body).json()["seq"] == 2
        copied = stream.get(2)
        assert (copied.subject, copied.data, dict(copied.headers.items())) == ("copy.b", b"\xff\x00\xfe", {"X": "1"})
        missing = {"subject": "copy.b", "copy": {"stream": "COPY", "seq": 99}}
        assert browser.post("/api/publish", json=missing).status_code == 404
        with_headers = {"subject": "copy.c", "data": "x", "headers": [["A", "1"], ["A", "2"]]}
        assert browser.post("/api/publish", json=with_headers).status_code == 200
        assert list(stream.get(3).headers.items()) == [("A", "1"), ("A", "2")]
        assert browser.post("/api/publish", json={"subject": "copy.c", "headers": "X"}).status_code == 400


def test_text_is_found_in_payloads_subjects_and_headers(url: str, js: slipstream.BlockingJetStream) -> None:
    js.create_stream("FIND", subjects=["find.>"])
    with js.publisher() as publisher:
        for number in range(1, 12_001):
            publisher.publish("find.x", b"needle" if number == 9_000 else b"hay")
    js.publish("find.needle", b"")
    js.publish("find.x", b"", headers={"Note": "needle"})

    def search(**query: object) -> tuple[list[int], dict[str, Any]]:
        with browser.stream("GET", "/api/streams/FIND/search", params={"text": "needle", **query}) as answer:  # type: ignore[dict-item]
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        assert all("error" not in one for one in events), events
        return [one["hit"]["seq"] for one in events if "hit" in one], events[-1]

    with opened(url) as browser:
        found, end = search()
        assert found == [9_000, 12_001, 12_002]
        assert (end["looked"], end["next"]) == (12_002, 0)
        assert search(start=9_001)[0] == [12_001, 12_002]
        assert search(subject="find.needle")[0] == [12_001]
        assert search(start=13_000)[0] == []
        assert browser.get("/api/streams/FIND/search", params={"text": ""}).status_code == 400
    assert js.stream("FIND").info().state.consumer_count == 0


def test_subjects_and_keys_are_trees_with_counts(url: str, js: slipstream.BlockingJetStream) -> None:
    kv = js.create_key_value("tree")
    for key in ("a", "a.b", "a.c", "z"):
        kv.put(key, b"1")
    with opened(url) as browser:
        rows = browser.get("/api/buckets/tree/tree").json()["rows"]
        assert [(row["token"], row["subjects"], row["deeper"], row["leaf"]) for row in rows] == [
            ("a", 3, True, True),
            ("z", 1, False, True),
        ]
        below = browser.get("/api/buckets/tree/tree?prefix=a").json()
        assert [row["token"] for row in below["rows"]] == ["b", "c"]
        assert (below["next"], below["total"]) == (0, 2)
        assert browser.get("/api/buckets/none/tree").status_code == 404


def test_bucket_is_shown_through_its_codecs_and_no_key_leaves_the_process(
    url: str, js: slipstream.BlockingJetStream, caplog: pytest.LogCaptureFixture
) -> None:
    secret = os.urandom(32)
    codec = Encrypted(Keyring({"k": secret}, primary="k", tokens=("k",)), context="vault")
    js.create_key_value("vault", history=3)
    mine = js.key_value("vault").with_codec(codec)
    mine.put("users.ada", b"secret value")
    seen = []
    with opened(url, write=True, codecs={"vault": [codec]}) as browser:
        for path in ("/api/about", "/api/buckets/vault", "/api/buckets/vault/tree", "/api/buckets/vault/keys",
                     "/api/buckets/vault/entry?key=users.ada", "/api/buckets/vault/entry?key=users.none"):  # fmt: skip
            seen.append(browser.get(path).text)
        assert browser.get("/api/buckets/vault").json()["codecs"] == ["Encrypted"]
        assert browser.get("/api/buckets/vault/keys").json()["keys"] == ["users.ada"]
        [now] = browser.get("/api/buckets/vault/entry?key=users.ada").json()["history"]
        assert now["text"] == "secret value"
        change = {"key": "users.ada", "value": "changed", "last": now["revision"]}
        assert browser.post("/api/buckets/vault/put", json=change).status_code == 200
        assert browser.post("/api/buckets/vault/put", json=change).status_code == 409
    assert mine.get("users.ada").value == b"changed"
    with opened(url) as browser:  # without its codec it is shown as it is stored
        plain = browser.get("/api/buckets/vault/keys").json()["keys"]
        assert plain
        assert "users.ada" not in plain
    everything = " ".join(seen) + caplog.text
    for form in (secret.hex(), repr(secret)[2:-1]):
        assert form not in everything


def test_values_of_a_structured_codec_are_edited_as_json(url: str, js: slipstream.BlockingJetStream) -> None:
    kv: slipstream.BlockingKeyValue[Any] = js.create_key_value("typed").with_codec(Json())
    kv.put("k", {"a": 1})
    with opened(url, write=True, codecs={"typed": [Json()]}) as browser:
        [now] = browser.get("/api/buckets/typed/entry?key=k").json()["history"]
        assert json.loads(now["text"]) == {"a": 1}
        wrong = {"key": "k", "value": "{", "last": now["revision"]}
        assert browser.post("/api/buckets/typed/put", json=wrong).status_code == 400
        assert browser.post("/api/buckets/typed/put", json=wrong | {"value": '{"a": 2}'}).status_code == 200
    assert kv.get("k").value == {"a": 2}


def test_entry_with_a_ttl_is_written_and_shows_when_it_expires(url: str, js: slipstream.BlockingJetStream) -> None:
    js.create_key_value("brief", value_ttl=True)
    with opened(url, write=True) as browser:
        assert browser.get("/api/buckets/brief").json()["value_ttl"] is True
        put = {"key": "k", "value": "x", "last": 0, "ttl": 600}
        assert browser.post("/api/buckets/brief/put", json=put).status_code == 200
        [now] = browser.get("/api/buckets/brief/entry?key=k").json()["history"]
        assert 590_000 < now["expires"] - now["created"] <= 600_000


def test_changes_of_a_bucket_are_events_and_their_consumer_ends(url: str, js: slipstream.BlockingJetStream) -> None:
    kv = js.create_key_value("moving")
    with opened(url) as browser:
        with browser.stream("GET", "/api/buckets/moving/changes") as answer:
            lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            assert next(lines) == {"watching": True}
            kv.put("a", b"1")
            assert next(lines)["changes"] == [{"key": "a", "revision": 1, "operation": "PUT"}]
        # The page is gone: so is its consumer.
        for _ in range(200):
            if not js.stream("KV_moving").info().state.consumer_count:
                break
            kv.put("a", b"2")  # the next event finds that nobody listens
        assert js.stream("KV_moving").info().state.consumer_count == 0


def test_objects_are_previewed_as_text_hex_or_picture_and_never_as_documents(
    url: str, js: slipstream.BlockingJetStream
) -> None:
    store = js.create_object_store("shown")
    store.put("page.html", b"<script>alert(1)</script>")
    store.put("p.png", PNG)
    store.put("evil.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    store.put("long", b"x" * 300_000)
    store.put("a/ü\r\nX: y.bin", b"\0\1")
    with opened(url, write=True) as browser:

        def preview(name: str) -> dict[str, Any]:
            found: dict[str, Any] = browser.get("/api/objects/shown/preview", params={"name": name}).json()
            return found

        assert preview("page.html")["text"] == "<script>alert(1)</script>"
        assert preview("p.png")["picture"] == "image/png"
        assert preview("evil.svg")["picture"] == ""
        assert preview("long") | {"text": ""} == {"text": "", "hex": None, "size": 300_000, "cut": True, "picture": ""}
        assert preview("a/ü\r\nX: y.bin")["hex"] == "0001"
        picture = browser.get("/api/objects/shown/picture", params={"name": "p.png"})
        assert (picture.headers["content-type"], picture.content) == ("image/png", PNG)
        assert "sandbox" in picture.headers["content-security-policy"]
        for name in ("page.html", "evil.svg", "long"):
            assert browser.get("/api/objects/shown/picture", params={"name": name}).status_code == 415
        answer = browser.get("/api/objects/shown/download", params={"name": "a/ü\r\nX: y.bin"})
        assert answer.content == b"\0\1"
        assert "x" not in answer.headers
        assert "%C3%BC%0D%0AX" in answer.headers["content-disposition"]
        assert browser.get("/api/objects/shown/download", params={"name": "none"}).status_code == 404
        path = "/api/objects/shown/upload?name=up"
        assert browser.post(path, content=b"y" * 200_000, headers=BYTES).json() == {"name": "up", "size": 200_000}


def test_servers_and_connections_of_the_account_are_listed(url: str, js: slipstream.BlockingJetStream) -> None:
    assert js.account_info().limits is not None
    with opened(url) as browser:
        found = browser.get("/api/connections").json()
        assert found["known"]
        assert found["scope"] == "account"
        assert "shop" in {one["name"] for one in found["connections"]}
        with browser.stream("GET", "/api/live") as answer:
            line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    [server] = json.loads(line[6:])["servers"]
    assert server["version"]
    assert server["connections"] >= 2


def test_monitoring_addresses_show_the_whole_server() -> None:
    with Server(http_port=0) as server, opened(server.url, monitors=[check_monitor(f"{server.http_url}/")]) as browser:
        assert browser.get("/api/connections").json()["scope"] == "servers"
        with browser.stream("GET", "/api/live") as answer:
            line = next(line for line in answer.iter_lines() if line.startswith("data: "))
        [one] = json.loads(line[6:])["servers"]
        assert one["scope"] == "server"
        assert one["memory"] > 0
        page = browser.get("/metrics").text
        assert "slipstream_resident_memory_bytes{target=" in page
    with Server() as server, opened(server.url, monitors=["http://127.0.0.1:9"]) as browser:
        assert browser.get("/api/connections").json() == {
            "known": False,
            "scope": "servers",
            "total": 0,
            "connections": [],
        }
        assert browser.get("/metrics").status_code == 200


def test_stream_deleted_during_a_scrape_leaves_the_others_on_the_page(
    url: str, js: slipstream.BlockingJetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOING", "STAYING"):
        js.create_stream(name, subjects=[name]).create_consumer("c")
    list_consumers = slipstream.Stream.consumers

    def delete_first(stream: slipstream.Stream, **options: Any) -> Any:
        if stream.name == "GOING":
            js.delete_stream("GOING")
        return list_consumers(stream, **options)

    monkeypatch.setattr(slipstream.Stream, "consumers", delete_first)
    with opened(url) as browser:
        page = browser.get("/metrics").text
    assert "slipstream_up 1" in page
    assert 'stream="STAYING",consumer="c"' in page


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.6\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"mem": null, "cluster": 5, "server_id": "x"}'],
)
def test_monitoring_address_that_is_no_nats_server_breaks_no_view(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Server() as server:

        def speak() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=speak, daemon=True).start()
        monitor = f"127.0.0.1:{listener.getsockname()[1]}"
        with opened(server.url, monitors=[f"http://{monitor}"]) as browser:
            assert f'slipstream_up{{target="{monitor}"}} 0' in browser.get("/metrics").text
            assert browser.get("/api/connections").status_code == 200
            with browser.stream("GET", "/api/live", timeout=10) as live:
                line = next(line for line in live.iter_lines() if line.startswith("data: "))
            sample = json.loads(line[6:])
            assert "error" in sample or sample["servers"]
        listener.shutdown(socket.SHUT_RDWR)


def test_monitoring_address_with_a_password_is_asked_with_it() -> None:
    heads: list[bytes] = []
    body = b'{"server_id": "x", "server_name": "behind a proxy"}'
    with socket.create_server(("127.0.0.1", 0)) as listener, Server() as server:

        def speak() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        heads.append(connection.recv(65536))
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        threading.Thread(target=speak, daemon=True).start()
        monitor = f"http://u%40x:p%3Aw@127.0.0.1:{listener.getsockname()[1]}"
        with (
            opened(server.url, monitors=[check_monitor(monitor)]) as browser,
            browser.stream("GET", "/api/live", timeout=10) as live,
        ):
            line = next(line for line in live.iter_lines() if line.startswith("data: "))
        assert "behind a proxy" in {one["name"] for one in json.loads(line[6:])["servers"]}
        assert "away" not in line
        # u@x and p:w
        assert all(b"Authorization: Basic dUB4OnA6dw==\r\n" in head for head in heads)
        assert all(b"u%40x" not in head for head in heads)
        listener.shutdown(socket.SHUT_RDWR)


def test_page_of_large_messages_keeps_only_what_it_shows(url: str, js: slipstream.BlockingJetStream) -> None:
    js.create_stream("LARGE", subjects=["large"])
    for _ in range(40):
        js.publish("large", b"x" * 1_000_000)
    with opened(url) as browser:
        browser.get("/api/streams/LARGE/messages")  # what is made once
        tracemalloc.start()
        try:
            page = browser.get("/api/streams/LARGE/messages")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [one["size"] for one in page.json()["messages"]] == [1_000_000] * 40
        assert peak < 30_000_000, peak


def test_malformed_object_record_does_not_hide_the_others(url: str, js: slipstream.BlockingJetStream) -> None:
    store = js.create_object_store("torn")
    store.put("good", b"1")
    js.publish("$O.torn.M.YmFk", b"{not json")
    store.put("better", b"2")
    with opened(url) as browser:
        found = browser.get("/api/objects/torn").json()
    assert [one["name"] for one in found["objects"]] == ["better", "good"]
    assert len(found["unreadable"]) == 1
    assert "malformed object record at sequence" in found["unreadable"][0]


def test_password_of_a_monitoring_address_is_not_shown() -> None:
    assert monitor_name("http://u:secret@host:8222") == "host:8222"
    with pytest.raises(slipstream.UsageError, match="must be an http") as caught:
        check_monitor("ftp://u:secret@host")
    assert "secret" not in str(caught.value)


def test_metrics_are_read_by_a_prometheus_parser_with_the_token_alone(
    url: str, js: slipstream.BlockingJetStream
) -> None:
    stream = js.create_stream("METERED", subjects=["metered"])
    stream.create_consumer("lagging")
    js.publish("metered", b"x")
    with console(url) as site, httpx.Client(base_url=site.base, timeout=30) as program:
        assert program.get("/metrics").status_code == 401
        for wrong in (
            "Bearer x",
            f"Basic {site.token}",
            f"Bearer {site.token}x",
            "Bearer",
            f"Bearer {site.token[:-1]}",
        ):
            assert program.get("/metrics", headers={"Authorization": wrong}).status_code == 401, wrong
        headers = {"Authorization": f"Bearer {site.token}"}
        assert program.get("/metrics", headers=headers | {"Host": "evil.example"}).status_code in (401, 421)
        assert program.get("/api/about", headers=headers).status_code == 401  # it opens nothing else
        answer = program.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("stream", ""), sample.labels.get("consumer", "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["slipstream_up", "", ""] == 1
    assert samples["slipstream_stream_messages", "METERED", ""] == 1
    assert samples["slipstream_consumer_lag_messages", "METERED", "lagging"] == 1
    assert ("slipstream_client_trusted_reads_total", "", "") in samples


def test_pipeline_is_a_graph_with_its_progress_and_its_letters(
    url: str, js: slipstream.BlockingJetStream, tmp_path: Path
) -> None:
    js.create_stream("ORDERS", subjects=["orders.>"])
    js.create_stream("ORDERS_DEAD", subjects=["ORDERS_DEAD.>"])
    js.create_key_value("settings")
    for number in range(1, 11):
        js.publish("orders.a", str(number).encode(), headers={"Kept": "yes"})
    for number in range(1, 71):
        dead_letter(js, 1 + number % 10, "orders.a", b'{"id": "x"}', "does not fit the schema: id")
    row = {"Slipstream-Reason": "a key must not be empty", "Slipstream-Row": "1"}
    js.publish("ORDERS_DEAD.customers", b"{}", headers=row)
    file, go_on = recorded_pipeline(tmp_path, url, rows=4)
    resend = "/api/pipelines/orders/resend"
    with opened(url, write=True, pipelines=[file]) as browser:
        [about] = browser.get("/api/pipelines").json()
        columns = {node["name"]: node["column"] for node in about["graph"]["nodes"]}
        assert columns == {"orders": 0, "per_customer": 1, "customers": 2, "history": 2, "ORDERS_DEAD": 2}
        assert {(edge["start"], edge["end"]) for edge in about["graph"]["edges"]} >= {
            ("orders", "per_customer"), ("per_customer", "output:customers"), ("orders", "letters:"),
        }  # fmt: skip
        with browser.stream("GET", "/api/pipelines/orders/live") as answer:
            lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            first = next(lines)["outputs"]
            assert (first["customers"]["rows"], first["customers"]["lag"]) == (4, 6)
            assert (first["dead-orders"]["dead"], first["customers"]["dead"]) == (70, 1)
            go_on(10)
            second = next(lines)["outputs"]
            assert (second["customers"]["rows"], second["customers"]["lag"]) == (10, 0)
            assert second["customers"]["rate"] > 0
        page = browser.get("/api/pipelines/orders/letters").json()
        assert [one["seq"] for one in page["letters"]] == list(range(71, 21, -1))
        assert page["letters"][0]["row"] is True
        assert page["letters"][1]["columns"] == ["id"]
        older = browser.get(f"/api/pipelines/orders/letters?before={page['more']}").json()
        assert ([one["seq"] for one in older["letters"]], older["more"]) == (list(range(21, 0, -1)), 0)
        assert browser.get("/api/pipelines/orders/letters?origin=customers").json()["letters"][0]["seq"] == 71
        assert browser.get("/api/pipelines/other/letters").status_code == 404
        assert browser.post(resend, json={"seq": 1}).json() == {"sent": 1}
        assert browser.post(resend, json={"seq": 1}).status_code == 404
        again = js.stream("ORDERS").get(11)
        assert (again.data, again.headers.get("Kept")) == (b'{"id": "x"}', "yes")
        assert browser.post(resend, json={"seq": 71}).status_code == 409  # a row of an output
        done = browser.post(resend, json={"start": 1, "end": 71}).json()
        assert done == {"sent": 69, "replaced": 0, "outputs": 0, "next": 0}
        left = browser.get("/api/pipelines/orders/letters").json()
        assert [one["seq"] for one in left["letters"]] == [71]
    with opened(url, pipelines=[file]) as browser:
        assert browser.post(resend, json={"seq": 71}).status_code == 403


def test_malformed_bodies_are_rejected_and_not_logged_as_failures(
    url: str, js: slipstream.BlockingJetStream, caplog: pytest.LogCaptureFixture
) -> None:
    js.create_key_value("malformed")
    js.create_stream("MALFORMED", subjects=["malformed"]).create_consumer("c")
    put = {"key": "k", "last": 0, "value": "x"}
    pause = "/api/consumers/MALFORMED/c/pause"
    with opened(url, write=True) as browser:
        for path, body in (
            *(
                ("/api/buckets/malformed/put", put | {"ttl": ttl})
                for ttl in (1e300, "inf", "nan", [1], {"s": 1}, "soon")
            ),
            *((pause, {"seconds": seconds}) for seconds in (1e300, "inf", "nan", [1], "soon")),
            *(("/api/publish", {"subject": "malformed", "copy": copy}) for copy in ("x", 1, [1], {"stream": "S"})),
        ):
            assert browser.post(path, json=body).status_code == 400, body
        deep = browser.post("/api/publish", content=b'{"a":' * 100_000, headers={"Content-Type": "application/json"})
        assert (deep.status_code, deep.json()) == (400, {"error": "the body is nested too deeply"})
    assert not [record for record in caplog.records if record.name == "slipstream.console"]


def test_page_of_letters_holds_no_more_messages_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = most = 0

    class Payload(bytes):
        def __init__(self, *_: object) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def read(start: int, end: int) -> Iterator[slipstream.StoredMessage]:
        for seq in range(start, end + 1):
            yield slipstream.StoredMessage("ORDERS_DEAD.orders", seq, 1, b"", Payload(b"x"), "ORDERS_DEAD")

    state = SimpleNamespace(first_seq=1, last_seq=10_000, messages=10_000)
    stream = SimpleNamespace(info=lambda: SimpleNamespace(state=state), read=read)
    file, _ = recorded_pipeline(tmp_path, "nats://127.0.0.1:9")
    pipeline = PipelineFile(file)
    monkeypatch.setattr(pipeline, "_ask", lambda work: work(SimpleNamespace(stream=lambda _: stream)))
    page = pipeline.letters()
    assert [one["seq"] for one in page["letters"]] == list(range(10_000, 9_950, -1))
    assert page["more"] == 9_951
    assert pipeline.letters(before=30)["more"] == 0
    assert pipeline.letters(origin="customers")["letters"] == []
    assert most < 100


def test_fault_commands_take_nothing_but_a_stream_and_a_replica() -> None:
    with Server(faults=True) as server, opened(server.url, write=True) as browser:
        assert browser.post("/api/faults/exit", json={}).status_code == 404
        assert browser.post("/api/faults/hold", json={}).status_code == 400
        assert browser.post("/api/faults/hold", json={"stream": "NONE", "replica": "x"}).status_code == 409


def test_headers_of_a_publisher_are_not_taken_for_those_of_the_server(
    url: str, js: slipstream.BlockingJetStream
) -> None:
    js.create_stream("FORGED", subjects=["forged.>"], allow_direct=True)
    headers = {"Slipstream-As-Of": "soon", "Slipstream-Responder": "me", "Nats-Sequence": "9x", "Nats-Stream": "OTHER"}
    js.publish("forged.a", b"x", headers=headers)
    with opened(url) as browser:
        answer = browser.get("/api/trust/FORGED", params={"subject": "forged.a"})
    assert answer.status_code == 200, answer.text
    for one in answer.json()["plain"]:
        assert one["seq"] == 1
        assert one["as_of"] in (0, 1)  # nats-server does not tell it
        assert one["who"] not in ("me", "OTHER")

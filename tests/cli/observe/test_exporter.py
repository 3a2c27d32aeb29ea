"""`slipstream exporter`, against our server and nats-server: the same names, and the values that a client sees."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import slipstream
from slipstream.cli.observe.exporter import Exporter, MonitorSource, serve
from slipstream.server import Server
from tests.cli.support import Cli
from tests.ports import free_port
from tests.server.process.test_command import running
from tests.servers import real_binary


def samples(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in parse(text):
        for sample in family.samples:
            own = found.setdefault(sample.name.removeprefix("slipstream_"), {})
            assert frozenset(sample.labels.items()) not in own
            own[frozenset(sample.labels.items())] = sample.value
    return found


def fill(url: str) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("exported", subjects=["exported.>"], max_msgs=100)
        js.create_stream("copied", mirror=slipstream.StreamSource("exported"))
        stream.create_consumer("workers")
        for number in range(7):
            js.publish(f"exported.{number}", b"x")
        consumer = stream.consumer("workers")
        assert len(list(consumer.fetch(2, timeout=5))) == 2


def test_the_api_of_any_server_is_exported(cli: Cli) -> None:
    fill(cli.env["NATS_URL"])
    try:
        found = samples(cli.run("exporter", "--once", "--account", "shop").out)
        labels = {("account", "shop"), ("stream", "exported")}
        assert found["up"] == {frozenset(): 1}
        assert found["stream_messages"][frozenset(labels)] == 7
        assert found["stream_max_messages"][frozenset(labels)] == 100
        assert found["consumer_lag_messages"][frozenset(labels | {("consumer", "workers")})] == 7
        assert found["consumer_pending_messages"][frozenset(labels | {("consumer", "workers")})] == 5
        assert "stream_mirror_lag_messages" in found
        bare = samples(cli.run("exporter", "--once", "--no-consumers").out)
        assert not [name for name in bare if name.startswith("consumer_")]
    finally:
        with slipstream.connect_blocking(cli.env["NATS_URL"]) as client:
            for name in ("copied", "exported"):
                client.jetstream().delete_stream(name)


def test_monitoring_pages_of_several_servers_are_exported_with_their_target(tmp_path: Path) -> None:
    flags = ("-a", "127.0.0.1", "-p", "-1", "-m", str(port := free_port()), "-js", "-sd", str(tmp_path))
    ours = Server(http_port=0)
    with running(*flags, command=[real_binary()]) as real, ours:
        fill(f"nats://127.0.0.1:{real.port}")
        fill(ours.url)
        targets = [f"127.0.0.1:{port}", ours.http_url.removeprefix("http://"), f"127.0.0.1:{free_port()}"]
        sources = [MonitorSource(f"http://{target}", consumers=True) for target in targets]
        server = serve(Exporter(sources, 5.0), "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
                found = samples(answer.read().decode())
            with pytest.raises(urllib.error.HTTPError, match="404") as other:
                urllib.request.urlopen(f"{address}/other", timeout=10)
            other.value.close()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        up = {dict(labels)["target"]: value for labels, value in found["up"].items()}
        assert up == dict(zip(targets, (1, 1, 0), strict=True))
        for name in ("stream_messages", "consumer_lag_messages"):
            values = {dict(k)["target"]: v for k, v in found[name].items() if ("stream", "exported") in k}
            assert values == dict.fromkeys(targets[:2], 7), name
        assert set(found["connections_total"].values()) == {1}


def test_bad_arguments_are_rejected(our_cli: Cli) -> None:
    done = our_cli.run("exporter", "--once", "--monitor", "nats://127.0.0.1:4222")
    assert done.code == 2
    assert "--monitor must be an http or https URL" in done.err
    assert our_cli.run("exporter", "--port", "70000").code == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\n\r\n{"mem": null}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_a_target_that_is_no_nats_server_leaves_the_others_on_the_page(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Server(http_port=0) as server:

        def speak() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=speak, daemon=True).start()
        port = listener.getsockname()[1]
        urls = [f"http://127.0.0.1:{port}", server.http_url]
        page = Exporter([MonitorSource(url, consumers=True) for url in urls], 5).page().decode()
        listener.shutdown(socket.SHUT_RDWR)
    up = {dict(labels)["target"]: value for labels, value in samples(page)["up"].items()}
    assert sorted(up.values()) == [0, 1]
    assert up[f"127.0.0.1:{port}"] == 0

"""The console on a stream of a million messages and a bucket of a million keys: everything is paged. A soak test."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

import slipstream
from slipstream.server import Server
from tests.console.support import console

MANY = 1_000_000
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_a_message_and_a_key_among_a_million_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    took: dict[str, float] = {}
    with Server() as server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream("MANY", subjects=["many.>"], storage="memory")
        js.create_key_value("many", storage="memory")
        with js.publisher(timeout=120) as publisher:
            for number in range(1, MANY + 1):
                publisher.publish("many.rare" if number == 123_456 else f"many.{number % 100}", b"x" * 128)
        with js.key_value("many").writer(timeout=120) as writer:
            for number in range(MANY):
                writer.put(f"group{number % 1000}.key{number}", b"v")
        with console(server.url) as site, httpx.Client(base_url=site.base, timeout=120) as browser:
            browser.get(f"/?token={site.token}")

            def ask(path: str) -> Any:
                began = time.perf_counter()
                answer = browser.get(path)
                took[path] = time.perf_counter() - began
                assert answer.status_code == 200, answer.text
                return answer.json()

            assert ask("/api/streams/MANY")["state"]["messages"] == MANY
            assert ask("/api/streams/MANY/messages?subject=")["messages"][-1]["seq"] == MANY
            assert ask("/api/streams/MANY/messages?subject=many.rare")["messages"][0]["seq"] == 123_456
            assert ask("/api/streams/MANY/messages?subject=&before=500000")["messages"][-1]["seq"] == 499_999
            assert ask("/api/streams/MANY/messages?subject=&after=777777")["messages"][0]["seq"] == 777_777
            assert ask("/api/streams/MANY/subjects?prefix=many")["tokens"] == 101
            keys = ask("/api/buckets/many/tree")
            assert keys["total"] >= MANY
            assert keys["sample"] > 0
            assert len(keys["rows"]) == 1000
            assert ask("/api/buckets/many/tree?prefix=group7")["tokens"] == 1000
            assert ask("/api/buckets/many/entry?key=group7.key7")["history"][0]["text"] == "v"
            assert len(ask("/api/buckets/many/keys?filter=group7.*")["keys"]) == 500
    with capsys.disabled():
        for path, seconds in took.items():
            print(f"\n{seconds * 1000:8.1f} ms  {path}", end="")

"""The scrubber of a running server: what it finds is logged once and shown by every report."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.server.engine.ports import Scrubber
from slipstream.server.server import Server
from tests.server.test_crash import exchange

CONFIG = b'{"name":"S","subjects":["s"],"storage":"file"}'


def page(server: Server, path: str) -> Any:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def wait_for_rounds(scrubber: Scrubber, count: int) -> None:
    end, deadline = scrubber.rounds + count, time.monotonic() + 30
    while scrubber.rounds < end:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    """Damage all versions of something in a file that is in use."""
    data = path.read_bytes()
    at = data.find(old)
    assert at > 0
    with open(path, "r+b") as file:
        while at >= 0:
            os.pwrite(file.fileno(), new, at)
            at = data.find(old, at + 1)


def test_a_server_reports_what_its_scrubber_finds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="slipstream.server")
    with Server(data_dir=tmp_path, http_port=0, scrub_interval=0.01) as server:
        scrubber = server._stores[1].scrubber
        assert scrubber is not None
        data = b"PUB $JS.API.STREAM.CREATE.S in %d\r\n%b\r\n" % (len(CONFIG), CONFIG)
        exchange(server.port, data + b"".join(b"PUB s in 9\r\nmessage-%d\r\n" % n for n in range(9)), b'"seq":9')
        wait_for_rounds(scrubber, 2)
        assert server.health().ok
        overwrite(tmp_path / "data.mdb", b"message-4", b"MESSAGE-4")
        wait_for_rounds(scrubber, 4)
        assert server.health().damaged == (("S", 5),)
        place = {"first_seq": 5, "last_seq": 5, "messages": 1}
        assert page(server, "/varz")["jetstream"]["damage"]["details"] == [{"stream": "S", **place}]
        seen = page(server, "/jsz?streams=1")
        assert seen["damage"]["messages"] == 1
        assert seen["account_details"][0]["stream_detail"][0]["damage"] == [place]
        assert page(server, "/healthz")["error"] == "damaged messages: 5 of 'S'"
        body = b'{"seq":5}'
        exchange(server.port, b"PUB $JS.API.STREAM.MSG.DELETE.S in %d\r\n%b\r\n" % (len(body), body), b'"success":true')
        wait_for_rounds(scrubber, 2)
        assert page(server, "/healthz") == {"status": "ok"}
    said = [record.getMessage() for record in caplog.records]
    assert said == ["message 5 of stream 'S' is damaged and is not served"]


def test_a_rate_of_zero_turns_the_scrubber_off(tmp_path: Path) -> None:
    with Server(data_dir=tmp_path, scrub_rate=0, scrub_interval=0.001) as server:
        exchange(server.port, b"PING\r\n", b"PONG")
        assert server._scrubbing is None

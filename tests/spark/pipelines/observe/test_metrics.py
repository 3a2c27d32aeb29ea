"""Metrics of a run, as Prometheus reads them."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from slipstream.errors import UsageError
from slipstream.spark.pipelines.observe.metrics import metrics_endpoint, metrics_page, parse_address
from slipstream.spark.pipelines.state import QueryState


def test_page_has_the_progress_of_each_output() -> None:
    state = QueryState(
        rows=15, written=7, batch=3, batches=2, batch_seconds=0.25, at="2026-01-31T09:00:00Z", dead=2,
        lag_seconds=61.44444, failures=1, late=4, state_rows=9,
    )  # fmt: skip
    page = metrics_page("p", {"a": state, 'b"': QueryState(is_failed=True)}, {"a": 20}, {"a": True}).decode()
    lines = page.splitlines()
    wanted = {
        "up": "1", "failed": "0", "rows_read_total": "15", "rows_written_total": "7", "rows_late_total": "4",
        "batches_total": "2", "failures_total": "1", "batch": "3", "batch_seconds": "0.25", "lag_messages": "20",
        "lag_seconds": "61.444", "dead_letters": "2", "state_rows": "9", "batch_timestamp_seconds": "1769850000",
    }  # fmt: skip
    for name, value in wanted.items():
        assert f'slipstream_pipeline_{name}{{pipeline="p",output="a"}} {value}' in lines
    assert r'slipstream_pipeline_failed{pipeline="p",output="b\""} 1' in lines
    assert r'slipstream_pipeline_up{pipeline="p",output="b\""} 0' in lines
    # What is not known has no sample, instead of a wrong one.
    assert not any(line.startswith(r'slipstream_pipeline_lag_messages{pipeline="p",output="b\""') for line in lines)
    assert not any(
        line.startswith(r'slipstream_pipeline_rows_written_total{pipeline="p",output="b\""') for line in lines
    )
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ", "slipstream_pipeline_"))


def test_endpoint_serves_the_newest_page_and_ends_with_the_run() -> None:
    pages = iter((b"one\n", b"two\n"))
    with metrics_endpoint("0", lambda: next(pages)) as url:
        assert url.startswith("http://127.0.0.1:")
        for wanted in (b"one\n", b"two\n"):
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.read() == wanted
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(url.removesuffix("/metrics"), timeout=10)
        error.value.close()
        assert error.value.code == 404
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_no_address_is_no_endpoint() -> None:
    with metrics_endpoint("", lambda: b"") as url:
        assert url == ""


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"metrics cannot be served on 127.0.0.1:{port}: Address already in use"),
            metrics_endpoint(str(port), lambda: b""),
        ):
            raise AssertionError("it is taken")


@pytest.mark.parametrize(
    ("text", "address"),
    [("9465", ("127.0.0.1", 9465)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "host:", "host:x", "65536", "-1", "host:1.5", "²"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"metrics must be a port or host:port"):
        parse_address(text)

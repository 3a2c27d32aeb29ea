"""Replies of services: what is always written, and what is read from others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slipstream.services import EndpointStats, ServiceInfo, ServicePing, ServiceStats
from slipstream.services.reports import EndpointCounters


def test_every_field_is_written_even_when_it_is_empty() -> None:
    assert ServicePing(name="a", id="b", version="1.0.0").to_json() == (
        b'{"type":"io.nats.micro.v1.ping_response","name":"a","id":"b","version":"1.0.0","metadata":{}}'
    )
    assert [*ServiceInfo().to_dict()] == ["type", "name", "id", "version", "metadata", "description", "endpoints"]
    assert [*ServiceStats().to_dict()] == ["type", "name", "id", "version", "metadata", "started", "endpoints"]
    assert EndpointStats().to_dict() == {
        "name": "",
        "subject": "",
        "queue_group": "",
        "num_requests": 0,
        "num_errors": 0,
        "last_error": "",
        "processing_time": 0,
        "average_processing_time": 0,
        "data": None,
    }


def test_a_time_has_a_fraction_even_on_the_full_second() -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    stats = ServiceStats(name="a", id="b", started=started)
    assert stats.to_dict()["started"] == "2026-01-02T03:04:05.000000Z"
    assert ServiceStats.from_reply(stats.to_json()) == stats


def test_replies_of_other_implementations_are_read() -> None:
    stats = ServiceStats.from_reply(
        b'{"type":"io.nats.micro.v1.stats_response","name":"a","id":"b","version":"1.0.0","metadata":null,'
        b'"started":"2026-01-02T03:04:05.123456789+01:00","endpoints":[{"name":"e","last_error":{"code":1}}],"new":1}'
    )
    assert stats.started == datetime(2026, 1, 2, 2, 4, 5, 123456, tzinfo=UTC)
    assert (stats.endpoints[0].last_error, stats.endpoints[0].queue_group) == ('{"code":1}', "")
    assert stats.unknown == {"new": 1}


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"type":"io.nats.micro.v1.ping_response"}', b'{"type":"t","name":"a","id":"b"}', b'{"name":1}'],
    ids=["nothing", "empty", "no name", "other type", "not text"],
)
def test_anything_else_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ServicePing|type must be"):
        ServicePing.from_reply(data)


def test_counters_have_an_average_and_start_over() -> None:
    counters = EndpointCounters()
    assert counters.stats(name="a", subject="b", queue_group="q") == EndpointStats(
        name="a", subject="b", queue_group="q"
    )
    counters.requests, counters.processing_time = 3, 10
    counters.failed("500:text")
    stats = counters.stats(name="a", subject="b", queue_group="")
    assert (stats.average_processing_time, stats.num_errors, stats.last_error) == (3, 1, "500:text")
    counters.reset()
    counters.processing_time = 5  # a handler that ran during the reset
    assert counters.stats(name="", subject="", queue_group="").average_processing_time == 0

"""`slipstream service`: tables for users, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream import BlockingService, BlockingServiceRequest, connect_blocking
from slipstream.errors import ServiceError
from tests.cli.support import Cli


@pytest.fixture
def service(any_server: str, fresh: str) -> Iterator[BlockingService]:
    """A service with one endpoint, which was called twice, once with an error."""

    def count(request: BlockingServiceRequest) -> None:
        if request.data:
            raise ServiceError(409, "taken")
        request.respond(b"1")

    with (
        connect_blocking(any_server) as nc,
        nc.add_service(fresh, "1.0.0", description="some words", metadata={"region": "eu"}) as service,
    ):
        service.add_group(fresh).add_endpoint("count", count, metadata={"unit": "pieces"})
        nc.services.request(f"{fresh}.count")
        with pytest.raises(ServiceError):
            nc.services.request(f"{fresh}.count", b"x")
        yield service


def test_instances_are_listed(cli: Cli, fresh: str, service: BlockingService) -> None:
    table = cli.ok("service", "ls", fresh).out
    assert table.splitlines()[0].split() == ["Name", "Version", "ID", "Endpoints", "Description"]
    assert table.splitlines()[1].split() == [fresh, "1.0.0", service.id, "1", "some", "words"]
    assert fresh in cli.ok("service", "ls").out
    (listed,) = cli.ok("service", "list", fresh, "--json").json
    assert listed == service.info().to_dict()


def test_endpoints_are_shown(cli: Cli, fresh: str, service: BlockingService) -> None:
    shown = cli.ok("service", "info", fresh, service.id).out
    for text in (f"Service {fresh}", "region=eu", "some words", f"{fresh}.count", "unit=pieces"):
        assert text in shown
    assert cli.ok("service", "info", fresh, "--json").json == [service.info().to_dict()]


def test_counters_are_shown(cli: Cli, fresh: str, service: BlockingService) -> None:
    head, row = cli.ok("service", "stats", fresh).out.splitlines()
    assert head.split() == ["Name", "ID", "Subject", "Requests", "Errors", "Average", "Last", "error"]
    assert row.split()[:5] == [fresh, service.id, f"{fresh}.count", "2", "1"]
    assert row.split()[-1] == "409:taken"
    (stats,) = cli.ok("service", "stats", fresh, service.id, "--json").json
    assert stats == service.stats().to_dict()
    assert stats["started"].endswith("Z")


def test_pings_have_a_time(cli: Cli, fresh: str, service: BlockingService) -> None:
    row = cli.ok("service", "ping", fresh, "--stall", "200ms").out.splitlines()[1]
    assert row.split()[:3] == [fresh, "1.0.0", service.id]
    assert row.split()[-1] == "ms"
    (ping,) = cli.ok("service", "ping", fresh, "--json").json
    assert ping["rtt"] > 0


def test_service_that_does_not_answer_is_an_error_and_none_at_all_is_not(cli: Cli, fresh: str) -> None:
    done = cli.run("service", "info", fresh)
    assert (done.code, done.out) == (5, "")
    assert "no service answered" in done.err
    assert cli.run("service", "stats", fresh, "id").code == 5
    assert cli.ok("service", "ls", "--json").out.startswith("[")

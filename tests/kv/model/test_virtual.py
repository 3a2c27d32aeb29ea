"""Buckets with all options at once against the model, in virtual time: on our server, and in a local database."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings

from slipstream import connect
from slipstream.server import Server
from tests.kv.model.backends import LocalBackend, StreamBackend
from tests.kv.model.operations import Run
from tests.kv.model.scenario import Scenario, scenarios

SHORT = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))


async def on_server(scenario: Scenario) -> None:
    """The server runs on the same loop: switching between threads would cost more than all else."""
    async with (
        Server(virtual_time=True, faults=True) as server,
        connect(server.url, name="model", reconnect_wait=0.01) as one,
        connect(server.url, name="model", reconnect_wait=0.01) as two,
    ):
        await Run(StreamBackend([one, two], "model", server), scenario).all()


async def in_database(scenario: Scenario) -> None:
    await Run(LocalBackend(), scenario).all()


@SHORT
@given(scenario=scenarios())
def test_buckets_on_our_server_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(on_server(scenario), 60))


@SHORT
@given(scenario=scenarios(is_local=True))
def test_local_buckets_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(in_database(scenario), 60))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG
@given(scenario=scenarios(length=60))
def test_long_scenarios_on_our_server_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(on_server(scenario), 60))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@LONG
@given(scenario=scenarios(is_local=True, length=60))
def test_long_scenarios_on_local_buckets_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(in_database(scenario), 60))

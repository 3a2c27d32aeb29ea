"""The same scenarios on a real nats-server, in real time: few of them, with TTLs of one second, and without faults."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from slipstream import connect
from tests.kv.model.backends import StreamBackend
from tests.kv.model.operations import Run
from tests.kv.model.scenario import BUCKET, READS, WATCHES, WRITES, Scenario, scenarios

_names = itertools.count(1)
NAMES = (*WRITES, *WRITES, *READS, *READS, *WATCHES, *BUCKET, "pass")


async def on_real_server(url: str, scenario: Scenario) -> None:
    bucket = f"model{next(_names)}"
    async with connect(url) as one, connect(url) as two:
        await Run(StreamBackend([one, two], bucket), scenario).all()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(names=NAMES, times=(0, 0, 0, 1), replicas=(1,)))
def test_buckets_on_nats_server_behave_like_the_model(real_url: str, scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(on_real_server(real_url, scenario), 120))

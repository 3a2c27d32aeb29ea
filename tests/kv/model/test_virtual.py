"""Buckets with all options at once against the model, in virtual time: on our server, and in a local database."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings

from slipstream import connect
from slipstream.server import Server
from tests.kv.model.backends import LocalBackend, StreamBackend
from tests.kv.model.operations import Run
from tests.kv.model.scenario import Options, Scenario, Step, scenarios

SHORT = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))


async def on_server(scenario: Scenario, *, timeout: float = 5.0) -> None:
    """The server runs on the same loop: switching between threads would cost more than all else."""
    async with (
        Server(virtual_time=True, faults=True) as server,
        connect(server.url, name="model", reconnect_wait=0.01) as one,
        connect(server.url, name="model", reconnect_wait=0.01) as two,
    ):
        await Run(StreamBackend([one, two], "model", server, timeout=timeout), scenario).all()


async def in_database(scenario: Scenario) -> None:
    await Run(LocalBackend(), scenario).all()


@SHORT
@given(scenario=scenarios())
def test_buckets_on_our_server_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(on_server(scenario), 60))


@pytest.mark.parametrize("second", ["put", "delete"])
@pytest.mark.steady
def test_create_waits_for_a_read_replica_that_lags_by_the_server_clock(second: str) -> None:
    """It is rejected, and reads why: from a replica that cannot know it, and says so when time has passed."""
    steps = [Step("put"), Step("hold"), Step(second), Step("create", handle=6)]
    asyncio.run(asyncio.wait_for(on_server(Scenario(Options(mirror={}), steps), timeout=1), 60))


@pytest.mark.parametrize("second", ["put", "create", "update", "delete"])
@pytest.mark.steady
def test_write_of_an_encrypted_bucket_through_a_lagging_read_replica_is_refused_or_stored(second: str) -> None:
    """It looks for names that it cannot decrypt until it has found one that it can; its own are not in the replica."""
    steps = [Step("hold"), Step("purge", handle=6), Step(second, handle=6), Step("release"), Step(second, handle=6)]
    options = Options(codec="encrypted", mirror={})
    asyncio.run(asyncio.wait_for(on_server(Scenario(options, steps), timeout=1), 60))


def test_values_may_expire_while_a_range_is_purged_through_a_session_of_an_older_bucket() -> None:
    """Its listing waits for a revision of the older bucket: in that time a value expires, and leaves a marker."""
    before = [Step("put", handle=4), Step("put", handle=4), Step("put", handle=4), Step("recreate")]
    steps = [*before, Step("put_ttl", handle=1, key=1), Step("put", handle=1), Step("purge_range", handle=4)]
    asyncio.run(asyncio.wait_for(on_server(Scenario(Options(marker_ttl=3), steps)), 60))


def test_range_deleted_through_a_read_replica_has_what_a_purge_removed_from_its_origin_only() -> None:
    """Purges are not replicated, so a listing of the replica has the key."""
    steps = [Step("put"), Step("put", key=1), Step("forget"), Step("delete_range", handle=6)]
    asyncio.run(asyncio.wait_for(on_server(Scenario(Options(mirror={}), steps)), 60))


@pytest.mark.parametrize("between", [(), (Step("recreate"),)])
def test_read_replica_that_is_read_by_revision_first_is_not_taken_for_its_origin(between: tuple[Step, ...]) -> None:
    """It was made later than the bucket whose leader it asks, when a key appears that it did not have."""
    first = [*between, Step("put", key=1), Step("at", handle=6, key=1), Step("get", handle=6)]
    steps = [*first, Step("put"), Step("get", handle=6), Step("keys", handle=6)]
    asyncio.run(asyncio.wait_for(on_server(Scenario(Options(mirror={}), steps), timeout=1), 60))


def test_read_replica_that_lags_keeps_what_an_expired_value_replaced() -> None:
    """It gets neither the value nor its marker: both are gone before it is released."""
    steps = [Step("put"), Step("hold"), Step("put_ttl", handle=1), Step("pass", n=4), Step("release")]
    reads = [Step("get", handle=6), Step("keys", handle=6), Step("history", handle=6), Step("range", handle=6)]
    options = Options(value_ttl=True, marker_ttl=1, mirror={})
    asyncio.run(asyncio.wait_for(on_server(Scenario(options, [*steps, *reads])), 60))


@pytest.mark.spec("KV-21", "KV-47", on="C")
def test_cache_does_not_keep_what_a_follower_still_has_of_a_purged_key() -> None:
    """A count of the bucket proves what the cache held then, not what a follower that was held has sent since."""
    written = [Step("put_ttl", handle=6, n=3), Step("delete", handle=4, key=3), Step("hold"), Step("forget")]
    options = Options(history=4, value_ttl=True, replicas=3)
    for _ in range(5):  # which copy answers is chance
        asyncio.run(asyncio.wait_for(on_server(Scenario(options, [*written, *[Step("cached")] * 8])), 60))


@SHORT
@given(scenario=scenarios(is_local=True))
def test_local_buckets_behave_like_the_model(scenario: Scenario) -> None:
    asyncio.run(asyncio.wait_for(in_database(scenario), 60))


def test_watch_of_latest_entries_is_resumed_behind_one_that_was_replaced_before_it_came() -> None:
    steps = [Step("put"), Step("watch"), Step("put"), Step("take"), Step("resume"), Step("take")]
    asyncio.run(asyncio.wait_for(in_database(Scenario(Options(history=2), steps)), 60))


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

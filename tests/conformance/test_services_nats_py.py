"""Services of ours and of nats-py side by side: the same subjects, the same JSON, the same headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import nats.micro
import pytest
from nats.aio.client import Client as Peer
from nats.micro.request import Request as PeerRequest
from nats.micro.request import ServiceError as PeerError
from nats.micro.service import ServiceInfo as PeerInfo
from nats.micro.service import ServicePing as PeerPing
from nats.micro.service import ServiceStats as PeerStats

from slipstream import Client, Service, ServiceRequest, connect
from slipstream.errors import ServiceError

VERBS = ("PING", "INFO", "STATS")


async def our_echo(request: ServiceRequest) -> None:
    if request.data == b"fail":
        raise ServiceError(422, "as asked")
    if request.data == b"raise":
        raise KeyError("as asked")
    await request.respond(request.data, headers={"Seen": "yes"})


async def their_echo(request: PeerRequest) -> None:
    if request.data == b"fail":
        raise PeerError("422", "as asked")
    if request.data == b"raise":
        raise KeyError("as asked")
    await request.respond(request.data, headers={"Seen": "yes"})


def count(stats: Any) -> dict[str, int]:
    return {stats.name: 1}


@asynccontextmanager
async def both(url: str, name: str) -> AsyncIterator[tuple[Client, Peer, Service, Any]]:
    """The same service by both, each with its client; subjects begin with `ours` and `theirs`."""
    peer = await nats.connect(url)
    try:
        async with connect(url) as nc:
            ours = await nc.add_service(name, "1.0.0", description="words", metadata={"a": "b"}, stats_handler=count)
            theirs = await nats.micro.add_service(
                peer,
                name=name,
                version="1.0.0",
                description="words",
                metadata={"a": "b"},
                stats_handler=count,
            )
            await ours.add_group(f"{name}.ours").add_endpoint("echo", our_echo, metadata={"c": "d"})
            await theirs.add_group(name=f"{name}.theirs").add_endpoint(
                name="echo", handler=their_echo, metadata={"c": "d"}
            )
            await peer.flush()
            yield nc, peer, ours, theirs
            await theirs.stop()
    finally:
        await peer.close()


def shape(value: Any) -> Any:
    """JSON with types in the place of values."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value).__name__


async def raw_replies(nc: Client, subject: str) -> list[dict[str, Any]]:
    replies = nc.request_many(subject, timeout=5.0, idle_timeout=0.3, max_messages=2)
    found = [(json.loads(message.data), message.headers.items()) async for message in replies]
    assert [headers for _, headers in found] == [[]] * len(found)
    return [value for value, _ in found]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.steady
async def test_replies_to_discovery_have_the_same_keys_and_types(any_server: str, fresh: str, verb: str) -> None:
    async with both(any_server, fresh) as (nc, _, ours, theirs):
        for subject, count in ((f"$SRV.{verb}.{fresh}", 2), (f"$SRV.{verb}.{fresh}.{ours.id}", 1)):
            assert len(await raw_replies(nc, subject)) == count
        replies = {reply["id"]: reply for reply in await raw_replies(nc, f"$SRV.{verb}.{fresh}")}
        mine, peers = replies[ours.id], replies[theirs.id]
        assert shape(mine) == shape(peers)
        assert mine["type"] == peers["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        for key in ("name", "version", "metadata", "description"):
            assert mine.get(key) == peers.get(key)
        if verb == "INFO":
            (endpoint,), (other,) = mine["endpoints"], peers["endpoints"]
            assert endpoint | {"subject": ""} == other | {"subject": ""}


async def test_nats_py_reads_what_our_service_says(any_server: str, fresh: str) -> None:
    async with both(any_server, fresh) as (_, peer, ours, _):
        assert (await peer.request(f"{fresh}.ours.echo", b"x")).data == b"x"
        replies = {verb: json.loads((await peer.request(f"$SRV.{verb}.{fresh}.{ours.id}")).data) for verb in VERBS}
        ping, info = PeerPing.from_dict(replies["PING"]), PeerInfo.from_dict(replies["INFO"])
        assert (ping.id, ping.name, ping.version, ping.metadata) == (ours.id, fresh, "1.0.0", {"a": "b"})
        assert (info.id, info.description, info.type) == (ours.id, "words", "io.nats.micro.v1.info_response")
        (endpoint,) = info.endpoints
        assert (endpoint.name, endpoint.subject) == ("echo", f"{fresh}.ours.echo")
        assert (endpoint.queue_group, endpoint.metadata) == ("q", {"c": "d"})
        stats = PeerStats.from_dict(replies["STATS"])
        assert stats.started == ours.stats().started.replace(tzinfo=None)
        (counted,) = stats.endpoints
        assert (counted.num_requests, counted.num_errors, counted.last_error) == (1, 0, "")
        assert counted.average_processing_time == counted.processing_time > 0
        assert counted.data == {"echo": 1}


async def test_we_read_what_the_service_of_nats_py_says(any_server: str, fresh: str) -> None:
    async with both(any_server, fresh) as (nc, _, ours, theirs):
        assert {info.id async for info in nc.services.list()} >= {ours.id, theirs.id}
        assert {ping.id async for ping in nc.services.ping(fresh)} == {ours.id, theirs.id}
        assert (await nc.services.request(f"{fresh}.theirs.echo", b"x")).headers["Seen"] == "yes"
        (info,) = [info async for info in nc.services.info(fresh, theirs.id)]
        assert info.to_dict() == theirs.info().to_dict()
        (stats,) = [stats async for stats in nc.services.stats(fresh, theirs.id)]
        said = theirs.stats().to_dict()
        assert stats.to_dict() | {"started": ""} == said | {"started": ""}
        assert f"{stats.started:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z" == said["started"]


async def test_service_of_nats_py_without_description_or_metadata_is_read(any_server: str, fresh: str) -> None:
    peer = await nats.connect(any_server)
    try:
        theirs = await nats.micro.add_service(peer, name=fresh, version="1.0.0")
        await theirs.add_endpoint(name="echo", subject=f"{fresh}.echo", handler=their_echo)
        await peer.flush()
        async with connect(any_server) as nc:
            (info,) = [info async for info in nc.services.list(fresh)]
            assert (info.description, dict(info.metadata), dict(info.endpoints[0].metadata)) == ("", {}, {})
            (stats,) = [stats async for stats in nc.services.stats(fresh)]
            assert (stats.endpoints[0].data, stats.endpoints[0].last_error) == (None, "")
        await theirs.stop()
    finally:
        await peer.close()


@pytest.mark.parametrize("body", [b"x", b"fail", b"raise"], ids=["answer", "error", "exception"])
async def test_answers_and_errors_have_the_same_headers(any_server: str, fresh: str, body: bytes) -> None:
    async with both(any_server, fresh) as (nc, peer, _, _):
        mine = await nc.request(f"{fresh}.ours.echo", body)
        peers = await nc.request(f"{fresh}.theirs.echo", body)
        assert mine.data == peers.data
        if body == b"raise":  # each words it in its own way
            assert mine.raw.header.replace(b"KeyError: 'as asked'", b"KeyError('as asked')") == peers.raw.header
        else:
            assert mine.raw.header == peers.raw.header
        seen = [await peer.request(f"{fresh}.{whose}.echo", body, timeout=5.0) for whose in ("ours", "theirs")]
        assert [*(seen[0].headers or {})] == [*(seen[1].headers or {})]
        if body != b"x":
            for subject in (f"{fresh}.ours.echo", f"{fresh}.theirs.echo"):
                with pytest.raises(ServiceError) as caught:
                    await nc.services.request(subject, body)
                assert caught.value.code == {b"fail": 422, b"raise": 500}[body]
                assert "as asked" in caught.value.description

"""Snapshots that cross over: what nats-server saved our server restores, and the other way round, to the byte."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from tests.conformance.compare import Wire, same_on, scrub

TIMEOUT = 20.0


@pytest.fixture
def urls(real_url: str, our_url: str) -> tuple[str, str]:
    return real_url, our_url


async def api(nc: NatsClient, call: str, body: Any = None) -> dict[str, Any]:
    answer = await nc.request(f"$JS.API.{call}", b"" if body is None else json.dumps(body).encode(), timeout=TIMEOUT)
    decoded: dict[str, Any] = json.loads(answer.data)
    assert "error" not in decoded, decoded
    return decoded


async def fill(nc: NatsClient, name: str) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "allow_msg_ttl": True, "first_seq": 5}
    await api(nc, f"STREAM.CREATE.{name}", config)
    for n in range(500):
        headers = {"Nats-Msg-Id": f"m{n}", "Other": "ü" * (n % 5)} if n % 3 == 0 else None
        await nc.publish(f"{name}.{n % 7}", b"message %d, " % n * (n % 40), headers=headers)
    await nc.request(f"{name}.large", bytes(range(256)) * 1200, timeout=TIMEOUT)
    await nc.request(f"{name}.ttl", b"x", headers={"Nats-TTL": "1h"}, timeout=TIMEOUT)
    for seq in (5, 90, 91, 92):
        await api(nc, f"STREAM.MSG.DELETE.{name}", {"seq": seq})


async def consume(nc: NatsClient, name: str) -> None:
    """A consumer with gaps in its acks, and one that has not begun."""
    config = {"durable_name": "some", "ack_policy": "explicit", "filter_subject": f"{name}.>", "max_deliver": 7}
    await api(nc, f"CONSUMER.CREATE.{name}.some", {"stream_name": name, "config": config | {"name": "some"}})
    config = {"durable_name": "later", "name": "later", "ack_policy": "all", "deliver_policy": "last"}
    await api(nc, f"CONSUMER.CREATE.{name}.later", {"stream_name": name, "config": config})
    messages = await (await nc.jetstream().pull_subscribe_bind("some", name)).fetch(10, timeout=TIMEOUT)
    for at in (0, 1, 4, 7):
        await messages[at].ack_sync(timeout=TIMEOUT)


async def consumers(nc: NatsClient, name: str) -> list[dict[str, Any]]:
    """What tells consumers apart, but for times and names of servers."""
    found = (await api(nc, f"CONSUMER.LIST.{name}"))["consumers"]
    for info in found:
        for each in (info["delivered"], info["ack_floor"]):
            each.pop("last_active", None)
        info["config"].pop("metadata", None)
        for field in ("created", "cluster", "ts"):
            info.pop(field, None)
    return sorted(found, key=lambda info: str(info["name"]))


async def save(nc: NatsClient, name: str, **request: Any) -> tuple[dict[str, Any], list[Msg]]:
    chunks: list[Msg] = []
    done = asyncio.Event()

    async def take(message: Msg) -> None:
        chunks.append(message)
        if message.reply:
            await nc.publish(message.reply)
        if not message.data:
            done.set()

    inbox = nc.new_inbox()
    await nc.subscribe(inbox, cb=take)
    answer = await api(nc, f"STREAM.SNAPSHOT.{name}", {"deliver_subject": inbox} | request)
    await asyncio.wait_for(done.wait(), TIMEOUT)
    return answer, chunks


async def bring_back(nc: NatsClient, name: str, answer: dict[str, Any], data: bytes) -> dict[str, Any]:
    begun = await api(nc, f"STREAM.RESTORE.{name}", {"config": answer["config"], "state": answer["state"]})
    for at in range(0, len(data), 100_000):
        taken = await nc.request(begun["deliver_subject"], data[at : at + 100_000], timeout=TIMEOUT)
        assert taken.data == b""
    last = await nc.request(begun["deliver_subject"], b"", timeout=TIMEOUT)
    decoded: dict[str, Any] = json.loads(last.data)
    return decoded


async def messages(nc: NatsClient, name: str) -> list[dict[str, Any]]:
    info = await api(nc, f"STREAM.INFO.{name}", {"deleted_details": True})
    gone = {*info["state"].get("deleted", ())}
    first, last = info["state"]["first_seq"], info["state"]["last_seq"]
    return [
        (await api(nc, f"STREAM.MSG.GET.{name}", {"seq": seq}))["message"]
        for seq in range(first, last + 1)
        if seq not in gone
    ]


@pytest.mark.parametrize("saved_by", ["real", "ours"])
@pytest.mark.parametrize("chunk_size", [0, 4096])
async def test_a_snapshot_crosses_over(urls: tuple[str, str], fresh: str, saved_by: str, chunk_size: int) -> None:
    source, target = urls if saved_by == "real" else urls[::-1]
    async with await nats.connect(source) as one, await nats.connect(target) as other:
        await fill(one, fresh)
        await consume(one, fresh)
        answer, chunks = await save(one, fresh, chunk_size=chunk_size)
        restored = await bring_back(other, fresh, answer, b"".join(chunk.data for chunk in chunks))
        assert restored["type"] == "io.nats.jetstream.api.v1.stream_create_response"
        assert restored["state"] == answer["state"]
        assert await messages(other, fresh) == await messages(one, fresh)
        assert await consumers(other, fresh) == await consumers(one, fresh)
        batch = await (await other.jetstream().pull_subscribe_bind("some", fresh)).fetch(1, timeout=TIMEOUT)
        assert batch[0].metadata.sequence.consumer == 11
        before = {name: value for name, value in answer["config"].items() if name != "metadata"}
        after = {name: value for name, value in restored["config"].items() if name != "metadata"}
        assert before == after
        if saved_by == "ours":  # nats-server forgets the ids of messages that it restores
            return
        again = json.loads((await other.request(f"{fresh}.0", b"x", headers={"Nats-Msg-Id": "m498"})).data)
        assert again["duplicate"]


async def test_the_words_around_a_snapshot_are_the_same(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        for n in range(10):
            await wire.publish("a", random.Random(n).randbytes(1000))
        told = await wire.listen(f"$JS.EVENT.ADVISORY.STREAM.*.{wire.name}")
        answer, chunks = await save(wire.nc, wire.name, chunk_size=1024)
        wire.record.append(scrub(answer))
        wire.record.append(
            [
                (chunk.reply.split(".")[:4], chunk.reply.split(".")[5:], dict(chunk.headers or {}))
                for chunk in chunks[:2]
            ]
        )
        wire.record.append(dict(chunks[-1].headers or {}))
        for _ in range(2):
            event = await asyncio.wait_for(told.get(), TIMEOUT)
            body = json.loads(event.data)
            wire.record.append((event.subject, body["type"], body["stream"]))
        await wire.api(f"STREAM.SNAPSHOT.{wire.name}")
        await wire.api(f"STREAM.SNAPSHOT.{wire.name}", {"deliver_subject": "a.*"})
        await wire.api(f"STREAM.SNAPSHOT.{wire.name}NO", {"deliver_subject": "a"})
        await wire.api(f"STREAM.RESTORE.{wire.name}", {"config": answer["config"], "state": answer["state"]})
        await wire.api(f"STREAM.RESTORE.{wire.name}")
        await wire.api(f"STREAM.RESTORE.{wire.name}NO", {"config": answer["config"], "state": answer["state"]})
        await wire.delete()
        begun = await api(wire.nc, f"STREAM.RESTORE.{wire.name}", {"config": answer["config"], "state": {}})
        wire.record.append(begun["deliver_subject"].split(".")[:4])
        data = b"".join(chunk.data for chunk in chunks)
        for at in range(0, len(data), 10_000):
            await wire.nc.request(begun["deliver_subject"], data[at : at + 10_000], timeout=TIMEOUT)
        last = await wire.nc.request(begun["deliver_subject"], b"", timeout=TIMEOUT)
        wire.record.append(scrub(json.loads(last.data)))

    await same_on(urls, fresh, scenario)

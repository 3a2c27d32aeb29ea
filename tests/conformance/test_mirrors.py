"""Mirrors and sources, on our server and on the real one: the same contents, reports, headers and refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from slipstream import Client, connect
from slipstream.errors import NoStreamError

Api = Callable[..., Awaitable[dict[str, Any]]]


def api_of(nc: Client) -> Api:
    """Raw requests to the JetStream API: what the server itself says."""

    async def ask(subject: str, /, **body: Any) -> dict[str, Any]:
        reply = await nc.request(f"$JS.API.{subject}", msgspec.json.encode(body) if body else b"", timeout=5)
        decoded: dict[str, Any] = msgspec.json.decode(reply.data)
        return decoded

    return ask


async def until(look: Callable[[], Awaitable[bool]], *, timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not await look():
            await asyncio.sleep(0.02)


async def holding(api: Api, stream: str, last_seq: int) -> dict[str, Any]:
    """Info of a stream once it has that sequence."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await api(f"STREAM.INFO.{stream}"))
        return bool(found["state"]["last_seq"] >= last_seq)

    await until(look)
    return found


async def contents(nc: Client, stream: str) -> list[tuple[int, str, bytes, str]]:
    messages = [message async for message in nc.jetstream().stream(stream).read(timeout=5)]
    return [(m.seq, m.subject, m.data, m.headers.get("Nats-Stream-Source") or "") for m in messages]


@pytest.mark.spec("DG-06")
async def test_a_mirror_answers_direct_gets_for_its_upstream_and_names_itself(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        up, mirror = f"{fresh}UP", f"{fresh}M"
        await api(f"STREAM.CREATE.{up}", name=up, subjects=[f"{fresh}.>"], allow_direct=True)
        made = await api(f"STREAM.CREATE.{mirror}", name=mirror, mirror={"name": up}, mirror_direct=True)
        assert made["config"]["mirror_direct"] is True
        await nc.jetstream().publish(f"{fresh}.a", b"value")
        await holding(api, mirror, 1)
        subjects = (f"$JS.API.DIRECT.GET.{up}", f"$JS.API.DIRECT.GET.{up}.{fresh}.a")
        for subject, body in zip(subjects, (b'{"seq":1}', b""), strict=True):
            names: set[str] = set()

            async def look(subject: str = subject, body: bytes = body, names: set[str] = names) -> bool:
                reply = await nc.request(subject, body, timeout=5)
                assert reply.data == b"value"
                names.add(reply.headers["Nats-Stream"])
                return names == {up, mirror}

            await until(look)


async def test_a_mirror_keeps_sequences_and_gaps_and_reports_its_upstream(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        up, mirror = f"{fresh}UP", f"{fresh}M"
        await api(f"STREAM.CREATE.{up}", name=up, subjects=[f"{fresh}.>"], allow_direct=True)
        for n in range(1, 8):
            await nc.jetstream().publish(f"{fresh}.{n % 3}", b"%d" % n)
        await api(f"STREAM.PURGE.{up}", seq=3)
        await api(f"STREAM.MSG.DELETE.{up}", seq=5)
        await api(f"STREAM.CREATE.{mirror}", name=mirror, mirror={"name": up}, allow_direct=True)
        info = await holding(api, mirror, 7)
        assert set(info["mirror"]) == {"name", "lag", "active"}
        assert (info["mirror"]["name"], info["mirror"]["lag"]) == (up, 0)
        assert info["config"]["mirror"] == {"name": up}
        assert "subjects" not in info["config"]
        state = info["state"]
        assert (state["first_seq"], state["last_seq"], state["messages"], state["num_deleted"]) == (3, 7, 4, 1)
        assert await contents(nc, mirror) == await contents(nc, up)
        theirs = (await api(f"STREAM.INFO.{up}"))["state"]
        assert (state["first_ts"], state["last_ts"]) == (theirs["first_ts"], theirs["last_ts"])


async def test_filters_and_transforms_of_a_mirror(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        up = f"{fresh}UP"
        await api(f"STREAM.CREATE.{up}", name=up, subjects=[f"{fresh}.>"], allow_direct=True)
        for n in range(1, 8):
            await nc.jetstream().publish(f"{fresh}.{n % 3}", b"%d" % n)
        one, two = f"{fresh}F", f"{fresh}T"
        source: dict[str, Any] = {"name": up, "filter_subject": f"{fresh}.2"}
        await api(f"STREAM.CREATE.{one}", name=one, mirror=source, allow_direct=True)
        transforms = [{"src": f"{fresh}.1", "dest": "x"}, {"src": f"{fresh}.0", "dest": "y.z"}]
        source = {"name": up, "subject_transforms": transforms}
        await api(f"STREAM.CREATE.{two}", name=two, mirror=source, allow_direct=True)
        info = await holding(api, one, 5)
        assert info["mirror"]["filter_subject"] == f"{fresh}.2"
        assert [(seq, subject) for seq, subject, *_ in await contents(nc, one)] == [
            (2, f"{fresh}.2"),
            (5, f"{fresh}.2"),
        ]
        info = await holding(api, two, 7)
        assert info["mirror"]["subject_transforms"] == transforms
        assert [(seq, subject) for seq, subject, *_ in await contents(nc, two)] == [
            (1, "x"), (3, "y.z"), (4, "x"), (6, "y.z"), (7, "x"),
        ]  # fmt: skip


async def test_a_mirror_is_promoted_by_an_update(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        up, mirror = f"{fresh}UP", f"{fresh}M"
        await api(f"STREAM.CREATE.{up}", name=up, subjects=[f"{fresh}.>"])
        await api(f"STREAM.CREATE.{mirror}", name=mirror, mirror={"name": up}, allow_direct=True)
        await nc.jetstream().publish(f"{fresh}.1", b"1")
        await holding(api, mirror, 1)
        refused = await api(f"STREAM.UPDATE.{mirror}", name=mirror, mirror={"name": "OTHER"}, allow_direct=True)
        assert refused["error"]["err_code"] == 10055
        await api(f"STREAM.UPDATE.{mirror}", name=mirror, subjects=[f"{fresh}own.>"], allow_direct=True)
        assert (await nc.jetstream().publish(f"{fresh}own.1", b"2")).seq == 2
        assert "mirror" not in await api(f"STREAM.INFO.{mirror}")


async def test_sources_carry_where_a_message_is_from(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        a, b, all_ = f"{fresh}A", f"{fresh}B", f"{fresh}ALL"
        for name in (a, b):
            await api(f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"], allow_direct=True)
        transforms = [{"src": f"{b}.1", "dest": "mapped"}]
        sources = [{"name": a, "filter_subject": f"{a}.1"}, {"name": b, "subject_transforms": transforms}]
        await api(f"STREAM.CREATE.{all_}", name=all_, sources=sources, allow_direct=True)
        js = nc.jetstream()
        await js.publish(f"{a}.2", b"no")
        await js.publish(f"{a}.1", b"first", expected_last_seq=1)
        await holding(api, all_, 1)
        await js.publish(f"{b}.1", b"second")
        info = await holding(api, all_, 2)
        assert sorted(source["name"] for source in info["sources"]) == [a, b]  # nats-server has them in any order
        assert all(source["lag"] == 0 for source in info["sources"])
        first, second = await contents(nc, all_)
        assert first[:3] == (1, f"{a}.1", b"first")
        assert re.fullmatch(f"{a} 2 {a}.1 > {a}.1 [0-9A-Za-z]{{8}}", first[3])
        assert second[:3] == (2, "mapped", b"second")
        assert re.fullmatch(f"{b} 1 {b}.1 mapped {b}.1 [0-9A-Za-z]{{8}}", second[3])


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
@pytest.mark.parametrize("kind", ["mirror", "sources"])
async def test_mirrors_and_sources_of_streams_that_keep_what_is_wanted(
    any_server: str, fresh: str, retention: str, kind: str
) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        up, copy = f"{fresh}UP", f"{fresh}C"
        await api(f"STREAM.CREATE.{up}", name=up, subjects=[f"{fresh}.>"], retention=retention)
        source = {"name": up}
        config = {kind: source if kind == "mirror" else [source]}
        await api(f"STREAM.CREATE.{copy}", name=copy, allow_direct=True, **config)

        async def connected() -> bool:
            info = await api(f"STREAM.INFO.{copy}")
            return bool((info["mirror"] if kind == "mirror" else info["sources"][0])["active"] >= 0)

        await until(connected)
        for n in range(3):
            await nc.jetstream().publish(f"{fresh}.{n}", b"%d" % n)
        info = await holding(api, copy, 3)
        assert [data for _, _, data, _ in await contents(nc, copy)] == [b"0", b"1", b"2"]
        assert (await api(f"STREAM.INFO.{up}"))["state"]["messages"] == 3
        if kind == "sources":
            assert info["sources"][0]["seq"] == 3


def transformed(name: str, *pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"name": name, "subject_transforms": [{"src": src, "dest": dest} for src, dest in pairs]} | more


BAD_MIRRORS: list[dict[str, Any]] = [
    {"subjects": ["x.y"]},
    {"sources": [{"name": "OTHER"}]},
    {"first_seq": 5},
    {"mirror": {"name": "a.b"}},
    {"mirror": transformed("U", ("b", "c"), filter_subject="a")},
    {"mirror": transformed("U", ("b..c", "c"))},
    {"mirror": transformed("U", ("b", "c.{{wildcard(3)}}"))},
    {"mirror": transformed("U", ("b.*", "c"), ("b.c", "d"))},
    {"mirror": {"name": "U", "external": {"api": "$JS.*.API", "deliver": ""}}},
    {"mirror": {"name": "U", "external": {"api": "$JS.API", "deliver": ""}}},
    {"mirror": {"name": "U", "external": {"api": "$JS.hub.API", "deliver": "d.*"}}},
    {"mirror": {"name": "U", "filter_subject": "a..b"}},
    {"subject_delete_marker_ttl": 2_000_000_000, "allow_msg_ttl": True},
    {"allow_msg_counter": True},
    {"allow_atomic": True},
    {"mirror": None, "sources": [{"name": "U", "filter_subject": "a..b"}]},
    {"mirror": None, "mirror_direct": True},
    {"mirror": None, "sources": [{"name": "A"}, {"name": "A"}]},
    {"mirror": None, "sources": [{"name": "a b"}]},
    {"mirror": None, "sources": [transformed("A", ("y", "z"), filter_subject="x")]},
    {"mirror": None, "sources": [transformed("A", ("y.", "z"))]},
    {"mirror": None, "sources": [transformed("A", ("y", "{{wildcard(1)}}"))]},
    {"mirror": None, "sources": [transformed("A", ("y", "1"), (">", "2.>"))]},
]


async def test_bad_mirrors_and_sources_get_the_same_answers(our_url: str, real_url: str, fresh: str) -> None:
    answers = []
    for url in (our_url, real_url):
        async with connect(url) as nc:
            api = api_of(nc)
            errors = []
            for config in BAD_MIRRORS:
                body = {"name": fresh, "mirror": {"name": "U"}} | config
                found = await api(f"STREAM.CREATE.{fresh}", **{k: v for k, v in body.items() if v is not None})
                errors.append(found.get("error"))
            answers.append(errors)
    assert answers[0] == answers[1]


async def test_a_mirror_of_nothing_is_made_and_waits(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        api = api_of(nc)
        mirror = f"{fresh}M"
        made = await api(f"STREAM.CREATE.{mirror}", name=mirror, mirror={"name": f"{fresh}NONE"})
        assert "error" not in made

        async def look() -> bool:
            error = (await api(f"STREAM.INFO.{mirror}"))["mirror"].get("error")
            return error is not None and error["err_code"] == 10059

        await until(look)
        with pytest.raises(NoStreamError):
            await nc.jetstream().publish(f"{mirror}", b"x", timeout=20)

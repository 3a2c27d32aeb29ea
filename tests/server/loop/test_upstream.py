"""Mirrors and sources of streams on another server: ours and a real one, offline and back again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream import Client, StreamConfig, connect
from slipstream.errors import UsageError
from slipstream.server import Server, Upstream, User
from slipstream.server.engine.ports import Record
from slipstream.server.loop import upstream as upstream_module
from slipstream.server.options import ServerOptions
from slipstream.server.process.flags import apply, parse
from slipstream.server.process.options import ProcessOptions
from slipstream.testing import TestServer
from tests.servers import real_server

S = StreamConfig(name="S", subjects=("s.>",), allow_direct=True)
EXTERNAL = {"api": "$JS.hub.API", "deliver": ""}


async def api(nc: Client, subject: str, /, **body: Any) -> dict[str, Any]:
    reply = await nc.request(f"$JS.API.{subject}", msgspec.json.encode(body) if body else b"", timeout=5)
    decoded: dict[str, Any] = msgspec.json.decode(reply.data)
    return decoded


async def until(look: Callable[[], Awaitable[bool]], *, timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while not await look():
            await asyncio.sleep(0.01)


async def make(nc: Client, name: str = "M", **config: Any) -> None:
    mirror = {"name": "S", "external": EXTERNAL} | config.pop("source", {})
    made = await api(nc, f"STREAM.CREATE.{name}", name=name, mirror=mirror, allow_direct=True, **config)
    assert "error" not in made


async def reaches(nc: Client, seq: int, name: str = "M") -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await api(nc, f"STREAM.INFO.{name}"))
        return bool(found["state"]["last_seq"] >= seq)

    await until(look)
    return found


async def contents(nc: Client, name: str) -> list[tuple[int, int, str, bytes, bytes]]:
    messages = [message async for message in nc.jetstream().stream(name).read(timeout=5)]
    return [(m.seq, m.time, m.subject, m.header, m.data) for m in messages]


async def fill(nc: Client, first: int, last: int) -> None:
    async with nc.jetstream().publisher(timeout=30) as publisher:
        for n in range(first, last + 1):
            await publisher.publish(f"s.{n % 3}", b"%d" % n, headers={"N": str(n)} if n % 10 == 0 else None)


@pytest.mark.spec("DG-07")
async def test_a_mirror_keeps_answering_while_its_upstream_is_offline_and_catches_up(tmp_path: Path) -> None:
    hub = TestServer(data_dir=tmp_path / "hub")
    with hub:
        async with Server(data_dir=tmp_path / "edge", upstreams={"hub": hub.url}) as edge, connect(edge.url) as here:
            async with connect(hub.url) as there:
                await there.jetstream().create_stream(S)
                await fill(there, 1, 2500)
                await api(there, "STREAM.MSG.DELETE.S", seq=7)
                await make(here, mirror_direct=True)
                await reaches(here, 2500)
                expected = await contents(there, "S")
            assert await contents(here, "M") == expected
            hub.stop()
            # Offline: reads go on, under its own name and that of its upstream.
            assert await contents(here, "M") == expected
            reply = await here.request("$JS.API.DIRECT.GET.S", b'{"seq":2500}', timeout=5)
            assert (reply.data, reply.headers["Nats-Stream"]) == (b"2500", "M")
            reply = await here.request("$JS.API.DIRECT.GET.S.s.1", b"", timeout=5)
            assert reply.data == b"2500"

            async def says_so() -> bool:
                return "error" in (await api(here, "STREAM.INFO.M"))["mirror"]

            await until(says_so)
            hub.start()
            async with connect(hub.url) as there:
                await fill(there, 2501, 2600)
                info = await reaches(here, 2600)
                assert "error" not in info["mirror"]
                assert await contents(here, "M") == await contents(there, "S")


async def test_a_mirror_resumes_where_it_stopped(tmp_path: Path) -> None:
    with TestServer() as hub:
        async with connect(hub.url) as there:
            await there.jetstream().create_stream(S)
            await fill(there, 1, 100)
            for last in (100, 150, 200):
                async with (
                    Server(data_dir=tmp_path, upstreams={"$JS.hub.API": [hub.url]}) as edge,
                    connect(edge.url) as here,
                ):
                    if last == 100:
                        await make(here, source={"filter_subject": "s.1"})
                        sources = [{"name": "S", "external": EXTERNAL, "filter_subject": "s.2"}]
                        await api(here, "STREAM.CREATE.ALL", name="ALL", sources=sources, allow_direct=True)
                    await reaches(here, last - (last - 1) % 3)
                    await reaches(here, len(range(2, last + 1, 3)), "ALL")
                    expected = [entry for entry in await contents(there, "S") if entry[2] == "s.1"]
                    assert await contents(here, "M") == expected
                    assert [entry[4] for entry in await contents(here, "ALL")] == [
                        b"%d" % n for n in range(2, last + 1, 3)
                    ]
                await fill(there, last + 1, last + 50)


@pytest.mark.parametrize("direct", [True, False])
async def test_a_mirror_of_a_stream_on_a_real_server(direct: bool) -> None:
    with real_server() as url:
        async with (
            Server(upstreams={"hub": Upstream(servers=url)}) as edge,
            connect(edge.url) as here,
            connect(url) as there,
        ):
            await there.jetstream().create_stream(S.replace(allow_direct=direct))
            await fill(there, 1, 300)
            await api(there, "STREAM.PURGE.S", seq=20)
            await make(here)
            transforms = [{"src": "s.1", "dest": "one"}, {"src": "s.2", "dest": "two"}]
            await make(here, "T", source={"subject_transforms": transforms, "opt_start_seq": 290})
            begin = (await api(there, "STREAM.INFO.S"))["state"]["last_ts"]
            await make(here, "LATE", source={"opt_start_time": begin})
            await reaches(here, 300)
            await fill(there, 301, 310)
            await reaches(here, 310)
            await there.jetstream().update_stream(S)
            assert await contents(here, "M") == await contents(there, "S")
            await reaches(here, 310, "T")
            assert [(seq, subject) for seq, _, subject, *_ in await contents(here, "T")] == [
                (n, "one" if n % 3 == 1 else "two") for n in range(290, 311) if n % 3
            ]
            await reaches(here, 310, "LATE")
            first = (await contents(here, "LATE"))[0][0]
            assert 280 <= first <= 300  # those that were stored at the same time as the last


async def test_what_a_filter_leaves_out_counts_as_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that asks for a sequence which the mirror was not interested in is answered all the same."""
    monkeypatch.setattr(upstream_module, "IDLE", 0.05)
    with real_server() as url:
        async with Server(upstreams={"hub": url}) as edge, connect(edge.url) as here, connect(url) as there:
            await there.jetstream().create_stream(S)
            await fill(there, 1, 10)
            await make(here, source={"filter_subject": "s.1"})
            await reaches(here, 10)
            await there.jetstream().publish("s.2", b"")
            ack = await there.jetstream().publish("s.2", b"")
            found = await here.jetstream().stream("M").get_last("s.1", min_last_seq=ack.seq, timeout=10)
            assert found.seq == 10
            # Deleted and made again upstream: told, and not mixed up.
            await there.jetstream().stream("S").delete()
            await there.jetstream().create_stream(S)
            await there.jetstream().publish("s.1", b"new")

            async def says_so() -> bool:
                error = (await api(here, "STREAM.INFO.M"))["mirror"].get("error")
                return error is not None and "recreated" in error["description"]

            await until(says_so)
            assert (await api(here, "STREAM.INFO.M"))["state"]["last_seq"] == 10


@pytest.mark.parametrize("direct", [True, False])
async def test_a_work_queue_without_a_second_consumer_is_mirrored_all_the_same(direct: bool) -> None:
    with TestServer() as hub:
        async with (
            Server(upstreams={"hub": hub.url}) as edge,
            connect(edge.url) as here,
            connect(hub.url) as there,
        ):
            queue = S.replace(retention="workqueue", allow_direct=direct)
            stream = await there.jetstream().create_stream(queue)
            await stream.create_consumer("worker")
            await fill(there, 1, 30)
            await make(here)
            await reaches(here, 30)
            for n in range(31, 36):  # one by one: news are waited for
                await fill(there, n, n)
                await reaches(here, n)
            assert [seq for seq, *_ in await contents(here, "M")] == list(range(1, 36))


async def test_mirrors_of_the_upstream_are_not_taken_for_it() -> None:
    """They answer Direct Gets for it, and may lack what they were never given or what was deleted there."""
    with TestServer() as hub:
        async with (
            Server(upstreams={"hub": hub.url}) as edge,
            connect(edge.url) as here,
            connect(hub.url) as there,
        ):
            await there.jetstream().create_stream(S)
            made = await api(there, "STREAM.CREATE.COPY", name="COPY", mirror={"name": "S"}, mirror_direct=True)
            assert made["config"]["mirror_direct"]
            await fill(there, 1, 200)
            await reaches(there, 200, "COPY")
            await api(there, "STREAM.PURGE.COPY", keep=10)
            for n in range(5):
                await make(here, f"M{n}")
            for n in range(5):
                await reaches(here, 200, f"M{n}")
                assert len(await contents(here, f"M{n}")) == 200


async def test_a_held_mirror_of_another_server_stays_where_it_is() -> None:
    with (
        TestServer() as hub,
        TestServer(server=Server(faults=True, upstreams={"hub": hub.url})) as edge,
    ):
        async with connect(hub.url) as there, connect(edge.url) as here:
            await there.jetstream().create_stream(S)
            await make(here)
            await fill(there, 1, 5)
            await reaches(here, 5)
            edge.hold_mirror("M")
            await fill(there, 6, 9)
            await asyncio.sleep(0.2)
            assert (await api(here, "STREAM.INFO.M"))["state"]["last_seq"] == 5
            edge.cut_mirror("M")
            assert (await api(here, "STREAM.INFO.M"))["mirror"]["error"]["code"] == 503
            edge.release_mirror("M")
            info = await reaches(here, 9)
            assert info["mirror"]["name"] == "S"
            assert info["mirror"]["external"] == EXTERNAL


async def test_a_login_is_used_and_an_unknown_upstream_is_reported() -> None:
    with Server(users=[User(name="edge", password="secret")]) as hub:
        async with (
            Server(upstreams={"hub": Upstream(servers=hub.url, user="edge", password="secret")}) as edge,
            connect(edge.url) as here,
            connect(hub.url, user="edge", password="secret") as there,
        ):
            await there.jetstream().create_stream(S)
            await fill(there, 1, 3)
            await make(here)
            await reaches(here, 3)
            await make(here, "LOST", source={"external": {"api": "$JS.other.API", "deliver": ""}})
            await make(here, "NONE", source={"name": "NONE"})

            async def says_so(name: str, code: int) -> bool:
                error = (await api(here, f"STREAM.INFO.{name}"))["mirror"].get("error")
                return error is not None and error["err_code"] == code

            await until(lambda: says_so("LOST", 10029))
            error = (await api(here, "STREAM.INFO.LOST"))["mirror"]["error"]["description"]
            assert error == "no upstream is configured for '$JS.other.API'"  # and none that is
            await until(lambda: says_so("NONE", 10059))
            # An upstream of that name that comes later is found; a mirror that is deleted is read no more.
            await there.jetstream().create_stream(S.replace(name="NONE", subjects=("none.>",)))
            await there.jetstream().publish("none.1")
            await reaches(here, 1, "NONE")
            await api(here, "STREAM.DELETE.NONE")
    assert "secret" not in repr(Upstream(servers=hub.url, password="secret"))


async def test_an_account_reads_only_the_upstreams_that_it_was_given(caplog: pytest.LogCaptureFixture) -> None:
    """The server's login at the hub is not for everybody who may create a stream."""
    users = [User(name=name, password="pw", account=name) for name in ("A", "B", "C", "$G")]
    with Server(users=[User(name="edge", password="secret")]) as hub, socket.create_server(("127.0.0.1", 0)) as gone:
        closed = f"nats://127.0.0.1:{gone.getsockname()[1]}"
        gone.close()
        login: dict[str, Any] = {"user": "edge", "password": "secret"}
        upstreams = {
            "hub": Upstream(servers=hub.url, **login),
            "mine": Upstream(servers=hub.url, accounts="A", **login),
            "ours": Upstream(servers=hub.url, accounts=["A", "B"], **login),
            "open": Upstream(servers=hub.url, accounts="*", **login),
            "gone": Upstream(servers=closed, accounts="*"),
        }
        async with (
            Server(users=users, upstreams=upstreams) as edge,
            connect(hub.url, **login) as there,
        ):
            await there.jetstream().create_stream(S)
            await fill(there, 1, 3)
            seen: dict[str, list[str]] = {}
            for account in ("A", "B", "C", "$G"):
                async with connect(edge.url, user=account, password="pw") as here:
                    for name in upstreams:
                        external = {"api": f"$JS.{name}.API", "deliver": ""}
                        await make(here, f"M_{name}", source={"external": external})

                    async def outcome(here: Client, name: str) -> str:
                        while True:
                            info = await api(here, f"STREAM.INFO.M_{name}")
                            if info["state"]["messages"] == 3:
                                return "read"
                            if error := info["mirror"].get("error"):
                                return str(error["description"])
                            await asyncio.sleep(0.01)

                    async with asyncio.timeout(30):
                        found = [await outcome(here, name) for name in upstreams]
                    seen[account] = ["-" if "no upstream is configured for" in one else one for one in found]
                    assert not any(text in "".join(found) for text in ("127.0.0.1", "nats://", "secret", "edge"))
    unreachable = "upstream '$JS.gone.API' cannot be reached"
    assert seen == {
        "A": ["-", "read", "read", "read", unreachable],
        "B": ["-", "-", "read", "read", unreachable],
        "C": ["-", "-", "-", "read", unreachable],
        "$G": ["read", "-", "-", "read", unreachable],
    }
    assert "upstream $JS.gone.API cannot be read for stream S: " in caplog.text  # the log says why
    assert "secret" not in caplog.text


def test_no_repr_shows_the_secrets_of_an_upstream() -> None:
    upstream = Upstream(servers=["nats://u:SECRET@h", "TOKEN@i"], password="PASS", accounts="A")
    assert repr(upstream) == "Upstream(servers='nats://***@h,***@i', accounts=('A',))"
    shown = repr(ServerOptions(upstreams={"hub": upstream, "b": "nats://u:SECRET@h"}, password="PASS", user="u"))
    assert not any(secret in shown for secret in ("SECRET", "TOKEN", "PASS"))
    with pytest.raises(UsageError, match=r"got '\*\*\*@x'") as wrong:
        apply(parse(["--upstream", "=nats://u:SECRET@x"]), ProcessOptions())
    assert "SECRET" not in str(wrong.value)
    with pytest.raises(UsageError, match="account name must be printable"):
        Upstream(servers="nats://h", accounts=["a b"])


def test_upstreams_on_the_command_line() -> None:
    flags = parse(["-js", "--upstream", "hub=nats://hub:4222,$JS.x.API=nats://x"])
    assert apply(flags, ProcessOptions()).server.upstreams == {
        "$JS.hub.API": Upstream(servers="nats://hub:4222"),
        "$JS.x.API": Upstream(servers="nats://x"),
    }
    for bad in ("hub", "=nats://x", "hub="):
        with pytest.raises(UsageError, match="--upstream must be NAME=URL"):
            apply(parse(["--upstream", bad]), ProcessOptions())


def test_an_upstream_needs_a_name() -> None:
    with pytest.raises(UsageError, match="the name of an upstream must be"):
        Server(upstreams={"": "nats://127.0.0.1"})


async def test_much_is_fetched_without_starving_the_clients(tmp_path: Path) -> None:
    with TestServer(data_dir=tmp_path / "hub") as hub:
        async with connect(hub.url) as there:
            await there.jetstream().create_stream(S)
            await fill(there, 1, 30_000)
            async with Server(data_dir=tmp_path / "edge", upstreams={"hub": hub.url}) as edge, connect(edge.url) as nc:
                await make(nc)
                await reaches(nc, 30_000)
                assert (await api(nc, "STREAM.INFO.M"))["state"]["messages"] == 30_000


async def sources(nc: Client, **config: Any) -> None:
    source = {"name": "S", "external": EXTERNAL}
    made = await api(nc, "STREAM.CREATE.Q", name="Q", sources=[source], allow_direct=True, **config)
    assert "error" not in made


@pytest.mark.parametrize("direct", [True, False])
async def test_what_a_full_stream_refuses_is_taken_later(direct: bool) -> None:
    with Server() as hub, Server(upstreams={"hub": hub.url}) as edge:
        async with connect(hub.url) as there, connect(edge.url) as here:
            await there.jetstream().create_stream(S.replace(allow_direct=direct))
            await fill(there, 1, 10)
            await sources(here, max_msgs=5, discard="new")
            seen: list[bytes] = []
            for last in (5, 10, 12):  # the last two come while it is full, by the consumer that follows
                await reaches(here, last, "Q")
                if last == 5:
                    await fill(there, 11, 12)
                seen += [data for _, _, _, _, data in await contents(here, "Q")]
                await api(here, "STREAM.PURGE.Q")
            assert seen == [b"%d" % n for n in range(1, 13)]


async def test_an_upstream_stream_created_again_during_an_outage_is_not_confused_with_the_old_one() -> None:
    hub = TestServer()
    hub.start()
    with Server(upstreams={"hub": hub.url}) as edge:
        async with connect(edge.url) as here:
            async with connect(hub.url) as there:
                await there.jetstream().create_stream(S)
                await fill(there, 1, 3)
                await sources(here)
                await reaches(here, 3, "Q")
                await asyncio.sleep(0.3)  # it follows
            await asyncio.to_thread(hub.restart)
            async with connect(hub.url) as there:
                await there.jetstream().create_stream(S)
                for n in range(101, 131):
                    await fill(there, n, n)
                    await asyncio.sleep(0.05)
            await reaches(here, 33, "Q")
            await asyncio.sleep(upstream_module.IDLE + 0.5)  # it looks again
            found = [int(data) for _, _, _, _, data in await contents(here, "Q")]
            assert found == [1, 2, 3, *range(101, 131)]
    hub.stop()


@contextmanager
def hub_of(kind: str) -> Iterator[str]:
    if kind == "real":
        with real_server() as url:
            yield url
    else:
        with TestServer() as hub:
            yield hub.url


async def trusted(nc: Client, subject: str, wanted: int, stream: str = "S") -> tuple[int | None, bytes]:
    """Status and payload of a read with `min_last_seq`."""
    body = b'{"last_by_subj":"%b","min_last_seq":%d}' % (subject.encode(), wanted)
    reply = await nc.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=5)
    return (reply.status.code if reply.status is not None else None), reply.data


@pytest.mark.spec("RW-08", "RW-19", on="E")
@pytest.mark.parametrize("kind", ["ours", "real"])
async def test_a_mirror_of_another_server_that_catches_up_answers_only_as_of_what_it_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = upstream_module.Reader._offer

    async def slowly(reader: upstream_module.Reader, records: list[Record], up_to: int, last: int) -> bool:
        done = await offer(reader, records, up_to, last)
        await asyncio.sleep(0.01)
        return done

    monkeypatch.setattr(upstream_module.Reader, "_offer", slowly)
    monkeypatch.setattr(upstream_module, "CHUNK", 1)
    monkeypatch.setattr(upstream_module, "IDLE", 0.05)
    limits: dict[str, Any] = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True}
    keys = [f"s.{n}" for n in range(30)]
    with hub_of(kind) as url:
        edge = TestServer(server=Server(upstreams={"hub": url}, faults=True))
        with edge:
            async with connect(edge.url) as here, connect(url) as there:
                await there.jetstream().create_stream(S.replace(**limits))
                await make(here, mirror_direct=True, **limits)
                for key in keys:
                    await there.jetstream().publish(key, b"1")
                await reaches(here, len(keys))
                edge.hold_mirror("M")
                for n in (b"2", b"3"):
                    for key in keys:
                        await there.jetstream().publish(key, n)
                wanted = 2 * len(keys)
                edge.release_mirror("M")
                seen: set[tuple[int | None, bytes]] = set()
                async with asyncio.timeout(30):
                    while seen != {(None, b"3")}:
                        reads = [trusted(here, key, wanted, stream) for key in keys for stream in ("S", "M")]
                        seen = set(await asyncio.gather(*reads))
                        assert seen <= {(None, b"2"), (None, b"3"), (412, b"")}
                assert await trusted(here, keys[0], 3 * len(keys)) == (None, b"3")


@pytest.mark.spec("RW-19", on="E")
async def test_a_mirror_of_a_deleted_stream_of_another_server_does_not_answer_for_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_module, "IDLE", 0.05)
    with real_server() as url:
        async with Server(upstreams={"hub": url}) as edge, connect(edge.url) as here, connect(url) as there:
            await there.jetstream().create_stream(S)
            await make(here, mirror_direct=True)
            for _ in range(5):
                await there.jetstream().publish("s.1", b"OLD")
            await reaches(here, 5)

            async def answers() -> bool:
                return await trusted(here, "s.1", 5) == (None, b"OLD")

            await until(answers)
            await there.jetstream().stream("S").delete()
            await there.jetstream().create_stream(S)
            await there.jetstream().publish("s.1", b"NEW")

            async def rejects() -> bool:
                return await trusted(here, "s.1", 1) == (412, b"")

            await until(rejects)
            await fill(there, 2, 10)
            await reaches(here, 10)
            assert await trusted(here, "s.1", 1) == (412, b"")
            assert await trusted(here, "s.1", 1, "M") == (412, b"")
            reply = await here.request("$JS.API.DIRECT.GET.S.s.1", b"", timeout=5)
            assert reply.status is None  # plain reads ask for nothing

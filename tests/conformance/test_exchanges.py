"""The protocol listings of the pull document, frame by frame, on both servers: what is sent and what comes back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from slipstream import ConsumerConfig, StreamConfig, connect
from slipstream.errors import ConsumerGoneError, PullRefusedError, RequestTimeoutError
from slipstream.facade._async.client import Client
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.stream import Stream
from slipstream.wire import Msg, Parser, Side
from tests.conformance.test_pull import fetch_answered
from tests.proxy import Proxy, proxy_to


class Bench(NamedTuple):
    """A consumer `dur` read through a proxy, and a connection of its own for everything else."""

    proxy: Proxy
    nc: Client
    consumer: Consumer
    stream: Stream
    direct: Client

    def frames(self) -> list[str]:
        """What the client sent since the last look, a line each; inboxes are numbered in the order they appear.

        PINGs and PONGs are left out: they are of the core protocol, sent when a timer says so.
        """
        text = bytes(self.proxy.sent).decode()
        self.proxy.sent.clear()
        known: dict[str, str] = {}

        def number(found: re.Match[str]) -> str:
            return known.setdefault(found[0], f"_INBOX.{len(known) + 1}")

        lines = re.sub(r"_INBOX\.[0-9a-z]+\.\w+", number, text).replace(self.stream.name, "bar").splitlines()
        return [line for line in lines if line not in ("PING", "PONG")]


@asynccontextmanager
async def bench(url: str, name: str, count: int = 0, **fields: object) -> AsyncIterator[Bench]:
    async with connect(url) as direct, proxy_to(url) as proxy, connect(proxy.url) as nc:
        stream = await direct.jetstream().create_stream(StreamConfig(name=name, subjects=(f"{name}.>", name)))
        for n in range(count):
            await direct.jetstream().publish(name, b"%d" % n)
        await stream.create_consumer(ConsumerConfig(durable_name="dur").replace(**fields))
        consumer = await nc.jetstream().stream(name).consumer("dur")
        await nc.flush()
        proxy.sent.clear()
        proxy.received.clear()
        yield Bench(proxy, nc, consumer, stream, direct)


async def raw_pull(at: Bench, body: bytes, *, count: int, timeout: float = 5.0) -> list[Msg]:
    """Send one pull request by hand and collect `count` frames of its answer."""
    inbox = await at.direct.subscribe(at.direct.new_inbox())
    await at.direct.publish(f"$JS.API.CONSUMER.MSG.NEXT.{at.stream.name}.dur", body, reply=inbox.subject)
    frames = [(await inbox.next(timeout=timeout)).raw for _ in range(count)]
    await inbox.unsubscribe()
    return frames


async def nothing_waits(at: Bench) -> None:
    """Until the server has ended all requests: one whose caller did not hear of its end in time counts till then."""
    async with asyncio.timeout(20):
        while (await at.stream.consumer("dur")).cached_info.num_waiting:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)


def received(proxy: Proxy) -> list[Msg]:
    """The messages that the client got since the last look."""
    events = Parser(Side.SERVER).feed(bytes(proxy.received))
    proxy.received.clear()
    return [event for event in events if isinstance(event, Msg)]


@pytest.mark.spec("PS-01")
async def test_an_empty_pull_is_a_pull_of_one(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh, 3) as at:
        for number, body in enumerate((b"", b'{"batch":1}', b"{}"), start=1):
            (only,) = await raw_pull(at, body, count=1)
            assert only.subject == fresh
            assert re.fullmatch(rf"\$JS\.ACK\.{fresh}\.dur\.1\.{number}\.{number}\.\d+\.{3 - number}", only.reply)
        with pytest.raises(RequestTimeoutError):
            await at.consumer.next(timeout=0.2)
        await at.nc.flush()  # through the proxy
        first = at.frames()
        assert first[0] == "SUB _INBOX.1.* 2"
        assert first[1].startswith("PUB $JS.API.CONSUMER.MSG.NEXT.bar.dur _INBOX.1")


@pytest.mark.spec("PS-02")
async def test_the_fields_of_a_pull(any_server: str, fresh: str, is_real: bool) -> None:
    async with bench(any_server, fresh, 3) as at:
        loop = asyncio.get_running_loop()
        got = await raw_pull(at, b'{"batch":2}', count=2)
        assert [frame.payload for frame in got] == [b"0", b"1"]
        begin = loop.time()
        one, end = await raw_pull(at, b'{"batch":2,"expires":300000000}', count=2)
        assert one.payload == b"2"
        assert end.header.startswith(b"NATS/1.0 408 Request Timeout\r\n")
        assert loop.time() - begin > 0.25
        # As if it were not there: it lingers. (nats-server ends a negative one at once with 408, unlike the document.)
        for expires in (b"0",) if is_real else (b"0", b"-5"):
            pull = asyncio.create_task(raw_pull(at, b'{"batch":1,"expires":%b}' % expires, count=1))
            await asyncio.sleep(0.1)
            assert not pull.done()
            await at.direct.jetstream().publish(fresh, b"x")
            assert (await pull)[0].payload == b"x"
        if not is_real:  # there `no_wait` with `expires` is a request that waits for its first message
            (nothing,) = await raw_pull(at, b'{"batch":1,"no_wait":true,"expires":20000000000}', count=1)
            assert nothing.header.startswith(b"NATS/1.0 404 No Messages\r\n")
        (nothing,) = await raw_pull(at, b'{"batch":1,"no_wait":true}', count=1)
        assert nothing.header.startswith(b"NATS/1.0 404 No Messages\r\n")
        # Our client never sends a `no_wait` with an `expires`, nor a batch under 1.
        assert await fetch_answered(at.consumer, 5, timeout=2) == []
        await nothing_waits(at)
        at.frames()
        task = asyncio.create_task(at.consumer.fetch(5, timeout=20))
        while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bodies = [line for line in at.frames() if line.startswith("{")]
        assert bodies[0] == '{"batch":5,"no_wait":true}'
        assert re.fullmatch(r'\{"expires":1[0-9]{10},"batch":5\}', bodies[1])


@pytest.mark.spec("PS-07")
async def test_no_wait_answers_at_once(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh, 2) as at:
        one, two, end = await raw_pull(at, b'{"batch":5,"no_wait":true}', count=3)
        assert (one.payload, two.payload) == (b"0", b"1")
        assert end.header.startswith(b"NATS/1.0 404 No Messages\r\n")
        (end,) = await raw_pull(at, b'{"batch":1,"no_wait":true}', count=1)
        assert end.header == b"NATS/1.0 404 No Messages\r\n\r\n"  # 28 bytes, as in the document
        assert len(end.header) == 28
        assert await fetch_answered(at.consumer, 3) == []


@pytest.mark.spec("PS-08", "PS-09")
async def test_pull_n_as_in_the_listing(any_server: str, fresh: str) -> None:
    """No wait, 404, UNSUB after batch + 1, the long request; one of five messages, and the early UNSUB."""
    for attempt in range(10):
        async with bench(any_server, f"{fresh}{attempt}") as at:
            if await fetch_one_of_five(at):
                await fetch_all_of_two(at)
                return
    pytest.fail("the server's 408 never arrived within the 100 ms that it has")


async def fetch_one_of_five(at: Bench) -> bool:
    """False if this machine took longer than the 100 ms between the server's 408 and the caller's deadline."""
    begin = at.nc.now()
    task = asyncio.create_task(at.consumer.fetch(5, timeout=2.0))
    while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    frames, spent = at.frames(), at.nc.now() - begin
    assert frames[:5] == [
        "SUB _INBOX.1 2",
        "PUB $JS.API.CONSUMER.MSG.NEXT.bar.dur _INBOX.1 26",
        '{"batch":5,"no_wait":true}',
        "UNSUB 2 6",
        "PUB $JS.API.CONSUMER.MSG.NEXT.bar.dur _INBOX.1 32",
    ]
    linger = re.fullmatch(r'\{"expires":(\d+),"batch":5\}', frames[5])
    assert linger is not None
    assert 1.9 - spent <= int(linger[1]) / 1e9 <= 1.9  # 100 ms before the caller's deadline
    await at.direct.jetstream().publish(at.stream.name, b"helo")
    (only,) = await task
    assert only.data == b"helo"
    await at.nc.flush()
    frames, (status, message, *end) = at.frames(), received(at.proxy)
    assert status.header == b"NATS/1.0 404 No Messages\r\n\r\n"
    assert (message.subject, message.payload) == (at.stream.name, b"helo")
    assert frames == ["UNSUB 2"]
    if not end:  # the deadline came first
        return False
    assert [one.header.split(b"\r\n")[0] for one in end] == [b"NATS/1.0 408 Request Timeout"]
    return True


async def fetch_all_of_two(at: Bench) -> None:
    """A fetch that gets all it wants ends by the count alone: the server drops the interest with the last message."""
    task = asyncio.create_task(at.consumer.fetch(2, timeout=10))
    while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    at.frames()
    for n in range(3):
        await at.direct.jetstream().publish(at.stream.name, b"%d" % n)
    assert [message.data for message in await task] == [b"0", b"1"]
    await at.nc.flush()
    assert at.frames() == []
    info = await at.consumer.info()
    assert (info.num_ack_pending, info.num_pending, info.num_waiting) == (3, 1, 0)


async def test_a_fetch_given_up_leaves_no_interest_behind(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh) as at:
        task = asyncio.create_task(at.consumer.fetch(5, timeout=20))
        while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await at.nc.flush()
        assert "UNSUB 2" in at.frames()
        await at.direct.jetstream().publish(fresh, b"1")
        assert [m.data for m in await (await at.stream.consumer("dur")).fetch(1, timeout=5)] == [b"1"]


@pytest.mark.spec("PS-10")
async def test_statuses_end_a_fetch_or_are_errors_never_messages(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh, 1, max_waiting=1) as at:
        assert [m.data for m in await at.consumer.fetch(5, timeout=20)] == [b"0"]  # ended by a 404 behind it
        while True:
            with suppress(RequestTimeoutError):  # the 408 has 100 ms until the deadline
                assert await at.consumer.fetch(5, timeout=1) == []  # 404, 408
                break
            await nothing_waits(at)
        with pytest.raises(RequestTimeoutError):
            await at.consumer.next(timeout=0.3)
        await nothing_waits(at)
        task = asyncio.create_task(at.consumer.fetch(5, timeout=20))
        while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        with pytest.raises(PullRefusedError):  # 409
            await at.consumer.fetch(5, timeout=5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        at.proxy.fault = lambda frame: [] if b"404 No Messages" in frame or b"408 " in frame[:80] else [frame]
        await at.stream.create_consumer(ConsumerConfig(durable_name="other", deliver_policy="new"))
        other = await at.nc.jetstream().stream(fresh).consumer("other")
        with pytest.raises(RequestTimeoutError):  # nobody says anything
            await other.fetch(5, timeout=0.3)
        at.proxy.fault = lambda frame: [replaced(frame)]
        with pytest.raises(PullRefusedError, match="400 Bad Request"):
            await other.fetch(5, timeout=5)
        at.proxy.fault = lambda frame: [frame]
        await at.consumer.delete()
        with pytest.raises(ConsumerGoneError, match="503"):  # no responders
            await at.consumer.fetch(5, timeout=5)


def replaced(frame: bytes) -> bytes:
    """A 404 of 28 bytes becomes a 400 of 28 bytes."""
    return frame.replace(b"404 No Messages", b"400 Bad Request")


# F20: a statement of the document that had no row.
@pytest.mark.spec("PS-11", "PS-51")
async def test_pull_one_has_one_inbox_for_all(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh, 3) as at:
        for n in range(3):
            (message,) = await at.consumer.fetch(1)
            assert message.data == b"%d" % n
        pull = "PUB $JS.API.CONSUMER.MSG.NEXT.bar.dur _INBOX.1"
        body = '{"batch":1,"no_wait":true}'
        assert at.frames() == ["SUB _INBOX.1.* 2", f"{pull}.1 26", body, f"{pull}.2 26", body, f"{pull}.3 26", body]
        task = asyncio.create_task(at.consumer.fetch(1, timeout=20))  # then a longer request, on the same inbox
        while (await at.stream.consumer("dur")).cached_info.num_waiting == 0:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        await at.direct.jetstream().publish(fresh, b"3")
        assert [message.data for message in await task] == [b"3"]
        await at.direct.jetstream().publish(fresh, b"4")
        assert (await at.consumer.next()).data == b"4"
        later = at.frames()
        assert later[0] == f"{pull}.4 26"
        assert later[2].startswith(f"{pull}.5 ")
        assert re.fullmatch(r'\{"expires":1[0-9]{10},"batch":1\}', later[3])
        assert not [line for line in later if line.startswith(("SUB", "UNSUB"))]
        await expire_on_the_same_inbox(at)
        other = await at.nc.jetstream().stream(fresh).consumer("dur")
        at.frames()
        with pytest.raises(RequestTimeoutError):
            await other.next(timeout=0.1)
        await at.nc.flush()  # through the proxy
        assert at.frames()[0].startswith("SUB _INBOX.1.* 3")  # each pull subscriber has its own


async def expire_on_the_same_inbox(at: Bench) -> None:
    """A 408 leaves the inbox as it is: another one is made only where no answer came by the deadline."""
    for n in range(10):
        assert await fetch_answered(at.consumer, 1, timeout=2) == []
        await at.direct.jetstream().publish(at.stream.name, b"%d" % n)
        assert (await at.consumer.next()).data == b"%d" % n
        verbs = [line.split(" ", 1)[0] for line in at.frames()[::2]]
        if verbs == ["PUB", "PUB", "PUB"]:
            return
    pytest.fail("the server's 408 never arrived within the 100 ms that it has")


@pytest.mark.spec("PS-13")
async def test_continuous_pulls_overlap_with_bytes_heartbeats_and_what_is_left(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh, 40) as at:
        got: list[bytes] = []
        async for message in at.consumer.messages(max_messages=10, threshold=5, expires=10, heartbeat=4):
            got.append(message.data)
            if len(got) == 40:
                break
        assert got == [b"%d" % n for n in range(40)]
        await at.nc.flush()
        asked = [int(n) for n in re.findall(r'"batch":(\d+)', "\n".join(at.frames()))]
        assert asked[0] == 10
        assert set(asked[1:]) <= set(range(5, 11))
        assert 40 <= sum(asked) <= 50  # never more than ten are asked for and not here
        at.proxy.received.clear()
        assert [m async for m in at.consumer.messages(max_messages=10, expires=1, heartbeat=0.4, idle_timeout=3)] == []
        frames = received(at.proxy)
        assert [f for f in frames if f.header.startswith(b"NATS/1.0 100 Idle Heartbeat")]
        ended = [f.header for f in frames if f.header.startswith(b"NATS/1.0 408 Request Timeout")]
        assert b"Nats-Pending-Messages: 10\r\nNats-Pending-Bytes: 0\r\n" in ended[0]
        await at.nc.flush()  # the server knows that nobody waits any more
        for _ in range(4):
            await at.direct.jetstream().publish(fresh, b"x" * 400)
        first = await at.consumer.fetch(4, max_bytes=1_000)
        assert len(first) == 2
        rest = 0
        async for chunk in at.consumer.chunks(max_bytes=1_200, idle_timeout=20):
            rest += len(chunk)
            if rest >= 2:
                break
        assert rest == 2


@pytest.mark.spec("PS-04")
async def test_a_pull_request_lasts_until_it_is_filled_expires_or_loses_its_inbox(any_server: str, fresh: str) -> None:
    async with bench(any_server, fresh) as at:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{fresh}.dur"
        js = at.direct.jetstream()

        async def waiting(count: int) -> None:
            async with asyncio.timeout(10):
                while (await at.consumer.info()).num_waiting != count:
                    await asyncio.sleep(0.02)

        inbox = await at.direct.subscribe(at.direct.new_inbox())
        await at.direct.publish(subject, b'{"batch":2}', reply=inbox.subject)
        await waiting(1)
        await js.publish(fresh, b"1")
        assert (await inbox.next()).data == b"1"
        await waiting(1)  # one is still missing
        await js.publish(fresh, b"2")
        assert (await inbox.next()).data == b"2"
        await waiting(0)  # filled
        await at.direct.publish(subject, b'{"batch":1,"expires":200000000}', reply=inbox.subject)
        ended = await inbox.next()
        assert ended.status is not None
        assert ended.status.code == 408
        await waiting(0)  # expired
        await at.direct.publish(subject, b'{"batch":1}', reply=inbox.subject)
        await waiting(1)
        await inbox.unsubscribe()
        await at.direct.flush()
        await js.publish(fresh, b"3")
        (third,) = await at.consumer.fetch(1)  # not sent to an inbox that is gone
        assert (third.data, third.num_delivered) == (b"3", 1)
        await waiting(0)
        async with connect(any_server) as other:
            gone = await other.subscribe(other.new_inbox())
            await other.publish(subject, b'{"batch":1}', reply=gone.subject)
            await waiting(1)
        await js.publish(fresh, b"4")
        (fourth,) = await at.consumer.fetch(1)  # nor to a client that is gone
        assert (fourth.data, fourth.num_delivered) == (b"4", 1)
        await waiting(0)

"""Services: discovery, requests, errors, counters and ends, on our server and on the real one."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipstream import Client, ClientEvent, EndpointStats, MessagePack, ServiceRequest, connect
from slipstream.errors import (
    AuthorizationError,
    Error,
    NoRespondersError,
    RemoteProtocolError,
    RequestTimeoutError,
    ServiceError,
    UsageError,
)
from slipstream.server import Permissions, Server, User
from tests._async.concurrency import sleep, spawn, until
from tests.servers import OurProcess, RealProcess, real_server

DENYING = """authorization { users = [
    {user: root, password: pw}
    {user: silent, password: pw, permissions: {subscribe: {deny: ["$SRV.>"]}}}
    {user: narrow, password: pw, permissions: {subscribe: {deny: ["secret.>"]}}}
]}"""
USERS = (
    User(name="root", password="pw"),
    User(name="silent", password="pw", permissions=Permissions(subscribe_deny=("$SRV.>",))),
    User(name="narrow", password="pw", permissions=Permissions(subscribe_deny=("secret.>",))),
)


@dataclass
class Numbers:
    a: int
    b: int


@dataclass
class Sum:
    total: int


async def add(numbers: Numbers) -> Sum:
    return Sum(numbers.a + numbers.b)


async def echo(request: ServiceRequest) -> None:
    await request.respond(request.data, headers=request.headers)


async def has_no_responders(nc: Client, subject: str) -> bool:
    try:
        await nc.request(subject, b"y", timeout=0.05)
    except NoRespondersError:
        return True
    except RequestTimeoutError:
        return False
    return False


class Held:
    """A handler that does not return before it is released."""

    def __init__(self) -> None:
        self.running = 0
        self.is_released = False

    async def __call__(self, request: ServiceRequest) -> bytes:
        self.running += 1
        await until(lambda: self.is_released)
        return request.data


async def test_instances_are_found_by_verb_name_and_id(any_server: str, fresh: str) -> None:
    began = datetime.now(UTC)
    async with connect(any_server) as nc, connect(any_server) as other:
        one = await nc.add_service(fresh, "1.2.3-rc.1+b7", description="words", metadata={"region": "eu"})
        two = await other.add_service(fresh, "2.0.0")
        await one.add_endpoint("add", add, metadata={"schema": "numbers"})
        found = {info.id: info async for info in nc.services.list()}
        assert found[one.id] == one.info()
        assert found[two.id] == two.info()
        assert {info.id async for info in nc.services.info(fresh)} == {one.id, two.id}
        assert [info async for info in nc.services.info(fresh, one.id)] == [one.info()]
        assert {ping.id: ping.version async for ping in nc.services.ping(fresh)} == {
            one.id: "1.2.3-rc.1+b7",
            two.id: "2.0.0",
        }
        assert None not in [ping.rtt async for ping in nc.services.ping(fresh)]
        (stats,) = [stats async for stats in nc.services.stats(fresh, one.id)]
        assert stats == one.stats()
        assert began <= stats.started <= datetime.now(UTC)
        info = one.info()
        assert (info.description, dict(info.metadata), len(info.endpoints)) == ("words", {"region": "eu"}, 1)
        assert info.endpoints[0].to_dict() == {
            "name": "add",
            "subject": "add",
            "queue_group": "q",
            "metadata": {"schema": "numbers"},
        }
        assert [ping async for ping in nc.services.ping(f"{fresh}-none")] == []
        assert [ping async for ping in nc.services.ping(fresh, "none")] == []


async def test_another_prefix_has_services_of_its_own(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0", prefix=f"{fresh}.SRV") as service:
        assert [info async for info in nc.services.list(fresh)] == []
        assert [info.id async for info in nc.services.list(prefix=f"{fresh}.SRV")] == [service.id]


async def test_handlers_get_the_type_of_their_annotation_and_return_the_answer(any_server: str, fresh: str) -> None:
    def shout(text: str) -> str:
        return text.upper()

    def both(request: ServiceRequest, data: bytes) -> bytes:
        return request.headers["Before"].encode() + data

    def nothing(data: bytes) -> None:
        assert data == b"x"

    async def maybe(numbers: Numbers) -> Sum | None:
        return await add(numbers) if numbers.a else None

    def fixed() -> dict[str, int]:
        return {"answer": 42}

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        group = service.add_group(fresh)
        for handler in (shout, both, nothing, maybe, fixed, add, echo):
            await group.add_endpoint(handler.__name__, handler)
        request = nc.services.request
        reply = await request(f"{fresh}.add", Numbers(1, 2))
        assert (reply.data, reply.headers["Content-Type"]) == (b'{"total":3}', "application/json")
        assert await request(f"{fresh}.add", Numbers(1, 2), reply=Sum) == Sum(3)
        assert (await request(f"{fresh}.shout", "héllo".encode())).data == "HÉLLO".encode()
        assert (await request(f"{fresh}.both", b"x", headers={"Before": "b"})).data == b"bx"
        assert (await request(f"{fresh}.nothing", b"x")).data == b""
        assert (await request(f"{fresh}.maybe", Numbers(0, 1))).data == b"null"
        assert (await request(f"{fresh}.fixed")).data == b'{"answer":42}'
        echoed = await request(f"{fresh}.echo", b"\xff", headers={"A": ["1", "2"]})
        assert (echoed.data, echoed.headers.get_all("A")) == (b"\xff", ["1", "2"])


async def test_handlers_use_the_codec_of_their_connection(any_server: str, fresh: str) -> None:
    def shout(text: str) -> str:
        return text.upper()

    async with connect(any_server, codec=MessagePack()) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("add", add, subject=f"{fresh}.add")
        await service.add_endpoint("shout", shout, subject=f"{fresh}.shout")
        assert await nc.services.request(f"{fresh}.add", Numbers(1, 2), reply=Sum) == Sum(3)
        reply = await nc.services.request(f"{fresh}.shout", "a")
        assert (reply.data, reply.headers["Content-Type"]) == (b"\xa1A", "application/msgpack")
        async with connect(any_server) as other:
            with pytest.raises(ServiceError, match=r"400: .*its content type is 'application/json'"):
                await other.services.request(f"{fresh}.add", Numbers(1, 2))


@pytest.mark.parametrize("body", [b"{", b'{"a": "one", "b": 2}', b"\xff"], ids=["cut", "wrong type", "not text"])
async def test_body_that_does_not_decode_is_answered_with_400(any_server: str, fresh: str, body: bytes) -> None:
    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("add", add, subject=f"{fresh}.add")
        with pytest.raises(ServiceError, match="Numbers") as caught:
            await nc.services.request(f"{fresh}.add", body)
        assert (caught.value.code, caught.value.subject) == (400, f"{fresh}.add")
        assert service.stats().endpoints[0].num_errors == 1


async def test_exception_of_a_handler_is_a_500_and_in_the_log(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[ClientEvent] = []

    async def fail(request: ServiceRequest) -> None:
        raise LookupError(request.data.decode())

    async with connect(any_server, on_event=events.append) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("fail", fail, subject=f"{fresh}.*.fail")
        with pytest.raises(ServiceError) as caught:
            await nc.services.request(f"{fresh}.x.fail", b"first\nsecond")
        assert (caught.value.code, caught.value.description) == (500, "LookupError: first second")
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert f"endpoint 'fail' of service '{fresh}': the request on '{fresh}.x.fail' failed" in record.getMessage()
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], LookupError)
        assert any(isinstance(event.error, LookupError) for event in events)
        (stats,) = service.stats().endpoints
        assert (stats.num_requests, stats.num_errors) == (1, 1)
        assert stats.last_error == "500:LookupError: first second"
        await until(lambda: service.stats().endpoints[0].processing_time > 0)


async def test_error_of_a_service_reaches_the_caller_as_it_is(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(request: ServiceRequest) -> None:
        raise ServiceError(409, "sold out", data=request.data)

    async def answer(request: ServiceRequest) -> None:
        await request.respond_error(404, "no such order", data={"order": 7}, headers={"Retry": "no"})

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("refuse", refuse, subject=f"{fresh}.refuse")
        await service.add_endpoint("answer", answer, subject=f"{fresh}.answer")
        with pytest.raises(ServiceError, match=f"409: sold out .service on '{fresh}.refuse'.") as caught:
            await nc.services.request(f"{fresh}.refuse", b"details")
        assert (caught.value.code, caught.value.description, caught.value.data) == (409, "sold out", b"details")
        reply = await nc.request(f"{fresh}.answer")
        assert reply.headers.items() == [
            ("Retry", "no"),
            ("Nats-Service-Error", "no such order"),
            ("Nats-Service-Error-Code", "404"),
            ("Content-Type", "application/json"),
        ]
        assert reply.data == b'{"order":7}'
        await until(lambda: [one.num_errors for one in service.stats().endpoints] == [1, 1])
        assert [one.last_error for one in service.stats().endpoints] == ["409:sold out", "404:no such order"]
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_answers_of_any_size_arrive_and_one_that_is_too_large_is_a_500(any_server: str, fresh: str) -> None:
    def make(data: bytes) -> bytes:
        return bytes(int(data))

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("make", make, subject=f"{fresh}.make")
        for size in (0, 1, 4096, 4097, nc.max_payload):
            assert (await nc.services.request(f"{fresh}.make", b"%d" % size)).data == bytes(size)
        with pytest.raises(ServiceError, match=r"500: .*max_payload"):
            await nc.services.request(f"{fresh}.make", b"%d" % (nc.max_payload + 1))


@pytest.mark.steady
async def test_exception_after_the_answer_sends_no_second_one(any_server: str, fresh: str) -> None:
    async def fail_late(request: ServiceRequest) -> None:
        await request.respond(b"done")
        raise ValueError("late")

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("late", fail_late, subject=f"{fresh}.late")
        replies = nc.request_many(f"{fresh}.late", timeout=5.0, idle_timeout=0.2)
        assert [(reply.data, len(reply.headers)) async for reply in replies] == [(b"done", 0)]
        assert service.stats().endpoints[0].num_errors == 1


class Unprintable(Exception):  # noqa: N818
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "description"),
    [
        pytest.param(ServiceError(-1, "minus one"), "must be a number of at least 0, got -1", id="impossible code"),
        pytest.param(ServiceError(1, "large", data=bytes(2**21)), "2097", id="too much data"),
        pytest.param(Unprintable(), "Unprintable", id="no text"),
    ],
)
async def test_no_failure_of_a_handler_leaves_the_caller_without_an_answer(
    any_server: str, fresh: str, error: Exception, description: str
) -> None:
    async def fail(request: ServiceRequest) -> None:
        if request.data:
            raise error
        await request.respond()

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("fail", fail, subject=f"{fresh}.fail")
        with pytest.raises(ServiceError, match=description) as caught:
            await nc.services.request(f"{fresh}.fail", b"x")
        assert caught.value.code == 500
        assert (await nc.services.request(f"{fresh}.fail")).data == b""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt], ids=["SystemExit", "KeyboardInterrupt"])
async def test_exit_in_a_handler_ends_the_service_loudly(
    any_server: str, fresh: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: ServiceRequest) -> None:
        raise kind(3)

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("leave", leave, subject=f"{fresh}.leave")
        with pytest.raises(ServiceError, match=f"500: {kind.__name__}: 3"):
            await nc.services.request(f"{fresh}.leave")
        assert service.is_stopped
        with pytest.raises(kind):
            await service.wait(timeout=30)
        await until(lambda: has_no_responders(nc, f"{fresh}.leave"))
        assert [info async for info in nc.services.ping(fresh, timeout=0.5)] == []
        assert f"the callback raised {kind.__name__}(3)" in caplog.text


async def test_message_without_reply_subject_is_handled_and_not_answered(any_server: str, fresh: str) -> None:
    seen: list[bytes] = []

    def keep(data: bytes) -> bytes:
        seen.append(data)
        return b"for nobody"

    async def reply(request: ServiceRequest) -> None:
        seen.append(request.data)
        await request.respond(b"for nobody")

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("keep", keep, subject=f"{fresh}.keep")
        await service.add_endpoint("reply", reply, subject=f"{fresh}.reply")
        await nc.publish(f"{fresh}.keep", b"1")
        await nc.publish(f"{fresh}.reply", b"2")
        await nc.publish("$SRV.PING")
        await until(lambda: [one.num_requests for one in service.stats().endpoints] == [1, 1] and len(seen) == 2)
        await until(lambda: service.stats().endpoints[1].num_errors == 1)
        kept, replied = service.stats().endpoints
        assert (sorted(seen), kept.num_errors) == ([b"1", b"2"], 0)
        assert "no reply subject" in replied.last_error


async def test_request_that_is_never_answered_times_out_and_holds_up_no_other(any_server: str, fresh: str) -> None:
    kept: list[ServiceRequest] = []
    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("keep", kept.append, subject=f"{fresh}.keep")
        with pytest.raises(RequestTimeoutError):
            await nc.services.request(f"{fresh}.keep", timeout=0.2)

        async def ask() -> bytes:
            return (await nc.services.request(f"{fresh}.keep")).data

        asking = spawn(ask)
        await until(lambda: len(kept) == 2)
        await kept[1].respond(b"later")
        assert await asking.result() == b"later"
        assert service.stats().endpoints[0].num_requests == 2


async def test_counters_are_current_while_handlers_run_and_start_again(any_server: str, fresh: str) -> None:
    held = Held()
    async with connect(any_server) as nc, connect(any_server) as caller:
        service = await nc.add_service(fresh, "1.0.0", stats_handler=lambda stats: {"seen": stats.num_requests})
        await service.add_endpoint("held", held, subject=f"{fresh}.held", concurrency=3)

        async def ask() -> bytes:
            return (await caller.services.request(f"{fresh}.held", b"x")).data

        asking = [spawn(ask) for _ in range(5)]
        await until(lambda: held.running == 3)
        (running,) = [stats async for stats in caller.services.stats(fresh)]
        (stats,) = running.endpoints
        assert (stats.num_requests, stats.num_errors, stats.processing_time, stats.data) == (3, 0, 0, {"seen": 3})
        held.is_released = True
        assert [await task.result() for task in asking] == [b"x"] * 5
        await service.stop()
        (stats,) = service.stats().endpoints
        assert (stats.num_requests, stats.num_errors, held.running) == (5, 0, 5)
        assert stats.average_processing_time == stats.processing_time // 5 > 0
        service.reset()
        (stats,) = service.stats().endpoints
        assert (stats.num_requests, stats.processing_time, stats.average_processing_time) == (0, 0, 0)
        assert service.stats().started > running.started


async def test_stats_handler_that_fails_is_reported_and_leaves_the_counters(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    def count(stats: EndpointStats) -> object:
        return {stats.name: object()}  # nothing that JSON can hold

    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0", stats_handler=count) as service:
        await service.add_endpoint("echo", echo, subject=f"{fresh}.echo")
        (stats,) = [stats async for stats in nc.services.stats(fresh)]
        assert (stats.endpoints[0].num_requests, stats.endpoints[0].data) == (0, None)
        assert f"the stats handler of service '{fresh}' failed" in caplog.text


async def test_instances_share_requests_in_a_queue_group_and_not_without_one(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        seen: Counter[tuple[int, str]] = Counter()
        services = [await client.add_service(fresh, "1.0.0") for client in (nc, other)]

        async def handle(instance: int, request: ServiceRequest) -> None:
            seen[instance, request.subject] += 1
            await request.respond(b"%d" % instance)

        for at, service in enumerate(services):
            numbered = Numbered(at, handle)
            await service.add_endpoint("shared", numbered, subject=f"{fresh}.shared")
            await service.add_endpoint("all", numbered, subject=f"{fresh}.all", queue_group="")
        for _ in range(100):
            await nc.services.request(f"{fresh}.shared")
        shared = [seen[at, f"{fresh}.shared"] for at in (0, 1)]
        assert sum(shared) == 100
        assert min(shared) > 0
        replies = nc.request_many(f"{fresh}.all", timeout=5.0, max_messages=2)
        assert {reply.data async for reply in replies} == {b"0", b"1"}
        await services[0].stop()
        assert {(await nc.services.request(f"{fresh}.shared")).data for _ in range(10)} == {b"1"}


class Numbered:
    """A handler that knows which instance it belongs to."""

    def __init__(self, number: int, handle: Any) -> None:
        self._number = number
        self._handle = handle

    async def __call__(self, request: ServiceRequest) -> None:
        await self._handle(self._number, request)


async def test_groups_add_their_prefix_and_pass_on_their_queue_group(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, nc.add_service(fresh, "1.0.0", queue_group="jobs") as service:
        top = service.add_group(fresh)
        inner = top.add_group("v1.*").add_group("", queue_group="")
        await service.add_endpoint("a", echo, subject=f"{fresh}.a.>")
        await top.add_endpoint("b", echo)
        await top.add_endpoint("b", echo, subject="other", queue_group="own")
        await inner.add_endpoint("c", echo)
        await inner.add_endpoint("d", echo, queue_group="back")
        assert [(one.name, one.subject, one.queue_group) for one in service.info().endpoints] == [
            ("a", f"{fresh}.a.>", "jobs"),
            ("b", f"{fresh}.b", "jobs"),
            ("b", f"{fresh}.other", "own"),
            ("c", f"{fresh}.v1.*.c", ""),
            ("d", f"{fresh}.v1.*.d", "back"),
        ]
        for subject in (f"{fresh}.a.x.y", f"{fresh}.b", f"{fresh}.other", f"{fresh}.v1.x.c", f"{fresh}.v1.x.d"):
            assert (await nc.services.request(subject, subject.encode())).data == subject.encode()


async def test_stop_handles_what_has_arrived_and_then_nothing_responds(any_server: str, fresh: str) -> None:
    held = Held()
    async with connect(any_server) as nc, connect(any_server) as caller:
        service = await nc.add_service(fresh, "1.0.0")
        await service.add_endpoint("held", held, subject=f"{fresh}.held")

        async def ask() -> bytes:
            return (await caller.services.request(f"{fresh}.held", b"x")).data

        async with nc.subscribe(f"{fresh}.held") as observer:
            await nc.flush()
            asking = [spawn(ask) for _ in range(3)]
            for _ in asking:
                await observer.next()
        await nc.flush()  # what the observer has seen has reached the endpoint as well
        await until(lambda: held.running == 1)
        stopping = spawn(service.stop)
        await until(lambda: has_no_responders(caller, f"{fresh}.held"))
        assert not service.is_stopped
        assert not stopping.is_done
        held.is_released = True
        assert [await task.result() for task in asking] == [b"x"] * 3
        await stopping.result()
        assert service.is_stopped
        assert await service.wait(timeout=5.0)
        assert [info async for info in caller.services.list(fresh)] == []
        with pytest.raises(UsageError, match="is stopped"):
            await service.add_endpoint("more", echo)
        await service.stop()


async def test_stop_is_bounded_and_says_which_handlers_still_run(any_server: str, fresh: str) -> None:
    held = Held()
    async with connect(any_server) as nc:
        service = await nc.add_service(fresh, "1.0.0")
        await service.add_endpoint("held", held, subject=f"{fresh}.held")
        await nc.publish(f"{fresh}.held", b"x")
        await until(lambda: held.running == 1)
        assert not await service.wait(timeout=0.01)
        with pytest.raises(RequestTimeoutError, match=f"handlers of {fresh}.held are still running after 0.05 s"):
            await service.stop(timeout=0.05)
        held.is_released = True
        await service.stop()


async def test_handler_may_stop_its_service(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        service = await nc.add_service(fresh, "1.0.0")

        async def quit_service(request: ServiceRequest) -> None:
            await service.stop()
            await request.respond(b"bye")

        await service.add_endpoint("quit", quit_service, subject=f"{fresh}.quit")
        assert (await nc.services.request(f"{fresh}.quit")).data == b"bye"
        assert await service.wait(timeout=5.0)


async def test_drain_of_the_client_lets_handlers_finish(any_server: str, fresh: str) -> None:
    held = Held()
    async with connect(any_server) as caller:
        nc = await connect(any_server)
        service = await nc.add_service(fresh, "1.0.0")
        await service.add_endpoint("held", held, subject=f"{fresh}.held", concurrency=2)

        async def ask() -> bytes:
            return (await caller.services.request(f"{fresh}.held", b"x")).data

        asking = [spawn(ask) for _ in range(2)]
        await until(lambda: held.running == 2)
        draining = spawn(nc.drain)
        await until(lambda: nc.is_draining)
        await sleep(0.1)  # for a drain that does not wait
        held.is_released = True
        assert [await task.result() for task in asking] == [b"x"] * 2
        await draining.result()
        assert service.is_stopped
        await service.stop()


async def test_service_of_a_closed_client_is_stopped(any_server: str, fresh: str) -> None:
    nc = await connect(any_server)
    service = await nc.add_service(fresh, "1.0.0")
    await service.add_endpoint("echo", echo, subject=f"{fresh}.echo")
    waiting = spawn(service.wait)
    await nc.close()
    assert await waiting.result()
    await service.stop()
    assert service.is_stopped


@pytest.mark.parametrize("kind", [OurProcess, RealProcess], ids=["ours", "real"])
async def test_service_survives_the_restart_of_its_server(
    kind: type[OurProcess] | type[RealProcess], tmp_path: Path
) -> None:
    async def is_answered(nc: Client) -> bool:
        try:
            return (await nc.services.request("echo", b"again", timeout=0.5)).data == b"again"
        except (Error, OSError):
            return False

    with kind(tmp_path) as server:
        async with (
            connect(server.url, reconnect_max_wait=0.1) as nc,
            connect(server.url, reconnect_max_wait=0.1) as caller,
        ):
            service = await nc.add_service("echo", "1.0.0")
            await service.add_endpoint("echo", echo)
            assert await is_answered(caller)
            server.kill()
            await until(lambda: not nc.is_connected)
            server.start()
            await until(lambda: is_answered(caller))
            assert [info.id async for info in caller.services.list("echo")] == [service.id]
            server.kill()
            await until(lambda: not nc.is_connected)
            await service.stop()  # without a server there is nothing to wait for
            assert service.is_stopped


@pytest.mark.parametrize("kind", ["ours", "real"])
async def test_service_without_permission_is_rejected(kind: str) -> None:
    with real_server(config=DENYING, jetstream=False) as real, Server(users=USERS, jetstream=False) as ours:
        url = real if kind == "real" else ours.url
        async with connect(url, user="silent", password="pw") as nc:
            with pytest.raises(AuthorizationError, match=r"\$SRV"):
                await nc.add_service("silent", "1.0.0")
        async with connect(url, user="narrow", password="pw") as nc:
            service = await nc.add_service("narrow", "1.0.0")
            with pytest.raises(AuthorizationError, match="secret"):
                await service.add_endpoint("plans", echo, subject="secret.plans")
            assert service.info().endpoints == ()
            await service.add_endpoint("plans", echo, subject="open.plans")
            assert (await nc.services.request("open.plans", b"x")).data == b"x"


async def test_reply_that_is_not_of_a_service_is_reported_and_left_out(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    bad = [b"no JSON", b"[]", b'{"type":"io.nats.micro.v1.info_response"}', b'{"type":"x","name":"n","id":"i"}']
    good = b'{"type":"io.nats.micro.v1.info_response","name":"n","id":"i","version":"1.0.0","metadata":null,"more":1}'
    async with connect(any_server, on_event=events.append) as nc:
        subscription = await nc.subscribe(f"$SRV.INFO.{fresh}")

        async def ask() -> list[str]:
            return [info.id async for info in nc.services.info(fresh)]

        asking = spawn(ask)
        message = await subscription.next()
        for payload in (*bad, good):
            await message.respond(payload)
        assert await asking.result() == ["i"]
        errors = [event.error for event in events if event.error is not None]
        assert [type(error) for error in errors] == [RemoteProtocolError] * len(bad)
        assert f"a reply to '$SRV.INFO.{fresh}' is not a service reply" in str(errors[0])


async def test_wrong_names_and_options_are_rejected_before_anything_is_sent(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        services: list[tuple[str, str, dict[str, Any], str]] = [
            ("", "1.0.0", {}, "name of a service must be letters"),
            ("a.b", "1.0.0", {}, "got 'a.b'"),
            (fresh, "1.0", {}, "must be a semantic version such as 1.0.0, got '1.0'"),
            (fresh, "1.0.0", {"metadata": {"a": 1}}, "metadata of service"),
            (fresh, "1.0.0", {"queue_group": "a b"}, "got 'a b'"),
            (fresh, "1.0.0", {"prefix": "*"}, "got '\\*'"),
            (fresh, "1.0.0", {"stats_handler": 1}, "stats_handler must be callable, got 1"),
        ]
        for name, version, options, text in services:
            with pytest.raises(UsageError, match=text):
                await nc.add_service(name, version, **options)
        service = await nc.add_service(fresh, "1.0.0")
        endpoints: list[tuple[str, Any, dict[str, Any], str]] = [
            ("a b", echo, {}, "name of an endpoint must be letters"),
            ("a", echo, {"subject": "a..b"}, "got 'a..b'"),
            ("a", echo, {"queue_group": ">"}, "got '>'"),
            ("a", echo, {"metadata": {1: "a"}}, "metadata of endpoint 'a' must map"),
            ("a", echo, {"concurrency": 0}, "concurrency must be 1 or more, got 0"),
            ("a", b"echo", {}, "handler must be callable"),
        ]
        for name, handler, options, text in endpoints:
            with pytest.raises(UsageError, match=text):
                await service.add_endpoint(name, handler, **options)
        with pytest.raises(UsageError, match="without '>'"):
            service.add_group("a.>")
        assert service.info().endpoints == ()
        with pytest.raises(UsageError, match="name of the service must be set"):
            await anext(nc.services.stats("", "instance"))


async def test_requests_that_had_to_be_dropped_are_counted_as_an_error(any_server: str, fresh: str) -> None:
    held = Held()
    async with connect(any_server) as nc:
        service = await nc.add_service(fresh, "1.0.0")
        await service.add_endpoint("held", held, subject=f"{fresh}.held", max_pending_msgs=2)
        for _ in range(6):
            await nc.publish(f"{fresh}.held")
        await nc.flush()
        held.is_released = True
        await until(lambda: service.stats().endpoints[0].num_errors == 1)
        assert "dropped" in service.stats().endpoints[0].last_error

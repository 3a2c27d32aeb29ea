"""Typed messages: objects are published with a content type, read back as their type, and refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import pytest

from slipstream import (
    ClientEvent,
    Codec,
    Json,
    MessageDecodeError,
    MessagePack,
    ServiceError,
    Text,
    UsageError,
    connect,
)
from slipstream.api import StreamConfig
from slipstream.jetstream._async.message import JsMessage
from tests._async.concurrency import until
from tests.conformance._async.test_worker_runtime import unacked


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []


@dataclass
class Parcel:
    weight: float


class Address(TypedDict):
    street: str


class Reply(msgspec.Struct):
    total: int


class Pounds(Codec[Parcel]):
    """A codec of a program's own."""

    content_type = "application/x-pounds"

    def encode_value(self, key: str, value: Parcel) -> bytes:
        del key
        return b"%g lb" % value.weight

    def decode_value(self, key: str, data: bytes) -> Parcel:
        del key
        return Parcel(float(data.removesuffix(b" lb")))


async def test_objects_are_published_as_json_on_every_path(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True, allow_atomic=True)
        stream = await js.create_stream(config)
        await js.publish(f"{fresh}.one", Order(1), msg_id="1")
        async with js.publisher() as publisher:
            await publisher.publish(f"{fresh}.two", Order(2))
            pending = await publisher.send(f"{fresh}.three", Order(3), headers={"A": "b"})
            await publisher.result(pending)
        async with js.publisher(retries=1) as publisher:
            await publisher.publish(f"{fresh}.four", Order(4))
        async with js.atomic_batch() as batch:
            await batch.publish(f"{fresh}.five", Order(5))
            await batch.publish(f"{fresh}.six", Order(6))
        async with js.session() as session:
            await session.publish(f"{fresh}.seven", Order(7))
        await nc.publish(f"{fresh}.eight", Order(8))
        await nc.request(f"{fresh}.nine", Order(9))
        found = [await stream.get(seq) for seq in range(1, 10)]
        assert [message.json(Order) for message in found] == [Order(number) for number in range(1, 10)]
        assert [message.headers["Content-Type"] for message in found] == ["application/json"] * 9
        assert found[2].headers["A"] == "b"
        consumer = await stream.create_consumer("worker")
        seen = [message async for message in consumer.messages(idle_timeout=0.5)]
        assert [message.decode(Order).id for message in seen] == list(range(1, 10))
        assert assert_type(seen[0].json(Order), Order) == Order(1)
        assert assert_type(seen[0].json(), Any) == {"id": 1, "lines": []}
        assert seen[0].json(Order | None) == Order(1)
        assert assert_type(seen[0].text(), str) == '{"id":1,"lines":[]}'
        async with stream.ordered_consumer() as ordered:
            assert (await ordered.next()).decode(Order) == Order(1)


async def test_bytes_are_published_as_they_are(any_server: str, fresh: str) -> None:
    async with connect(any_server, codec=MessagePack()) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        for payload in (b"\xff\x00", bytearray(b"ab"), memoryview(b"cd"), b""):
            await js.publish(f"{fresh}.a", payload)
            message = await js.stream(fresh).get_last(f"{fresh}.a")
            assert (message.data, message.header) == (bytes(payload), b"")


@pytest.mark.parametrize(
    ("codec", "value", "data", "content_type"),
    [
        pytest.param(None, Parcel(1.5), b'{"weight":1.5}', "application/json", id="default, dataclass"),
        pytest.param(None, [1, {"a": None}], b'[1,{"a":null}]', "application/json", id="default, list"),
        pytest.param(Json(), "text", b'"text"', "application/json", id="json, str"),
        pytest.param(MessagePack(), {"a": 1}, b"\x81\xa1a\x01", "application/msgpack", id="msgpack"),
        pytest.param(Text(), "t\u00e9xt", b"t\xc3\xa9xt", "text/plain; charset=utf-8", id="text"),
        pytest.param(Pounds(), Parcel(2), b"2 lb", "application/x-pounds", id="own"),
    ],
)
@pytest.mark.parametrize("where", ["connection", "jetstream"])
async def test_a_codec_is_chosen_once(
    any_server: str, fresh: str, codec: Codec[Any] | None, value: Any, data: bytes, content_type: str, where: str
) -> None:
    async with connect(any_server, codec=codec if where == "connection" else Text()) as nc:
        js = nc.jetstream(codec=None if where == "connection" else codec or Json())
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        await js.publish(f"{fresh}.a", value)
        message = await (await stream.create_consumer("worker")).next()
        assert (message.data, message.headers.get("Content-Type")) == (data, content_type)
        assert message.decode(type(value)) == value
        async with stream.ordered_consumer() as ordered, await js.subscribe(f"{fresh}.a") as pushed:
            assert (await ordered.next()).decode(type(value)) == value
            assert (await pushed.next()).decode(type(value)) == value
        async with js.session() as session:
            assert session.codec is js.codec
        if where == "connection":
            async with await nc.subscribe(f"{fresh}.core") as subscription:
                await nc.publish(f"{fresh}.core", value)
                heard = await subscription.next()
            assert (heard.data, heard.decode(type(value))) == (data, value)


async def test_a_message_that_cannot_be_decoded_names_itself(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        consumer = await stream.create_consumer("worker")
        await js.publish(f"{fresh}.a", b'{"id":"x"}')
        message = await consumer.next()
        where = f"message on '{fresh}.a' (stream '{fresh}', sequence 1, delivery 1)"
        with pytest.raises(MessageDecodeError) as caught:
            message.json(Order)
        error = caught.value
        assert str(error) == f"{where} cannot be decoded as Order: Expected `int`, got `str` - at `$.id`"
        assert (error.subject, error.stream, error.seq) == (f"{fresh}.a", fresh, 1)
        assert (error.kind, error.reason) == ("Order", "Expected `int`, got `str` - at `$.id`")
        with pytest.raises(MessageDecodeError, match=rf"\(stream '{fresh}', sequence 1\) cannot be decoded as Order"):
            (await stream.get(1)).json(Order)


async def test_a_handler_that_cannot_decode_fails_loudly_and_goes_on(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    handled: list[Order] = []

    async def handle(message: JsMessage) -> None:
        handled.append(message.json(Order))
        await message.ack_sync()

    async with connect(any_server, on_event=events.append) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        consumer = await stream.create_consumer("worker")
        async with await consumer.consume(handle):
            await js.publish(f"{fresh}.a", b"no order")
            await js.publish(f"{fresh}.b", Order(2))
            await until(lambda: len(handled) == 1)
        assert handled == [Order(2)]
        await unacked(consumer, 1)
        [error] = [event.error for event in events if isinstance(event.error, MessageDecodeError)]
        assert (error.subject, error.stream, error.seq) == (f"{fresh}.a", fresh, 1)


async def test_a_request_has_a_typed_reply(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as service:

        async def answer(message: Any) -> None:
            order = message.json(Order)
            await message.respond(Reply(order.id * 2) if order.id else {"total": "many"})

        await service.subscribe(fresh, callback=answer)
        await service.flush()
        reply = await nc.request(fresh, Order(21), reply=Reply)
        assert assert_type(reply, Reply) == Reply(42)
        plain = await nc.request(fresh, Order(1))
        assert (plain.headers["Content-Type"], plain.json(Reply)) == ("application/json", Reply(2))
        assert [one.json(Reply) async for one in nc.request_many(fresh, Order(2), max_messages=1)] == [Reply(4)]
        with pytest.raises(MessageDecodeError, match=f"the reply to the request on '{fresh}' cannot be decoded as Re"):
            await nc.request(fresh, Order(0), reply=Reply)


async def test_an_error_of_a_service_is_raised_where_a_type_is_expected(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as service:

        async def answer(message: Any) -> None:
            headers = {"Nats-Service-Error": "no such order", "Nats-Service-Error-Code": "404"}
            await message.respond(Reply(7), headers=headers)

        await service.subscribe(fresh, callback=answer)
        await service.flush()
        with pytest.raises(ServiceError, match="404: no such order") as caught:
            await nc.request(fresh, Order(1), reply=Reply)
        assert (caught.value.code, caught.value.subject, caught.value.data) == (404, fresh, b'{"total":7}')
        assert (await nc.request(fresh, Order(1))).json(Reply) == Reply(7)  # the message is the caller's to judge


async def test_a_request_to_the_server_may_be_an_object(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        await nc.jetstream().create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        found = await nc.request(f"$JS.API.STREAM.INFO.{fresh}", {"deleted_details": True}, reply=dict[str, Any])
        assert found["config"]["name"] == fresh


async def test_objects_that_cannot_be_sent_are_refused_before_anything_is(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        async with js.publisher() as publisher, js.atomic_batch() as batch:
            for publish in (nc.publish, nc.request, js.publish, publisher.publish, publisher.send, batch.publish):
                with pytest.raises(UsageError, match="payload must be bytes, not str"):
                    await publish(f"{fresh}.a", "text")
                with pytest.raises(UsageError, match="payload must be bytes, not NoneType"):
                    await publish(f"{fresh}.a", None)
                with pytest.raises(UsageError, match=f"payload of type object for '{fresh}.a' cannot be encoded"):
                    await publish(f"{fresh}.a", object())
            for publish in (nc.publish, nc.request, js.publish, publisher.publish, publisher.send):
                with pytest.raises(UsageError, match=r"at most 1048576 bytes .* got 10485\d\d"):
                    await publish(f"{fresh}.a", ["x" * 1_048_550])
            batch.discard()
        assert (await js.stream(fresh).info()).state.messages == 0


async def test_the_content_type_of_a_program_stays(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, await nc.subscribe(fresh) as subscription:
        headers = {"content-type": "application/vnd.order+json", "B": ["1", "2"]}
        await nc.publish(fresh, Order(1), headers=headers)
        message = await subscription.next()
        assert message.headers.items() == [("content-type", "application/vnd.order+json"), ("B", "1"), ("B", "2")]
        assert message.json(Order) == Order(1)
        assert headers == {"content-type": "application/vnd.order+json", "B": ["1", "2"]}


async def test_values_of_a_bucket_are_read_as_json_without_a_codec(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(fresh)
        await kv.put("a", b'{"street":"x"}')
        entry = await kv.get("a")
        assert assert_type(entry.json(Address), Address) == {"street": "x"}
        assert entry.text() == '{"street":"x"}'
        with pytest.raises(MessageDecodeError, match=rf"the value of key 'a' \(bucket '{fresh}', revision 1\) cannot"):
            entry.json(Order)
        with pytest.raises(UsageError, match="already decoded"):
            (await kv.with_codec(Json(Address)).get("a")).json(Address)

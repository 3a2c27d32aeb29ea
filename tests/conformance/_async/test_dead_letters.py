"""Dead letters where other features meet them: no acks, foreign headers, sizes, consumers that are made again."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from slipstream import connect
from slipstream.api import StreamConfig
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream.consume.dead_letter import letter_id
from slipstream.jetstream.consume.error_policy import Attempts, DeadLetter
from tests._async.concurrency import until
from tests.conformance._async.test_worker_runtime import unacked, worker


def fail(_: JsMessage) -> None:
    raise KeyError("order_id")


async def letters_of(js: JetStream, name: str, **config: object) -> Stream:
    """The stream of the dead letters."""
    return await js.create_stream(StreamConfig(name=f"{name}dead", subjects=(f"dead.{name}",)).replace(**config))


async def first_of(dead: Stream) -> JsMessage:
    return await (await dead.create_consumer("reader")).next(timeout=5)


def publish_raw(url: str, subject: str, header: bytes) -> None:
    """Publish a message with a header that this client would not send, and wait until it is stored."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port), timeout=10) as peer:
        size = len(header)
        peer.sendall(b'CONNECT {"headers":true,"verbose":false}\r\nSUB answer 1\r\n')
        peer.sendall(b"HPUB %b answer %d %d\r\n%b\r\nPING\r\n" % (subject.encode(), size, size, header))
        received = b""
        while b'"seq"' not in received:
            chunk = peer.recv(4096)
            assert chunk, received
            received += chunk


async def test_failures_of_a_consumer_without_acks_are_stored(any_server: str, fresh: str) -> None:
    """Nothing is redelivered: the first failure is the last."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        dead = await letters_of(js, fresh)
        consumer = await worker(js, fresh, ["a"] * 3, ack_policy="none", ack_wait=0)
        policy = Attempts(3, then=DeadLetter(f"dead.{fresh}"))
        async with await consumer.consume(fail, on_error=policy) as consuming:
            await until(lambda: consuming.stats.dead_lettered == 3)
        assert (await dead.info()).state.messages == 3


@pytest.mark.parametrize("name", [b"Bad Name", b"No\xc3\xa9l"], ids=["space", "accent"])
async def test_headers_that_no_client_may_send_are_no_obstacle(any_server: str, fresh: str, name: bytes) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        dead = await letters_of(js, fresh)
        consumer = await worker(js, fresh, [])
        publish_raw(any_server, f"{fresh}.a", b"NATS/1.0\r\n%b: v\r\n\r\n" % name)
        async with await consumer.consume(fail, on_error=DeadLetter(f"dead.{fresh}")) as consuming:
            await until(lambda: consuming.stats.dead_lettered == 1)
        letter = await first_of(dead)
        assert "v" in dict(letter.headers.items()).values()


@pytest.mark.parametrize("size", ["as large as a payload may be", "too large for their stream"])
async def test_payload_that_does_not_fit_is_left_out(any_server: str, fresh: str, size: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        is_limited = size == "too large for their stream"
        dead = await letters_of(js, fresh, **({"max_msg_size": 700} if is_limited else {}))
        consumer = await worker(js, fresh, [])
        payload = bytes(600 if is_limited else nc.server_info.max_payload)
        await js.publish(f"{fresh}.a", payload)
        async with await consumer.consume(fail, on_error=DeadLetter(f"dead.{fresh}")) as consuming:
            await until(lambda: consuming.stats.dead_lettered == 1)
        letter = await first_of(dead)
        assert letter.data == b""
        assert letter.headers["Dead-Letter-Left-Out"].startswith(f"payload of {len(payload)} bytes")
        assert letter.headers["Dead-Letter-Sequence"] == "1"
        assert consuming.stats.failed == 1


async def test_message_that_a_new_consumer_fails_again_is_stored_again(any_server: str, fresh: str) -> None:
    """Its first letter was taken meanwhile: to be recognised as a duplicate would be the end of it."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        dead = await letters_of(js, fresh, retention="workqueue")
        reader = await dead.create_consumer("reader")
        consumer = await worker(js, fresh, ["a"])
        for _ in range(2):
            async with await consumer.consume(fail, on_error=DeadLetter(f"dead.{fresh}")) as consuming:
                await until(lambda found=consuming: found.stats.dead_lettered == 1)  # type: ignore[misc]
            await (await reader.next(timeout=5)).ack_sync()
            config = (await consumer.info()).config
            await consumer.delete()
            consumer = await js.stream(fresh).create_consumer(config)


async def test_letter_that_is_stored_already_is_not_counted_again(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        dead = await letters_of(js, fresh)
        consumer = await worker(js, fresh, ["a"])
        message = await consumer.next(timeout=5)
        msg_id = letter_id(message.metadata, (await consumer.info()).created)
        await js.publish(f"dead.{fresh}", b"by another worker, which did not get to terminate it", msg_id=msg_id)
        await message.nak()
        async with await consumer.consume(fail, on_error=DeadLetter(f"dead.{fresh}")) as consuming:
            await until(lambda: consuming.stats.failed == 1)
        assert consuming.stats.dead_lettered == 0
        assert (await dead.info()).state.messages == 1
        await unacked(consumer, 0)

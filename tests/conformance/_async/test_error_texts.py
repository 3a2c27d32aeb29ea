"""What an error says: the stream, consumer, key, revision or subject that it is about, the same on both servers."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from slipstream import (
    ApiError,
    BucketConfig,
    BucketNotFoundError,
    ConsumerConfig,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    KeyExistsError,
    KeyRevisionError,
    MessageNotFoundError,
    NoRespondersError,
    NoStreamError,
    PullRefusedError,
    RequestTimeoutError,
    StaleReadError,
    StatusError,
    StreamConfig,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamNotMatchError,
    WrongLastSequenceError,
    connect,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.stream import Stream

Call = Callable[[], Any]


async def stream_of(js: JetStream, name: str) -> Stream:
    return await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",), allow_direct=True))


def check(error: Exception, text: str) -> None:
    """The message, which also survives a pickle: errors cross processes in Spark."""
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


async def test_a_missing_stream_is_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = js.stream(fresh)
        calls: list[Call] = [
            stream.info,
            stream.purge,
            stream.delete,
            lambda: stream.get(1),
            lambda: stream.get_last("a"),
            lambda: stream.get(1, from_leader=True),
            lambda: stream.delete_message(1),
            lambda: stream.consumer("c"),
            lambda: stream.create_consumer("c"),
            lambda: stream.delete_consumer("c"),
            lambda: js.delete_stream(fresh),
            lambda: js.update_stream(StreamConfig(name=fresh)),
        ]
        for call in calls:
            with pytest.raises(StreamNotFoundError) as caught:
                await call()
            check(caught.value, f"no stream is called '{fresh}'")
            assert (caught.value.stream, caught.value.code, caught.value.err_code) == (fresh, 404, 10059)
            assert caught.value.description == "stream not found"


@pytest.mark.steady
async def test_a_missing_consumer_is_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        stream = await stream_of(nc.jetstream(), fresh)
        consumer = await stream.create_consumer("there")
        await stream.delete_consumer("there")
        for call in (
            lambda: stream.consumer("there"),
            lambda: stream.delete_consumer("there"),
            consumer.info,
            consumer.delete,
        ):
            with pytest.raises(ConsumerNotFoundError) as caught:
                await call()
            check(caught.value, f"stream '{fresh}' has no consumer 'there'")
            assert (caught.value.stream, caught.value.consumer) == (fresh, "there")
            assert (caught.value.code, caught.value.err_code) == (404, 10014)
        for ask in (lambda: consumer.fetch(1, timeout=20), lambda: consumer.next(timeout=20)):
            with pytest.raises(ConsumerGoneError, match=f"^consumer 'there' of stream '{fresh}' does not exist, or "):
                await ask()


async def test_a_consumer_that_is_deleted_while_it_is_read_is_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        stream = await stream_of(nc.jetstream(), fresh)
        consumer = await stream.create_consumer("w")
        messages = consumer.messages()
        await nc.jetstream().publish(f"{fresh}.a")
        assert (await anext(messages)).seq == 1
        await consumer.delete()
        # Which one depends on whether a pull request waits at the server at that moment.
        ends = r"was deleted \(status 409|does not exist, or its leader is changing \(status 503"
        with pytest.raises(StatusError, match=f"^consumer 'w' of stream '{fresh}' ({ends}) "):
            await anext(messages)
    deleted = ConsumerDeletedError(409, "Consumer Deleted").about(stream="S", consumer="w")
    check(deleted, "consumer 'w' of stream 'S' was deleted (status 409 Consumer Deleted)")


@pytest.mark.steady
async def test_a_rejected_pull_names_its_consumer(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        stream = await stream_of(nc.jetstream(), fresh)
        await stream.create_consumer(ConsumerConfig(durable_name="w", max_batch=2))
        consumer = await stream.consumer("w")
        consumer._handle.cached_info = None  # as of a user who may not see it: the limit is not known
        text = f"^consumer 'w' of stream '{fresh}' rejected a pull request: status 409 Exceeded MaxRequestBatch of 2"
        with pytest.raises(PullRefusedError, match=text):
            await consumer.fetch(5, timeout=20)


async def test_existing_streams_and_consumers_are_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await stream_of(js, fresh)
        with pytest.raises(StreamNameInUseError) as taken:
            await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.other",)))
        check(taken.value, f"stream '{fresh}' already exists with a different configuration")
        await stream.create_consumer("w")
        with pytest.raises(ConsumerExistsError) as exists:
            await stream.create_consumer(ConsumerConfig(durable_name="w", max_deliver=3))
        check(exists.value, f"stream '{fresh}' already has a consumer 'w', with a different configuration")
        with pytest.raises(
            ApiError, match=f"^consumer 'q' of stream '{fresh}': replicas > 1 .* \\(code 500, err_code 10074\\)$"
        ):
            await stream.create_consumer(ConsumerConfig(durable_name="q", num_replicas=5))


async def test_a_rejected_publish_names_its_subject(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await stream_of(js, fresh)
        subject = f"{fresh}.a"
        await js.publish(subject)
        with pytest.raises(NoStreamError) as nowhere:
            await js.publish(f"{fresh}.a.b", retries=0)
        check(nowhere.value, f"no stream accepts subject '{fresh}.a.b'")
        with pytest.raises(WrongLastSequenceError) as wrong:
            await js.publish(subject, expected_last_seq=7)
        check(wrong.value, f"the stream of subject '{subject}' is at sequence 1, not 7")
        assert wrong.value.last_seq == 1
        with pytest.raises(WrongLastSequenceError) as behind:
            await js.publish(subject, expected_last_subject_seq=7)
        check(behind.value, f"subject '{subject}' is at sequence 1, not 7")
        with pytest.raises(StreamNotMatchError) as other:
            await js.publish(subject, expected_stream="ELSEWHERE")
        check(other.value, f"subject '{subject}' belongs to another stream than 'ELSEWHERE'")
        with pytest.raises(ApiError, match=rf"^publish to '{re.escape(subject)}': per-message TTL is disabled \(code"):
            await js.publish(subject, ttl=5)
        with pytest.raises(WrongLastSequenceError, match=f"^subject '{subject}' is at sequence 1, not 9\n"):
            async with js.publisher() as publisher:
                await publisher.publish(subject, expected_last_subject_seq=9)
        with pytest.raises(NoStreamError, match=f"^no stream accepts subject '{fresh}.a.b'\n"):
            async with js.publisher() as publisher:
                await publisher.publish(f"{fresh}.a.b")
        with pytest.raises(NoStreamError, match=f"^no stream accepts subject '{fresh}.a.b'$"):
            async with js.atomic_batch() as batch:
                await batch.publish(f"{fresh}.a.b")


async def test_a_message_that_is_not_there_is_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await stream_of(js, fresh)
        await js.publish(f"{fresh}.a")
        await js.publish(f"{fresh}.a")
        await stream.delete_message(1)
        for is_leader in (False, True):
            by = {"from_leader": is_leader}
            calls: list[tuple[Call, str]] = [
                (partial(stream.get, 7, **by), "with sequence 7"),
                (partial(stream.get_last, f"{fresh}.b", **by), f"on '{fresh}.b'"),
                (partial(stream.get_next, f"{fresh}.b", **by), f"on '{fresh}.b'"),
                (partial(stream.get_next, f"{fresh}.a", seq=3, **by), f"on '{fresh}.a' at or after sequence 3"),
            ]
            for call, text in calls:
                with pytest.raises(MessageNotFoundError) as caught:
                    await call()
                check(caught.value, f"stream '{fresh}' has no message {text}")
        for seq in (1, 7):
            with pytest.raises(MessageNotFoundError) as missing:
                await stream.delete_message(seq)
            check(missing.value, f"stream '{fresh}' has no message with sequence {seq}")
            assert isinstance(missing.value, ApiError)  # as before


@pytest.mark.steady
async def test_a_stale_read_says_what_it_found_and_how_long_it_waited(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await stream_of(js, fresh)
        await js.publish(f"{fresh}.a")
        for is_leader in (False, True):
            with pytest.raises(StaleReadError) as caught:
                await stream.get_last(f"{fresh}.a", min_last_seq=10, from_leader=is_leader, timeout=1.5)
            error = caught.value
            found = r"was at 1, the read needs 10|does not have sequence 10 yet, which the read needs"
            text = rf"stream '{fresh}': the replica that answered ({found}) \(waited \d+\.\d s\)"
            assert re.fullmatch(text, str(error))
            assert (error.stream, error.min_last_seq) == (fresh, 10)
            assert error.waited > 0
            check(error, str(error))


async def test_key_errors_name_bucket_key_and_revisions(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        with pytest.raises(BucketNotFoundError, match=f"^bucket '{fresh}' does not exist$"):
            await js.key_value(fresh)
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        await kv.put("u", b"1")
        with pytest.raises(KeyRevisionError) as stale:
            await kv.update("u", b"2", last=77)
        check(stale.value, f"key 'u' in bucket '{fresh}' is at revision 1, not 77")
        found = stale.value.bucket, stale.value.key, stale.value.expected, stale.value.revision, stale.value.last_seq
        assert found == (fresh, "u", 77, 1, 1)
        with pytest.raises(KeyRevisionError) as exists:  # create is an update that expects no revision
            await kv.create("u", b"2")
        assert isinstance(exists.value, KeyExistsError)
        check(exists.value, f"key 'u' in bucket '{fresh}' already has a value (revision 1)")
        for error in (stale.value, exists.value):
            assert (error.code, error.err_code) == (400, 10071)


async def test_timeouts_say_what_was_waited_for(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        with pytest.raises(NoRespondersError, match=f"^no responders on subject '{fresh}'$"):
            await nc.request(fresh, timeout=5)
        subscription = await nc.subscribe(fresh)
        with pytest.raises(RequestTimeoutError, match=rf"^timed out after 0\.01 s waiting for a reply on '{fresh}'$"):
            await nc.request(fresh, timeout=0.01)
        await subscription.next()
        with pytest.raises(RequestTimeoutError, match=rf"^timed out after 0\.01 s waiting for a message on '{fresh}'$"):
            await subscription.next(timeout=0.01)
        ack = rf"^timed out after 0\.01 s waiting for the ack of the publish to '{fresh}'$"
        with pytest.raises(RequestTimeoutError, match=ack):
            await nc.jetstream().publish(fresh, timeout=0.01)
        consumer = await (await stream_of(nc.jetstream(), f"{fresh}_S")).create_consumer("w")
        name = f"consumer 'w' of stream '{fresh}_S'"
        with pytest.raises(RequestTimeoutError, match=rf"^{name}: no message within 0\.01 s$"):
            await consumer.next(timeout=0.01)

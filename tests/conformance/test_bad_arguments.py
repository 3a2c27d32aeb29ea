"""Every public call with an argument of a wrong type or value: a UsageError that names it, before anything is sent.

What is not checked would be a TypeError from inside, an error of the server about its own JSON, or a record that no
client can read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from slipstream import (
    BucketConfig,
    CredentialsError,
    ObjectStoreConfig,
    StreamConfig,
    UsageError,
    connect,
    connect_blocking,
)
from slipstream.facade._async.client import Client, JetStream
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.stream import Stream
from slipstream.kv._async.key_value import KeyValue
from slipstream.objects._async.object_store import ObjectStore

HALF = "\ud800"  # of a surrogate pair: it cannot be sent
NOTHING: Any = None
TIMEOUT = "timeout must be a timedelta or a number of seconds, 0 or more, got"
SUBJECT = "subject must be dot-separated tokens"


class Handles(NamedTuple):
    """One of each object that a program holds."""

    nc: Client
    js: JetStream
    stream: Stream
    consumer: Consumer
    kv: KeyValue[bytes]
    store: ObjectStore


Call = Callable[[Handles, Any], Any]

# What to call, with which values, and the error.
CALLS: dict[str, tuple[Call, tuple[Any, ...], str]] = {
    "publish-subject": (lambda on, bad: on.nc.publish(bad), ({"a": 1}, "a b", 5, NOTHING), SUBJECT),
    "publish-reply": (lambda on, bad: on.nc.publish("a", reply=bad), (5, b"a", "a b"), SUBJECT),
    "publish-headers": (
        lambda on, bad: on.nc.publish("a", headers=bad),
        (5, "a b", [1], [("a",)]),
        "headers must be a mapping, or pairs of names and values, got",
    ),
    "request-timeout": (
        lambda on, bad: on.nc.request("a", timeout=bad),
        (NOTHING, -1, "5", float("nan"), True),
        TIMEOUT,
    ),
    "flush-timeout": (lambda on, bad: on.nc.flush(timeout=bad), (NOTHING, -1, b"5"), TIMEOUT),
    "subscribe-queue": (lambda on, bad: on.nc.subscribe("a", queue=bad), (NOTHING, 5, "a b"), SUBJECT),
    "subscribe-limit": (
        lambda on, bad: on.nc.subscribe("a", max_pending_msgs=bad),
        (NOTHING, 0, "5", 1.5),
        "max_pending_msgs must be an integer of at least 1, got",
    ),
    "jetstream-prefix": (lambda on, bad: on.nc.jetstream(prefix=bad), (5, b"a"), "prefix must be a string, got"),
    "js-publish-subject": (lambda on, bad: on.js.publish(bad), ({"a": 1}, 5, ""), SUBJECT),
    "js-publish-timeout": (
        lambda on, bad: on.js.publish("a", timeout=bad),
        (-1, "5", b"5", ["x"]),
        TIMEOUT,
    ),
    "js-publish-headers": (lambda on, bad: on.js.publish("a", headers=bad), (5, "a b"), "headers must be a mapping"),
    "publisher-window": (
        lambda on, bad: on.js.publisher(max_in_flight=bad),
        (NOTHING, 0, "5"),
        "max_in_flight must be an integer of at least 1, got",
    ),
    "publisher-retries": (lambda on, bad: on.js.publisher(retries=bad), (NOTHING, -1), "retries must be an integer"),
    "publisher-wait": (lambda on, bad: on.js.publisher(retry_wait=bad), (NOTHING, -1), "retry_wait must be a timed"),
    "account-timeout": (lambda on, bad: on.js.account_info(timeout=bad), (-1, "5"), TIMEOUT),
    "stream-name": (lambda on, bad: on.js.stream(bad), (HALF, 5, "a.b"), "stream name must be"),
    "stream-info-timeout": (lambda on, bad: on.stream.info(timeout=bad), (-1, "5"), TIMEOUT),
    "last-many-subjects": (
        lambda on, bad: on.stream.get_last_many(bad),
        (NOTHING, 5, b"a"),
        "subjects must be a subject or a sequence of subjects, got",
    ),
    "ordered-subjects": (
        lambda on, bad: on.stream.ordered_consumer(bad),
        (NOTHING, 5, b"a"),
        "subjects must be a subject or a sequence of subjects, got",
    ),
    "ordered-heartbeat": (
        lambda on, bad: on.stream.ordered_consumer(heartbeat=bad),
        (NOTHING, "5", 0.01),
        "heartbeat must be",
    ),
    "ordered-policy": (
        lambda on, bad: on.stream.ordered_consumer(deliver_policy=bad), ({"a": 1}, 5, "x"), "deliver_policy must be"
    ),
    "consumer-name": (lambda on, bad: on.stream.create_consumer(bad), (HALF, "a.b"), "consumer name must be"),
    "fetch-timeout": (lambda on, bad: on.consumer.fetch(1, timeout=bad), (NOTHING, -1, "5"), TIMEOUT),
    "fetch-bytes": (lambda on, bad: on.consumer.fetch(1, max_bytes=bad), (NOTHING, -1, 1.5), "max_bytes must be"),
    "next-timeout": (lambda on, bad: on.consumer.next(timeout=bad), (NOTHING, -1, "5"), TIMEOUT),
    "messages-bytes": (lambda on, bad: on.consumer.messages(max_bytes=bad), (NOTHING, -1, 1.5), "max_bytes must be an"),
    "messages-expires": (lambda on, bad: on.consumer.messages(expires=bad), (NOTHING, "5", 0.5), "expires must be"),
    "messages-heartbeat": (lambda on, bad: on.consumer.messages(heartbeat=bad), ("5", -1, 30), "heartbeat must be"),
    "messages-threshold": (lambda on, bad: on.consumer.messages(threshold=bad), ("5", 1.5, -1), "threshold must be"),
    "kv-timeout": (lambda on, bad: on.kv.get("k", timeout=bad), (-1, "5"), TIMEOUT),
    "kv-put-timeout": (lambda on, bad: on.kv.put("k", b"", timeout=bad), (-1, "5"), TIMEOUT),
    "kv-revision": (lambda on, bad: on.kv.get("k", revision=bad), (-1, "5", 1.5), "revision must be an integer"),
    "kv-fresh": (lambda on, bad: on.kv.get("k", min_last_revision=bad), (NOTHING, -1, "5"), "min_last_revision must"),
    "kv-last": (lambda on, bad: on.kv.update("k", b"", last=bad), (-1, "5", 1.5), "last must be an integer from 0"),
    "kv-snapshot": (lambda on, bad: on.kv.snapshot(revision=bad), (NOTHING, -1, b"5"), "revision must be an integer"),
    "kv-resume": (lambda on, bad: on.kv.watch(resume_from=bad), (NOTHING, -1, "5"), "resume_from must be an integer"),
    "kv-codec": (lambda on, bad: on.kv.with_codec(bad), (NOTHING, "json"), "codec must be a Codec, got"),
    "kv-cached": (lambda on, bad: on.kv.cached(max_entries=bad), (NOTHING, 0, "5"), "max_entries must be"),
    "kv-older-than": (lambda on, bad: on.kv.purge_deletes(older_than=bad), (NOTHING, "5", -1), "older_than must be"),
    "kv-writer": (lambda on, bad: on.kv.writer(max_in_flight=bad), (NOTHING, 0), "max_in_flight must be an integer of"),
    "put-name": (lambda on, bad: on.store.put(bad, b""), (HALF, "", 5), "object name must be"),
    "put-description": (lambda on, bad: on.store.put("o", b"", description=bad), (5, HALF, NOTHING), "description"),
    "put-headers": (lambda on, bad: on.store.put("o", b"", headers=bad), (5, "a b"), "headers must be a mapping"),
    "put-metadata": (
        lambda on, bad: on.store.put("o", b"", metadata=bad),
        (5, "a b", {"a": 1}),
        "metadata must be a mapping of strings to strings, got",
    ),
    "put-chunk-size": (lambda on, bad: on.store.put("o", b"", chunk_size=bad), (NOTHING, 0, "5"), "chunk_size must be"),
    "put-progress": (lambda on, bad: on.store.put("o", b"", progress=bad), (5, "x"), "progress must be"),
    "put-timeout": (lambda on, bad: on.store.put("o", b"", timeout=bad), (-1, "5"), "timeout must be"),
    "meta-description": (lambda on, bad: on.store.update_meta("there", description=bad), (5, HALF), "description"),
    "link-target": (lambda on, bad: on.store.link("l", bad), (NOTHING, "there"), "target of a link must be"),
}  # fmt: skip


async def test_a_bad_argument_is_named(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(fresh, subjects=f"{fresh}.*"))
        consumer = await stream.create_consumer("w")
        kv = await js.create_key_value(BucketConfig(fresh))
        store = await js.create_object_store(ObjectStoreConfig(fresh))
        await store.put("there", b"x")
        handles = Handles(nc, js, stream, consumer, kv, store)
        for name, (call, values, text) in CALLS.items():
            for bad in values:
                with pytest.raises(UsageError) as caught:
                    await done(call(handles, bad))
                assert str(caught.value).startswith(text), (name, bad)
        assert [(info.name, info.size) async for info in store.list()] == [("there", 1)]  # nothing else was stored
        assert (await stream.info()).state.messages == (await kv.status()).values == 0


async def done(result: Any) -> None:
    """Wait for a call that is to be awaited."""
    if hasattr(result, "__await__"):
        await result


def test_a_bad_argument_of_the_blocking_client_is_named(our_url: str, fresh: str) -> None:
    with connect_blocking(our_url) as nc, nc.subscribe(fresh) as subscription:
        calls: dict[str, Callable[[Any], Any]] = {
            "request": lambda bad: nc.request(fresh, timeout=bad),
            "flush": lambda bad: nc.flush(timeout=bad),
            "next": lambda bad: subscription.next(timeout=bad),
            "next_chunk": lambda bad: subscription.next_chunk(timeout=bad),
            "request_many": lambda bad: list(nc.request_many(fresh, timeout=bad)),
            "info": lambda bad: nc.jetstream().account_info(timeout=bad),
        }
        for name, call in calls.items():
            for bad in (-1, "5", b"5", float("nan")):
                with pytest.raises(UsageError) as caught:
                    call(bad)
                expected = f"{TIMEOUT} {bad!r}"
                if name == "request_many":
                    expected = expected.replace("0 or more", "more than 0")
                assert str(caught.value) == expected, name
        for subject in ({"a": 1}, 5, "a b"):
            wrong: Any = subject
            with pytest.raises(UsageError, match=r"^subject must be dot-separated tokens"):
                nc.publish(wrong)
        callable_only: Any = 5
        with pytest.raises(UsageError, match=r"^sentinel must be callable, got 5$"):
            list(nc.request_many(fresh, sentinel=callable_only))


@pytest.mark.parametrize(
    ("option", "bad", "text"),
    [
        ("servers", NOTHING, "servers must be a URL, or a sequence of URLs, got NoneType"),
        ("servers", b"nats://user:secret@host", "servers must be a URL, or a sequence of URLs, got bytes"),
        ("timeout", NOTHING, "timeout must be a timedelta or a number of seconds, more than 0, got None"),
        ("ping_interval", "5", "ping_interval must be a timedelta or a number of seconds, more than 0, got '5'"),
        ("max_reconnects", "5", "max_reconnects must be 0 or more, or None for no limit, got '5'"),
        ("on_event", 5, "on_event must be a function of an event, got 5"),
        ("user", 5, "user must be a string, a path of a file, or a function, got int"),
        ("token", NOTHING, "token must be a string, a path of a file, or a function, got NoneType"),
    ],
    ids=["servers", "bytes", "timeout", "ping_interval", "max_reconnects", "on_event", "user", "token"],
)
async def test_a_bad_option_of_connect_is_named(our_url: str, option: str, bad: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        await connect(**{"servers": our_url, option: bad})
    assert str(caught.value) == text
    assert isinstance(caught.value, CredentialsError) == (option in ("user", "token"))  # secrets are not repeated

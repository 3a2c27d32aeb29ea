"""Every object that a program holds says what it is, and shows no address in memory."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from typing import Any

import pytest

import slipstream
import slipstream.server
import slipstream.testing
from slipstream import Server, connect, connect_blocking
from slipstream.testing import ServerMixin, TestServer


@pytest.mark.parametrize("package", [slipstream, slipstream.server, slipstream.testing, slipstream.api])
def test_every_public_class_has_a_repr_of_its_own(package: Any) -> None:
    public = [getattr(package, name) for name in package.__all__]
    kinds = [kind for kind in public if inspect.isclass(kind) and not issubclass(kind, (Exception, enum.Enum))]
    kinds = [kind for kind in kinds if kind is not ServerMixin]  # the TestCase beside it in the list of bases has one
    assert [kind.__qualname__ for kind in kinds if kind.__repr__ is object.__repr__] == []


async def test_objects_say_what_they_are(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=f"{fresh}.*")
        consumer = await stream.create_consumer("workers")
        kv = await js.create_key_value(fresh)
        await js.publish(f"{fresh}.ada", b"a lamp")
        await js.publish(f"{fresh}.ada", b"x" * 100)
        message, large = await consumer.fetch(2)
        subscription = await nc.subscribe(f"{fresh}.>")
        assert repr(stream) == f"<Stream {fresh!r}>"
        assert repr(consumer) == f"<Consumer 'workers' of {fresh!r}>"
        assert repr(message) == f"<JsMessage {fresh}.ada #1, delivery 1, b'a lamp'>"
        assert repr(large) == f"<JsMessage {fresh}.ada #2, delivery 1, {b'x' * 64!r}… (100 bytes)>"
        assert repr(js) == f"<JetStream of {nc!r}>"
        assert repr(nc.jetstream(domain="hub")) == f"<JetStream of {nc!r}, prefix '$JS.hub.API'>"
        assert repr(js.session()) == f"<Session of {nc!r}>"
        assert repr(subscription) == f"<Subscription '{fresh}.>', 0 pending>"
        assert repr(await js.create_object_store(fresh)) == f"<ObjectStore {fresh!r}>"
        assert repr(js.publisher()) == f"<Publisher of {nc!r}, 0 in flight>"
        assert repr(kv.lock("job")) == f"<Lock 'job' in {fresh!r}>"
        async with await kv.watch() as watch, await consumer.consume(print) as consuming:
            shown = [kv, watch, consuming, consumer.messages(), stream.ordered_consumer(), js.atomic_batch(), message]
            shown += [js.snapshot(fresh), kv.election("e"), kv.members("m")]
            assert [text for each in shown if " object at 0x" in (text := repr(each))] == []


def test_blocking_objects_and_servers_say_what_they_are(our_url: str, fresh: str, tmp_path: Path) -> None:
    with connect_blocking(our_url) as nc:
        stream = nc.jetstream().create_stream(fresh)
        assert repr(stream) == f"<Stream {fresh!r}>"
        assert repr(stream.create_consumer("workers")) == f"<Consumer 'workers' of {fresh!r}>"
    with TestServer() as server:
        assert repr(server) == f"<TestServer {server.url}>"
        assert repr(server.server) == f"<Server {server.url}, in memory>"
    assert repr(server) == "<TestServer not running>"
    assert repr(Server(data_dir=tmp_path)) == f"<Server not running, data in {str(tmp_path)!r}>"

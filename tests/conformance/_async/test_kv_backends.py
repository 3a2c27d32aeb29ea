"""The suite of all backends on JetStream, on our server and on nats-server: plain, and through a codec."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from slipstream import BucketConfig, connect
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.codecs.encryption import Encrypted, Keyring
from tests.kv._async.behaviour import Behaviour


@pytest.mark.spec("KV-28")
class TestJetStream(Behaviour):
    @pytest.fixture(autouse=True)
    def _server(self, any_server: str) -> None:
        self.url = any_server

    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        async with connect(self.url) as nc:
            yield await nc.jetstream().create_key_value(config)


class TestEncrypted(TestJetStream):
    """A bucket through a codec behaves like any bucket."""

    bad_filters = ("a*", "a.>.b")

    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        async with connect(self.url) as nc:
            kv = await nc.jetstream().create_key_value(config)
            yield kv.with_codec(Encrypted(Keyring({"a": b"k" * 32}), context=config.bucket))

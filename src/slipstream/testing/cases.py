"""`ServerMixin`: a server for each test of a `unittest.TestCase` or `IsolatedAsyncioTestCase`.

class OrdersTest(ServerMixin, unittest.TestCase):
    def test_publish(self):
        self.client.publish("orders.1", b"one")
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from slipstream import BlockingClient, connect_blocking
from slipstream.testing.server import TestServer

if TYPE_CHECKING:
    _Case = unittest.TestCase
else:
    _Case = object  # at run time the class beside it in the list of bases


class ServerMixin(_Case):
    """`self.server` is a server for this test, `self.client` a blocking client of it, made when it is first used."""

    server_options: ClassVar[Mapping[str, Any]] = {}  # arguments of TestServer
    shared_server: ClassVar[bool] = False  # one server for the class, reset before each test
    server: TestServer
    _client: BlockingClient | None = None
    _shared: ClassVar[TestServer | None] = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if cls.shared_server:
            cls._shared = TestServer(**cls.server_options).start()
            cls.addClassCleanup(cls._shared.stop)

    def setUp(self) -> None:
        super().setUp()
        if self._shared is not None:
            self.server = self._shared
            self.server.reset()
        else:
            self.server = TestServer(**self.server_options).start()
            self.addCleanup(self.server.stop)

    @property
    def client(self) -> BlockingClient:
        """A blocking client of the server, closed after the test."""
        if self._client is None:
            self._client = connect_blocking(self.server.url)
            self.addCleanup(self._client.close)
        return self._client

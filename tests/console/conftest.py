"""The two servers that the console is tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.server import Server
from tests.servers import real_server


@pytest.fixture(scope="module", params=["ours", "nats-server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "ours":
        with Server() as server:
            yield server.url
    else:
        with real_server() as real:
            yield real

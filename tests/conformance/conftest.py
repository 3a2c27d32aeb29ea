"""What the tests of consumers share: a stream with messages in it, and servers that have consumers."""

from __future__ import annotations

import pytest

from slipstream import connect_blocking
from slipstream.errors import ApiError, NoRespondersError, StreamNotFoundError


@pytest.fixture
def consumer_server(any_server: str) -> str:
    """As `any_server`, where there are consumers."""
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        try:
            js.run(js._consumer_api.info("no-such-stream", "none"))
        except StreamNotFoundError:
            pass
        except (ApiError, NoRespondersError):
            pytest.skip("this server has no consumers yet")
    return any_server

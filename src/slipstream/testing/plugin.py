"""Fixtures for pytest: servers to test against. Registered by installing Slipstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported by the fixtures: a run that uses none of them pays nothing
    from slipstream.testing.server import TestServer


@pytest.fixture
def slipstream_server() -> Iterator[TestServer]:
    """A server of its own for this test, with its streams in memory."""
    from slipstream.testing.server import TestServer

    with TestServer() as server:
        yield server


@pytest.fixture
def slipstream_server_disk(tmp_path: Path) -> Iterator[TestServer]:
    """A server of its own for this test, with its streams on disk; `restart` keeps them."""
    from slipstream.testing.server import TestServer

    with TestServer(data_dir=tmp_path / "slipstream") as server:
        yield server


@pytest.fixture
def slipstream_server_virtual() -> Iterator[TestServer]:
    """A server of its own for this test, whose clock stands still until `advance` moves it."""
    from slipstream.testing.server import TestServer

    with TestServer(virtual_time=True) as server:
        yield server


@pytest.fixture(scope="session")
def slipstream_session_server() -> Iterator[TestServer]:
    """One server for all tests that ask for it, with its streams in memory."""
    from slipstream.testing.server import TestServer

    with TestServer() as server:
        yield server

"""Fixtures for pytest: servers and clients to test with, and the mark `slipstream_faults`. Registered by installing
Slipstream; neither pytest-asyncio nor anyio is needed, and the asyncio fixtures work with both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:  # imported by the fixtures: a run that uses none of them pays nothing
    from slipstream import BlockingClient, BlockingJetStream, Client, JetStream
    from slipstream.testing.controls import ServerControls
    from slipstream.testing.server import TestAccount, TestServer

FAULTS = "slipstream_faults"
_FAULT = "slipstream_fault"
_BY_ASYNCIO = "_force_asyncio_fixture"  # what `pytest_asyncio.fixture` sets
# In this order: the fixture whose server the client fixtures and the faults of a test use.
_SERVERS = ("slipstream_isolated_server", "slipstream_server_virtual", "slipstream_server_disk", "slipstream_server")

_SERVER: pytest.StashKey[ServerControls] = pytest.StashKey()  # of a test

Fixture = TypeVar("Fixture", bound=Callable[..., Any])


# Servers.


@pytest.fixture
def slipstream_server(request: pytest.FixtureRequest) -> Iterator[TestServer]:
    """A server of its own for this test, with its streams in memory."""
    from slipstream.testing.server import TestServer

    with TestServer() as server:
        request.node.stash[_SERVER] = server
        yield server


@pytest.fixture
def slipstream_server_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestServer]:
    """A server of its own for this test, with its streams on disk; `restart` keeps them."""
    from slipstream.testing.server import TestServer

    with TestServer(data_dir=tmp_path / "slipstream") as server:
        request.node.stash[_SERVER] = server
        yield server


@pytest.fixture
def slipstream_server_virtual(request: pytest.FixtureRequest) -> Iterator[TestServer]:
    """A server of its own for this test, whose clock stands still until `advance` moves it."""
    from slipstream.testing.server import TestServer

    with TestServer(virtual_time=True) as server:
        request.node.stash[_SERVER] = server
        yield server


@pytest.fixture(scope="session")
def slipstream_session_server() -> Iterator[TestServer]:
    """One server for all tests that ask for it, with its streams in memory."""
    from slipstream.testing.server import TestServer

    with TestServer() as server:
        yield server


@pytest.fixture
def slipstream_isolated_server(
    request: pytest.FixtureRequest, slipstream_session_server: TestServer
) -> Iterator[TestAccount]:
    """An account of the session's server for this test alone."""
    with slipstream_session_server.isolated() as account:
        request.node.stash[_SERVER] = account
        yield account


def _server_of(request: pytest.FixtureRequest) -> str:
    return next((name for name in _SERVERS if name in request.fixturenames), "slipstream_server")


# Clients, of the server that the test uses: `slipstream_server` unless it asks for another one.


@pytest.fixture
def slipstream_url(request: pytest.FixtureRequest) -> str:
    """Where clients of this test connect to."""
    url: str = request.getfixturevalue(_server_of(request)).url
    return url


@pytest.fixture
def slipstream_client(slipstream_url: str) -> Iterator[BlockingClient]:
    """A blocking client."""
    from slipstream import connect_blocking

    with connect_blocking(slipstream_url) as client:
        yield client


@pytest.fixture
def slipstream_js(slipstream_client: BlockingClient) -> BlockingJetStream:
    """JetStream of the blocking client."""
    return slipstream_client.jetstream()


def _for_any_loop(function: Fixture) -> Fixture:
    """Mark an async fixture for pytest-asyncio, as `pytest_asyncio.fixture` does. Of tests that anyio runs, anyio sets
    up every async fixture: `pytest_fixture_setup` takes the mark off for them."""
    vars(function).update({_BY_ASYNCIO: True, "_loop_scope": "function"})
    return function


@pytest.fixture
@_for_any_loop
async def slipstream_async_client(slipstream_url: str) -> AsyncIterator[Client]:
    """An asyncio client, for tests that pytest-asyncio or anyio runs."""
    from slipstream import connect

    async with connect(slipstream_url) as client:
        yield client


@pytest.fixture
@_for_any_loop
async def slipstream_async_js(slipstream_async_client: Client) -> JetStream:
    """JetStream of the asyncio client."""
    return slipstream_async_client.jetstream()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    marks = getattr(fixturedef.func, "__dict__", {})
    if fixturedef.argname.startswith("slipstream_async_") and _BY_ASYNCIO in marks:
        marks[_BY_ASYNCIO] = "anyio_backend" not in request.fixturenames
        try:
            return (yield)
        finally:
            marks[_BY_ASYNCIO] = True
    return (yield)


# Faults.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{FAULTS}(subject, only=(), without=(), every=3): run the test once undisturbed and once under each fault that"
        " can hit messages on the subject (see slipstream.testing.fault_runs)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(FAULTS)
    if mark is None:
        return
    from slipstream.testing.fault_runs import chosen_runs

    runs = chosen_runs(mark.kwargs.get("only", ()), mark.kwargs.get("without", ()))
    if _FAULT not in metafunc.fixturenames:
        metafunc.fixturenames.append(_FAULT)
    metafunc.parametrize(_FAULT, runs, indirect=True)


@pytest.fixture
def slipstream_fault(request: pytest.FixtureRequest) -> str:
    """The name of the fault run that this test is in (of the mark `slipstream_faults`)."""
    name: str = request.param
    return name


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin the faults of a marked test, when its fixtures are set up."""
    mark = item.get_closest_marker(FAULTS)
    callspec = getattr(item, "callspec", None)
    if mark is None or callspec is None:
        return
    from slipstream.errors import UsageError
    from slipstream.testing.fault_runs import FAULT_RUNS

    server = item.stash.get(_SERVER, None)
    if not mark.args:
        raise UsageError(f"{FAULTS} must name the subject of the messages to disturb")
    if server is None:
        raise UsageError(f"a test with {FAULTS} must use one of the fixtures {', '.join(_SERVERS)}")
    FAULT_RUNS[callspec.params[_FAULT]](server, mark.args[0], mark.kwargs.get("every", 3))

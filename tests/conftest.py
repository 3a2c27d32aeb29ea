"""What every test shares: asyncio tests, the two servers to compare, fresh names."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from slipstream.server.server import Server
from tests.cluster import Cluster
from tests.servers import real_server
from tools.spark_archive import SHORT_LIVED

pytest_plugins = ["tests.pure_only", "tests.spec_plugin", "tests.steady"]

# How quickly a machine draws examples says nothing about the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{SHORT_LIVED} -XX:SharedArchiveFile={sys.prefix}/spark.jsa")

# Jobs in the background of a shell ignore SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ASYNC_TIMEOUT = 60.0
_counter = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what collecting makes: half a million objects that stay until the end.

    It would look through all of them while they become more, which is two fifths of the CPU time of collecting, in each
    of a dozen processes of `make test`, and again during tests. In processes that a test forks, it would copy them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on a loop of its own; nothing may hang."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters  # of a method: without self
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    marker = pyfuncitem.get_closest_marker("timeout")  # of a test that takes long
    limit = marker.args[0] if marker is not None and marker.args else ASYNC_TIMEOUT
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), limit))
    return True


@pytest.fixture(scope="session")
def real_url() -> Iterator[str]:
    """The oracle, one for the whole run."""
    with real_server() as url:
        yield url


@pytest.fixture(scope="session")
def our_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our server with its durable store, one for the whole run."""
    with Server(data_dir=tmp_path_factory.mktemp("slipstream")) as server:
        yield server.url


@pytest.fixture(params=["ours", "real"])
def any_server(request: pytest.FixtureRequest) -> str:
    """The same test on our server and on the real one; gives its URL. The parameter decides which side is proven."""
    url: str = request.getfixturevalue("our_url" if request.param == "ours" else "real_url")
    return url


@pytest.fixture(scope="session")
def whole_run_cluster() -> Iterator[Cluster]:
    """A real cluster of three, one for the whole run; take `cluster` instead."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_run_cluster: Cluster) -> Iterator[Cluster]:
    """A real cluster of three whose routes can be held; whatever a test left held is released."""
    whole_run_cluster.wait_until_whole()
    yield whole_run_cluster
    whole_run_cluster.proxy.release_all()


@pytest.fixture
def is_real(request: pytest.FixtureRequest) -> bool:
    """Whether `any_server` is the real one, for the few differences that docs/compatibility.md lists."""
    return bool(request.node.callspec.params["any_server"] == "real")


@pytest.fixture
def fresh() -> str:
    """A name that no other test uses, also with digits after it: it ends with a letter."""
    return f"T{next(_counter)}x"

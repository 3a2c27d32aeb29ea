"""The fixtures in a test suite that is not ours."""

from __future__ import annotations

import sys

import pytest

SUITE = """
import socket

def test_blocking(slipstream_server):
    from slipstream import connect_blocking
    with connect_blocking(slipstream_server.url) as client:
        client.jetstream()

def test_disk(slipstream_server_disk, tmp_path):
    assert any(tmp_path.iterdir())

def test_virtual(slipstream_server_virtual):
    before = slipstream_server_virtual.now
    slipstream_server_virtual.advance(10)
    assert slipstream_server_virtual.now - before == 10_000_000_000

class TestSession:
    urls = set()

    def test_one(self, slipstream_session_server):
        self.urls.add(slipstream_session_server.url)

    def test_two(self, slipstream_session_server):
        self.urls.add(slipstream_session_server.url)
        assert len(self.urls) == 1
"""


def test_the_fixtures_are_there_by_themselves(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "slipstream.testing.plugin", *UNUSED)
    result.assert_outcomes(passed=5)


def test_a_suite_that_uses_no_fixture_does_not_load_the_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_light():\n    assert 'slipstream.server' not in sys.modules\n")
    result = pytester.runpytest_subprocess("-p", "slipstream.testing.plugin", *UNUSED)
    result.assert_outcomes(passed=1)


ASYNC_SUITE = """
import sys

import pytest

pytestmark = pytest.mark.{mark}

async def test_client(slipstream_async_client, slipstream_server):
    await slipstream_async_client.jetstream().create_stream("S", subjects=["s.>"])
    assert slipstream_server.stored() == []

async def test_js(slipstream_async_js, slipstream_isolated_server):
    await slipstream_async_js.create_stream("S", subjects=["s.>"])
    assert (await slipstream_async_js.publish("s.1", b"")).seq == 1
    assert len(slipstream_isolated_server.stored()) == 1

async def test_virtual(slipstream_async_client, slipstream_server_virtual):
    with slipstream_server_virtual.recorded("here") as messages:
        await slipstream_async_client.publish("here", b"")
        await messages.wait_async()
"""
ANYIO_BACKEND = "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
# Plugins that no suite here uses: to load them takes as long as its tests.
UNUSED = ("-pno:cacheprovider", "-pno:hypothesispytest", "-pno:cov", "-pno:timeout")
QUIET = ("-p", "slipstream.testing.plugin", *UNUSED, "-W", "error", "--strict-markers")


@pytest.mark.parametrize("others", ["alone", "both"])
@pytest.mark.parametrize("runner", ["asyncio", "anyio"])
def test_asyncio_clients_with_either_runner_also_where_both_are_installed(
    pytester: pytest.Pytester, runner: str, others: str
) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n" if runner == "asyncio" else "[pytest]")
    pytester.makepyfile(ASYNC_SUITE.format(mark=runner) + (ANYIO_BACKEND if runner == "anyio" else ""))
    off = {"asyncio": "anyio", "anyio": "asyncio"}[runner]
    options = ("-o", "asyncio_default_fixture_loop_scope=function") if others == "both" else ("-p", f"no:{off}")
    pytester.runpytest_subprocess(*QUIET, *options).assert_outcomes(passed=3)


def test_asyncio_clients_in_the_automatic_mode_of_pytest_asyncio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASYNC_SUITE.replace("pytestmark = pytest.mark.{mark}", ""))
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    pytester.runpytest_subprocess(*QUIET, *options).assert_outcomes(passed=3)


BLOCKING_SUITE = """
import sys

import pytest

def test_client(slipstream_client, slipstream_js, slipstream_server):
    assert slipstream_client.is_connected
    slipstream_js.create_stream("S", subjects=["s.>"])
    slipstream_server.seed(messages={"s.1": b""})
    assert len(slipstream_server.stored()) == 1

@pytest.mark.parametrize("n", range(6))
def test_isolated(slipstream_isolated_server, slipstream_js, n):
    slipstream_js.create_stream("S", subjects=["s.>"])
    assert slipstream_js.publish("s.1", b"").seq == 1
    assert len(slipstream_isolated_server.stored()) == 1

def test_url(slipstream_url, slipstream_server_disk):
    assert slipstream_url == slipstream_server_disk.url
"""


def test_blocking_clients_of_the_server_that_the_test_uses_also_with_two_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BLOCKING_SUITE)
    pytester.runpytest_subprocess(*QUIET, "-p", "no:asyncio", "-n", "2").assert_outcomes(passed=8)


FAULT_SUITE = """
import sys

import pytest
from slipstream.errors import ConnectionLostError, RequestTimeoutError

seen = set()

def publish(js, n):
    while True:
        try:
            return js.publish("s.1", b"%d" % n, msg_id=str(n), timeout=0.3)
        except (RequestTimeoutError, ConnectionLostError):
            pass

@pytest.mark.slipstream_faults("s.>")
def test_robust(slipstream_server, slipstream_js, slipstream_fault):
    seen.add(slipstream_fault)
    stream = slipstream_js.create_stream("S", subjects=["s.>"])
    for n in range(7):
        publish(slipstream_js, n)
    assert sorted(m.data for m in slipstream_server.stored()) == [b"%d" % n for n in range(7)]
    consumer = stream.create_consumer("w", ack_wait=0.5)
    done = set()
    while len(done) < 7:
        for message in consumer.fetch(7 - len(done), timeout=1):
            done.add(message.data)
            message.ack()
    assert len(done) == 7

@pytest.mark.slipstream_faults("s.>", only=["undisturbed", "duplicate-publishes"], every=2)
def test_careless(slipstream_server, slipstream_js):
    slipstream_js.create_stream("S", subjects=["s.>"])
    for n in range(4):
        slipstream_js.publish("s.1", b"")
    assert len(slipstream_server.stored()) == 4

@pytest.mark.slipstream_faults("s.>", without=["lost-publishes"])
def test_names(slipstream_fault, slipstream_client):
    seen.add(slipstream_fault)

def test_all_were_run():
    assert len(seen) == 9
"""


def test_a_marked_test_is_run_under_each_fault(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAULT_SUITE)
    result = pytester.runpytest_subprocess(*QUIET, "-p", "no:asyncio", "-rf")
    result.assert_outcomes(passed=9 + 1 + 8 + 1, failed=1)
    result.stdout.fnmatch_lines(["E *assert 6 == 4*", "FAILED *::test_careless?duplicate-publishes?*"])


def test_mistakes_in_a_mark_are_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.slipstream_faults(only="undisturbed")
        def test_no_subject(slipstream_server): ...

        @pytest.mark.slipstream_faults("s.>", only="undisturbed")
        def test_no_server(): ...
    """)
    result = pytester.runpytest_subprocess(*QUIET, "-p", "no:asyncio")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*must name the subject of the messages to disturb", "*must use one of the fixtures*"])
    pytester.makepyfile("import pytest\n@pytest.mark.slipstream_faults('s', only=['rain'])\ndef test_x(): ...\n")
    result = pytester.runpytest_subprocess(*QUIET, "-p", "no:asyncio")
    result.stdout.fnmatch_lines(["*a fault run must be one of undisturbed, *, got 'rain'*"])


UNITTEST = """
import unittest
from slipstream import connect
from slipstream.testing import ServerMixin

class OwnTest(ServerMixin, unittest.TestCase):
    server_options = {"virtual_time": True}

    def test_client(self):
        self.client.jetstream().create_stream("S", subjects=["s.>"])
        before = self.server.now
        self.server.advance(1)
        assert self.server.now - before == 1_000_000_000
        assert self.client is self.client

class SharedTest(ServerMixin, unittest.TestCase):
    shared_server = True
    urls = set()

    def check(self):
        self.urls.add(self.server.url)
        assert len(self.urls) == 1
        self.server.seed({"S": "s.>"}, {"s.1": b""})
        assert len(self.server.stored()) == 1

    test_one = test_two = check

class AsyncTest(ServerMixin, unittest.IsolatedAsyncioTestCase):
    async def test_async(self):
        async with connect(self.server.url) as client:
            await client.jetstream().create_stream("S", subjects=["s.>"])

unittest.main(argv=["kit"])
"""


def test_a_mixin_for_unittest(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(kit=UNITTEST)
    result = pytester.run(sys.executable, "-W", "error", path)
    assert result.ret == 0, result.stderr.str()
    result.stderr.fnmatch_lines(["Ran 4 tests in *", "OK"])

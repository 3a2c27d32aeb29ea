"""The fixtures in a test suite that is not ours."""

from __future__ import annotations

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
    result = pytester.runpytest_subprocess("-p", "slipstream.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5)


def test_a_suite_that_uses_no_fixture_does_not_load_the_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_light():\n    assert 'slipstream.server' not in sys.modules\n")
    result = pytester.runpytest_subprocess("-p", "slipstream.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)

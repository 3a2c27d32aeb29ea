"""Durations in signatures: every public call takes a timedelta or a number of seconds. A forgotten one fails here."""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from datetime import timedelta
from typing import Any

import pytest

import slipstream
import slipstream.kv
import slipstream.kv.codecs
import slipstream.objects
import slipstream.server
import slipstream.services
import slipstream.testing
from slipstream import Server, UsageError, connect_blocking
from slipstream.kv._async import rekey
from slipstream.kv._sync import rekey as blocking_rekey
from slipstream.server import WebSocketOptions
from slipstream.testing import TestServer
from tests.conformance._async.test_durations import BAD, CALLS, POSITIVE

PACKAGES = (
    slipstream,
    slipstream.kv,
    slipstream.kv.codecs,
    slipstream.objects,
    slipstream.server,
    slipstream.services,
    slipstream.testing,
)
NAMES = frozenset((
    "auth_timeout", "delay", "delays", "duration", "expires", "grace", "handshake_timeout", "heartbeat", "idle",
    "idle_timeout", "interval", "lame_duck_duration", "lame_duck_grace", "older_than", "ping_interval",
    "recheck_after", "reconnect_max_wait", "reconnect_wait", "retry_wait", "seconds", "stall", "timeout",
    "tls_timeout", "ttl", "wait", "wait_for_server", "write_deadline",
))  # fmt: skip
# Of the layers above core NATS, which have seconds: `exchange` and `next_msgs` are called for every message.
INTERNAL = {
    "Client.exchange",
    "Client.mark",
    "Client.wait",
    "Client.wait_for_reply",
    "OrderedConsumer.receive_run",
    "StaleReadError.after",
    "Subscription.next_all_dated",
    "Subscription.next_dated",
    "Subscription.next_msg",
    "Subscription.next_msgs",
    "Subscription.next_pieces",
    "Subscription.watch_silence",
}
# Lives and delays, which may be longer than a wait, are tried by tests/conformance/_async/test_times_and_shapes.py.
LIVES = {"delay", "older_than", "recheck_after", "ttl"}
# Tried by tests of their own, here and in other modules.
TRIED = {
    "Client.sleep.seconds",
    "Recording.wait.timeout",
    "Recording.wait_async.timeout",
    "Server.lame_duck.duration",
    "Server.lame_duck.grace",
    "ServerControls.advance.seconds",
    "ServerControls.delay.seconds",
    "ServerControls.wait_for.timeout",
    "ServerControls.wait_for_async.timeout",
    "ServerControls.wait_until_done.timeout",
    "ServerControls.wait_until_done_async.timeout",
    "Service.start.timeout",
    "connect.wait_for_server",
}


def functions(kind: Any) -> Iterator[Any]:
    """A function, or the methods and the constructor of a class."""
    if inspect.isfunction(kind) or inspect.ismethod(kind):
        yield kind
    elif inspect.isclass(kind) and not issubclass(kind, enum.Enum):
        for name in dir(kind):
            member = inspect.getattr_static(kind, name)
            call = getattr(member, "__func__", member)
            if inspect.isfunction(call) and (not name.startswith("_") or name == "__init__"):
                yield call


def public_calls() -> Iterator[tuple[str, Any]]:
    found = [getattr(package, name) for package in PACKAGES for name in package.__all__]
    for kind in (*found, rekey.reencrypt, blocking_rekey.reencrypt):
        for call in functions(kind):
            plain = inspect.unwrap(call)
            if plain.__module__.startswith("slipstream."):
                yield plain.__qualname__, call


def durations() -> Iterator[tuple[str, str, str]]:
    """Call, parameter and annotation of all that are named as a duration, in both drivers."""
    for name, call in public_calls():
        for each in inspect.signature(call).parameters.values():
            if each.name in NAMES and name not in INTERNAL:
                yield name, each.name, str(each.annotation)


def is_record(name: str) -> bool:
    """Whether a call makes a configuration (whose fields are tried elsewhere) or a report of what has happened."""
    kind = getattr(slipstream, name.removesuffix(".__init__"), None)
    return name.endswith(".__init__") and is_dataclass(kind) and kind is not slipstream.ClientOptions


def test_every_public_parameter_that_is_a_duration_takes_a_timedelta() -> None:
    found = {(name, what): hint for name, what, hint in durations() if not is_record(name)}
    some = {("Stream.get", "timeout"), ("Server.__init__", "ping_interval"), ("ServerControls.advance", "seconds")}
    assert some <= found.keys()
    assert {place: hint for place, hint in found.items() if "Duration" not in hint} == {}


def test_no_public_parameter_is_a_float_that_may_be_a_duration() -> None:
    """A new name for a duration goes into `NAMES`."""
    seconds = {
        f"{name}.{each.name}"
        for name, call in public_calls()
        for each in inspect.signature(call).parameters.values()
        if "float" in str(each.annotation) and "Callable" not in str(each.annotation) and name not in INTERNAL
    }
    assert seconds == {"WorkerStats.__init__.seconds"}


def test_every_duration_of_a_call_is_tried_on_a_server() -> None:
    names = {f"{name}.{what}" for name, what, _ in durations() if what not in LIVES and not name.endswith("__init__")}
    names = {name.replace("Client.connect.", "connect.") for name in names}
    assert sorted(names - TRIED - {*CALLS, *POSITIVE}) == []
    assert sorted({*CALLS, *POSITIVE} - names) == []


OPTIONS = ("auth_timeout", "lame_duck_duration", "lame_duck_grace", "ping_interval", "tls_timeout", "write_deadline")


@pytest.mark.parametrize("option", OPTIONS)
def test_the_options_of_a_server_are_durations(option: str) -> None:
    taken: dict[str, Any] = {"lame_duck_grace": 0, option: timedelta(seconds=5)}
    assert getattr(Server(**taken).options, option) == 5.0
    for bad in BAD:
        with pytest.raises(UsageError) as caught:
            Server(**{option: bad})
        assert str(caught.value) == f"{option} must be a timedelta or a number of seconds, 0 or more, got {bad!r}"


def test_the_handshake_timeout_of_websockets_is_a_duration() -> None:
    assert WebSocketOptions(handshake_timeout=timedelta(seconds=5)).handshake_timeout == 5.0
    with pytest.raises(UsageError, match=r"^handshake_timeout must be a timedelta or a number of seconds, 0 or more"):
        WebSocketOptions(handshake_timeout=-1)


async def test_lame_duck_mode_takes_durations() -> None:
    async with Server() as server:
        for what in ("grace", "duration"):
            with pytest.raises(UsageError, match=f"^{what} must be a timedelta or a number of seconds, 0 or more"):
                await server.lame_duck(**{what: -1})
        await server.lame_duck(grace=timedelta(0), duration=timedelta(milliseconds=10))


def test_a_virtual_clock_is_moved_by_durations() -> None:
    with TestServer(virtual_time=True) as server:
        begin = server.now
        server.advance(timedelta(seconds=90))
        server.advance(30)
        assert server.now - begin == 120 * 10**9
        for bad in ("5", True, float("nan")):
            wrong: Any = bad
            with pytest.raises(UsageError, match=r"^seconds must be a timedelta or a number of seconds, got"):
                server.advance(wrong)
            with pytest.raises(UsageError, match=r"^seconds must be a timedelta or a number of seconds, got"):
                server.delay("a", wrong)


def test_the_waits_of_the_testing_kit_take_durations() -> None:
    short = timedelta(milliseconds=1)
    with TestServer() as server, connect_blocking(server.url) as client, server.recorded("none") as recording:
        client.jetstream().create_stream("S", subjects=["s.>"]).create_consumer("c")
        client.jetstream().publish("s.1", b"")
        waits: list[Callable[[Any], Any]] = [
            lambda timeout: recording.wait(timeout=timeout),
            lambda timeout: asyncio.run(recording.wait_async(timeout=timeout)),
            lambda timeout: server.wait_for("none", timeout=timeout),
            lambda timeout: asyncio.run(server.wait_for_async("none", timeout=timeout)),
            lambda timeout: server.wait_until_done("S", "c", timeout=timeout),
            lambda timeout: asyncio.run(server.wait_until_done_async("S", "c", timeout=timeout)),
        ]
        for wait in waits:
            with pytest.raises(AssertionError, match=r"within 0\.001 s"):
                wait(short)
            for bad in BAD:
                with pytest.raises(UsageError, match=r"^timeout must be a timedelta or a number of seconds, 0 or more"):
                    wait(bad)

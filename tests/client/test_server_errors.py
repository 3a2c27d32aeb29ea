"""What an -ERR denies ends whoever waits for it; a sink that raises ends alone."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.client.events import Report
from slipstream.client.server_errors import ErrReply, parse_err
from slipstream.errors import AuthorizationError, Error, ServerError
from slipstream.wire import Msg
from tests.client.test_session import BOUNDS, Bulk, Sink, connected, kinds


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        ("Unknown Protocol Operation", ServerError, {"is_final": True}),
        ("Authorization Violation", AuthorizationError, {"is_final": True}),
        ("User Authentication Expired", AuthorizationError, {"is_final": True}),
        ("Permissions Violation", AuthorizationError, {}),
        ('Permissions Violation for Publish with Reply of "$JS.x"', AuthorizationError, {}),
        ('Permissions Violation for Publish to "A.b"', AuthorizationError, {"denied_publish": "A.b"}),
        ('permissions violation for subscription to "A.>"', AuthorizationError, {"denied_subscription": "A.>"}),
        (
            'Permissions Violation for Subscription to "A" using queue "Q" (sid "3")',
            AuthorizationError,
            {"denied_subscription": "A", "queue": "Q"},
        ),
        (
            'Permissions Violation for Subscription to "A" (sid "3")',
            AuthorizationError,
            {"denied_subscription": "A"},
        ),
    ],
)
def test_the_text_says_what_is_denied(text: str, kind: type[ServerError], fields: dict[str, Any]) -> None:
    reply = parse_err(text)
    assert type(reply.error) is kind
    assert reply.error.text == text
    assert reply == ErrReply(reply.error, **fields)


def test_a_denied_publish_fails_the_requests_to_that_subject_and_no_others() -> None:
    session = connected()
    denied, bulk, other = Sink(), Bulk(), Sink()
    session.requests.start("secret", b"", denied)
    session.requests.start_bulk("secret", b"", bulk)
    session.requests.start("open", b"", other)
    effects = session.received(b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n", 0)
    assert kinds(effects) == ["error"]
    assert [type(error) for error in (*denied.errors, *bulk.errors)] == [AuthorizationError] * 2
    assert session._scanner.readers == {}
    session.received(b"MSG _INBOX.N.3 1 2\r\nok\r\n", 0)
    assert (other.got, other.errors) == ([b"ok"], [])
    assert session.is_connected


def test_a_violation_that_names_nothing_is_only_reported() -> None:
    session = connected()
    sink, box = Sink(), session.subscriptions.subscribe("a", **BOUNDS)
    session.requests.start("b", b"", sink)
    assert kinds(session.received(b"-ERR 'Permissions Violation'\r\n", 0)) == ["error"]
    assert (sink.errors, box.is_ended) == ([], False)


def test_a_denied_inbox_fails_every_request_and_is_asked_for_again() -> None:
    session = connected()
    sinks = [Sink(), Sink()]
    for sink in sinks:
        session.requests.start("a", b"", sink)
    session.outgoing.take()
    session.received(b"-ERR 'Permissions Violation for Subscription to \"_INBOX.N.*\"'\r\n", 0)
    assert [len(sink.errors) for sink in sinks] == [1, 1]
    session.requests.start("a", b"", Sink())
    assert session.outgoing.take().startswith(b"SUB _INBOX.N.* 1\r\n")


class Bad(Sink):
    """Raises wherever it can."""

    def deliver(self, msg: Msg) -> bool:
        raise RuntimeError(f"cannot take {msg.payload!r}")

    def fail(self, error: Error) -> None:
        super().fail(error)
        raise RuntimeError("cannot fail")


def test_a_sink_that_raises_is_given_up_and_the_connection_goes_on() -> None:
    session = connected()
    bad, good, box = Bad(), Sink(), session.subscriptions.subscribe("a", **BOUNDS)
    session.requests.start("x", b"", bad)
    session.requests.start("y", b"", good)
    frames = b"MSG _INBOX.N.1 1 1\r\n!\r\nMSG _INBOX.N.1 1 1\r\n!\r\nMSG _INBOX.N.2 1 2\r\nok\r\nMSG a 2 0\r\n\r\n"
    effects = session.received(frames, 0)
    reported = [str(effect.event.error) for effect in effects if isinstance(effect, Report)]
    assert reported == ["cannot fail", "the reader of the replies to 'x' failed: RuntimeError(\"cannot take b'!'\")"]
    assert [str(error) for error in bad.errors] == [reported[1]]
    assert isinstance(bad.errors[0].__cause__, RuntimeError)
    assert (good.got, box.pending) == ([b"ok"], 1)
    assert session.is_connected


class BadBulk(Bulk):
    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        raise RuntimeError(f"cannot scan {data!r} at {pos}")


def test_a_bulk_sink_that_raises_is_given_up_too() -> None:
    session = connected()
    bad, good = BadBulk(), Bulk()
    session.requests.start_bulk("x", b"", bad)
    session.requests.start_bulk("y", b"", good)
    effects = session.received(good.prefix + b"4 7\r\nHHHHab!\r\n", now=1.0)
    assert kinds(effects) == ["error"]
    assert (len(bad.errors), good.scanned) == (1, [b"ab!"])
    assert session.is_connected


def test_a_server_that_timed_out_has_rejected_no_credentials() -> None:
    """An overloaded server says so; the credentials may be right."""
    reply = parse_err("Authentication Timeout")
    assert not isinstance(reply.error, AuthorizationError)
    assert reply.is_final

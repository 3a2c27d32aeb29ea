"""A repeat of a publish in doubt whose connection is lost at once: it is counted once, and in doubt at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error
from slipstream.jetstream._async import publisher
from slipstream.jetstream.publish.ack_window import AckWindow, PublishAcks
from slipstream.jetstream.publish.sent import Sent

SENT = Sent(0, "a", sent_at=0.0)


class Safe:
    """Every message may be sent again."""

    def __init__(self, *_: object) -> None: ...

    async def safe_until(self, *_: object, **__: object) -> float:
        return 1.0


class LosingClient:
    """Another thread loses the connection, or has the answer, before `start_one` returns."""

    def __init__(self, meanwhile: Callable[[PublishAcks], None]) -> None:
        self.epoch = 0
        self.is_connected = True
        self.acks = PublishAcks()
        self._meanwhile = meanwhile

    def shared(self, _: object) -> PublishAcks:
        return self.acks

    def now(self) -> float:
        return 0.0

    def cancel(self, token: str) -> None: ...

    def start_one(self, _: str, __: bytes, acks: PublishAcks, entry: tuple[AckWindow, Sent], **_kw: object) -> int:
        acks.register(7, entry)
        self._meanwhile(acks)
        self.epoch += 1
        return 7


def answered(acks: PublishAcks) -> None:
    acks.attach(b"MSG _INBOX.N.")
    acks.scan(b'MSG _INBOX.N.7 1 22\r\n{"stream":"S","seq":1}\r\n', 0)


def lost(acks: PublishAcks) -> None:
    acks.fail(ConnectionLostError("gone"))


def closed(acks: PublishAcks) -> None:
    acks.drop(7)
    raise ConnectionClosedError("closed")


@pytest.mark.parametrize(
    ("meanwhile", "acked", "in_doubt"),
    [(answered, 1, []), (lost, 0, [SENT]), (lambda _: None, 0, [SENT]), (closed, 0, [SENT])],
)
def test_it_is_counted_once(
    meanwhile: Callable[[PublishAcks], None], acked: int, in_doubt: list[Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "RepeatCheck", Safe)
    client = LosingClient(meanwhile)
    context: Any = SimpleNamespace(client=client, codec=None, session=None)
    one = publisher.Publisher(context, max_in_flight=5, timeout=1.0)
    one._window.in_doubt.append(SENT)
    error = None
    try:
        asyncio.run(one._repeat_lost())
    except Error as exc:
        error = type(exc)
    assert error is (ConnectionClosedError if meanwhile is closed else None)
    assert (one.acked, list(one._window.in_doubt), one._window.in_flight) == (acked, in_doubt, len(in_doubt))
    assert client.acks.in_flight == 0

"""One publish of a publisher: the entry of one in flight, with the ack if that is waited for, and its failure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slipstream.api import PubAck
from slipstream.errors import Error, RemoteProtocolError


class FailedPublish(NamedTuple):
    """A message that was not stored: its position among those sent (from 0), its subject, and the error."""

    position: int
    subject: str
    error: Error


class PendingAck:
    """The answer to one publish, once it has arrived."""

    __slots__ = ("_ack", "_error")

    def __init__(self) -> None:
        self._ack: PubAck | None = None
        self._error: Error | None = None

    def is_done(self) -> bool:
        """Whether the answer has arrived."""
        return self._ack is not None or self._error is not None

    def settle(self, ack: PubAck | None, error: Error | None) -> None:
        """Take the answer."""
        self._ack, self._error = ack, error

    def result(self) -> PubAck:
        """The ack; raises the error that came instead."""
        if self._error is not None:
            raise self._error
        if self._ack is None:
            raise RemoteProtocolError("the result was requested before it arrived")
        return self._ack


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A publish in flight: its position, and what is needed to resend it (`tries` times at most).

    `sent_at` and `server_id`, of one that may be sent again after a lost connection: when and where it was sent first.
    """

    position: int
    subject: str
    pending: PendingAck | None = None
    payload: bytes = b""
    header: bytes = b""
    tries: int = 0
    sent_at: float | None = None
    server_id: str = ""

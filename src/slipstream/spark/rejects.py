"""Rows that cannot be written become messages on a dead-letter subject, with the reason; without one they are errors.

Only what the row itself is to blame for ends here: a subject or key that is none, a null, too many bytes, a subject
that the stream does not take. A server that is away or cannot store is nobody's fault and fails the task, which is
tried again.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import blake2b

from slipstream.errors import ApiError, Error, UsageError
from slipstream.facade.blocking import JetStream
from slipstream.spark.outbox import Outbox
from slipstream.wire import Headers

_HEADER_ROOM = 4096
_MOST_TEXT = 1_000  # characters of a reason, and of a name
# Size, another stream, size of headers, roll-up, time to live, counters, schedules: error codes of the API.
_ROWS_FAULTS = frozenset((10054, 10060, 10097, 10111, 10165, 10166, 10168, 10169, 10170, 10171, 10189, 10190, 10191))
_WINDOW = 256
_ROW = re.compile(r"^row \d+(?: \(subject .*?\))?(?::| was) ")


class Rejects:
    """Takes the rows of one task. `prefix` makes the ids of this task's letters its own."""

    def __init__(self, js: JetStream, subject: str, *, prefix: str, timeout: float) -> None:
        self._subject = subject
        self._prefix = prefix
        self._most = js.client.server_info.max_payload - _HEADER_ROOM
        self._outbox: Outbox[None] = Outbox(js, max_in_flight=_WINDOW, timeout=timeout)
        self._seen: dict[bytes, int] = {}
        self.count = 0

    def add(self, row: int, name: str | None, data: bytes | None, reason: Error) -> None:
        """Keep a row, or raise the reason where there is no place for it."""
        if not self._subject:
            raise reason
        whole = data or b""
        body = whole[: max(self._most, 0)]
        digest = blake2b(f"{self._prefix}/{name}/".encode(errors="replace") + body, digest_size=15).digest()
        count = self._seen[digest] = self._seen.get(digest, -1) + 1  # equal rows are told apart, in whatever order
        text = _ROW.sub("", " ".join(str(reason).split()))
        values = {"Slipstream-Reason": _short(text), "Slipstream-Row": str(row), "Slipstream-Name": _short(repr(name))}
        if len(body) < len(whole):
            values["Slipstream-Truncated"] = str(len(whole))
        headers = Headers({**values, "Nats-Msg-Id": f"dead.{urlsafe_b64encode(digest).decode()}.{count}"})
        self._outbox.send([(self._subject, body, headers.encode())], [None])
        self.count += 1

    def flush(self) -> None:
        """Every letter is stored; one that is not is an error, for its row would be lost."""
        self._outbox.flush()
        for failure in self._outbox.refused():
            raise UsageError(
                f"the dead-letter subject {self._subject!r} took no row: {failure.error}"
            ) from failure.error


def is_rows_fault(error: Error) -> bool:
    """Whether the row is to blame, and another attempt would end the same way."""
    if isinstance(error, ApiError):
        return error.err_code in _ROWS_FAULTS
    return isinstance(error, UsageError)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"

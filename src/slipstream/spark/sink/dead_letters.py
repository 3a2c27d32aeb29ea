"""Rows that cannot be written become messages on a dead-letter subject, with the reason; without one they are errors.

Only what the row itself is to blame for ends here: a subject or key that is none, a null, too many bytes, a subject
that the stream does not take. A server that is away or cannot store is nobody's fault and fails the task, which is
tried again.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import blake2b

from slipstream.errors import ApiError, Error, ErrorCode, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.spark.sink.outbox import Outbox
from slipstream.wire import Headers

_MOST_TEXT = 1_000  # bytes of a reason, and of a name; less where a server takes small messages only
_FRAME = 256  # bytes, of headers without these two
_ROWS_FAULTS = frozenset(
    (
        ErrorCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM,
        ErrorCode.STREAM_NOT_MATCH,
        ErrorCode.STREAM_HEADER_EXCEEDS_MAXIMUM,
        ErrorCode.STREAM_ROLLUP_FAILED,
        ErrorCode.MESSAGE_TTL_INVALID,
        ErrorCode.MESSAGE_TTL_DISABLED,
        ErrorCode.MESSAGE_INCR_DISABLED,
        ErrorCode.MESSAGE_INCR_MISSING,
        ErrorCode.MESSAGE_INCR_PAYLOAD,
        ErrorCode.MESSAGE_INCR_INVALID,
        ErrorCode.MESSAGE_SCHEDULES_PATTERN_INVALID,
        ErrorCode.MESSAGE_SCHEDULES_TARGET_INVALID,
        ErrorCode.MESSAGE_SCHEDULES_TTL_INVALID,
    )
)
_WINDOW = 256
_ROW = re.compile(r"^row \d+(?: \(subject .*?\))?(?::| was) ")


class DeadLetters:
    """Takes the rows of one task. `prefix` makes the ids of this task's letters its own."""

    def __init__(self, js: JetStream, subject: str, *, prefix: str, timeout: float) -> None:
        self._subject = subject
        self._prefix = prefix
        self._most = js.client.server_info.max_payload
        self._most_text = min(_MOST_TEXT, max(self._most - _FRAME, 0) // 4)
        self._outbox: Outbox[None] = Outbox(js, max_in_flight=_WINDOW, timeout=timeout)
        self._seen: dict[bytes, int] = {}
        self.count = 0

    def add(self, row: int, name: str | None, data: bytes | None, reason: Error) -> None:
        """Keep a row, or raise the reason where there is no place for it."""
        if not self._subject:
            raise reason
        whole = data or b""
        digest = blake2b(f"{self._prefix}/{name}/".encode(errors="replace") + whole, digest_size=15).digest()
        count = self._seen[digest] = self._seen.get(digest, -1) + 1  # equal rows are told apart, in whatever order
        text = _ROW.sub("", " ".join(str(reason).split()))
        headers = Headers(
            {
                "Slipstream-Reason": _short(text, self._most_text),
                "Slipstream-Row": str(row),
                "Slipstream-Name": _short(repr(name), self._most_text),
                "Nats-Msg-Id": f"dead.{urlsafe_b64encode(digest).decode()}.{count}",
            }
        )
        if len(headers.encode()) + len(whole) > self._most:
            headers.add("Slipstream-Truncated", str(len(whole)))
        block = headers.encode()
        self._outbox.send([(self._subject, whole[: max(self._most - len(block), 0)], block)], [None])
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


def _short(text: str, most: int) -> str:
    """A text of so many bytes, without half a character at the end."""
    whole = text.encode(errors="replace")
    return whole.decode() if len(whole) <= most else f"{whole[:most].decode(errors='ignore')}…"

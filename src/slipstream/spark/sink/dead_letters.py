"""Dead letters: rows that cannot be written, published to a subject with the reason; without a subject, errors.

Only rows that are bad in themselves end here: an invalid subject or key, a null, too many bytes, a subject that the
stream does not listen on. A server that is unreachable is waited for, and one that cannot store fails the task.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import blake2b

from slipstream.errors import ApiError, Error, ErrorCode, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.publish.bulk_window import Draft
from slipstream.spark.retries import is_outage
from slipstream.spark.sink.outbox import Outbox
from slipstream.wire import Headers

_MAX_TEXT = 1_000  # bytes of a reason, and of a name; less where the server accepts small messages only
_FRAME = 256  # bytes of headers without these two
_BAD_ROW_CODES = frozenset(
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
    """The dead letters of one task. `prefix` is part of their ids: the same for every attempt, unique per task.

    They outlive a connection: letters that are not confirmed are sent again on the next one, with the same id.
    """

    def __init__(self, subject: str, *, prefix: str, timeout: float) -> None:
        self._subject = subject
        self._prefix = prefix
        self._timeout = timeout
        self._max_payload = self._max_text = 0
        self._outbox: Outbox[None] | None = None
        self._unconfirmed: dict[int, Draft] = {}  # by the row's number
        self._unsent: list[Draft] = []
        self._seen: dict[bytes, int] = {}
        self.count: int = 0

    def attach(self, js: JetStream) -> None:
        """Use this connection from now on."""
        self._max_payload = js.client.server_info.max_payload
        self._max_text = min(_MAX_TEXT, max(self._max_payload - _FRAME, 0) // 4)
        self._outbox = Outbox(js, max_in_flight=_WINDOW, timeout=self._timeout)
        self._unsent = list(self._unconfirmed.values())

    def add(self, row: int, name: str | None, data: bytes | None, reason: Error) -> None:
        """Keep a row for the next `send`, or raise the reason if there is no subject for dead letters."""
        if not self._subject:
            raise reason
        if row in self._unconfirmed:  # sent again after an outage, and rejected again
            return
        whole = data or b""
        digest = blake2b(f"{self._prefix}/{name}/".encode(errors="replace") + whole, digest_size=15).digest()
        count = self._seen[digest] = self._seen.get(digest, -1) + 1  # equal rows are numbered, in whatever order
        text = _ROW.sub("", " ".join(str(reason).split()))
        headers = Headers(
            {
                "Slipstream-Reason": _short(text, self._max_text),
                "Slipstream-Row": str(row),
                "Slipstream-Name": _short(repr(name), self._max_text),
                "Nats-Msg-Id": f"dead.{urlsafe_b64encode(digest).decode()}.{count}",
            }
        )
        if len(headers.encode()) + len(whole) > self._max_payload:
            headers.add("Slipstream-Truncated", str(len(whole)))
        block = headers.encode()
        draft = (self._subject, whole[: max(self._max_payload - len(block), 0)], block)
        self._unconfirmed[row] = draft
        self._unsent.append(draft)
        self.count += 1

    def send(self) -> None:
        """Publish the letters that were added since the last call."""
        if not self._unsent:
            return
        assert self._outbox is not None, "attach comes first"
        drafts, self._unsent = self._unsent, []
        self._outbox.send(drafts, [None] * len(drafts))

    def flush(self) -> None:
        """Wait until every letter is stored; raises if one is rejected, since its row would be lost."""
        self.send()
        assert self._outbox is not None, "attach comes first"
        self._outbox.flush()
        for failure in self._outbox.refused():
            if is_outage(failure.error):
                raise failure.error
            raise UsageError(
                f"dead-letter subject {self._subject!r} rejected a row: {failure.error}"
            ) from failure.error
        self._unconfirmed.clear()


def is_bad_row(error: Error) -> bool:
    """Whether the row itself is bad, so that another attempt would fail in the same way."""
    if isinstance(error, ApiError):
        return error.err_code in _BAD_ROW_CODES
    return isinstance(error, UsageError)


def _short(text: str, most: int) -> str:
    """A text cut to a number of bytes, without half a character at the end."""
    whole = text.encode(errors="replace")
    return whole.decode() if len(whole) <= most else f"{whole[:most].decode(errors='ignore')}…"

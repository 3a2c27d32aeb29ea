"""Dead letters: the headers, and the message id, of a message that is stored elsewhere because its handler failed.

The payload and the program's headers stay as they were, as far as they can be sent: of names, what may not be in one
becomes `_`, and a letter that is too large goes without its traceback, then without its payload. Headers that begin
with `Nats-` are instructions to the stream that stores the message (deduplicate, expect a sequence, expire, roll up);
obeyed once more by the dead letters' stream they would reject the letter or remove others, so they are kept under
another name. The message id is the same for every delivery of a message, so that a letter is stored once. Pure.
"""

from __future__ import annotations

import re
import traceback
from datetime import UTC, datetime
from enum import IntEnum

from slipstream.jetstream.consume.ack_subject import Metadata
from slipstream.wire import Headers

PREFIX = "Dead-Letter-"
REASON = f"{PREFIX}Reason"
ERROR = f"{PREFIX}Error"
TRACEBACK = f"{PREFIX}Traceback"
STREAM = f"{PREFIX}Stream"
SEQUENCE = f"{PREFIX}Sequence"
SUBJECT = f"{PREFIX}Subject"
CONSUMER = f"{PREFIX}Consumer"
DELIVERIES = f"{PREFIX}Deliveries"
TIME = f"{PREFIX}Time"
LEFT_OUT = f"{PREFIX}Left-Out"

_NOT_IN_NAMES = re.compile(r"[^!-9;-~]")

ORIGINAL = "Original-"  # in front of a name that begins with
CONTROL = "nats-"

MAX_REASON = 500  # characters
MAX_FRAMES = 6
MAX_TRACEBACK = 1_000


class Extent(IntEnum):
    """How much of a message, and of what went wrong with it, is in its dead letter: less where it is too large."""

    WHOLE = 0
    NO_TRACEBACK = 1
    NO_PAYLOAD = 2


def letter_headers(
    headers: Headers,
    at: Metadata,
    error: BaseException,
    *,
    subject: str,
    now: datetime,
    extent: Extent = Extent.WHOLE,
    size: int = 0,
) -> Headers:
    """The headers of the dead letter of a message of `size` bytes that was published to `subject`."""
    kept = [
        (f"{ORIGINAL}{name}" if name.lower().startswith(CONTROL) else name, value)
        for name, value in ((_NOT_IN_NAMES.sub("_", name) or "_", value) for name, value in headers.items())
        if not name.startswith(PREFIX)  # of an earlier time as a dead letter
    ]
    letter = Headers.received(kept)
    letter.add(REASON, reason_of(error))
    letter.add(ERROR, type_of(error))
    if extent == Extent.WHOLE:
        letter.add(TRACEBACK, summary(error))
    elif extent == Extent.NO_PAYLOAD:
        letter.add(LEFT_OUT, f"payload of {size} bytes: too large with these headers")
    letter.add(STREAM, at.stream)
    letter.add(SEQUENCE, str(at.stream_seq))
    letter.add(SUBJECT, one_line(subject, len(subject)))
    letter.add(CONSUMER, at.consumer)
    letter.add(DELIVERIES, str(at.num_delivered))
    letter.add(TIME, now.astimezone(UTC).isoformat().replace("+00:00", "Z"))
    return letter


def letter_id(at: Metadata, created: int) -> str:
    """The message id. Times tell a stream, and a consumer, from those of the same name that were deleted before.

    `created` is that of the consumer: one that was made again delivers a message again on purpose.
    """
    return f"dead-letter.{at.domain}.{at.stream}.{at.consumer}.{created}.{at.stream_seq}.{at.time}"


def type_of(error: BaseException) -> str:
    """The name of the exception's class, with its module unless it is built in."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def reason_of(error: BaseException) -> str:
    """The exception in one line, as tracebacks end."""
    return one_line("".join(traceback.format_exception_only(error)), MAX_REASON)


def summary(error: BaseException) -> str:
    """The innermost frames in one line, the last one first."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    shown = " < ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
    return one_line(shown, MAX_TRACEBACK)


def one_line(text: str, most: int) -> str:
    """A text as the value of a header: without line breaks, and with no more characters than that."""
    text = " ".join(text.replace("\0", " ").split()).encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""Rules for publishes that are sent again because their answer is missing: the message may be stored already.

Pure. A copy is harmless while the stream knows the message id of the first one, which it does for its duplicate window.
The id must have been in the first copy, and the second one must arrive within the window, counted from when the first
was sent: it is sent in the first half of it, which leaves the other half for its way.

Ids are kept in memory. A server that is started again reads them from the messages that are left: that of a message
which was removed meanwhile is forgotten, and a copy would be stored as a new message, perhaps over a newer one. So
unless the same server process leads the stream as before, only streams whose messages stay are sent copies.

Publishes with an expectation (`Nats-Expected-Last-…`) are never sent again: nats-server checks the expectation before
the id, so that the copy of a stored message would be rejected, as if it had not been stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from slipstream.api import StreamInfo, names
from slipstream.api.times import SECOND, ZERO
from slipstream.errors import Error
from slipstream.wire import Msg

_ID = b"\r\n%b:" % names.MSG_ID.encode()
_NEVER = (b"\r\nNats-Expected-Last-", b"\r\nNats-Batch-")
_TTL = b"\r\n%b:" % names.TTL.encode()


class Answers:
    """The answers to all copies of one publish; a `ReplySink` of the client."""

    __slots__ = ("lost", "messages", "notify")

    def __init__(self) -> None:
        self.messages: deque[Msg] = deque()
        self.lost: Error | None = None
        self.notify: Callable[[], object] | None = None

    def deliver(self, msg: Msg) -> bool:
        """Take an answer; each copy has one."""
        self.messages.append(msg)
        if self.notify is not None:
            self.notify()
        return True

    def fail(self, error: Error) -> None:
        """The connection is gone, or the publish was rejected."""
        self.lost = error
        if self.notify is not None:
            self.notify()

    def is_ready(self) -> bool:
        """Whether there is an answer or an error."""
        return bool(self.messages) or self.lost is not None


def is_repeatable(header: bytes) -> bool:
    """Whether the message may be sent again at all: it has an id and no expectation, as servers read them."""
    at = header.find(_ID)
    return at >= 0 and header[at + len(_ID) :].lstrip(b" ")[:1] != b"\r" and not any(name in header for name in _NEVER)


def repeat_time(info: StreamInfo, header: bytes, *, elapsed: float, is_same_process: bool) -> float:
    """The seconds, counted from the first copy, in which another may be sent; 0 if it might be stored twice.

    `elapsed` is the time since the first copy, `is_same_process` whether the server that leads the stream did so then.
    """
    if not is_same_process and not _is_kept(info, header, elapsed):
        return 0.0
    return info.config.duplicate_window.total_seconds() / 2


def _is_kept(info: StreamInfo, header: bytes, elapsed: float) -> bool:
    """Whether a message that was stored `elapsed` seconds ago cannot have been removed since, but by hand."""
    config, state = info.config, info.state
    if config.retention != "limits" or config.allow_rollup_hdrs or config.max_msgs_per_subject > 0:
        return False
    if _TTL in header:
        return False
    is_bounded = config.max_msgs > 0 or config.max_bytes > 0
    if not is_bounded and (not config.max_age or config.max_age >= config.duplicate_window):
        return True
    if state.first_seq <= 1:
        return True
    return info.ts != ZERO and state.first_ts != ZERO and info.ts - state.first_ts > elapsed * SECOND

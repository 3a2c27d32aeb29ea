"""Many replies to one request: their mailbox, and when there are enough of them. Pure; time is an argument."""

from __future__ import annotations

from slipstream.client.mailbox import Mailbox
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS
from slipstream.errors import Error
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_integer, check_seconds


class RequestMany:
    """The sink of `request_many`: bounded as a subscription is, and ended after `max_messages`."""

    def __init__(
        self, subject: str, *, now: float, timeout: Duration, idle_timeout: Duration | None, max_messages: int | None
    ) -> None:
        timeout = check_seconds(timeout, is_zero_allowed=False)
        if idle_timeout is not None:
            idle_timeout = check_seconds(idle_timeout, "idle_timeout", is_zero_allowed=False)
        if max_messages is not None:
            check_integer(max_messages, "max_messages", least=1)
        self.box: Mailbox = Mailbox(b"", subject, queue="", max_msgs=MAX_PENDING_MSGS, max_bytes=MAX_PENDING_BYTES)
        self.box.limit = max_messages or 0
        self._deadline = now + timeout
        self._idle = idle_timeout
        self._is_first = True

    def deliver(self, msg: Msg) -> bool:
        """Add a reply."""
        return self.box.add(msg)

    def fail(self, error: Error) -> None:
        """No more replies will arrive."""
        self.box.end(error)

    def time_left(self, now: float) -> float:
        """How long to wait for the next reply. `idle_timeout` applies after the first one, which may take longer."""
        left = max(0.0, self._deadline - now)
        if self._is_first or self._idle is None:
            self._is_first = False
            return left
        return min(left, self._idle)

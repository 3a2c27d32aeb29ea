"""Heartbeat alarms of subscriptions: they fire when nothing was delivered for too long, without a reader.

Pure: a driver looks when `next` says so, and the time is an argument. Invariants: one alarm per silence, exactly after
`timeout` seconds; none while the connection is down (counting begins again with the next one), none after the end of
the subscription, and none for a silence that is the client's own:

- An alarm takes two looks. Between them the driver reads what has arrived: after a busy moment its timers may run
  before its socket is read.
- A look that comes much later than it was due means that the process did not run; what the server sent meanwhile may
  not be read yet. Counting begins again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slipstream.client.mailbox import Mailbox
from slipstream.client.session import Session

STALL = 0.25  # of the timeout: a look that is later than that says nothing of the server


class SilenceAlarm:
    """The alarm of one subscription: `call` it when `look` returns True."""

    __slots__ = ("_box", "_is_due", "_session", "_since", "_told", "call", "next", "timeout")

    def __init__(self, box: Mailbox, session: Session, timeout: float, call: Callable[[], None], *, now: float) -> None:
        self.call: Callable[[], None] = call
        self.timeout: float = timeout
        self.next: float = now + timeout  # when to look; never, if infinite
        self._box = box
        self._session = session
        self._since = now
        self._told = -math.inf  # the beginning of the silence of the last alarm
        self._is_due = False  # if nothing is read until the next look

    def look(self, now: float) -> bool:
        """Whether the alarm is to be raised now."""
        box, session = self._box, self._session
        is_late = now - self.next > self.timeout * STALL
        was_due, self._is_due = self._is_due, False
        self.next = now + self.timeout
        if box.is_ended or box.is_draining:
            self.next = math.inf
            return False
        if not session.is_connected:
            return False
        if is_late:
            self._since = now
        begin = max(box.heard, session.connected_at, self._since)
        if now < begin + self.timeout:
            self.next = begin + self.timeout
        elif begin == self._told:
            pass  # the same silence
        elif was_due:
            self._told = begin
            return True
        else:
            self._is_due, self.next = True, now
        return False

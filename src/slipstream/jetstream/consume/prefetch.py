"""Prefetched messages: how many may wait for the program, and until when each is still ours.

Theory of operation. A server redelivers a message that was not acknowledged within `ack_wait`, counted from when it was
*sent*. A message that waits in the client for its handler gets older, and one that is handed over when its time is up
is handled twice, here and by the worker that gets it next. Three rules prevent that:

- **Nothing that is over is handed over.** When a message was sent is not known, but a time before that is: the last one
  at which the reader saw its inbox empty. What has waited `ack_wait` less a margin since then is dropped, and counted;
  the server sends it again.
- **What has waited is renewed.** When a message is handed over, or kept, and `RENEW_AFTER` of its time has passed, it
  and all that wait with it are reported to be in progress: their `ack_wait` starts over, and the handler has nearly all
  of it. So only a single message whose handling takes longer than that lets others expire.
- **No more is requested than can be handled soon**: `Pace` measures how long the program takes for a message, and
  the window is what it handles in `WINDOW` of `ack_wait`. It begins with one message, doubles as long as it is used up
  in time, and shrinks at once. Other workers get the rest.

Pure; the time is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RENEW_AFTER = 1 / 5  # parts of `ack_wait`: what has waited for longer is renewed before it is handed over
WINDOW = 1 / 10  # what may wait is what is handled in that time
MARGIN = 1 / 10  # a renewal must reach the server before the time is over
MOST = 1_000_000  # messages: no bound
DEFAULT_ACK_WAIT = 30.0  # seconds: what servers take unless they are told


@dataclass(slots=True)
class PullStats:
    """What happened to the messages of a loop.

    `renewed` waited so long for the program that their `ack_wait` was started over; `expired` waited too long and were
    dropped: the server redelivers them.
    """

    messages: int = 0
    renewed: int = 0
    expired: int = 0


class AckDeadline:
    """When a message that was sent after a certain time must be renewed, and when it is over."""

    __slots__ = ("over_after", "renew_after")

    def __init__(self, ack_wait: float) -> None:
        self.renew_after = ack_wait * RENEW_AFTER
        self.over_after = ack_wait * (1 - MARGIN)

    def fresh_until(self, sent_after: float) -> float:
        """Until when it can be handed over as it is."""
        return sent_after + self.renew_after

    def is_over(self, sent_after: float, now: float) -> bool:
        """Whether the server may have redelivered it."""
        return now - sent_after >= self.over_after


class Pace:
    """How many messages may wait: what the program handles in a part of `ack_wait`."""

    __slots__ = ("_budget", "seconds", "window")

    def __init__(self, ack_wait: float) -> None:
        self._budget = ack_wait * WINDOW
        self.seconds = 0.0  # for one message, of late
        self.window = MOST if self._budget == math.inf else 1

    def handled(self, count: int, seconds: float) -> None:
        """The program took `count` messages, and came back after `seconds` for more."""
        if not count or self._budget == math.inf:
            return
        each = seconds / count
        # Slower is believed at once, faster only bit by bit: one quick message says little about the next.
        self.seconds = each if each >= self.seconds else (self.seconds + each) / 2
        fits = int(min(self._budget / self.seconds, MOST)) if self.seconds > 0 else MOST
        self.window = max(1, min(fits, 2 * self.window))

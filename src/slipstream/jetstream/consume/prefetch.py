"""Prefetched messages: how many may wait for the program, and for how long each may still be handled.

Theory of operation. A server redelivers a message that was not acknowledged within `ack_wait`, counted from when it was
*sent*. A message that waits in the client for its handler gets older, and one that is returned when its time is up
is handled twice, here and by the worker that gets it next. Four rules prevent that:

- **A time before it was sent is known** (`sent_after`). The reader sends a PING every `look_every` seconds; servers
  answer in the order of their deliveries, so a message behind the PONG was sent after the PING (`Session.mark`). That
  needs no clock of the server's and holds however much is on its way, and however late the client reads it.
- **Nothing that is over is handed over**: it is dropped when `ack_wait` less a margin has passed since then, and
  counted; the server redelivers it. A message that the server would not redeliver is never dropped: the last of
  `max_deliver` deliveries; any of a consumer whose acks count for all messages before them, since the ack of the next
  message would be that of a dropped one, too; any of a consumer without acks.
- **What has waited is renewed.** When a message is handed over, or kept, and `RENEW_AFTER` of its time has passed
  besides the round trip, which no renewal can save, it and all that wait with it are reported to be in progress: their
  `ack_wait` starts over, and the handler has nearly all of it. That counts from when the server has confirmed it, by
  the PONG behind the reports. So only a single message whose handling takes longer lets others expire.
- **No more is requested than can be handled soon**: `Pace` measures how long the program takes for a message, and
  the window is what it handles in `WINDOW` of `ack_wait` and a round trip. It begins with one message (a slow program
  must not keep work from others), or with all that the program wants where that is little, and grows fourfold as long
  as it is used up in time; it shrinks at once. It shrinks, too, when messages are older on arrival than the round trip
  explains, because the server sent more than the network carries in that time.

Pure; the time is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.api import AckPolicy, ConsumerConfig
from slipstream.jetstream.consume.ack_subject import num_delivered
from slipstream.wire import Msg

RENEW_AFTER = 1 / 5  # parts of `ack_wait`: what has waited for longer is renewed before it is handed over
LOOK_EVERY = 1 / 10  # so often it is learned that nothing older is on its way: twice before it would be renewed
WINDOW = 1 / 10  # what may wait is what is handled in that time
FRESH = 8 / 10  # what is older is never fresh, however long a round trip is
MARGIN = 1 / 10  # for what servers do between themselves, and for a renewal to reach them before the time is over
LONGEST_LOOK = 3.0  # seconds
GROWTH = 4.0
SLOW_GROWTH = 1.05
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


class AckRules:
    """When the messages of a consumer are renewed, and which of them are over."""

    __slots__ = ("_is_droppable", "_max_deliver", "_waits", "ack_wait", "look_every", "renew_after")

    def __init__(self, config: ConsumerConfig | None = None) -> None:
        """Of a consumer with that configuration; with the servers' own defaults, where it is not known."""
        if config is None:
            self._waits: tuple[float, ...] = (DEFAULT_ACK_WAIT,)
        elif config.ack_policy == AckPolicy.NONE:
            self._waits = (math.inf,)
        else:
            # With a back-off the first wait is for the first delivery, and so on; the last one for all that follow.
            waits = config.backoff or (config.ack_wait,)
            self._waits = tuple(wait.total_seconds() if wait else DEFAULT_ACK_WAIT for wait in waits)
        self._max_deliver = max(config.max_deliver, 0) if config is not None else 0
        # Where it is not known which delivery is the last, a message may be handled twice rather than never.
        self._is_droppable = config is not None and config.ack_policy == AckPolicy.EXPLICIT
        self.ack_wait: float = min(self._waits)  # of any delivery, at least
        self.renew_after: float = self.ack_wait * RENEW_AFTER
        self.look_every: float = min(self.ack_wait * LOOK_EVERY, LONGEST_LOOK)

    @property
    def has_deadline(self) -> bool:
        """Whether the server redelivers what is not acknowledged."""
        return self.ack_wait < math.inf

    def fresh_for(self, round_trip: float) -> float:
        """Seconds after they were sent in which messages can be handed over as they are: no renewal is any faster."""
        return min(self.renew_after + round_trip, self.ack_wait * FRESH)

    def is_fresh(self, age: float, round_trip: float = 0.0) -> bool:
        """Whether messages that were sent `age` seconds ago, or later, can be handed over as they are."""
        return age < self.fresh_for(round_trip) or not self.has_deadline

    def left(self, age: float) -> float:
        """Seconds until messages that were sent `age` seconds ago, or later, may be over."""
        return self.ack_wait * (1 - MARGIN) - age

    def alive(self, msgs: list[Msg], age: float) -> list[Msg]:
        """Those that may be handed over, of messages that were sent `age` seconds ago or later."""
        if age < self.ack_wait * (1 - MARGIN) or not self._is_droppable:
            return msgs
        return [msg for msg in msgs if not self._is_redelivered(msg, age)]

    def wait_of(self, delivery: int) -> float:
        """Seconds from the delivery with that number until the next one."""
        return self._waits[min(delivery, len(self._waits)) - 1]

    def is_last(self, delivery: int) -> bool:
        """Whether the server does not redeliver a message after the delivery with that number."""
        return 0 < self._max_deliver <= delivery

    def _is_redelivered(self, msg: Msg, age: float) -> bool:
        delivery = num_delivered(msg)
        return not self.is_last(delivery) and age >= self.wait_of(delivery) * (1 - MARGIN)


class Pace:
    """How many messages may wait: what the program handles, and the network carries, in a part of `ack_wait`."""

    __slots__ = ("_budget", "_growth", "round_trip", "seconds", "window")

    def __init__(self, ack_wait: float, *, first: int = 1) -> None:
        """The first window is `first`."""
        self._growth = GROWTH
        self.seconds: float = 0.0  # for one message, of late
        self.round_trip: float = 0.0  # in that time nothing arrives that is requested now
        self.window: int = first
        self.adapt(ack_wait)

    def adapt(self, ack_wait: float) -> None:
        """The consumer has another `ack_wait`."""
        self._budget = ack_wait * WINDOW
        self.window = MOST if self._budget == math.inf else max(1, min(self.window, self._fits()))

    def handled(self, count: int, seconds: float) -> None:
        """The program took `count` messages, and came back after `seconds` for more."""
        if not count or self._budget == math.inf:
            return
        each = seconds / count
        # Slower is believed at once, faster only bit by bit: one quick message says little about the next.
        self.seconds = each if each >= self.seconds else (self.seconds + each) / 2
        self.window = max(1, min(self._fits(), math.ceil(self._growth * self.window)))

    def late(self) -> None:
        """Messages were old on arrival. From now on the window grows slowly: the limit is not known."""
        if self._budget < math.inf:
            self.window = max(1, self.window // 2)
            self._growth = SLOW_GROWTH

    def _fits(self) -> int:
        return int(min((self._budget + self.round_trip) / self.seconds, MOST)) if self.seconds > 0 else MOST

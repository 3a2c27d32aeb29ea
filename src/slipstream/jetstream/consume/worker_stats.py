"""Statistics of a running `consume()`: cheap enough to be kept for every message."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.errors import NotJetStreamMessageError
from slipstream.jetstream.consume.ack_subject import split_reply
from slipstream.jetstream.consume.prefetch import PullStats


@dataclass(slots=True)
class WorkerStats:
    """What happened so far.

    `handled` counts the handlers that returned, `failed` those that raised (a handler that a stop cancelled is in
    neither), `dead_lettered` what was stored as a dead letter; `redelivered` those of all of them that were not the
    first delivery. `in_flight` messages are in handlers now, `waiting` wait for their subject. `returned` were returned
    to the server at a stop. `seconds` is the time spent in handlers. `pull` has the counters of the prefetch.
    """

    handled: int = 0
    failed: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    returned: int = 0
    in_flight: int = 0
    waiting: int = 0
    seconds: float = 0.0
    pull: PullStats = field(default_factory=PullStats)
    last_reply: str = field(default="", repr=False)  # of the newest message that was handed to a handler

    @property
    def lag(self) -> int:
        """How many messages the consumer had left to deliver when it sent the newest one that is handled here."""
        try:
            return int(split_reply(self.last_reply)[8])
        except NotJetStreamMessageError:  # nothing was handled so far
            return 0

    @property
    def messages(self) -> int:
        """How many messages arrived."""
        return self.pull.messages

    @property
    def renewed(self) -> int:
        """How many messages waited so long that their `ack_wait` was started over."""
        return self.pull.renewed

    @property
    def expired(self) -> int:
        """How many messages waited too long and were left to be redelivered."""
        return self.pull.expired

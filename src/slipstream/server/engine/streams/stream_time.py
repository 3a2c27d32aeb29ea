"""The time of one stream: the server's, or ahead of it after the machine's clock was put back.

Messages of a stream are ordered by time: reads by time, `max_age`, lifetimes and the duplicate window rely on it. A
clock that was a day ahead and was then put right leaves messages whose times are still to come. New ones cannot have
the server's time, which would be before theirs; with the time of the last message they would be a day too young.

So the stream's time goes on from its last message, as time passes: what is stored from then on expires after `max_age`,
and so does what was stored before. It runs slower than the server's (`SLOW`) until that has caught up: a tenth at most
is added to ages and windows meanwhile. Times of messages stay ahead for that long.
"""

from __future__ import annotations

SLOW = 9, 10  # the stream's time runs at this rate while it is ahead


class StreamTime:
    """Translates between the server's time and the stream's. In nanoseconds; both are the same for most streams."""

    __slots__ = ("_clock", "_stream", "caught_up")

    def __init__(self) -> None:
        self._clock = self._stream = 0  # the same moment in both, when the stream was loaded
        self.caught_up: int = 0  # from when on both are the same

    def begin(self, last: int, now: int) -> None:
        """A stream with its last message at `last` was loaded."""
        self._clock, self._stream = now, max(last, now)
        self.caught_up = now + (self._stream - now) * SLOW[1] // (SLOW[1] - SLOW[0])

    def at(self, now: int) -> int:
        """The stream's time at a moment of the server's."""
        if now >= self.caught_up:
            return now
        return max(now, self._stream + (now - self._clock) * SLOW[0] // SLOW[1])

    def until(self, moment: int, now: int) -> int:
        """The server's time at a moment of the stream's that is still to come."""
        current = self.at(now)
        if current == now or moment <= current:
            return moment if current == now else now
        return min(moment, now + -(-(moment - current) * SLOW[1] // SLOW[0]))

"""The delivery job of a consumer: when it works, and what holds it back.

A consumer delivers in chunks, as a job of the engine. `wake` queues the job; it runs until a chunk says that nothing
more can be done now, and then stays quiet until the next commit, pull, ack or timer. So an idle consumer costs nothing.
Four things hold it back: it is not live yet (or stopped), it is paused by its configuration, it waits for its pace (a
rate limit, a replay at the original speed, a retry after an error), or the engine has too many jobs.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.errors import StoreError
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.timing import MILLISECOND
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer

RETRY = 10 * MILLISECOND  # when the engine has too many jobs
FAILED = 1000 * MILLISECOND  # when a chunk failed


class DeliveryJob:
    """Runs `deliver`, one chunk at a time, while there is something to deliver."""

    def __init__(
        self, services: Services, advisories: ConsumerAdvisories, deliver: Callable[[int], tuple[Progress, int]]
    ) -> None:
        self.live: bool = False  # whether the consumer is durable and may deliver
        self.stopped: bool = False
        self._services = services
        self._advisories = advisories
        self._deliver = deliver
        self._scheduled = False
        self._pace_timer: Timer | None = None
        self._pause_timer: Timer | None = None
        self._pause_until: int | None = None
        self._replay_to = 0  # up to this sequence messages are replayed at their original speed
        self._replayed: tuple[int, int] | None = None  # time of the last message, and when it was delivered

    def wake(self) -> None:
        """Have a chunk delivered soon, if anything can be."""
        if self._scheduled or not self.live or self.stopped or self._pace_timer is not None:
            return
        self._scheduled = self._services.jobs.start(self)
        if not self._scheduled:
            self.wait_until(self._services.router.now + RETRY)

    def run(self) -> tuple[Progress, int]:
        """Deliver one chunk."""
        if self.stopped or not self.live or self._pace_timer is not None:
            self._scheduled = False
            return Progress.DONE, 0
        try:
            progress, sent = self._deliver(self._services.router.now)
        except StoreError:  # a read of the message reports it; deliveries are retried
            self._scheduled = False
            self.wait_until(self._services.router.now + FAILED)
            return Progress.DONE, 0
        except Exception:  # the runner of jobs reports it; without a retry the consumer would be silent for good
            self._scheduled = False
            self.wait_until(self._services.router.now + FAILED)
            raise
        if progress is Progress.DONE:
            self._scheduled = False
        return progress, sent

    def stop(self) -> None:
        """No more chunks."""
        self.stopped = True
        self.live = False
        self._deliver = _nothing
        for timer in (self._pause_timer, self._pace_timer):
            if timer is not None:
                timer.cancel()

    # Pace.

    @property
    def waits(self) -> bool:
        """Whether the next chunk has to wait for its time."""
        return self._pace_timer is not None

    def wait_until(self, when: int) -> None:
        """Deliver nothing before `when`."""

        def go_on(_: int) -> None:
            self._pace_timer = None
            self.wake()

        self._pace_timer = self._services.timers.at(when, go_on)

    @property
    def replays(self) -> bool:
        """Whether messages are replayed at their original speed."""
        return self._replay_to > 0

    def replay(self, up_to: int) -> None:
        """Replay the messages up to a sequence at their original speed."""
        self._replay_to = up_to

    def too_early(self, record: Record, now: int) -> bool:
        """Whether a replayed message is not due yet; the job then waits for it."""
        if not self._replay_to or record.seq > self._replay_to or self._replayed is None:
            return False
        when = self._replayed[1] + record.time - self._replayed[0]
        if when <= now:
            return False
        self.wait_until(when)
        return True

    def replayed(self, record: Record, now: int) -> None:
        """A message was delivered at the original speed."""
        if self._replay_to:
            self._replayed = (record.time, now)
            if record.seq >= self._replay_to:
                self._replay_to = 0

    # Pause.

    @property
    def paused(self) -> bool:
        until = self._pause_until
        return until is not None and until > self._services.router.now

    def set_pause(self, until: int | None) -> None:
        """Take over the end of the pause from the configuration; `arm_pause` follows."""
        self._pause_until = until

    def arm_pause(self, now: int) -> None:
        """Go on when the pause is over."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        until = self._pause_until
        if until is not None and until > now:
            self._pause_timer = self._services.timers.at(until, self._resume)

    def _resume(self, _: int) -> None:
        self._pause_timer = None
        self._advisories.paused(self._pause_until)
        self.wake()


def _nothing(_: int) -> tuple[Progress, int]:
    """In place of the delivery of a deleted consumer."""
    return Progress.DONE, 0

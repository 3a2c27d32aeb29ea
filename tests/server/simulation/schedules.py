"""Message schedules in the simulation.

A schedule is a message, with a time at which the server publishes its payload on another subject. What it publishes is
found by comparing (`World.arrivals`): it must be due, and each due time is served once, whatever is lost in between:
the due time moves in the model when it is served, and back when the group is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.api import format_time, parse_time
from slipstream.wire import Headers
from tests.server.simulation.loop import SECOND
from tests.server.simulation.model import Entry, ModelStream, headers_of
from tests.server.simulation.world import Op, ViolationError

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

ONCE, FIRE = "schedules fire once", "schedules fire"


class ScheduleLoad:
    """The schedules of all streams."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self.world.arrivals.append(self._is_scheduled)
        self.world.reasons.append(self._was_served)

    def draw(self, name: str) -> Op:
        """Publish a schedule."""
        pick = self.workload.choices
        pattern = pick.one_of(("@every 2s", "@at", "@every 5s"))
        if pattern == "@at":
            pattern = f"@at {format_time(self.world.clock() + pick.below(8) * SECOND)}"
        headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{name}.y"}
        subject = f"{name}.s.{pick.below(2)}"
        text = f"publish {subject} {headers}"
        payload = f"at {pattern}".encode()
        return self.workload.publish_op(text, subject, Headers(headers).encode(), payload)

    def _is_scheduled(self, stream: ModelStream, entry: Entry) -> bool:
        wanted = headers_of(entry.header) if entry.header else {}
        if not stream.allow_msg_schedules or "Nats-Scheduler" not in wanted:
            return False
        seq, when = stream.due.get(wanted["Nats-Scheduler"], (0, 0))
        schedule = stream.messages.get(seq)
        if schedule is None and seq in stream.plans:  # it may have fired in the turn in which it expired
            expires = stream.expires(stream.plans[seq])
            schedule = stream.plans[seq] if 0 < expires <= stream.time_at(self.world.clock()) else None
        if schedule is None:
            raise ViolationError(ONCE, f"{stream.name} got {entry}, and no schedule is due")
        if when > self.world.clock():
            raise ViolationError(ONCE, f"{stream.name} got {entry} before {when}")
        fields = headers_of(schedule.header)
        is_right = (entry.subject, entry.payload) == (fields["Nats-Schedule-Target"], schedule.payload)
        following = wanted.get("Nats-Schedule-Next", "")
        if fields["Nats-Schedule"].startswith("@at"):
            is_right = is_right and following == "purge"
        else:
            is_right = is_right and following != "purge" and parse_time(following) > when
        if not is_right:
            raise ViolationError(ONCE, f"{stream.name} got {entry} for {schedule}")
        return True

    def _was_served(self, stream: ModelStream, entry: Entry, now: int) -> bool:
        """A schedule for one time is gone, and what it published was removed by a limit in the same turn."""
        seq, when = stream.due.get(entry.subject, (0, 0))
        is_once = entry.seq == seq and b"Nats-Schedule: @at" in entry.header and when <= now
        return is_once and (stream.max_msgs > 0 or stream.max_bytes > 0 or stream.max_msgs_per_subject > 0)

    def is_fresh(self, stream: ModelStream, entry: Entry) -> bool:
        """Whether a schedule has just published a message, which consumers and copies need not have yet: repeated
        schedules never come to rest."""
        return b"Nats-Scheduler:" in entry.header and entry.time > stream.time_at(self.world.clock()) - 4 * SECOND

    def check(self) -> None:
        """In the end none is overdue."""
        now = self.world.clock()
        for states in (self.world.file, self.world.memory):
            for stream in states.writer.values():
                for subject, (seq, when) in stream.due.items():
                    is_rejected = stream.max_msg_size > 0  # then what it publishes may be too large
                    if seq in stream.messages and when < now - 3 * SECOND and not is_rejected:
                        late = (now - when) / SECOND
                        raise ViolationError(FIRE, f"{subject} of {stream.name} is {late} seconds late")

"""Message schedules in the simulation.

A schedule is a message, with a time at which the server publishes its payload on another subject. What it publishes is
found by comparing (`World.arrivals`): it must be due, and each due time is served once, whatever is lost in between:
the due time moves in the model when it is served, and back when the group is lost. Some schedules publish the newest
message of another subject, give what they publish a time to live, or let it replace what is on its subject.
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
        number = pick.below(2)
        # Each has its own target: of two that fire in one turn, a limit or a rollup could hide the first.
        headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{name}.y.1" if number else f"{name}.y"}
        if pick.chance(40):
            headers["Nats-Schedule-Source"] = f"{name}.{pick.one_of(('x', 'z'))}"
        if pick.chance(50):
            headers["Nats-Schedule-TTL"] = pick.one_of(("60s", "never"))
        if pick.chance(30):
            headers["Nats-Schedule-Rollup"] = "sub"
        subject = f"{name}.s.{number}"
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
        is_right = entry.subject == fields["Nats-Schedule-Target"] and entry.payload in self._contents(stream, schedule)
        if "Nats-Schedule-TTL" in fields:
            is_right = is_right and "Nats-TTL" in wanted
        if "Nats-Schedule-Rollup" in fields:
            is_right = is_right and wanted.get("Nats-Rollup") == "sub"
        following = wanted.get("Nats-Schedule-Next", "")
        if fields["Nats-Schedule"].startswith("@at"):
            is_right = is_right and following == "purge"
        else:
            is_right = is_right and following != "purge" and parse_time(following) > when
        if not is_right:
            raise ViolationError(ONCE, f"{stream.name} got {entry} for {schedule}")
        return True

    def _contents(self, stream: ModelStream, schedule: Entry) -> set[bytes]:
        """What a schedule may have published just now: the newest message of its source, as readers see it, or its own
        payload if there is none. A group may have become visible since it fired."""
        source = headers_of(schedule.header).get("Nats-Schedule-Source", "")
        if not source:
            return {schedule.payload}
        found = set[bytes]()
        for _, state in self.world.states(stream.config["storage"]).shown[-2:]:
            seen = state.get(stream.name)
            last = seen.last_of(source) if seen is not None and seen.born == stream.born else 0
            found.add(seen.messages[last].payload if seen is not None and last else schedule.payload)
        return found

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

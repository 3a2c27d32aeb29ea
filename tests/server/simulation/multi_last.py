"""Direct Gets of the last messages of many subjects (`multi_last`), in the simulation.

An answer takes several turns of the server, while messages are overwritten, deleted and purged. It must have the newest
message of each subject as of the sequence that it names (`Nats-UpTo-Sequence`). Only a subject whose newest message was
removed before it could be sent may have a newer one instead, or none if it has no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.wire import Msg, matches, parse_status
from tests.server.simulation.model import Entry, ModelStream, headers_of
from tests.server.simulation.world import Check, Op

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

COMPLETE = "multi_last is complete"


class MultiLast:
    """One request, and what was answered so far."""

    def __init__(self, workload: Workload, name: str, request: dict[str, Any]) -> None:
        self.workload, self.name, self.request = workload, name, request
        self.born = self.event = 0
        self.got: dict[str, Entry] = {}
        self.is_of_mirror = self.was_new = False
        self.held: list[ModelStream] = []  # what replicas have that are held

    def op(self) -> Op:
        text = f"GET {self.name} {self.request}"
        return Op(text, f"$JS.API.DIRECT.GET.{self.name}", msgspec.json.encode(self.request), self._run)

    def _run(self, now: int) -> Check:  # noqa: ARG002
        workload = self.workload
        writer = workload.stream(self.name)
        if workload.copies.mirror_of(self.name):  # it may answer for its upstream, as of a sequence of its own
            self.is_of_mirror = True
        if writer is None:
            return self._check if self.is_of_mirror else _no_responders
        self.born, self.event = writer.born, workload.world.event
        self.held = list(workload.replicas.held(self.name, self.born).values())
        self.was_new = workload.visible(self.name) is None  # not committed yet: readers find it empty
        return self._check

    def _check(self, message: Msg) -> str:
        status = parse_status(message.header)
        if status is None:
            return self._message(message)
        if self.is_of_mirror or status.code == 503:
            # Without a responder: the stream was deleted before it could answer.
            is_gone = self.is_of_mirror or (self.name, self.born) in self.workload.deleted
            return "" if is_gone else f"{COMPLETE}: no responders"
        if status.code == 412:
            wanted = self.request.get("min_last_seq", 0)
            return "" if wanted else f"{COMPLETE}: {message.header!r}"
        if status.code == 404:
            return self._end(0)
        if status.code != 204:
            return f"{COMPLETE}: {message.header!r}"
        return self._end(int(headers_of(message.header)["Nats-UpTo-Sequence"]))

    def _message(self, message: Msg) -> str:
        from tests.server.simulation.workload import read_direct

        entry = read_direct(message)
        assert entry is not None
        if headers_of(message.header)["Nats-Stream"] != self.name:
            self.is_of_mirror = True
        if self.is_of_mirror:
            return "more"
        if entry.subject in self.got:
            return f"{COMPLETE}: {entry.subject} has two messages, {self.got[entry.subject].seq} and {entry.seq}"
        if not any(state.messages.get(entry.seq) == entry for state in (*self._states(), *self.held)):
            return f"reads are exact: no reader could see {entry}"
        if self.workload.world.file.visible_index > self.workload.world.file.synced_index:
            return "no ack before its sync: readers see a group that is not on the disk"
        self.got[entry.subject] = entry
        return "more"

    def _states(self) -> list[ModelStream]:
        """What readers saw since the request, the latest first."""
        return self.workload.shown(self.name, self.born, self.event)

    def _newest(self, state: ModelStream, bound: int) -> dict[str, int]:
        """The newest message of each subject."""
        found: dict[str, int] = {}
        for seq, entry in state.messages.items():
            if (not bound or seq <= bound) and any(matches(one, entry.subject) for one in self.request["multi_last"]):
                found[entry.subject] = seq
        first = self.request.get("seq", 0)
        return {subject: seq for subject, seq in found.items() if seq >= first}

    def _end(self, up_to: int) -> str:
        """The answer is complete; `up_to` is where it stands, 0 if it has no message."""
        states, bound = self._states(), self.request.get("up_to_seq", 0)
        for state in self.held:
            newest = self._newest(state, bound)
            is_able = state.last >= self.request.get("min_last_seq", 0) and up_to in (0, bound or state.last)
            if is_able and newest == {subject: entry.seq for subject, entry in self.got.items()}:
                return ""
        if self.was_new and not up_to and not self.got:
            return ""
        if not states:
            return f"{COMPLETE}: {self.got} of an empty stream" if self.got else ""
        if bound and up_to not in (0, bound):
            return f"{COMPLETE}: up to {up_to}, not {bound}"
        wanted = self.request.get("min_last_seq", 0)
        begins = [at for at, state in enumerate(states) if state.last >= wanted and (bound or up_to in (0, state.last))]
        if not begins:
            promise = "min_last_seq is exact" if wanted else COMPLETE
            return f"{promise}: up to {up_to}, which is the last sequence of no state"
        wrong = [self._compare(states[at], states[: at + 1], bound) for at in begins]
        return "" if "" in wrong else wrong[-1]

    def _compare(self, start: ModelStream, since: list[ModelStream], bound: int) -> str:
        """Compare with the state that it began with, and those since."""
        expected, later = self._newest(start, bound), [self._newest(state, bound) for state in since]
        overwritten = {s for s, seq in expected.items() if any(state.get(s) != seq for state in later)}
        for subject in expected.keys() | self.got.keys():
            right, got = expected.get(subject, 0), self.got[subject].seq if subject in self.got else 0
            if right == got:
                continue
            if subject not in overwritten and not (overwritten and not right):
                return f"{COMPLETE}: {subject} has {got}, expected {right}"
            if not any(state.get(subject, 0) == got for state in later):
                return f"{COMPLETE}: {subject} has {got}, expected {right} or what came in its place"
        return ""


def _no_responders(message: Msg) -> str:
    status = parse_status(message.header)
    is_right = status is not None and status.code == 503
    return "" if is_right else f"wrong answer: expected 503, got {message.header!r} {message.payload!r}"

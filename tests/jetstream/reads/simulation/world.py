"""The world of one schedule: a stream with its copies, clients that read it, virtual time, and whatever goes wrong.

A schedule is a list of choices (`choices.py`): which cluster, which faults are possible at all in it, and then, step by
step, what happens next: a write, a fault, a copy that moves on, or one step of a read. A request has three moments,
between which anything may happen: it is sent, a responder answers it with what it has then, the answer arrives (or
not). So there is no order between requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slipstream.api import StreamInfo
from tests.jetstream.reads.simulation.actions import (
    Action,
    Answer,
    AskDirect,
    AskInfo,
    AskLeader,
    Direct,
    Got,
    Lost,
    MakeRules,
    NoLeader,
    NotThere,
    Outcome,
    Read,
    Reading,
    RefusedError,
    Rules,
    Wait,
)
from tests.jetstream.reads.simulation.checker import broken, first_right
from tests.jetstream.reads.simulation.choices import Choices
from tests.jetstream.reads.simulation.model import (
    JOIN_LAG,
    SECOND,
    STREAM,
    History,
    Limits,
    Member,
    Mirror,
    Store,
    config_of,
    direct_get,
    message_get,
    nanoseconds,
    state_of,
    timestamp,
)

LAST_STEPS = 30
NODES = ("n1", "n2", "n3")
SUBJECTS = ("s.a", "s.b", "s.c")
ONE_TRY = 1.0  # seconds after which a request counts as lost
LOST, NO_LEADER = Lost(), NoLeader()
TIMEOUTS = (60.0, 5.0, 600.0)
PAUSES = (0.002, 0.01, 0.05, 0.25)
READ_STEPS = (0.001, 0.001, 0.002, 0.02, 0.3)  # seconds that pass with a step of a read
TEMPOS = (  # and with an event
    (0.001, 0.01, 0.05, 0.2),
    (0.01, 0.1, 0.5, 1.5),
    (0.001, 0.02, 1.0, 4.0, 11.0),
    (0.01, 0.5, 3.0, 12.0, 35.0),
)


class Kind(NamedTuple):
    """What kind of stream and mirrors there are."""

    limits: Limits
    mirrors: tuple[tuple[str, Limits], ...] = ()


@dataclass
class Deposed:
    """A leader that has lost its majority and does not know it yet."""

    node: str
    until: float
    last_contact: float
    since: float


@dataclass
class Ghost:
    """A replica of a stream that was deleted while it was away."""

    member: Member
    leader_until: float
    since: float


@dataclass
class Client:
    """A connection: the rules with what they keep, which side of a partition it sees, and a session."""

    rules: Rules
    # 0: both sides, 1: the majority, 2: the minority, 3: all copies, and the deposed leader while there is one (its
    # replication is cut, its clients are not)
    view: int = 0
    seen: int = 0  # by its session
    floor: int = 0  # the operation as of which its session's views are right
    told: int = 0  # when the stream was made, as far as it was told
    last_read: Read | None = None  # of its session: asked again it must not go back


@dataclass
class Running:
    """A read under way."""

    client: Client
    read: Read
    steps: Reading
    begun: float
    deadline: float
    floor: int
    told: int
    number: int
    action: Action | None = None
    outcome: Outcome = None
    is_answered: bool = False
    log: list[str] = field(default_factory=list)


class Violation(NamedTuple):
    """A broken promise: in words, the read, and the steps of the schedule up to it."""

    promise: str
    read: Read
    steps: tuple[str, ...]


class Faults(NamedTuple):
    """What may happen at all, of everything: a test of one finding turns off the rest."""

    allowed: frozenset[str] | None = None  # None: every event
    kinds: Sequence[Kind] | None = None
    reads: tuple[str, ...] = ("last", "seq", "next", "many", "range")
    is_traced: bool = True
    views: tuple[int, ...] = (0, 1, 2, 3)  # of clients, see `Client`
    tempos: Sequence[tuple[float, ...]] = TEMPOS
    deposed_for: tuple[float, float] = (10.0, 20.0)  # seconds for which a leader without a majority still answers
    elected_after: tuple[float, float] = (4.0, 9.0)  # seconds after its last contact another one is elected
    reads_mirrors: bool = True  # a client may read a mirror by its own name
    from_leader: int = 10  # percent of the reads
    sessions: int = 40  # percent of the reads
    is_healed: bool = True  # copies that were cut off come back
    is_early: bool = True  # reads may want a sequence that does not exist yet


ANYTHING = Faults()


class World:
    """One schedule."""

    def __init__(self, choices: Choices, make_rules: MakeRules, faults: Faults = ANYTHING, *, steps: int = 120) -> None:
        self.choices = choices
        self.now = 0.0
        self.violation: Violation | None = None
        self.reads = self.answered = self.refused = self.unjudged = 0
        self.by_kind: dict[str, int] = {}
        self._faults = faults
        self._steps = steps
        self._log: list[str] | None = None
        self._tick = 0
        self._made_at = -1000.0
        self._running: list[Running] = []
        self._ghosts: list[Ghost] = []
        self._deposed: Deposed | None = None
        self._election_at: float | None = None
        self._leader_since = 0.0
        self._set_up(make_rules)

    def keep_log(self) -> World:
        """Keep the steps in words, for a violation."""
        self._log = []
        return self

    # The cluster and what may happen

    def _set_up(self, make_rules: MakeRules) -> None:
        choose = self.choices
        kind = choose.one_of(self._faults.kinds or KINDS)
        if kind.limits.replicas == 1 and self._faults.kinds is None and choose.chance(60):
            kind = kind._replace(limits=kind.limits._replace(replicas=3))
        self._is_clustered = kind.limits.replicas > 1 or not choose.chance(30)
        self.history = History(nanoseconds(0.0), kind.limits)
        self.histories = [self.history]
        self.members = {node: Member(node, self.history) for node in NODES[: kind.limits.replicas]}
        self.leader: str | None = NODES[0]
        self._leader_since = choose.one_of((0.0, -20.0, -60.0)) if kind.limits.replicas > 1 else 0.0
        self.mirrors: dict[str, Mirror] = {}
        for number, (filter_, limits) in enumerate(kind.mirrors):
            name = f"M{number + 1}"
            node = choose.one_of(NODES)
            self.mirrors[name] = Mirror(name, node, nanoseconds(0.0), limits, filter_)
        self._tempo = choose.one_of(self._faults.tempos)
        self._events = self._possible_events()
        self.clients = []
        for _ in range(2):
            is_of_mirror = bool(self.mirrors) and self._faults.reads_mirrors and choose.chance(15)
            stream = choose.one_of(list(self.mirrors)) if is_of_mirror else STREAM
            self.clients.append(Client(make_rules(lambda: self.now, stream), choose.one_of(self._faults.views)))
        self._keys = SUBJECTS[: 1 + choose.below(3)]
        for _ in range(choose.below(6)):
            self._write()
            for member in self.members.values():
                member.replay_all()
        for mirror in self.mirrors.values():
            while mirror.feed(self.history.states[-1], self.history.last):
                pass

    def _possible_events(self) -> list[Callable[[], bool]]:
        """The events of this schedule, each as often as it is likely. Not all of them: few at a time find more."""
        allowed = self._faults.allowed
        events: list[Callable[[], bool]] = []
        for event, weight, is_possible in (
            (self._write, 8, True),
            (self._rewrite, 2, True),
            (self._apply, 6, True),
            (self._feed, 8, bool(self.mirrors)),
            (self._catch_up, 4, True),
            (self._cut_follower, 2, True),
            (self._cut_mirror, 3, bool(self.mirrors)),
            (self._heal, 3, self._faults.is_healed),
            (self._cut_leader, 1, True),
            (self._step_down, 1, True),
            (self._edit_mirror, 1, bool(self.mirrors)),
            (self._remake_mirror, 1, bool(self.mirrors)),
            (self._purge_mirror, 1, bool(self.mirrors)),
            (self._edit_stream, 1, True),
            (self._scale_up, 2, self.history.limits.replicas == 1 and self._is_clustered),
            (self._remake_stream, 1, True),
            (self._move_client, 1, True),
            (self._wait, 2, True),
        ):
            name = event.__name__[1:]
            if not is_possible or (allowed is not None and name not in allowed and name not in ALWAYS):
                continue
            if name in ALWAYS or allowed is not None or not self.choices.chance(45):
                events += [event] * weight
        return events

    # The schedule

    def run(self) -> Violation | None:
        """Run to the end, or to the first broken promise."""
        choose = self.choices
        for _ in range(self._steps):
            what = choose.below(17)
            if what == 0:
                continue  # nothing: what is left out of a schedule becomes this
            if what < 7 or (what < 11 and not self._running):
                self._pass_time(choose.one_of(self._tempo))
                for _ in range(4):  # what is not possible now is replaced by something else
                    if choose.one_of(self._events)():
                        break
            elif what < 15 and self._running:
                self._pass_time(choose.one_of(READ_STEPS))
                self._step(choose.one_of(self._running))
                if self.violation is not None:
                    return self.violation
            elif len(self._running) < 3:
                self._begin_read()
        for _ in range(LAST_STEPS):  # what is under way may end
            if not self._running:
                break
            self._pass_time(READ_STEPS[0])
            self._step(choose.one_of(self._running))
            if self.violation is not None:
                return self.violation
        return None

    def _say(self, text: str) -> None:
        if self._log is not None:
            self._log.append(f"{self.now:8.3f} {text}")

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self._deposed is not None and self.now >= self._deposed.until:
            self._say(f"{self._deposed.node} notices that it leads no more")
            self._deposed = None
        if self._election_at is not None and self.now >= self._election_at:
            self._elect()
        for member in self.members.values():
            if not member.answers and member.joins_at and self.now >= member.joins_at:
                member.answers = self.history.last - member.store.last <= max(self.history.last // 10, JOIN_LAG)

    # Events of the stream

    def _time(self) -> int:
        """A time that no other message has."""
        self._tick += 1
        return nanoseconds(self.now) + self._tick

    def _majority(self) -> bool:
        up = sum(not member.is_cut for member in self.members.values())
        return up * 2 > len(self.members)

    def _rewrite(self) -> bool:
        """The subject of the oldest message is written: what a read from the beginning finds first is removed."""
        oldest = next(iter(self.history.states[-1].values()), None)
        return oldest is not None and self._write(oldest.subject)

    def _write(self, subject: str = "") -> bool:
        if self.leader is None or not self._majority():
            return False
        choose, limits = self.choices, self.history.limits
        subject = subject or choose.one_of(self._keys)
        rollup = choose.one_of(("", "", "sub", "all")) if limits.rollups else ""
        entry = self.history.write(subject, self._time(), rollup)
        if self._log is not None:
            self._say(f"write {entry.seq} on {subject} {rollup}")
        self._persist()
        client = choose.below(4)
        if client < len(self.clients):
            writer = self.clients[client]
            writer.rules.wrote(entry.seq, subject, is_rollup=bool(rollup))
            writer.seen, writer.floor = entry.seq, self.history.now
        return True

    def _persist(self) -> None:
        """The log reaches all that are in contact; the leader's store at once."""
        for member in self.members.values():
            if not member.is_cut:
                member.logged = self.history.now
        if self.leader is not None:
            self.members[self.leader].replay_all()

    def _apply(self) -> bool:
        behind = [
            member for member in self.members.values() if member.catching_up < 0 and member.applied < member.logged
        ]
        if not behind:
            return False
        member = self.choices.one_of(behind)
        for _ in range(1 + self.choices.below(3)):
            if not member.replay():
                break
        return True

    def _catch_up(self) -> bool:
        behind = [member for member in self.members.values() if member.catching_up >= 0 and not member.is_cut]
        if not behind or self.leader is None:
            return False
        member = self.choices.one_of(behind)
        member.catch_up()
        if self._log is not None:
            self._say(f"{member.node} catches up: {sorted(member.store.messages)} last {member.store.last}")
        return True

    def _followers(self) -> list[Member]:
        deposed = self._deposed.node if self._deposed is not None else ""
        return [m for m in self.members.values() if m.node not in (self.leader, deposed) and not m.is_cut]

    def _cut_follower(self) -> bool:
        followers = self._followers()
        if not followers or self.leader is None:
            return False
        member = self.choices.one_of(followers)
        member.cut_at = self.now
        self._say(f"{member.node} is cut off")
        return True

    def _cut_leader(self) -> bool:
        """The leader loses its majority: it leads in name for 10 to 20 s; the others elect one after 4 to 9 s."""
        if self.leader is None or self._deposed is not None or len(self.members) < 3:
            return False
        choose, member = self.choices, self.members[self.leader]
        member.cut_at = self.now
        contact = self.now - choose.below(11) / 10
        life, wait = self._faults.deposed_for, self._faults.elected_after
        until = self.now + life[0] + (life[1] - life[0]) * choose.below(101) / 100
        self._deposed = Deposed(self.leader, until, contact, self._leader_since)
        self._election_at = contact + wait[0] + (wait[1] - wait[0]) * choose.below(51) / 50
        self._say(f"{self.leader} is cut off, and leads in name until {self._deposed.until:.1f}")
        self.leader = None
        return True

    def _elect(self) -> None:
        self._election_at = None
        able = [
            member
            for member in self.members.values()
            if not member.is_cut and member.catching_up < 0 and member.logged == self.history.now
        ]
        if not able or not self._majority():
            self._election_at = self.now + 4
            return
        member = self.choices.one_of(able)
        member.replay_all()
        member.answers = True
        self.leader, self._leader_since = member.node, self.now
        self._say(f"{member.node} is elected")

    def _wait(self) -> bool:
        """Time passes until something is due, or for some seconds."""
        due = self._election_at if self._election_at is not None else self.now + self.choices.one_of((1.0, 6.0, 31.0))
        self._pass_time(max(due - self.now, 0.0) + 0.001)
        return True

    def _step_down(self) -> bool:
        if self.leader is None or len(self.members) < 3 or self._deposed is not None:
            return False
        self._say(f"{self.leader} steps down")
        self.leader = None
        self._election_at = self.now + self.choices.one_of((0.0, 0.5, 5.0))
        return True

    def _heal(self) -> bool:
        """A copy is in contact again: a follower gets the log or a snapshot, a mirror goes on where it was."""
        choose = self.choices
        mirrors = [mirror for mirror in self.mirrors.values() if not mirror.is_connected]
        cut = [member for member in self.members.values() if member.is_cut]
        if mirrors and (not cut or choose.chance(50)):
            mirror = choose.one_of(mirrors)
            mirror.is_connected = True
            self._say(f"{mirror.name} is connected again")
        elif cut:
            self._heal_member(choose.one_of(cut))
        return bool(mirrors or cut)

    def _heal_member(self, member: Member) -> None:
        deposed = self._deposed
        self._ghosts = [ghost for ghost in self._ghosts if ghost.member.node != member.node]
        if deposed is not None and deposed.node == member.node and self.leader is None:
            self.leader, self._leader_since = deposed.node, deposed.since
            self._deposed, self._election_at, member.cut_at = None, None, None
            self._say(f"{member.node} is in contact again, and still leads")
            return
        if self.leader is None:
            return
        if deposed is not None and deposed.node == member.node:
            self._deposed = None
        member.cut_at = None
        member.answers = True
        if member.logged < self.history.now and self.choices.chance(70):
            missed = self.history.now - member.logged
            snapshot = self.history.now - (0 if self.choices.chance(50) else self.choices.below(missed))
            if member.catching_up < 0:
                member.begin_catchup(snapshot)
            self._say(f"{member.node} gets a snapshot as of operation {snapshot}: {sorted(member.store.messages)}")
        else:
            self._say(f"{member.node} gets the log")
        member.logged = self.history.now

    def _edit_stream(self) -> bool:
        if self.leader is None or not self._majority():
            return False
        limits = self.history.limits
        edited = self.choices.one_of(
            (limits._replace(per_subject=1), limits._replace(max_msgs=3), limits._replace(per_subject=-1, max_msgs=-1))
        )
        self.history.edit(edited)
        self._persist()
        self._say(f"the stream is edited: {edited}")
        return True

    def _scale_up(self) -> bool:
        if len(self.members) != 1 or self.leader is None:
            return False
        self.history.edit(self.history.limits._replace(replicas=3))
        self._leader_since = self.now
        for node in NODES:
            if node not in self.members:
                member = self.members[node] = Member(node, self.history)
                member.begin_catchup(self.history.now)
                member.answers = False
                member.joins_at = self.now + 2.0 + self.choices.below(3)
        self._persist()
        self._say("the stream gets two more replicas")
        return True

    def _remake_stream(self) -> bool:
        """Deleted and made again, while a replica was away that still has the old one."""
        if self.leader is None or (self._deposed is not None and self._election_at is not None):
            return False
        choose, limits = self.choices, self.history.limits
        self._ghosts = []
        if len(self.members) == 3:
            for member in self.members.values():
                if member.is_cut or (member.node != self.leader and not self._ghosts and choose.chance(50)):
                    is_deposed = self._deposed is not None and self._deposed.node == member.node
                    until = self._deposed.until if self._deposed is not None and is_deposed else 0.0
                    self._ghosts.append(Ghost(member, until, self._deposed.since if self._deposed else 0.0))
        self._made_at = self.now
        self.history = History(nanoseconds(self.now), limits)
        self.histories.append(self.history)
        away = {ghost.member.node for ghost in self._ghosts}
        self.members = {node: Member(node, self.history) for node in self.members}
        for node in away:
            self.members[node].cut_at = self.now
            self.members[node].answers = False
        self.leader = next(node for node in self.members if node not in away)
        self._leader_since, self._deposed, self._election_at = self.now, None, None
        for client in self.clients:
            client.seen = client.floor = 0
        self._say(f"the stream is made again; {sorted(away)} still have the old one")
        return True

    # Events of mirrors

    def _one_mirror(self) -> Mirror:
        return self.choices.one_of(list(self.mirrors.values()))

    def _feed(self) -> bool:
        mirror = self._one_mirror()
        store = self._store_of_leader()
        if not mirror.is_connected or store is None:
            return False
        for _ in range(1 + self.choices.below(3)):
            if not mirror.feed(store.messages, store.last):
                break
        if self._log is not None:
            self._say(f"{mirror.name} is fed: {sorted(mirror.store.messages)} last {mirror.store.last}")
        return True

    def _store_of_leader(self) -> Store | None:
        if self.leader is not None:
            return self.members[self.leader].store
        return self.members[self._deposed.node].store if self._deposed is not None else None

    def _cut_mirror(self) -> bool:
        mirror = self._one_mirror()
        if not mirror.is_connected:
            return False
        mirror.is_connected = False
        self._say(f"{mirror.name} is cut off")
        return True

    def _edit_mirror(self) -> bool:
        mirror = self._one_mirror()
        before, most = mirror.limits, 1 + self.choices.below(2)
        mirror.edit(before._replace(per_subject=most) if self.choices.chance(50) else before._replace(max_msgs=most))
        if self.choices.chance(50):  # a mistake that is corrected at once: what it removed stays away
            mirror.edit(before)
        self._say(f"{mirror.name} is edited: {mirror.limits}")
        return True

    def _remake_mirror(self) -> bool:
        mirror = self._one_mirror()
        choose = self.choices
        mirror.store, mirror.created, mirror.answers = Store(), nanoseconds(self.now), False
        mirror.filter, mirror.start = choose.one_of((("", 0), (SUBJECTS[0], 0), ("", 2 + choose.below(3))))
        self._say(f"{mirror.name} is made again: filter {mirror.filter!r}, start {mirror.start}")
        return True

    def _purge_mirror(self) -> bool:
        mirror = self._one_mirror()
        mirror.store.messages.clear()
        self._say(f"{mirror.name} is purged")
        return True

    def _move_client(self) -> bool:
        self.choices.one_of(self.clients).view = self.choices.one_of(self._faults.views)
        return True

    # Reads

    def _begin_read(self) -> None:
        choose, last = self.choices, self.history.last
        client = choose.one_of(self.clients)
        is_session = choose.chance(self._faults.sessions)
        if is_session:
            wanted = client.seen
        elif self._faults.is_early and choose.chance(4):
            wanted = last + 1
        else:
            wanted = last - min(choose.below(last + 1), choose.below(last + 1))
        if wanted <= 0:
            return
        if is_session and client.last_read is not None and choose.chance(60):
            read = replace(client.last_read, wanted=wanted)
        else:
            read = self._new_read(choose.one_of(self._faults.reads), wanted, last)
            if is_session:
                read = client.last_read = replace(read, is_session=True)
        if choose.chance(self._faults.from_leader):
            read = replace(read, is_from_leader=True)
        deadline = self.now + choose.one_of(TIMEOUTS)
        running = Running(
            client, read, client.rules.read(read), self.now, deadline, client.floor, client.told, self.reads
        )
        self._running.append(running)
        self.reads += 1
        if self._log is not None:
            self._say(f"read {running.number}: {_short(read)}{' of a session' if is_session else ''}")
        self._resume(running, None)

    def _new_read(self, kind: str, wanted: int, last: int) -> Read:
        choose = self.choices
        seq = last - choose.below(last) if last else 1
        if kind == "last":
            return Read(kind, wanted, choose.one_of((*self._keys, "s.*")))
        if kind == "seq":
            return Read(kind, wanted, seq=seq)
        if kind == "next":
            return Read(kind, wanted, choose.one_of((*self._keys, ">")), choose.one_of((seq, 1)))
        if kind == "many":
            return Read(kind, wanted, "s.*")
        start = 1 + choose.below(max(last, 1))
        end = choose.one_of((0, last, start + choose.below(max(last - start, 0) + 1)))
        return Read(kind, wanted, choose.one_of((">", *self._keys)), start, end if end >= start else 0)

    def _step(self, running: Running) -> None:
        """The request of a read is answered, or the answer arrives."""
        action = running.action
        if isinstance(action, Wait):
            self._pass_time(self.choices.one_of(PAUSES))
            if self.now >= running.deadline:
                self._end(running)
                self.refused += 1
            else:
                self._resume(running, None)
        elif not running.is_answered:
            running.outcome = Lost() if self.choices.chance(8) else self._outcome(running.client, action)
            running.is_answered = True
        else:
            if isinstance(running.outcome, Lost):
                self._pass_time(ONE_TRY)
            is_noted = isinstance(action, AskInfo) and action.stream == STREAM and action.is_noted
            if isinstance(running.outcome, StreamInfo) and is_noted:
                running.client.told = max(running.client.told, running.outcome.created)
            self._resume(running, running.outcome)

    def _resume(self, running: Running, outcome: Outcome) -> None:
        try:
            running.action = running.steps.send(outcome)
            running.is_answered = False
            if self._log is not None:
                self._say(f"  read {running.number} asks {_short(running.action)}")
        except StopIteration as stop:
            self._end(running)
            self._judge(running, stop.value)
        except RefusedError:
            self._end(running)
            self.refused += 1

    def _end(self, running: Running) -> None:
        self._running.remove(running)

    def _judge(self, running: Running, answer: Answer) -> None:
        self.answered += 1
        read, history = running.read, self.history
        if len(self.histories) > 1 and (running.begun <= self._made_at or running.told < history.created):
            self.unjudged += 1  # it could not know that the stream was made again
            return
        promise = broken(read, answer, history)
        if not promise and read.is_session and read.kind in ("last", "seq", "next"):
            number = first_right(read, answer, history, running.floor)
            if number < 0:
                promise = f"went back: the session has seen operation {running.floor}"
            else:
                running.client.floor = max(running.client.floor, number)
        if read.is_session:
            for message in answer.messages:
                running.client.seen = max(running.client.seen, message.seq)
        self.by_kind[read.kind] = self.by_kind.get(read.kind, 0) + 1
        if promise:
            self._say(f"BROKEN: {promise}; got {[message.seq for message in answer.messages]}")
            self.violation = Violation(promise, read, tuple(self._log or ()))

    # Who answers, and what

    def _outcome(self, client: Client, action: Action | None) -> Outcome:
        if isinstance(action, AskDirect):
            return self._direct(client, action)
        if isinstance(action, AskInfo):
            if action.stream != STREAM:
                return self._mirror_info(action)
            return self._info(client, action)
        assert isinstance(action, AskLeader)
        store = self._leader_for(client)
        if store is None:
            return LOST if self.choices.chance(50) else NO_LEADER
        found = message_get(store[0].store, action.request)
        if self._log is not None:
            self._say(f"  answered by leader {store[0].node}: {found and found.seq}")
        return Got(None if found is None else found.answered(STREAM))

    def _is_visible(self, client: Client, *, is_cut: bool) -> bool:
        return client.view in (0, 3) or is_cut == (client.view == 2)

    def _direct(self, client: Client, action: AskDirect) -> Outcome:
        if action.stream != STREAM:
            mirror = self.mirrors[action.stream]
            return self._answer(action, mirror.store, mirror.name, mirror.node) if mirror.answers else LOST
        copies = [
            (member.store, STREAM, member.node)
            for member in self.members.values()
            if member.answers and self._is_visible(client, is_cut=member.is_cut)
        ]
        copies += [(mirror.store, mirror.name, mirror.node) for mirror in self.mirrors.values() if mirror.answers]
        if client.view != 1:
            copies += [(ghost.member.store, STREAM, ghost.member.node) for ghost in self._ghosts]
        if not copies:
            return Lost()
        return self._answer(action, *self.choices.one_of(copies))

    def _answer(self, action: AskDirect, store: Store, stream: str, node: str) -> Direct:
        replies = direct_get(store, stream, action.request)
        if self._log is not None:
            self._say(
                f"  answered by {stream} on {node}: {[item.message.seq for item in replies.items]} up to {store.last}"
            )
        return Direct(replies, node if action.traced and self._faults.is_traced else None)

    def _leader_for(self, client: Client) -> tuple[Member, float, list[tuple[str, float]]] | None:
        """A leader that answers this client: its replica, since when it leads, and when it heard of the others."""
        leaders: list[tuple[Member, float, list[tuple[str, float]]]] = []
        if self.leader is not None and self._is_visible(client, is_cut=False):
            heard = [
                (member.node, self.now - member.cut_at if member.cut_at is not None else 0.0)
                for member in self.members.values()
                if member.node != self.leader
            ]
            leaders.append((self.members[self.leader], self._leader_since, heard))
        deposed = self._deposed
        if deposed is not None and self._is_visible(client, is_cut=True):
            age = self.now - deposed.last_contact
            peers = [(node, age) for node in self.members if node != deposed.node]
            if client.view == 3:
                leaders.clear()
            leaders.append((self.members[deposed.node], deposed.since, peers))
        for ghost in self._ghosts:
            if ghost.leader_until > self.now and client.view != 1:
                age = self.now - ghost.leader_until + 20
                leaders.append(
                    (ghost.member, ghost.since, [(node, age) for node in NODES if node != ghost.member.node])
                )
        return self.choices.one_of(leaders) if leaders else None

    def _info(self, client: Client, action: AskInfo) -> Outcome:
        found = self._leader_for(client)
        if found is not None:
            member, since, heard = found
            replicas = [
                {
                    "name": node,
                    "current": age < 2,
                    "active": int((age + self.choices.below(10) / 10) * SECOND),
                    "lag": 0,
                }
                for node, age in heard
            ]
            cluster = {"name": "C", "leader": member.node, "leader_since": timestamp(since)}
            if replicas:
                cluster["replicas"] = replicas  # type: ignore[assignment]
        else:  # a follower answers while there is no leader
            able = [
                m for m in self.members.values() if self._is_visible(client, is_cut=m.is_cut) and len(self.members) > 1
            ]
            if not able or self.choices.chance(50):
                return LOST if self.choices.chance(50) else NO_LEADER
            member = self.choices.one_of(able)
            cluster = {"name": "C"}
            cluster["replicas"] = [{"name": n, "active": 0} for n in self.members if n != member.node]  # type: ignore[assignment]
        if self._log is not None:
            self._say(f"  info by {member.node} {cluster.get('leader', 'without leader')}: last {member.store.last}")
        return StreamInfo(
            config=config_of(STREAM, member.limits),
            created=member.history.created,
            state=state_of(member.store, deleted=action.deleted, subjects=action.subjects),
            cluster=cluster if self._is_clustered else {},
            ts=nanoseconds(self.now),
        )

    def _mirror_info(self, action: AskInfo) -> Outcome:
        mirror = self.mirrors.get(action.stream)
        if mirror is None:
            return NotThere()
        lag = max(self.history.last - mirror.store.last, 0) if self.choices.chance(50) else 0
        if self._log is not None:
            self._say(f"  info of {mirror.name}: {sorted(mirror.store.messages)} last {mirror.store.last}")
        return mirror.info(self.now, lag, deleted=action.deleted, subjects=action.subjects)


def _short(value: object) -> str:
    """A read or an action without the fields that have their default."""
    return re.sub(r"\w+=(?:0|''|None|False|\(\))(?:, |(?=\)))", "", str(value)).replace(", )", ")")


ALWAYS = frozenset(("write", "rewrite", "apply", "feed", "catch_up", "heal"))

_KV = Limits(per_subject=1)
_ROLLUPS = Limits(rollups=True)
_BYTES = Limits(max_bytes=96, storage="memory")
KINDS = (
    Kind(_KV),
    Kind(_KV, (("", _KV),)),
    Kind(_KV, (("", Limits()), ("", _KV))),
    Kind(Limits()),
    Kind(Limits(), (("", Limits()),)),
    Kind(Limits(), (("s.a", Limits()), ("", Limits(max_msgs=2)))),
    Kind(_ROLLUPS),
    Kind(_ROLLUPS, (("", _ROLLUPS), ("", Limits()))),
    Kind(Limits(per_subject=1, rollups=True), (("", Limits(per_subject=1, rollups=True)),)),
    Kind(Limits(max_msgs=3), (("", Limits(max_msgs=3)),)),
    Kind(_BYTES, (("", _BYTES._replace(storage="file")),)),
    Kind(Limits(per_subject=2), (("", Limits(per_subject=2)), ("s.a", Limits()))),
)

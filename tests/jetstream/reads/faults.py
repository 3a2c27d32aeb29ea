"""Faults of a real cluster, one after the other from a thread, and the record of when a read could be answered.

Each fault strikes one node, or one stream's leadership. `Health` looks at every node's monitoring endpoint twice a
second: a stream is healthy while the same node leads it that led it before, in the same term, and hears from another
one; that node and another one are untouched, and the node that leads the cluster is. A span in which it could not look
does not count as health: a machine under load may keep the nodes from electing a leader, too. A read that was refused
although its stream was healthy for long enough (`GRACE`) within the read's time is a broken promise.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from slipstream import connect_blocking
from slipstream.errors import ApiError, Error
from slipstream.jetstream.reads.evidence import ACTIVE
from tests.cluster import NODES, Cluster
from tests.jetstream.reads.history import Refusal

LOOK = 0.5
LONGEST_LOOK = 1.5  # between two of them
LONGEST_CATCH_UP = 8.0
GRACE = 10.0  # seconds of health in which a read must be answered: its client may have to change servers


def brief(detail: dict[str, Any]) -> str:
    """A node's copy of a stream, as its monitoring endpoint tells of it."""
    state, cluster = detail.get("state") or {}, detail.get("cluster") or {}
    return (
        f"created={detail.get('created')} leader={cluster.get('leader')} since={cluster.get('leader_since')} "
        f"seqs={state.get('first_seq')}..{state.get('last_seq')} n={state.get('messages')} "
        f"first_ts={state.get('first_ts')}"
    )


class Term(NamedTuple):
    """One node's time as the leader of a stream."""

    leader: str = ""
    since: str = ""


class Health:
    """When each stream could be read."""

    def __init__(self, cluster: Cluster, streams: Iterable[str]) -> None:
        self._cluster = cluster
        self.touched: Counter[str] = Counter()  # nodes that a fault holds, by the number of faults
        self._since: dict[str, float] = dict.fromkeys(streams, 0.0)  # stream -> healthy since
        self._terms: dict[str, Term] = {}
        self._spans: dict[str, list[tuple[float, float]]] = {stream: [] for stream in streams}
        self.looks: dict[str, list[tuple[float, str]]] = {stream: [] for stream in streams}  # by time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)
        for stream in self._spans:
            self._ill(stream, time.monotonic())

    @contextlib.contextmanager
    def touching(self, *nodes: str) -> Iterator[None]:
        """These nodes cannot be counted on in the meantime."""
        self.touched.update(nodes)
        try:
            yield
        finally:
            self.touched.subtract(nodes)

    def was_answerable(self, refusal: Refusal) -> bool:
        """Whether the stream was healthy for long enough while the read was waiting."""
        return any(
            min(end, refusal.end) - max(begin, refusal.begin) >= GRACE for begin, end in self._spans[refusal.stream]
        )

    def note(self, stream: str, what: str) -> None:
        """Keep what happened to a stream, or was said of it."""
        if stream in self.looks:
            self.looks[stream].append((time.time(), what))

    def around(self, stream: str, begin: float, end: float) -> list[str]:
        """What was noted of a stream between two times."""
        return [f"{at:.3f} {what}" for at, what in self.looks[stream] if begin <= at <= end]

    def leader(self, stream: str) -> str:
        """Who leads the stream, as last seen; empty if unknown."""
        return self._terms.get(stream, Term()).leader

    def healthy_share(self) -> float:
        """The part of the time in which streams were healthy."""
        spans = [span for spans in self._spans.values() for span in spans]
        whole = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 1.0
        return sum(end - begin for begin, end in spans) / whole / len(self._spans)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(LOOK):
            begin = time.monotonic()
            if begin - looked > LONGEST_LOOK:
                for stream in self._spans:
                    self._ill(stream, looked)
            looked = begin
            meta, terms = self._look()
            touched = {name for name, count in self.touched.items() if count > 0}
            for stream in self._spans:
                term = terms.get(stream, Term())
                is_same = bool(term.leader) and term == self._terms.get(stream)
                if not is_same or meta in ("", *touched) or term.leader in touched or len(touched) > 1:
                    self._ill(stream, begin)
                elif not self._since[stream]:
                    self._since[stream] = begin
                self._terms[stream] = term

    def _ill(self, stream: str, now: float) -> None:
        if self._since[stream]:
            self._spans[stream].append((self._since[stream], now - LOOK))
            self._since[stream] = 0.0

    def _look(self) -> tuple[str, dict[str, Term]]:
        """The leader of the cluster, and the terms of streams, as the nodes say that can be asked; empty if they
        disagree."""
        metas: set[str] = set()
        terms: dict[str, set[Term]] = {}
        for name in NODES:
            if self.touched[name] > 0 or self._cluster.nodes[name].process is None:
                continue
            try:
                answer = self._cluster.nodes[name].ask("jsz?streams=1")
            except (OSError, ValueError):
                continue
            metas.add(str((answer.get("meta_cluster") or {}).get("leader", "")))
            for account in answer.get("account_details") or ():
                for detail in account.get("stream_detail") or ():
                    cluster = detail.get("cluster") or {}
                    self.note(detail["name"], f"{name} has {brief(detail)}")
                    if cluster.get("leader", "") == name and self._is_heard(cluster):
                        terms.setdefault(detail["name"], set()).add(Term(name, str(cluster.get("leader_since"))))
        return metas.pop() if len(metas) == 1 else "", {
            stream: found.pop() for stream, found in terms.items() if len(found) == 1
        }

    def _is_heard(self, cluster: dict[str, Any]) -> bool:
        """Whether a leader has heard lately from another replica that can be counted on, if there are any."""
        replicas = cluster.get("replicas") or ()
        return not replicas or any(
            not self.touched[replica["name"]] and 0 <= replica.get("active", ACTIVE) < ACTIVE for replica in replicas
        )


class Faults(threading.Thread):
    """Strikes until it is stopped; every kind at least once for every `len(kinds)` faults."""

    def __init__(
        self,
        cluster: Cluster,
        health: Health,
        streams: list[str],
        mirrors: dict[str, str],
        seed: int,
        *,
        crashes: bool,
        overwrite: Callable[[str], None],
        fill: Callable[[str], None],
        hunt: Callable[[str, float], None],
    ) -> None:
        super().__init__(name="faults", daemon=True)
        self._cluster = cluster
        self._health = health
        self._streams = streams  # with three replicas
        self._mirrors = mirrors  # stream -> the node of its mirror `<stream>_COPY`
        self._overwrite = overwrite  # writes every key of a stream once
        self._fill = fill  # writes so much to a stream that its nodes compact their logs
        self._hunt = hunt  # reads it as much as possible for so many seconds
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.kinds: list[Callable[[], None]] = [
            self.hold, self.hold, self.cut, self.cut, self.catch_up, self.catch_up,
            self.kill if crashes else self.restart, self.step_down, self.depose, self.freeze,
        ]  # fmt: skip
        self.names = {kind.__name__ for kind in self.kinds}
        self.done: Counter[str] = Counter()
        self.caught_up = 0  # copies that were seen to catch up
        self.failed: list[str] = []
        self.began: list[tuple[float, str]] = []
        self.calm = threading.Lock()  # whoever has it keeps faults away

    def run(self) -> None:
        while not self._over.is_set():
            for strike in self._random.sample(self.kinds, len(self.kinds)):
                if self._over.wait(self._random.uniform(0.0, 0.5)):
                    return
                try:
                    with self.calm:
                        self.began.append((time.time(), strike.__name__))
                        strike()
                except (Error, TimeoutError, OSError, ApiError) as error:  # the cluster was too busy for it
                    self.failed.append(f"{strike.__name__}: {error!r}")
                self.done[strike.__name__] += 1

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        self._cluster.proxy.release_all()
        for name in NODES:
            if self._cluster.nodes[name].process is None:
                self._cluster.start(name)

    # Faults of a node that is not needed: reads must be answered

    def hold(self) -> None:
        """Replication to a follower, or everything, stands still for a moment."""
        source, target = self._random.sample(NODES, 2)
        system_only = self._random.random() < 0.8
        with self._health.touching(*(() if system_only else (target,))):
            self._cluster.proxy.hold(source, target, system_only=system_only)
            self._wait(0.05, 1.2)
            self._cluster.proxy.release(source, target)

    def cut(self) -> None:
        """A mirror's node is cut off for a while and comes back slowly: it has missed what is gone since."""
        leaders = {stream: self._health.leader(stream) for stream in self._mirrors}
        free = [stream for stream, leader in leaders.items() if leader and leader != self._mirrors[stream]]
        if not free:
            return
        stream = self._random.choice(free)
        name = self._mirrors[stream]
        with self._health.touching(name):
            with self._cluster.isolated(name):
                self._overwrite(stream)
                self._overwrite(stream)
                for other in self._cluster.others(name):
                    self._cluster.proxy.drop(name, other)
            self._come_back_slowly(name, stream, f"{stream}_COPY")

    def catch_up(self) -> None:
        """A follower misses so much that the others have compacted their logs: it gets a snapshot, slowly."""
        stream = self._random.choice(self._streams)
        leader = self._health.leader(stream)
        if not leader:
            return
        behind = self._random.choice(self._cluster.others(leader))
        self._cluster.hold_replica(leader, behind)
        try:
            self._overwrite(stream)
            self._fill(stream)
            self._overwrite(stream)
        finally:
            self._cluster.proxy.drop(leader, behind)
            self._cluster.release_replica(leader, behind)
            self._come_back_slowly(behind, stream, stream)

    def _come_back_slowly(self, name: str, stream: str, copy: str) -> None:
        """Read the stream as much as possible until a node's copy of it is as far as the others were."""
        wanted = max(self._cluster.last_seq(other, stream) for other in self._cluster.others(name))
        rate = self._random.choice((200_000, 400_000, 1_000_000))
        for other in self._cluster.others(name):
            self._cluster.proxy.pace(other, name, rate)
        deadline = time.monotonic() + LONGEST_CATCH_UP
        try:
            while not self._over.is_set() and time.monotonic() < deadline:
                self._hunt(stream, 0.5)
                if self._cluster.last_seq(name, copy) >= wanted:
                    self.caught_up += 1
                    break
        finally:
            for other in self._cluster.others(name):
                self._cluster.proxy.release(other, name)

    def restart(self) -> None:
        """A node is stopped and started again."""
        self._restart(self._cluster.stop)

    def kill(self) -> None:
        """A node is killed and started again."""
        self._restart(self._cluster.kill)

    def _restart(self, end: Callable[[str], None]) -> None:
        name = self._random.choice(NODES)
        with self._health.touching(name):
            end(name)
            self._wait(0.2, 2.0)
            self._cluster.start(name)
            self._wait(1.0, 1.5)

    # Faults of leaders: reads may be refused until there is another one

    def step_down(self) -> None:
        """The leader of a stream gives up its place."""
        stream = self._random.choice(self._streams)
        with connect_blocking(self._cluster.urls) as nc:
            nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=5)

    def depose(self) -> None:
        """A leader is cut off, does not know it, and answers its clients; another one is elected."""
        stream = self._random.choice(self._streams)
        old = self._health.leader(stream) or self._random.choice(NODES)
        with self._health.touching(old), self._cluster.isolated(old):
            self._wait(4.0, 9.0)
            if self._random.random() < 0.5:
                for other in self._cluster.others(old):
                    self._cluster.proxy.drop(old, other)
        if self._random.random() < 0.5:
            self._come_back_slowly(old, stream, stream)

    def freeze(self) -> None:
        """A process stands still, so long that others take its place, and wakes up not knowing it."""
        name = self._random.choice(NODES)
        with self._health.touching(name):
            self._cluster.freeze(name)
            try:
                self._wait(*self._random.choice(((0.5, 2.0), (5.0, 13.0))))
            finally:
                self._cluster.thaw(name)
            self._wait(0.5, 1.0)

    def _wait(self, least: float, most: float) -> None:
        self._over.wait(self._random.uniform(least, most))

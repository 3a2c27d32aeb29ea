"""The replicas of one stream: leader, followers and held ones; scaling and changes of leadership.

There is one durable log per stream. A replica that follows has applied everything that is committed in it, in the same
turn: it reads that log. One that is held back (`slipstream.testing`) has data of its own, the state in which it was
stopped, until it is released and catches up. A deposed leader that has not noticed is held back too, and still believes
that it leads: it answers Message Gets beside the new leader, and rejects what it cannot answer instead of redirecting.
"""

from __future__ import annotations

from typing import Any

from slipstream.api import format_time
from slipstream.errors import ErrorCode, UsageError
from slipstream.server.engine.api.ids import short_hash
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.reads.direct_get import ReplicaPeer
from slipstream.server.engine.reads.frozen_log import FrozenLog
from slipstream.server.engine.services import Services


class Replicas:
    """The peers of one stream, in the order in which they were added."""

    def __init__(self, services: Services, stream: str, log: StreamLog, *, now: int) -> None:
        self.leader: ReplicaPeer = ReplicaPeer(services, stream, log, peer=services.leader_name, created=now)
        self.peers: tuple[ReplicaPeer, ...] = (self.leader,)
        self.mirrors: bool = False  # the peers of a mirror never redirect
        self._services, self._stream, self._log = services, stream, log
        self._made = 1
        self._created = self._leading_since = now
        self._held_since: dict[ReplicaPeer, int] = {}

    # Peers.

    @property
    def claimants(self) -> tuple[ReplicaPeer, ...]:
        """The peers that answer as leaders: deposed ones that do not know it, then the leader."""
        return (*(peer for peer in self.peers if peer.deposed), self.leader)

    def find(self, name: str) -> ReplicaPeer:
        """The peer of that name."""
        for peer in self.peers:
            if peer.peer == name:
                return peer
        known = ", ".join(peer.peer for peer in self.peers)
        raise UsageError(f"stream {self._stream} has no replica {name!r}; there are {known}")

    def is_held(self, peer: ReplicaPeer) -> bool:
        return peer in self._held_since

    def info(self, now: int) -> dict[str, Any]:
        """The `cluster` of a stream's info, as nats-server reports it."""
        last = self._log.committed.last_seq
        others = []
        for peer in sorted(self.peers, key=lambda peer: peer.peer):
            if peer is self.leader:
                continue
            held = self._held_since.get(peer)
            entry: dict[str, Any] = {
                "name": peer.peer,
                "current": held is None,
                "active": 0 if held is None else now - held,
            }
            if lag := last - peer.log.committed.last_seq:
                entry["lag"] = lag
            others.append(entry | {"peer": short_hash(peer.peer)})
        since = format_time(self._leading_since)
        return {"leader": self.leader.peer, "leader_since": since, "replicas": others}

    def show(self, *, seen: int, gap_until: int, is_true_copy: bool) -> bool:
        """What the committed messages of a mirror are worth: its followers have the same. Whether that has changed."""
        now = (seen, gap_until, is_true_copy)
        changed = [
            peer
            for peer in self.peers
            if not self.is_held(peer) and (peer.seen, peer.gap_until, peer.is_true_copy) != now
        ]
        for peer in changed:
            peer.seen, peer.gap_until, peer.is_true_copy = now
            peer.release()
        return bool(changed)

    def distrust(self, *, gap_until: int = 0, is_true_copy: bool = False) -> None:
        """The same for uncommitted messages, from which nothing good follows before they are committed."""
        for peer in self.peers:
            if not self.is_held(peer):
                peer.gap_until = max(peer.gap_until, gap_until)
                peer.is_true_copy = peer.is_true_copy and is_true_copy

    # Scaling.

    def scale(self, count: int, *, mirrors: bool) -> None:
        """Add or remove peers. New ones are current at once; the leader stays, the newest of the others are removed."""
        peers = list(self.peers)
        while len(peers) < count:
            peers.append(self._new_peer())
        for peer in reversed(self.peers):
            if len(peers) <= count:
                break
            if peer is not self.leader:
                peers.remove(peer)
                self._dismiss(peer)
        self.peers = tuple(peers)
        self.mirrors = mirrors
        self._assign()

    def replace(self, name: str, now: int) -> None:
        """Replace a peer by a new one."""
        peer = self.find(name)
        if peer is self.leader and not self.step_down(now):
            raise ErrorCode.PEER_REMAP.error()
        self.peers = tuple(self._new_peer() if other is peer else other for other in self.peers)
        self._dismiss(peer)
        self._assign()

    def _new_peer(self) -> ReplicaPeer:
        self._made += 1
        name = f"{self._services.leader_name}-{self._made}"
        peer = ReplicaPeer(self._services, self._stream, self._log, peer=name, created=self._created)
        self._align(peer)
        return peer

    def _align(self, peer: ReplicaPeer) -> None:
        """A peer that has the leader's data says the same about it."""
        leader = self.leader
        peer.seen, peer.gap_until, peer.is_true_copy = leader.seen, leader.gap_until, leader.is_true_copy

    def _dismiss(self, peer: ReplicaPeer) -> None:
        """Requests that wait at a removed peer go on waiting at the leader."""
        self._held_since.pop(peer, None)
        self.leader.inherit(peer)

    def _assign(self) -> None:
        for peer in self.peers:
            redirects = peer is not self.leader and not peer.deposed and not self.mirrors
            peer.redirects_to = self.leader if redirects else None

    # Leadership.

    def step_down(self, now: int, *, to: str = "") -> bool:
        """Another peer that is current leads from now on; False if there is none."""
        peers = list(self.peers)
        at = peers.index(self.leader)
        candidates = [self.find(to)] if to else peers[at + 1 :] + peers[:at]
        heir = next((peer for peer in candidates if not self.is_held(peer)), None)
        if heir is None:
            return False
        former, self.leader = self.leader, heir
        self._leading_since = now
        self._assign()
        heir.inherit(former)
        return True

    # Fault commands of tests.

    def hold(self, peer: ReplicaPeer, now: int) -> None:
        """Stop replication to a peer: it answers from its state at this moment."""
        if peer is self.leader:
            raise UsageError(f"{peer.peer} leads stream {self._stream} and cannot be held; depose it first")
        if not self.is_held(peer):
            self._held_since[peer] = now
            peer.log = FrozenLog(self._log)

    def release(self, peer: ReplicaPeer) -> None:
        """The peer catches up, and learns who leads."""
        if self._held_since.pop(peer, None) is None:
            return
        peer.log, peer.deposed = self._log, False
        self._align(peer)
        self._assign()
        peer.release()

    def depose(self, now: int, *, to: str = "", unaware: bool = False) -> None:
        """Another peer leads from now on. With `unaware`, the old one goes on as if it led."""
        former = self.leader
        if not self.step_down(now, to=to):
            reason = f"{to} is held" if to else "there is none that is not held"
            raise UsageError(f"no other replica of stream {self._stream} can lead: {reason}")
        if unaware:
            former.deposed = True
            self.hold(former, now)
            self._assign()

    def stop(self) -> None:
        """The stream was deleted."""
        for peer in self.peers:
            peer.end()

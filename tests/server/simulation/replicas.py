"""Held replicas and changes of leadership in the simulation.

A replica that is held answers from the state in which it was stopped, which is known: it is a copy of the model. One
that was asked for `min_last_seq` beyond that must leave the answer to the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.server.engine.reads.replicas import Replicas
from tests.server.simulation.model import ModelStream

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload


class ReplicaLoad:
    """The replicas that are held, each with the state that it has."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self._held: dict[tuple[str, int], dict[str, ModelStream]] = {}  # by stream and birth, then by replica
        self.world.after_restart.append(self._held.clear)
        self.world.after_loss.append(self._group_lost)

    def _group_lost(self, storage: str) -> None:
        """A stream whose deletion is lost is opened again, and its replicas follow."""
        for key in self.world.states(storage).reopened:
            self._held.pop(key, None)

    def held(self, name: str, born: int) -> dict[str, ModelStream]:
        return self._held.get((name, born), {})

    def _group(self, name: str) -> Replicas | None:
        for account in self.world.engine.accounts:
            if name in account.streams:
                return account.streams[name].replicas
        return None

    def draw(self, name: str) -> None:
        """Hold or release a replica, or have another one lead."""
        pick, world = self.world.choices, self.world
        stream, visible, group = self.workload.stream(name), self.workload.visible(name), self._group(name)
        if stream is None or visible is None or group is None or len(group.peers) < 2:
            return
        kind, now, key = pick.below(10), world.clock(), (name, stream.born)
        peer = group.peers[pick.below(len(group.peers))]
        if kind < 5:
            if peer is not group.leader and not group.is_held(peer):
                group.hold(peer, now)
                self._held.setdefault(key, {})[peer.peer] = visible.copy()
                world.say(f"replica {peer.peer} of {name} is held at {visible.last}")
        elif kind < 8:
            group.release(peer)
            self._held.get(key, {}).pop(peer.peer, None)
            world.say(f"replica {peer.peer} of {name} is released")
        else:
            try:
                group.depose(now)
            except UsageError:
                return
            world.say(f"replica {group.leader.peer} leads {name}")

"""Which copy of a stream a new consumer reads, and whether that copy is known to have a wanted sequence.

Theory of operation. A consumer reads the copy of the server that it was placed on. Released servers place a consumer
with one replica on any server that has a copy, and say nothing about how far that copy is: it may lag, or catch up and
lack what was removed meanwhile. A consumer that starts there delivers messages that are gone, and counts too few as
pending; "nothing to deliver" proves nothing.

One copy can be believed without a clock: the leader's own. Its store is the stream as of its last sequence, also if it
was deposed and does not know it. STREAM.INFO is answered by the leader and names it (a server that answers without
being the leader names another one, or none), and the answer to the creation of a consumer names the server that it was
placed on. So a consumer is proven to read a state at or after the wanted sequence if

    INFO before     the leader R answers, and its last sequence is at least the wanted one
    CREATE          the consumer was placed on R
    INFO behind     R still leads, elected when it was before, and the stream was not made again in between

What R's copy had before the creation it has later, or it was removed from the stream after the wanted sequence. A
consumer that was placed elsewhere is deleted and made again: servers choose at random. Nothing of this is needed for a
consumer that starts behind the wanted sequence: each of its messages was stored after it.

A server without a cluster has one store per stream, and what was seen of a stream is in it: every consumer reads that.
So the INFO behind suffices: there is no cluster, the stream is no mirror, was made before the consumer, and has what
was seen. A sequence that was asked for, and not seen, is another matter: it may be stored between CREATE and INFO.

A mirror's leader is a reader of another stream: its last sequence says nothing of what it skipped, so consumers of
mirrors are never proven here. Pure: no I/O, no clock.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import ConsumerConfig, ConsumerInfo, DeliverPolicy, StreamInfo
from slipstream.api.times import ZERO


class Leader(NamedTuple):
    """The leader of a stream by its own word; without a name where its copy is the only one."""

    name: str
    since: str  # of its election; empty where servers do not say it
    created: int  # of the stream
    last_seq: int

    def is_same(self, other: Leader) -> bool:
        """Whether it led without a break from one answer to the other, and the stream is the same one."""
        return self[:3] == other[:3]


def leader_of(info: StreamInfo) -> Leader | None:
    """The leader that answered; None if the answer is not from a leader."""
    replicas = info.cluster.get("replicas") or ()
    name, since = "", ""
    if replicas or info.config.num_replicas > 1:
        name, since = str(info.cluster.get("leader") or ""), str(info.cluster.get("leader_since") or "")
        if not name or any(replica.get("name") == name for replica in replicas):
            return None
    return Leader(name, since, info.created, info.state.last_seq)


def is_on(leader: Leader, consumer: ConsumerInfo) -> bool:
    """Whether a consumer was placed on the server that leads its stream. (A single server names none.)"""
    return not leader.name or str(consumer.cluster.get("leader") or "") == leader.name


def is_on_only_store(consumer: ConsumerInfo, info: StreamInfo) -> bool:
    """Whether a consumer reads the only store of its stream, by stream info that was asked for behind its creation."""
    return ZERO < info.created <= consumer.created and not has_other_stores(info)


def has_other_stores(info: StreamInfo) -> bool:
    """Whether consumers of a stream may read another store than the stream's own, now or after the next change."""
    is_clustered = info.cluster.get("name") or info.cluster.get("replicas")  # a server of its own names itself alone
    return bool(is_clustered) or info.config.mirror is not None


def starts_behind(config: ConsumerConfig, wanted: int) -> bool:
    """Whether every message that a consumer delivers was stored after the wanted sequence."""
    return config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE and config.opt_start_seq > wanted


def has_one_copy(info: StreamInfo) -> bool:
    """Whether there is no copy but the leader's for a consumer to read: no replicas, and no mirror."""
    return info.config.num_replicas <= 1 and info.config.mirror is None

"""Evidence: what one answer proves about the copy that gave it, and up to which sequence it can be trusted.

Theory of operation
-------------------
A stream has one history: message after message, and with each the removals that it causes (a limit per subject, a
rollup, a limit of the whole stream). "As of s" is the state right after sequence s. A read that wants W is right if its
answer is the stream's answer as of some s >= W. Who answers is one of four kinds of copies:

- **The leader's store is exact**: as of its own last sequence, always, even after it was deposed without knowing it.
  A stream without replicas has that store alone.
- **A follower that replays the log is exact** as of what it has applied. One that was away for long gets a snapshot
  instead: what is removed by now disappears first, then what still exists arrives in order. At last sequence U it has
  all messages up to U *that still exist*, and may lack what existed as of U, or show what was gone by then.
- **A mirror** that was away receives the same way, and may besides hold less: a filter, a limit, a purge of its own.
- **A copy of a stream that was deleted**, under the name of the one made after it, proves nothing at all.

So the last sequence of a copy proves nothing where messages are ever removed. What does:

- the message itself: one at q >= W was the newest of its subject as of q;
- what was never removed: where a stream keeps everything and lost nothing, a copy at U is the stream as of U;
- being level: the leader, asked after the answer, has exactly the last sequence of the copy, so nothing can have been
  removed that the copy did not see;
- the leader's own word, if all who can speak as leaders have W: a leader that is settled (30 s by its own clock; who
  led before it has noticed by then, see `SETTLED`) and has reached W, now or at any time before;
- the leader's own copy, named by message tracing, between two words of the same leader.

A session must know as of when an answer is right, not only that it is: the same read must not go back behind it. A
message at q, found by its sequence or as the newest, is right as of max(W, q). A next message and an absence are right
as of the copy that answered, which may be ahead of the leader that speaks behind it: a leader that was deposed and does
not know it. They are noted by the word of a leader if its own state shows the same, or if no newer leader can have been
elected before it spoke: it hears from all replicas, or has heard from a majority since.

What looks like evidence and is none: a Message Get by a leader that is not settled; stream info about another request
than itself; two answers that agree; what stream info says about replicas (`current`, `lag`).

Everything here is a function of what was received. `rule` decides with it, the drivers only send and wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo, StreamSource, StreamState
from slipstream.api.times import parse_time
from slipstream.jetstream.reads.direct_get import BatchItem, Replies, StoredMessage
from slipstream.wire import matches

MOST_DELETED = 50_000  # deleted sequences that are worth listing for one proof
SETTLED = 30_000_000_000  # ns: a leader that lost its majority steps down within 20 s, by raft's check every 10 s
ACTIVE = 3_500_000_000  # ns: a replica heard from so lately has not elected another leader


class LeaderWord(NamedTuple):
    """What stream info says of the one that gave it: a leader, since when (as text: an identity), its last sequence."""

    name: str
    since: str
    last_seq: int
    is_settled: bool
    is_heard_by_all: bool  # every replica answered it lately
    said_at: int = 0  # by its own clock, in nanoseconds,
    heard_at: tuple[int, ...] = ()  # and when it heard from each of its replicas

    def is_same_leader(self, other: LeaderWord) -> bool:
        """Whether both are words of one term of leadership."""
        return self.name == other.name and self.since == other.since

    def led_at(self, earlier: LeaderWord) -> bool:
        """Whether no newer leader was elected before an earlier word of its own: a majority followed it since then.

        A replica that has voted for another one rejects what its former leader sends, which steps down then.
        """
        followers = sum(heard > earlier.said_at for heard in self.heard_at)
        return self.is_same_leader(earlier) and 2 * (followers + 1) > len(self.heard_at) + 1


def leader_word(info: StreamInfo) -> LeaderWord | None:
    """The word of a leader; None if a follower answered, which does so while there is no leader."""
    cluster, last = info.cluster, info.state.last_seq
    if not cluster:
        return LeaderWord("", "", last, is_settled=True, is_heard_by_all=True)  # a server of its own
    replicas = cluster.get("replicas") or ()
    name = cluster.get("leader") or ""
    if not name or any(replica.get("name") == name for replica in replicas):
        return None
    if not replicas and info.config.num_replicas <= 1:
        return LeaderWord(name, "", last, is_settled=True, is_heard_by_all=True)
    since = cluster.get("leader_since") or ""
    return LeaderWord(
        name,
        since,
        last,
        is_settled=_age(since, info.ts) >= SETTLED,
        is_heard_by_all=all(0 <= replica.get("active", ACTIVE) < ACTIVE for replica in replicas),
        said_at=info.ts,
        heard_at=tuple(info.ts - replica.get("active", info.ts) for replica in replicas),
    )


def _age(since: str, now: int) -> int:
    try:
        return now - parse_time(since) if since else 0
    except ValueError:
        return 0


def keeps_everything(config: StreamConfig) -> bool:
    """Whether nothing is ever removed from the stream, but by deletes and purges, which are not covered."""
    return (
        config.max_msgs <= 0
        and config.max_bytes <= 0
        and config.max_msgs_per_subject <= 0
        and not config.max_age
        and not config.allow_rollup_hdrs
        and not config.allow_msg_ttl
        and config.retention == "limits"
    )


def lost_nothing(info: StreamInfo) -> bool:
    """Whether a stream keeps everything and has everything that was ever stored in it, by a state of its leader.

    The configuration alone does not say so: limits may have been lifted, and a copy may still lack what they removed.
    """
    state, first = info.state, max(info.config.first_seq, 1)
    return keeps_everything(info.config) and state.messages == max(state.last_seq - first + 1, 0)


def is_plain_mirror(config: StreamConfig, upstream: str) -> bool:
    """Whether a mirror has messages of `upstream` under their own subjects, all of them or some."""
    source = config.mirror
    return source is not None and source.name == upstream and not source.subject_transforms


def takes_over_all(config: StreamConfig, upstream: str) -> bool:
    """Whether a mirror is configured to take over everything that `upstream` still has."""
    return config.mirror is not None and config.mirror.name == upstream and is_of_all(config.mirror)


def is_of_all(source: StreamSource) -> bool:
    """Whether a mirror with that source takes over everything, under its own subjects."""
    is_part = source.filter_subject or source.opt_start_seq or source.opt_start_time
    return not (is_part or source.subject_transforms)


def is_whole_mirror(config: StreamConfig, upstream: str) -> bool:
    """Whether a mirror takes over everything that `upstream` still has, and removes nothing by itself."""
    return takes_over_all(config, upstream) and keeps_everything(config)


def has_everything(state: StreamState, first: int, wanted: int) -> bool:
    """Whether a copy has every message from `first` on up to its last sequence, and has reached `wanted`."""
    return state.last_seq >= wanted and state.first_seq <= max(first, 1) and not state.num_deleted


def begins_as(state: StreamState, first_ts: int) -> bool:
    """Whether a mirror begins with the message that its upstream begins with, stored at `first_ts` (0: not known).

    A mirror outlives its upstream: where that was made again, it may have messages of both in one sequence.
    """
    return state.first_ts == first_ts


def removed_of(state: StreamState, seqs: Sequence[int]) -> set[int] | None:
    """Which of the messages with these sequences are gone in one state; None if it does not say."""
    if state.num_deleted and not state.deleted:
        return None
    deleted = state.deleted
    gone = set(deleted).intersection(seqs) if deleted else set()
    if not state.messages:
        return set(seqs)
    first, last = state.first_seq, state.last_seq
    if seqs and (seqs[0] < first or seqs[-1] > last):
        gone.update(seq for seq in seqs if not first <= seq <= last)
    return gone


def lacks_any_of(state: StreamState, start: int, seqs: Sequence[int]) -> bool:
    """Whether a page from `start` to its last sequence lacks a message that exists in one state with its deletes."""
    last = seqs[-1]
    first = max(start, state.first_seq)
    if first > last:
        return False
    deleted = set(state.deleted)
    gone = sum(first <= seq <= last for seq in deleted)
    have = sum(seq >= first and seq not in deleted for seq in seqs)
    return have < last - first + 1 - gone


def state_has(state: StreamState, seq: int) -> bool | None:
    """Whether a message exists, by one state; None if the deleted sequences must be known for that."""
    if not state.messages or not state.first_seq <= seq <= state.last_seq:
        return False
    if not state.num_deleted:
        return True
    if state.deleted:
        return seq not in state.deleted
    return True if seq == state.first_seq else None


def is_first_from(state: StreamState, start: int, seq: int, subject: str) -> bool:
    """Whether one state shows that a message of a subject is the first one from `start` on: all before it are gone.

    Or it is the only one of its subject, where the state counts those.
    """
    if not state_has(state, seq):
        return False
    if sum(state.subjects.values()) == 1 and subject in state.subjects:
        return True
    first = max(start, state.first_seq)
    return sum(first <= deleted < seq for deleted in state.deleted) == seq - first


def expires(config: StreamConfig) -> bool:
    """Whether messages are removed by their age, which each replica does by its own clock."""
    return bool(config.max_age) or config.allow_msg_ttl


def has_any_from(state: StreamState, seq: int) -> bool | None:
    """Whether any message exists from a sequence on, by one state; None if the deleted sequences must be known."""
    if not state.messages or seq > state.last_seq:
        return False
    if not state.num_deleted or seq <= state.first_seq:
        return True
    if not state.deleted:
        return None
    return sum(deleted >= seq for deleted in state.deleted) < state.last_seq - seq + 1


def newest(items: Sequence[BatchItem], pattern: str) -> StoredMessage | None:
    """The newest message of an answer whose subject matches."""
    found: StoredMessage | None = None
    for message, _ in items:
        if (found is None or message.seq > found.seq) and (
            message.subject == pattern or matches(pattern, message.subject)
        ):
            found = message
    return found


def up_to(answer: Replies) -> int:
    """The responder's own last sequence, if it was told: by the end of a multi-subject get that was complete."""
    end = answer.end
    return end.up_to_seq if end is not None and end.pending <= 0 else -1


def oldest_time(messages: Sequence[BatchItem]) -> int:
    """The time of the oldest message of an answer: before its stream was made, it is of another stream."""
    if len(messages) == 1:
        return messages[0].message.time
    return min((item.message.time for item in messages), default=0)


def source_of(answer: Replies) -> str:
    """The stream that answered: the one asked, or a mirror of it; empty if there is no message to tell."""
    return answer.items[0].message.stream if answer.items else ""

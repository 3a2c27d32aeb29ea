"""The read state of a connection: read statistics, and a cache of facts about servers and streams.

One per connection, whatever the number of JetStream contexts on it. Nothing in the cache is needed for a right answer:
it saves requests. The statistics may be read at any time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo
from slipstream.api.times import ZERO
from slipstream.jetstream.reads.evidence import MOST_DELETED, LeaderWord, leader_word, lost_nothing

GENERATION_AGE = 10.0  # seconds until the leader is asked again when the stream was created
CONFIG_AGE = 1.0  # seconds for which conclusions from a configuration hold,
SILENT_CONFIG_AGE = 30.0  # and while the leader does not answer
ASK_AGAIN = 1.0  # and the least between two such requests, also after a suspicious answer
MOVE_INTERVAL = 5.0  # seconds between two moves to another server: all reads of a connection notice the same silence


class ReadStats(NamedTuple):
    """How reads went: answered by the first answer, after more than one try, with the leader's help, or not at all.

    A read is counted once; "not found" is an answer. `moves` counts the times that another server was looked for.
    """

    at_once: int
    retried: int
    from_leader: int
    failed: int
    moves: int


class MirrorFacts(NamedTuple):
    """What the info of a mirror said, when it was asked for, and since when it is known to be this mirror."""

    is_plain: bool  # it holds messages of the stream, under their own subjects
    created: int
    asked_at: float
    known_at: float

    def is_one(self, created: int, asked_at: float) -> bool:
        """Whether a mirror that was made then is the one that answered a request sent at `asked_at`.

        Otherwise one that lacked messages may have been deleted behind its answer, and a whole one made.
        """
        return created == self.created and self.known_at <= asked_at


class StreamCache:
    """Facts about one stream, of one generation: since when it exists, what was shown of it, who leads it.

    Each is true for as long as the generation lasts, or has the time at which it was asked for.
    """

    __slots__ = (
        "asked_at",
        "config",
        "config_at",
        "confirmed_at",
        "created",
        "first_seq",
        "first_ts",
        "floor",
        "has_other_stores",
        "is_alone",
        "is_leader_first",
        "is_leader_only",
        "is_lossless",
        "is_mute",
        "is_origin_first",
        "leader",
        "mirrors",
        "needs_names",
        "origin",
        "reached",
        "settled",
        "silent_at",
    )

    def __init__(self) -> None:
        self.created: int = 0  # of a mirror: when the stream at the end of its upstreams was made
        self.asked_at: float | None = None  # when the leader was asked last, and answered or not
        self.config: StreamConfig | None = None
        self.config_at: float = -CONFIG_AGE  # when the request was sent that it answered
        self.silent_at: float = -math.inf  # when one was sent that was not answered,
        self.confirmed_at: float = -math.inf  # and the last one that was, by a leader of this generation
        self.mirrors: dict[str, MirrorFacts] = {}
        self.origin: str = ""  # of a mirror: the stream at the end of its upstreams
        self.is_mute: bool = False  # this user may not ask for stream info
        self.has_other_stores: bool = False  # for consumers to read: see `consume.placement`
        # Of a mirror: its own copies could not prove something, so its origin's are asked.
        self.is_origin_first: bool = False
        self._forget()

    def _forget(self) -> None:
        """What was known of an older stream of that name says nothing about this one."""
        self.floor: int = 0  # no message of this stream is older: nanoseconds
        self.reached: int = 0  # a sequence that is known to exist or to have existed
        self.settled: int = 0  # a sequence that every leader has, now and later
        self.first_seq: int = 1
        self.first_ts: int = 0  # when its first message was stored, by its leader; 0 if it had none
        self.is_alone: bool = False  # no mirror, on a server without a cluster: no other store, and none can be added
        self.is_lossless: bool = False  # it keeps everything, and has everything that was ever stored in it
        self.leader: LeaderWord | None = None
        self.is_leader_only: bool = False  # a Direct Get had no responders, and the configuration does not allow any
        self.is_leader_first: bool = False  # reads of late needed the leader's word
        self.needs_names: bool = False  # too much was deleted for a list of it

    def follow(self, origin: str) -> None:
        """The stream is a mirror: its sequences, and when it was made, are those of the stream that it copies."""
        if origin != self.origin:
            self.origin = origin
            self.created = 0
            self.config = None
            self._forget()

    def is_known(self, now: float) -> bool:
        """Whether the leader was asked lately when the stream was created."""
        return self.asked_at is not None and now - self.asked_at < GENERATION_AGE

    def is_unsure(self, now: float) -> bool:
        """Whether the stream may have been made again since it was known: its leader was asked, and is silent.

        A server that was away, or a mirror, may have the messages of the stream that was deleted.
        """
        return self.silent_at > self.confirmed_at and now - self.confirmed_at >= GENERATION_AGE

    def may_ask(self, now: float) -> bool:
        """Whether a suspicious answer is reason enough to ask the leader again."""
        return self.asked_at is None or now - self.asked_at >= ASK_AGAIN

    def has_config(self, now: float) -> bool:
        """Whether the configuration is fresh: what it allows to conclude was true a moment ago.

        While the leader is silent, it is not asked by every read: it can hardly have been changed without one.
        """
        if self.config is None or now - self.config_at < CONFIG_AGE:
            return self.config is not None
        return now - self.silent_at < CONFIG_AGE and self.had_config(now)

    def had_config(self, now: float) -> bool:
        """Whether the configuration was known when the leader was there last."""
        return self.config is not None and now - self.config_at < SILENT_CONFIG_AGE

    def learn(self, info: StreamInfo, sent: float) -> bool:
        """Take note of an answer to a request that was `sent` then; False if it is of an older stream of that name.

        Clocks of servers differ: a stream's first messages may be older than the stream. The leader's first is not.
        """
        self.asked_at = sent
        if info.created < self.created:
            return False
        self.confirmed_at = sent
        if info.created > self.created:
            self._forget()
            self.created = info.created
        state, word = info.state, leader_word(info)
        first = state.first_ts if state.messages and state.first_ts > ZERO else info.created
        self.floor = min(info.created, first)
        self.reached = max(self.reached, state.last_seq)
        if word is not None:  # a follower without a leader may tell an old configuration
            self.config, self.config_at = info.config, sent
            self.is_leader_only = self.is_leader_only and not info.config.allow_direct
            self.leader, self.first_seq = word, state.first_seq
            self.first_ts = state.first_ts if state.messages else 0
            self.is_lossless = word.is_heard_by_all and lost_nothing(info)
            is_clustered = bool(info.cluster.get("name") or info.cluster.get("replicas"))
            self.is_alone = not is_clustered and not self.origin and info.config.mirror is None  # a mirror may lag
            self.needs_names = state.num_deleted > MOST_DELETED
            if word.is_settled:
                self.settled = max(self.settled, word.last_seq)
        elif not lost_nothing(info):  # but that it has limits, or lost something, is reason enough for doubt
            self.is_lossless = False
        return True


class ReadState:
    """The statistics and the stream caches of one connection."""

    __slots__ = (
        "_streams",
        "at_once",
        "failed",
        "from_leader",
        "keeps_min",
        "moved_at",
        "moves",
        "retried",
    )

    def __init__(self) -> None:
        self.keeps_min: dict[tuple[str, str], bool] = {}  # by server and API prefix: whether they keep `min_last_seq`
        self.moved_at: float | None = None
        self.at_once: int = 0
        self.retried: int = 0
        self.from_leader: int = 0
        self.failed: int = 0
        self.moves: int = 0
        self._streams: dict[tuple[str, str], StreamCache] = {}

    def stream(self, prefix: str, name: str) -> StreamCache:
        """The cache for a stream below an API prefix."""
        cache = self._streams.get((prefix, name))
        if cache is None:
            cache = self._streams[prefix, name] = StreamCache()
        return cache

    @property
    def stats(self) -> ReadStats:
        """The statistics so far."""
        return ReadStats(self.at_once, self.retried, self.from_leader, self.failed, self.moves)

    def count(self, *, tries: int, with_leader: bool) -> None:
        """Count a read that was answered after `tries` attempts in vain."""
        if with_leader:
            self.from_leader += 1
        elif tries:
            self.retried += 1
        else:
            self.at_once += 1

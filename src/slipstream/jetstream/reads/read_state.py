"""The read state of a connection: read statistics, and a cache of facts about servers and streams.

One per connection, whatever the number of JetStream contexts on it. Nothing in the cache is needed for a right answer:
it saves requests. The statistics may be read at any time.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import StreamConfig, StreamInfo
from slipstream.api.times import ZERO

GENERATION_AGE = 10.0  # seconds until the leader is asked again when the stream was created
ASK_AGAIN = 1.0  # and the least between two such requests, also after a suspicious answer


class ReadStats(NamedTuple):
    """How reads went: answered by the first answer, after more than one try, with the leader's help, or not at all.

    A read is counted once; "not found" is an answer. `moves` counts the times that another server was looked for.
    """

    at_once: int
    retried: int
    from_leader: int
    failed: int
    moves: int


class StreamCache:
    """Facts about one stream: since when it exists, a subject with a message, which of its mirrors are whole copies."""

    __slots__ = ("anchor", "asked_at", "config", "created", "floor", "mirrors")

    def __init__(self) -> None:
        self.created = 0
        self.floor = 0  # no message of this stream is older: nanoseconds
        self.asked_at: float | None = None
        self.config: StreamConfig | None = None
        self.anchor: tuple[str, int] | None = None  # a literal subject and a sequence it had: a hint, no more
        self.mirrors: dict[str, bool] = {}

    def is_known(self, now: float) -> bool:
        """Whether the leader said lately when the stream was created."""
        return self.asked_at is not None and now - self.asked_at < GENERATION_AGE

    def may_ask(self, now: float) -> bool:
        """Whether a suspicious answer is reason enough to ask the leader again."""
        return self.asked_at is None or now - self.asked_at >= ASK_AGAIN

    def made(self, info: StreamInfo, now: float) -> None:
        """Take the leader's word for when it was created; of several words the latest counts.

        A deposed leader may speak of a stream that is gone.

        Clocks of servers differ: a stream's first messages may be older than the stream. The leader's first is not.
        """
        self.asked_at = now
        if info.created < self.created:
            return
        first = info.state.first_ts if info.state.messages and info.state.first_ts > ZERO else info.created
        self.floor = min(info.created, first)
        self.created = info.created
        self.config = info.config

    def is_whole_copy(self, mirror: StreamConfig) -> bool:
        """Whether a mirror holds all that the stream holds, under the same subjects: no filter, no tighter limits."""
        source, own = mirror.mirror, self.config
        if source is None or own is None or source.name != own.name:
            return False
        if source.filter_subject or source.subject_transforms or source.opt_start_seq or source.opt_start_time:
            return False
        limits = zip(_limits(mirror), _limits(own), strict=True)
        return all(limit <= 0 or limit == upstream for limit, upstream in limits)

    def know(self, created: int) -> None:
        """Take a session's word for when the stream was created."""
        if created > self.created:
            self.created = self.floor = created


def _limits(config: StreamConfig) -> tuple[float, ...]:
    age = config.max_age.total_seconds()
    return config.max_msgs, config.max_bytes, config.max_msgs_per_subject, age


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
        self.at_once = self.retried = self.from_leader = self.failed = self.moves = 0
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

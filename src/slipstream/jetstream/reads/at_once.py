"""Reads of a bucket's handle that are answered at once: by one Direct Get, if its answer can be shown as it is.

The same decision as the rule's (`rule`), and only where all that it needs is known: when the stream was made, who
answered, and what the handle has seen of the subject (`session.HandleState`). Everything else is left to a trusted
read. So a read through a handle costs what a plain one costs, and shows nothing that a trusted one would not. Pure: the
caller sends.
"""

from __future__ import annotations

from slipstream.jetstream.reads.read_state import GENERATION_AGE, StreamCache
from slipstream.jetstream.reads.session import HandleState


class AtOnce:
    """Decides which answers about one stream may be shown, and tells the handle's state of them. A hot path."""

    __slots__ = ("_cache", "_state", "_stream")

    def __init__(self, stream: str, state: HandleState, cache: StreamCache) -> None:
        self._stream = stream
        self._state = state
        self._cache = cache
        if cache.created:
            state.made(stream, cache.created, 0)  # what is noted is of that one, or of one made later

    def begin(self, subject: str, now: float) -> int:
        """What an answer about a subject must have seen beyond what is known of it; -1 if more must be learned first:
        which stream of that name it must be of."""
        asked_at = self._cache.asked_at
        if asked_at is None or now - asked_at >= GENERATION_AGE or self._cache.is_unsure(now):
            return -1
        return self._state.floor(self._stream, subject)

    def written(self, seq: int) -> None:
        """A write got that sequence: the stream has it, whatever is asked from now on."""
        self._cache.reached = max(self._cache.reached, seq)

    def existed(self) -> int:
        """A sequence that the stream has: to be taken before a question is sent."""
        return self._cache.reached

    def wanted(self, subject: str, least: int) -> int:
        """The sequence that an answer about a subject must have seen: the caller's or the handle's."""
        return max(least, self._state.wanted(self._stream, subject))

    def is_hopeless(self, subject: str) -> bool:
        """Whether one answer of any copy would hardly do: reads of late were older than what was wanted of them."""
        return self._cache.is_leader_first and self._state.known(self._stream, subject) is None

    def takes_kept(self, subject: str, seq: int, wanted: int) -> bool:
        """Whether a message may be shown, by a server that rejects answers which have not seen what is wanted."""
        if self._state.is_open(self._stream, subject):
            return False  # found absent before: it may be older than that
        self._state.note_state(self._stream, max(seq, wanted), subject, seq)
        return True

    def takes(self, subject: str, seq: int, least: int, time: int) -> bool:
        """Whether a message may be shown, of this stream or of a copy of it; it is noted then."""
        return time >= self._cache.floor and seq >= least and self._state.takes(self._stream, subject, seq)

    def takes_by_only_store(self, subject: str, seq: int, *, least: int, existed: int, time: int, now: float) -> bool:
        """Whether an older message may be shown, because the stream itself showed it and no other store can know more.

        It is the stream as of what existed before the question.
        """
        state, cache, stream = self._state, self._cache, self._stream
        wanted = max(least, state.wanted(stream, subject))
        is_only_store = cache.is_alone and cache.has_config(now) and time >= cache.floor
        if not is_only_store or not seq < wanted <= existed or state.is_open(stream, subject):
            return False
        state.note_state(stream, wanted, subject, seq)
        return True

    def takes_absence(self, subject: str, *, least: int, is_kept: bool) -> bool:
        """The same if nothing was found, by a copy that does not say which it is."""
        if not is_kept and (least or not self._state.takes(self._stream, subject, 0)):
            return False
        self._state.note_absent(self._stream, subject)
        return True

    def is_copy(self, source: str, now: float) -> bool:
        """Whether a stream that answered is known to hold the messages of this one."""
        mirror = self._cache.mirrors.get(source)
        if mirror is None or not mirror.is_plain or now - mirror.asked_at >= GENERATION_AGE:
            return False
        return self._cache.has_config(now)  # a mirror may hold the messages of a stream that was deleted

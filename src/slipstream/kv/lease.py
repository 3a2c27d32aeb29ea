"""Rules of a lease on a key: its record, how long the holder may rely on it, when a candidate may take it over.

Theory of operation. A lease is a key whose value names its owner and a TTL. The rules are safe whatever the wall clocks
say, as long as monotonic clocks run at about the same speed: two clocks are never compared. The holder counts the TTL
from *before* it sent its claim, a candidate from *after* it saw that claim, each on its own monotonic clock, and both
leave `MARGIN` for clocks that run slightly slow or fast. So the holder's lease ends before any candidate's count does.

A takeover is a compare-and-set on the revision that the candidate observed: of several candidates one wins, and a
holder that renewed in time keeps its lease. Clocks cannot help a holder that stalls between checking its lease and
acting on it; the fencing token does. It is the revision of the holder's first claim and grows with each holder.
"""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from slipstream.errors import CodecError, UsageError

MARGIN = 0.1
SHORTEST = timedelta(seconds=1)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a leased key: its owner (an id made for this acquisition alone), its TTL, the holder's own data."""

    owner: str
    ttl: float
    token: int = 0  # 0: the revision of this very entry
    name: str = ""
    data: bytes = b""


_decode = msgspec.json.Decoder(Record).decode


def encode_record(record: Record) -> bytes:
    """A record as JSON; `data` is base64."""
    return msgspec.json.encode(record)


def decode_record(key: str, value: bytes) -> Record:
    """The record of a leased key. Raises CodecError if the value is something else."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CodecError(f"key {key!r} holds no lease: {error}") from error


def check_ttl(ttl: timedelta) -> float:
    """The TTL of a lease in seconds, or a UsageError."""
    if ttl < SHORTEST:
        raise UsageError(f"ttl of a lease must be at least 1 second, got {ttl!r}")
    return ttl.total_seconds()


def server_ttl(seconds: float) -> timedelta:
    """The TTL of the stored value: when the server may remove a lease that is not renewed.

    Twice the lease: the server's clock, or that of the next leader, may be wrong by as much as a lease.
    """
    return timedelta(seconds=math.ceil(seconds * 2))


class Claim:
    """The holder's view of its own lease: until when, on its own clock, no other can hold it."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.token = 0
        self.revision = 0
        self._until = 0.0
        self._unsure: list[float] = []  # send times of claims without an answer: any of them may be in force

    def sending(self, now: float) -> None:
        """A claim or renewal is being sent."""
        self._unsure.append(now)

    def rejected(self, sent: float) -> None:
        """The claim sent at `sent` was rejected. (A later one, stored meanwhile, may have cleared it already.)"""
        if sent in self._unsure:
            self._unsure.remove(sent)

    def stored(self, revision: int, sent: float) -> None:
        """The claim sent at `sent` is stored as `revision`."""
        self.token = self.token or revision
        self.revision = revision
        self._until = sent + self.ttl * (1 - MARGIN)
        self._unsure.clear()

    def found(self, revision: int, now: float) -> None:
        """A claim of ours whose answer was lost is in force. It counts from the earliest claim it can be."""
        self.stored(revision, min(self._unsure, default=now - self.ttl))

    def remaining(self, now: float) -> float:
        """Seconds for which the lease is certainly held; 0 if another may hold it."""
        return max(self._until - now, 0.0) if self.revision else 0.0

    def pause(self) -> None:
        """The lease is no longer certain; a claim without an answer may still turn out to be in force."""
        self.token = self.revision = 0
        self._until = 0.0

    def lose(self) -> None:
        """The lease is lost."""
        self.pause()
        self._unsure.clear()


class Observation:
    """A candidate's view of another's lease: since when it was not renewed, on the candidate's own clock."""

    def __init__(self) -> None:
        self.revision = 0
        self._since = 0.0
        self._ttl = 0.0

    def see(self, revision: int, ttl: float, now: float) -> None:
        """The lease is at `revision`; if that is a new one, its TTL counts from now."""
        if revision != self.revision:
            self.revision, self._since, self._ttl = revision, now, ttl

    def takeover_in(self, now: float) -> float:
        """Seconds until the lease may be taken over unless it is renewed."""
        return max(self._since + self._ttl * (1 + MARGIN) - now, 0.0)

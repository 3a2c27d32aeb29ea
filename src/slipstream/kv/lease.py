"""A lease on a key: what is written there, how long its holder may believe in it, when another one may take it over.

Safe whatever clocks say, as long as they run at about the same speed: nobody compares his time with another's. The
holder counts from before it sent its claim, the others from after they saw it, each on a clock that only goes forward,
and both leave `MARGIN` for clocks that run a little slow or fast. A taker names the revision it watched, so of several
takers one wins, and a holder that renewed just in time is not robbed. What clocks cannot give (a holder that stalls
between looking at its lease and acting) the token does: it is the revision of the claim, and grows with each holder.
"""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from slipstream.errors import CodecError, UsageError

MARGIN = 0.1
SHORTEST = timedelta(seconds=1)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a leased key: who holds it (a name made for this holding alone), for how long, and its own data."""

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
    """A record; a CodecError if the key holds something else."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CodecError(f"key {key!r} holds no lease: {error}") from error


def check_ttl(ttl: timedelta) -> float:
    """A lease's length in seconds, or a UsageError."""
    if ttl < SHORTEST:
        raise UsageError(f"bad ttl {ttl!r} of a lease: at least 1 s is allowed")
    return ttl.total_seconds()


def server_ttl(seconds: float) -> timedelta:
    """When a server may clear away what nobody renews.

    Twice the time: its clock, or that of the one which takes over from it, may be wrong by as much as a lease.
    """
    return timedelta(seconds=math.ceil(seconds * 2))


class Claim:
    """What a holder knows of its own lease: until when, in its own time, nobody else can have it."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.token = 0
        self.revision = 0
        self._until = 0.0
        self._unsure: list[float] = []  # when claims were sent that were not answered: one of them may be in force

    def sending(self, now: float) -> None:
        """A claim or renewal goes out."""
        self._unsure.append(now)

    def refused(self, sent: float) -> None:
        """The one sent at `sent` was not stored. (Another one, stored meanwhile, may have settled it already.)"""
        if sent in self._unsure:
            self._unsure.remove(sent)

    def stored(self, revision: int, sent: float) -> None:
        """The claim sent at `sent` is stored as `revision`."""
        self.token = self.token or revision
        self.revision = revision
        self._until = sent + self.ttl * (1 - MARGIN)
        self._unsure.clear()

    def found(self, revision: int, now: float) -> None:
        """A claim of ours whose answer was lost is in force: it counts from the first that it can be."""
        self.stored(revision, min(self._unsure, default=now - self.ttl))

    def remaining(self, now: float) -> float:
        """Seconds that are certain; 0 when the lease may be another's."""
        return max(self._until - now, 0.0) if self.revision else 0.0

    def pause(self) -> None:
        """It is not certain any more; a claim without answer may still turn out to be in force."""
        self.token = self.revision = 0
        self._until = 0.0

    def lose(self) -> None:
        """It is not ours any more."""
        self.pause()
        self._unsure.clear()


class Observation:
    """What a candidate knows of another's lease: since when it was not renewed, in the candidate's own time."""

    def __init__(self) -> None:
        self.revision = 0
        self._since = 0.0
        self._ttl = 0.0

    def see(self, revision: int, ttl: float, now: float) -> None:
        """The lease is at `revision` now; a new one counts from here."""
        if revision != self.revision:
            self.revision, self._since, self._ttl = revision, now, ttl

    def patience(self, now: float) -> float:
        """Seconds until it may be taken over if nothing changes."""
        return max(self._since + self._ttl * (1 + MARGIN) - now, 0.0)

"""Rules of a lease on a key: its record, how long the holder may rely on it, when a candidate may take it over.

Theory of operation. A lease is a key whose value names its owner and a TTL. The rules are safe whatever the wall clocks
say, as long as monotonic clocks run at about the same speed: two clocks are never compared. The holder counts the TTL
from *before* it sent its claim, a candidate from *after* it saw that claim, each on its own monotonic clock, and both
leave `MARGIN` for clocks that run slightly slow or fast. So the holder's lease ends before any candidate's count does.

A takeover is a compare-and-set on the revision that the candidate observed: of several candidates one wins, and a
holder that renewed in time keeps its lease. A candidate may therefore observe any copy of the bucket, however far
behind: no copy shows a record before it was sent, so the count begins late, never early; and while the record it saw
is not the newest one, the compare-and-set fails.

All of this needs the record to stay where it is for as long as a holder relies on it. `check_keeps_record` rejects
buckets that may remove it earlier. A claim or renewal counts only once the bucket was looked at *after* it was stored
(`Claim.confirm`): limits that removed the former holder's record before our claim are seen then, unless they were
changed back meanwhile.

Clocks cannot help a holder that stalls between checking its lease and acting on it; the fencing token does. It is the
revision of the holder's first claim and grows with each holder.
"""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from slipstream.api import Discard, Retention, StreamConfig
from slipstream.api.times import Duration, duration, nanoseconds
from slipstream.errors import CodecError, UsageError
from slipstream.kv.lifetime import rejected_ttl, shortest_ttl

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
        raise CodecError(f"key {key!r} does not contain a lease: {error}") from error


def is_expired(record: Record, created: int, now: int) -> bool:
    """Whether a record was not renewed within its TTL, by the clock of the server that dated it (in nanoseconds)."""
    return now - created > record.ttl * 1e9


def check_ttl(ttl: Duration) -> float:
    """The TTL of a lease in seconds, or a UsageError."""
    span = duration(ttl, "ttl of a lease")
    if span < SHORTEST:
        raise UsageError(f"ttl of a lease must be at least 1 second, got {ttl!r}")
    return span.total_seconds()


def shortest_life(seconds: float) -> timedelta:
    """How long the record of a lease must be kept after each renewal: twice the lease.

    The clock of the server, or of its next leader, may then be wrong by as much as a lease.
    """
    return timedelta(seconds=seconds * 2)


def record_ttl(config: StreamConfig, seconds: float) -> timedelta | None:
    """The TTL of the stored record, so that the server removes one that is not renewed; None if it cannot do that."""
    ttl = timedelta(seconds=math.ceil(shortest_life(seconds).total_seconds()))
    ttl = max(ttl, shortest_ttl(config))
    return ttl if rejected_ttl(config, config.name, ttl) is None else None


def check_keeps_record(bucket: str, config: StreamConfig, seconds: float) -> None:
    """Raise UsageError if a bucket may remove or replace the record of a lease while its holder relies on it."""
    life = shortest_life(seconds)
    lease = f"for a lease of {seconds:g} s"
    # With discard "new" a full bucket rejects renewals, and the holder loses its lease: no record is removed.
    evicts = config.discard != Discard.NEW
    rules = (
        (0 < nanoseconds(config.max_age) < nanoseconds(life), "ttl", config.max_age, f"0 or at least {life}"),
        (evicts and config.max_bytes > 0, "max_bytes", config.max_bytes, "-1: a full bucket removes its oldest values"),
        (evicts and config.max_msgs > 0, "max_msgs", config.max_msgs, "-1: a full bucket removes its oldest values"),
        (config.discard_new_per_subject, "discard_new_per_subject", True, "False: it rejects renewals"),
        (config.retention != Retention.LIMITS, "retention", config.retention, "limits: consumers remove values"),
        (config.no_ack, "no_ack", True, "False: claims are not answered"),
        (config.sealed, "sealed", True, "False: claims are not stored"),
        (bool(config.sources), "sources", [each.name for each in config.sources], "empty: they overwrite values"),
    )
    for is_broken, setting, value, wanted in rules:
        if is_broken:
            raise UsageError(f"{setting} of bucket {bucket!r} must be {wanted} {lease}, got {value}")


class Claim:
    """The holder's view of its own lease: until when, on its own clock, no other can hold it."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.token: int = 0
        self.revision: int = 0
        self._sent = 0.0  # when the claim in force was sent
        self._until = 0.0
        self._unsure: list[float] = []  # send times of claims that are not confirmed: any of them may be in force

    def sending(self, now: float) -> None:
        """A claim or renewal is being sent."""
        self._unsure.append(now)

    def rejected(self, sent: float) -> None:
        """The claim sent at `sent` was rejected. (A later one, stored meanwhile, may have cleared it already.)"""
        if sent in self._unsure:
            self._unsure.remove(sent)

    def stored(self, revision: int, sent: float, token: int = 0) -> None:
        """The claim sent at `sent` is stored as `revision`; it counts once it is confirmed."""
        self.token = self.token or token or revision
        self.revision = revision
        self._sent = sent

    def found(self, revision: int, now: float, token: int = 0) -> None:
        """A claim of ours whose answer was lost is in force. It counts from the earliest claim it can be."""
        self.stored(revision, min(self._unsure, default=now - self.ttl), token)

    def confirm(self) -> None:
        """The bucket was looked at after the claim was stored, and keeps it."""
        self._until = self._sent + self.ttl * (1 - MARGIN)
        self._unsure.clear()

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
    """A candidate's view of another's lease: since when it was not renewed, on the candidate's own clock.

    A record is known by its revision and its time: a bucket that was made again may reach the same revision.
    """

    def __init__(self) -> None:
        self._record = (0, 0)
        self._since = 0.0
        self._ttl = 0.0

    def see(self, revision: int, created: int, ttl: float, now: float) -> None:
        """The lease is at that revision, written at `created`; if that is a new one, its TTL counts from now."""
        if (revision, created) != self._record:
            self._record, self._since, self._ttl = (revision, created), now, ttl

    def forget(self) -> None:
        """The lease was released: there is nothing to wait for."""
        self._record, self._ttl = (0, 0), 0.0

    def takeover_in(self, now: float) -> float:
        """Seconds until the lease may be taken over unless it is renewed; 0 if none was seen."""
        return max(self._since + self._ttl * (1 + MARGIN) - now, 0.0) if self._ttl else 0.0

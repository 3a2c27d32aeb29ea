"""Sequences written and read become the least that the next read must have seen: read-your-writes, monotonic reads.

A session knows, for each stream, the highest sequence that it has seen, and when that stream was made: a stream that
was deleted and made again counts from one, and what was seen of the old one says nothing about it. A session becomes a
small text and back, to be continued by another process.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

from slipstream.errors import UsageError

_VERSION = 1
_MAX_TOKEN = 1 << 20


class Seen(NamedTuple):
    """What is known of one stream; `created` is 0 until somebody asked."""

    seq: int = 0
    created: int = 0


class _Token(msgspec.Struct, array_like=True, frozen=True):
    version: int
    streams: dict[str, tuple[int, int]]


class SessionState:
    """The highest sequence seen per stream. Only ever grows, unless a stream turns out to be a new one."""

    __slots__ = ("_seen",)

    def __init__(self, token: str = "") -> None:
        self._seen: dict[str, Seen] = _read(token) if token else {}

    def seen(self, stream: str) -> int:
        """The highest sequence seen of a stream; 0 for none."""
        return self._seen.get(stream, Seen()).seq

    def created(self, stream: str) -> int:
        """When the stream was made that those sequences belong to, in nanoseconds; 0 if that is not known."""
        return self._seen.get(stream, Seen()).created

    def note(self, stream: str, seq: int) -> None:
        """A message with that sequence was written or read."""
        known = self._seen.get(stream, Seen())
        if seq > known.seq:
            self._seen[stream] = known._replace(seq=seq)

    def made(self, stream: str, created: int, last_seq: int) -> None:
        """The stream is known to be made at `created`, and to have reached `last_seq`.

        Later than the one we knew: it is another stream, of which nobody can have seen more than that.
        """
        known = self._seen.get(stream, Seen())
        if created > known.created:
            seq = min(known.seq, last_seq) if known.created else known.seq
            self._seen[stream] = Seen(seq, created)

    def token(self) -> str:
        """All of it as a text of letters, digits, `-` and `_`."""
        body = msgspec.json.encode(
            _Token(_VERSION, {name: (seen.seq, seen.created) for name, seen in self._seen.items()})
        )
        return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read(token: str) -> dict[str, Seen]:
    try:
        if not isinstance(token, str) or len(token) > _MAX_TOKEN:
            raise ValueError("too long, or no text")
        body = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        read = msgspec.json.decode(body, type=_Token)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as exc:
        raise UsageError(f"bad session token {str(token)[:24]!r}: what `token()` of a session gave is allowed") from exc
    if read.version != _VERSION:
        raise UsageError(f"bad session token of version {read.version}: version {_VERSION} is allowed")
    if any(seq < 0 or created < 0 for seq, created in read.streams.values()):
        raise UsageError("bad session token: a sequence in it is negative")
    return {name: Seen(*seen) for name, seen in read.streams.items()}

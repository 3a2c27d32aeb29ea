"""Session state: the highest sequence seen per stream, for read-your-writes and monotonic reads.

A session also knows when each stream was created: one that was deleted and created again counts from one, and the
sequences seen of the old one say nothing about it. A session can be written as a small text and continued by another
process.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from slipstream.errors import UsageError

_VERSION = 1
_MAX_TOKEN = 1 << 20
_MOST_NOTED = 16


class _Token(msgspec.Struct, array_like=True, frozen=True):
    version: int
    streams: dict[str, tuple[int, int]]


class SessionState:
    """The highest sequence seen per stream. Only ever grows, unless a stream turns out to be a new one.

    Several threads may use one session: a sequence is appended, which is one step, and never written over a higher one.
    """

    __slots__ = ("_created", "_seqs", "_turn")

    def __init__(self, token: str = "") -> None:
        known = _read(token) if token else {}
        self._seqs = {name: [seq] for name, (seq, _) in known.items()}
        self._created = {name: created for name, (_, created) in known.items()}
        self._turn = [True]  # the thread that pops it may shorten a list: a lock that is never waited for

    def seen(self, stream: str) -> int:
        """The highest sequence seen of a stream; 0 for none."""
        seqs = self._seqs.get(stream)
        return max(seqs[:]) if seqs else 0

    def created(self, stream: str) -> int:
        """When the stream of those sequences was created, in nanoseconds; 0 if unknown."""
        return self._created.get(stream, 0)

    def note(self, stream: str, seq: int) -> None:
        """A message with that sequence was written or read."""
        seqs = self._seqs.setdefault(stream, [0])
        seqs.append(seq)
        if len(seqs) > _MOST_NOTED and self._turn:
            self._shorten(seqs)

    def _shorten(self, seqs: list[int]) -> None:
        try:
            turn = self._turn.pop()
        except IndexError:  # another thread does it
            return
        count = len(seqs)
        seqs[0] = max(seqs[:count])
        del seqs[1:count]  # what other threads append lies behind
        self._turn.append(turn)

    def made(self, stream: str, created: int, last_seq: int) -> None:
        """Learn that the stream was created at `created`, and has reached `last_seq`.

        Later than known: it is another stream, of which the session cannot have seen more than that.
        """
        known = self._created.get(stream, 0)
        if created > known:
            if known:
                self._seqs[stream] = [min(self.seen(stream), last_seq)]
            self._created[stream] = created

    def token(self) -> str:
        """The state as a text of letters, digits, `-` and `_`."""
        names = sorted({*self._seqs, *self._created})
        body = msgspec.json.encode(_Token(_VERSION, {name: (self.seen(name), self.created(name)) for name in names}))
        return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _read(token: str) -> dict[str, tuple[int, int]]:
    try:
        if not isinstance(token, str) or len(token) > _MAX_TOKEN:
            raise ValueError("too long, or not a str")
        body = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        read = msgspec.json.decode(body, type=_Token)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as exc:
        raise UsageError(f"session token must come from `token()` of a session, got {str(token)[:24]!r}") from exc
    if read.version != _VERSION:
        raise UsageError(f"session token must be of version {_VERSION}, got version {read.version}")
    if any(seq < 0 or created < 0 for seq, created in read.streams.values()):
        raise UsageError("session token must not hold negative numbers")
    return read.streams

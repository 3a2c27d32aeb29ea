"""Reply subjects that nobody else has: one random prefix per connection, a counter behind it.

The randomness comes from the caller (a driver); a token costs one increment.
"""

from __future__ import annotations

from slipstream.wire.subjects import check_subject

DEFAULT_PREFIX = "_INBOX"


class Inbox:
    """`prefix.nonce.*` is subscribed once; `next()` gives one subject below it, `token` gets its last token back."""

    __slots__ = ("_count", "_cut", "base", "wildcard")

    def __init__(self, nonce: str, *, prefix: str = DEFAULT_PREFIX) -> None:
        self.base = f"{check_subject(prefix)}.{check_subject(nonce)}."
        self.wildcard = self.base + "*"
        self._cut = len(self.base)
        self._count = 0

    def next(self) -> str:
        """A fresh reply subject."""
        self._count += 1
        return f"{self.base}{self._count}"

    def token(self, subject: str) -> str:
        """The last token of one of our reply subjects."""
        return subject[self._cut :]

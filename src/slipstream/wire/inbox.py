"""Unique reply subjects: a random prefix per client, and a counter behind it.

The randomness is an argument; a subject costs one increment.
"""

from __future__ import annotations

from slipstream.wire.subjects import check_subject

DEFAULT_PREFIX = "_INBOX"


class Inbox:
    """Subjects `prefix.nonce.1`, `.2` and so on; `wildcard` covers all of them."""

    __slots__ = ("_count", "base", "wildcard")

    def __init__(self, nonce: str, *, prefix: str = DEFAULT_PREFIX) -> None:
        self.base: str = f"{check_subject(prefix)}.{check_subject(nonce)}."
        self.wildcard: str = self.base + "*"
        self._count = 0

    def next(self) -> str:
        """A fresh reply subject."""
        self._count += 1
        return f"{self.base}{self._count}"

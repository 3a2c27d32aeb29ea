"""Publish statistics of a connection."""

from __future__ import annotations

from typing import NamedTuple


class PublishStats(NamedTuple):
    """How many messages `publish` and publishers sent to streams, and how many of them were acknowledged.

    `duplicates` are among the acknowledged ones. The messages of a publisher are added when it is flushed or closed.
    """

    published: int
    acked: int
    duplicates: int


class PublishCounts:
    """The counters, one set per connection."""

    __slots__ = ("acked", "duplicates", "published")

    def __init__(self) -> None:
        self.published: int = 0
        self.acked: int = 0
        self.duplicates: int = 0

    @property
    def stats(self) -> PublishStats:
        """The counters as they are now."""
        return PublishStats(self.published, self.acked, self.duplicates)

    def acknowledged(self, duplicate: bool) -> None:
        """Count an acknowledged publish."""
        self.acked += 1
        self.duplicates += duplicate

"""Answers wait for their changes: a store, what its open group will answer, and the group that is under way.

The invariant of the server is kept here: an answer that reports a change is sent when the group that holds the change
was committed, never before. An answer without a change of its own (a duplicate, a refusal, a look at the catalog) joins
the open group all the same as long as something is unfinished: it may rest on what is not durable yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slipstream.errors import ApiError
from slipstream.server.engine.ports import Group, Store


class Home(Protocol):
    """The account's way out for answers."""

    def send(self, subject: str, header: bytes, payload: bytes) -> bool: ...

    def answer_all(self, answers: list[Answer]) -> None: ...


class Source(Protocol):
    """Who answers."""

    @property
    def home(self) -> Home: ...

    def ack(self, seq: int) -> tuple[str, int]:
        """The text of a publish's ack, and its size in bytes."""

    def failure(self, error: ApiError) -> bytes:
        """The payload instead, if the group is lost; empty: no answer is better."""


# Reply subject, sequence, who answers, payload. A publish that was stored has a sequence and no payload: there are many
# of them, and their acks are written together when they go.
Answer = tuple[str, int, Source, bytes]

# Who sends, subject, header, payload: what is to be told once the group is durable, and not at all if it is lost.
Event = tuple[Home, str, bytes, bytes]


class Keeper(Protocol):
    """Somebody whose state changes often: it is written when a group is sealed, not with every change."""

    def save(self) -> None:
        """Put what has changed into the open group."""


class Reader(Protocol):
    """Somebody who follows what is committed."""

    def committed(self, now: int) -> None:
        """A group was finished."""


class CommitBatch:
    """A sealed group with its answers. `group` is None when nothing changed: there is nothing to write then."""

    __slots__ = ("after", "answers", "catalog", "events", "group", "journal")

    def __init__(
        self, journal: Journal, group: Group | None, answers: list[Answer], events: list[Event], catalog: bool
    ) -> None:
        self.journal = journal
        self.group = group
        self.answers = answers
        self.events = events
        self.catalog = catalog
        self.after: list[Callable[[], None]] = []


class Journal:
    """One store and the answers that wait for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: list[Answer] = []  # of the open group, in order
        self.events: list[Event] = []  # of the open group, in order
        self.catalog = False  # whether the open group made, changed or deleted a stream
        self.under_way: CommitBatch | None = None
        self.failure = ""  # why the last group was lost; empty once one was kept again
        self.after: list[Callable[[], None]] = []  # to call when the open group is durable and answered
        self.keepers: dict[Keeper, None] = {}  # those whose state is not in the open group yet
        self.readers: dict[Reader, None] = {}
        self.hurried = False  # the keepers have waited long enough for a group

    @property
    def ready(self) -> bool:
        """Whether there is a group to seal and none on its way; an empty one, if the store has work left to do."""
        waiting = self.answers or self.events or self.store.pending or self.store.backlog or self.after
        return self.under_way is None and bool(waiting or (self.hurried and self.keepers))

    @property
    def settled(self) -> bool:
        """Whether everything that anybody was told of is durable, and the state of the keepers as well."""
        return not (self.unfinished or self.keepers)

    @property
    def unfinished(self) -> bool:
        """Whether anything is not durable yet."""
        waiting = self.answers or self.events or self.store.pending or self.after
        return self.under_way is not None or bool(waiting)

    @property
    def catalog_unfinished(self) -> bool:
        """Whether the list of streams or a configuration is not durable yet."""
        return self.catalog or (self.under_way is not None and self.under_way.catalog)

    def seal(self) -> CommitBatch:
        """Close the open group; the driver carries it through the store."""
        while self.keepers:  # one that fails is told by whoever called, and does not stop all groups to come
            keeper = next(iter(self.keepers))
            del self.keepers[keeper]
            keeper.save()
        self.hurried = False
        group = self.store.seal() if self.store.pending or self.store.backlog else None
        batch = CommitBatch(self, group, self.answers, self.events, self.catalog)
        batch.after, self.after = self.after, []
        self.answers, self.events, self.catalog = [], [], False
        self.under_way = batch
        return batch

    def finish(self, batch: CommitBatch) -> list[Answer]:
        """The batch is durable: readers see it, and its answers may go."""
        if batch.group is not None:
            self.store.finish(batch.group)
            self.failure = ""
        self.under_way = None
        return batch.answers

    def abandon(self) -> list[Answer]:
        """Everything unfinished is lost; its answers come back to be answered with an error."""
        lost = [*(self.under_way.answers if self.under_way is not None else ()), *self.answers]
        self.answers, self.events, self.catalog, self.under_way, self.after = [], [], False, None, []
        self.keepers.clear()
        self.store.abandon()
        return lost

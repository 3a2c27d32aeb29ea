"""The journal of one store: the open group with the answers that wait for it, and the group being committed.

The invariant of the server is kept here: an answer that reports a change is sent after the group that holds the change
is committed, never before. An answer without a change of its own (a duplicate, a rejection, a list of streams) joins
the open group as long as anything is uncommitted, since it may be based on a change that is not durable yet.

What happens around a commit is written down in two places, in order: `Journal.seal` (before) and `Engine.committed`
(after).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slipstream.errors import ApiError
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.ports import Group, Store


class ReplyPort(Protocol):
    """Where answers are sent: the router of an account."""

    def send(self, subject: str, header: bytes, payload: bytes) -> bool: ...

    def answer_all(self, answers: list[Answer]) -> None: ...


class Source(Protocol):
    """The part of the server that an answer is from."""

    @property
    def reply_port(self) -> ReplyPort: ...

    def ack(self, seq: int) -> tuple[str, int]:
        """The text of a publish's ack, and its size in bytes."""

    def failure(self, error: ApiError) -> bytes:
        """The payload instead, if the group is lost; empty: no answer is better."""


# Reply subject, sequence, source, payload, and the client that is answered, if it is one: it waits if its answer goes
# to very many subscribers. A publish that was stored has a sequence and no payload: there are many of them, and their
# acks are encoded together when they are sent.
Answer = tuple[str, int, Source, bytes, Session | None]

# Port, subject, header, payload of a message (an advisory, a republished message) that is sent once the group is
# durable, and not at all if the group is lost; and the client whose request it is about, if it is one.
DeferredMessage = tuple[ReplyPort, str, bytes, bytes, Session | None]


class DeferredState(Protocol):
    """Frequently changing state (of a consumer): written once when a group is sealed, not with every change."""

    def save(self) -> None:
        """Write the changed state into the open group."""


class LogFollower(Protocol):
    """A part of the server that follows the log (the consumers of a stream)."""

    def committed(self, now: int) -> None:
        """A group was committed."""


class CommitBatch:
    """A sealed group with its answers. `group` is None if nothing changed: then nothing is written."""

    __slots__ = ("after", "answers", "catalog", "events", "group", "has_refused", "journal", "reports")

    def __init__(
        self, journal: Journal, group: Group | None, answers: list[Answer], events: list[DeferredMessage], catalog: bool
    ) -> None:
        self.journal: Journal = journal
        self.group: Group | None = group
        self.answers: list[Answer] = answers
        self.events: list[DeferredMessage] = events
        self.catalog: bool = catalog
        self.after: list[Callable[[], None]] = []
        self.reports: list[Callable[[], None]] = []
        self.has_refused: bool = False  # a job that was to add to it waits for its commit


class Journal:
    """One store, its open group and the answers that wait for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: list[Answer] = []  # of the open group, in order
        self.events: list[DeferredMessage] = []  # of the open group, in order
        self.catalog: bool = False  # the open group creates, changes or deletes a stream
        self.under_way: CommitBatch | None = None
        self.failure: str = ""  # why the last group was lost; empty after the next commit
        self.after: list[Callable[[], None]] = []  # to call once the open group is durable
        self.reports: list[Callable[[], None]] = []  # to call once the open group is durable or lost
        self.unsaved: dict[DeferredState, None] = {}  # state that changed and is not in the open group yet
        self.followers: dict[LogFollower, None] = {}
        self.seal_requested: bool = False  # seal even if only deferred state has changed
        # Jobs that add to the open group: one was turned away; one was, in the last group, and none was let in since.
        self._has_refused = self._is_owed = False

    @property
    def ready(self) -> bool:
        """Whether there is a group to seal and none being committed. It may be empty, if the store has a backlog."""
        waiting = self.answers or self.events or self.store.pending or self.store.backlog or self.after or self.reports
        return self.under_way is None and bool(waiting or (self.seal_requested and self.unsaved))

    @property
    def settled(self) -> bool:
        """Whether every change is durable, deferred state included."""
        return not (self.unfinished or self.unsaved)

    @property
    def unfinished(self) -> bool:
        """Whether any change or answer waits for a commit."""
        waiting = self.answers or self.events or self.store.pending or self.after or self.reports
        return self.under_way is not None or bool(waiting)

    @property
    def catalog_unfinished(self) -> bool:
        """Whether the list of streams or a configuration is not durable yet."""
        return self.catalog or (self.under_way is not None and self.under_way.catalog)

    def admits(self, limit: int) -> bool:
        """Whether a job may add a slice to the open group. With more than `limit` changes in it the job waits for the
        commit, as the acks of all clients do. But after a group that turned a job away, the next one takes a slice,
        however full it is: clients that fill every group would otherwise keep a purge from ever ending."""
        if self.store.pending <= limit or self._is_owed:
            self._is_owed = False
            return True
        self._has_refused = True
        return False

    def seal(self) -> CommitBatch:
        """Close the open group: 1. deferred state is written into it, 2. the store seals it, 3. its answers, deferred
        messages and callbacks leave with it. The next group is open from here on; the driver commits this one."""
        while self.unsaved:  # removed before it is saved: one that fails must not block all groups to come
            state = next(iter(self.unsaved))
            del self.unsaved[state]
            state.save()
        self.seal_requested = False
        group = self.store.seal() if self.store.pending or self.store.backlog else None
        batch = CommitBatch(self, group, self.answers, self.events, self.catalog)
        batch.after, self.after = self.after, []
        batch.reports, self.reports = self.reports, []
        self.answers, self.events, self.catalog = [], [], False
        batch.has_refused = self._has_refused
        self._is_owed, self._has_refused = self._is_owed or self._has_refused, False
        self.under_way = batch
        return batch

    def finish(self, batch: CommitBatch) -> list[Answer]:
        """The batch is durable: move the readers' view of the store past it, and hand out its answers."""
        if batch.group is not None:
            self.store.finish(batch.group)
            self.failure = ""
        self.under_way = None
        return batch.answers

    def take_reports(self) -> list[Callable[[], None]]:
        """The reports that wait for groups that are lost: they are made of what is left."""
        reports = [*(self.under_way.reports if self.under_way is not None else ()), *self.reports]
        self.reports = []
        return reports

    def abandon(self) -> list[Answer]:
        """Drop everything uncommitted; returns the answers, which the engine replaces by errors."""
        lost = [*(self.under_way.answers if self.under_way is not None else ()), *self.answers]
        self.answers, self.events, self.catalog, self.under_way, self.after = [], [], False, None, []
        self.unsaved.clear()
        self.store.abandon()
        return lost

"""Persistence of consumers: what the store keeps of one, and when its delivery state is written.

Delivery state is written with the groups of the stream's store: with the next group that is committed for another
reason, or with one that is asked for `LAZY` nanoseconds after the change. An answer to an ack waits for the group that
holds the ack. So a crash can take back plain acks and delivery counts of the last moments, and the messages are
redelivered; it never takes back an ack that was answered.

Records of a consumer are named `<name>\\0c` (configuration), `<name>\\0s` (sequences and skip list) and
`<name>\\0b<number>` (one block of 64 sequences with pending or redelivered messages).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipstream.errors import ApiError
from slipstream.server.engine.consumers.deliver_policy import SkipList
from slipstream.server.engine.consumers.delivery_state import HEAD_SIZE, DeliveryState
from slipstream.server.engine.journal import DeferredState, Journal
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer

if TYPE_CHECKING:
    from slipstream.server.engine.journal import ReplyPort

LAZY = 20_000_000


def read_state(records: Mapping[str, bytes]) -> DeliveryState | None:
    """The delivery state in the records of one consumer; None if it has never been written."""
    head = records.get("s")
    if head is None:
        return None
    state = DeliveryState.restored(head[:HEAD_SIZE], [value for key, value in records.items() if key[0] == "b"])
    state.skips = SkipList.unpack(head[HEAD_SIZE:])
    return state


def state_records(name: str, state: DeliveryState) -> dict[str, bytes | None]:
    """The records that changed since the last call; None: the record is to be deleted."""
    skips = state.skips.pack() if state.skips is not None else b""
    records: dict[str, bytes | None] = {f"{name}\0s": state.head() + skips}
    for number, block in state.changed().items():
        records[f"{name}\0b{number:x}"] = block or None
    return records


def block_numbers(records: Mapping[str, bytes]) -> list[int]:
    """The numbers of the blocks that the store has of one consumer."""
    return [int(key[1:], 16) for key in records if key[0] == "b"]


def by_consumer(kept: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """The records of a log by the name of the consumer, in one pass, however many consumers there are."""
    found: dict[str, dict[str, bytes]] = {}
    for key, value in kept.items():
        name, _, rest = key.partition("\0")
        if rest:
            found.setdefault(name, {})[rest] = value
    return found


MAX_PENDING = 512  # changes in the open group


class LazyCommit:
    """Marks deferred states of one stream as changed, and asks for a group if none is committed soon."""

    def __init__(self, services: Services, journal: Journal) -> None:
        self.services = services
        self.journal = journal
        self._timer: Timer | None = None

    def mark(self, state: DeferredState) -> None:
        """Have a state saved with the next group."""
        if state in self.journal.unsaved:
            return
        self.journal.unsaved[state] = None
        if self._timer is None or self._timer.action is None:  # one timer for all consumers of the stream
            self._timer = self.services.timers.at(self.services.router.now + LAZY, self._hurry)

    def _hurry(self, _: int) -> None:
        self.journal.seal_requested = True


class AckReply:
    """The empty answer to an ack. Where the group is lost there is no answer: the client asks again."""

    def __init__(self, reply_port: ReplyPort) -> None:
        self.reply_port = reply_port

    def ack(self, seq: int) -> tuple[str, int]:  # noqa: ARG002
        return "", 0

    def failure(self, error: ApiError) -> bytes:  # noqa: ARG002
        return b""


class StateWriter:
    """Writes the delivery state of one consumer. A deferred state of the journal."""

    def __init__(self, commit: LazyCommit, log: StreamLog, name: str, state: DeliveryState) -> None:
        self.persistent = True  # whether the consumer is to outlive the process
        self._commit = commit
        self._journal = commit.journal
        self._log = log
        self._name = name
        self._state = state
        self._reply = AckReply(commit.services.router)
        self._stopped = False

    def mark(self) -> None:
        """The delivery state changed. Called for every ack."""
        if self.persistent and self not in self._journal.unsaved:
            self._commit.mark(self)

    @property
    def saved(self) -> bool:
        """Whether no change waits for a group."""
        return self not in self._journal.unsaved

    def admits_job(self) -> bool:
        """Whether a job may add to the open group, or waits for the next commit."""
        return self._journal.admits(MAX_PENDING)

    def save(self) -> None:
        """Put the changes into the open group."""
        if not self._stopped:
            for key, value in state_records(self._name, self._state).items():
                self._log.keep(key, value)

    def confirm(self, reply: str) -> None:
        """Answer an ack once it is durable."""
        journal = self._journal
        # Nothing of its own may be unsaved, and yet a group that holds this very ack may still be on its way.
        if self in journal.unsaved or journal.unfinished:
            journal.answers.append((reply, 0, self._reply, b"", self._commit.services.jobs.load.asker))
        else:
            self._commit.services.router.send(reply, b"", b"")

    def stop(self) -> None:
        """Write nothing more."""
        self._stopped = True
        self._journal.unsaved.pop(self, None)

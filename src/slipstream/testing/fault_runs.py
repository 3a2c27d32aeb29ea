"""The faults of `@pytest.mark.slipstream_faults`: one test, run once undisturbed and once under each of them.

A run disturbs each `every`-th message on the subject of the mark, from the beginning of the test to its end. A program
that passes all of them retries with a message id, is idempotent, acknowledges after its work, and reconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.errors import UsageError
from slipstream.testing.controls import ServerControls

LATE = 0.05  # seconds
ALWAYS = 1 << 62  # times

FaultRun = Callable[[ServerControls, str, int], None]  # the server, the subject, and `every`


def _undisturbed(server: ServerControls, subject: str, every: int) -> None:
    """Nothing happens."""


def _lost_publishes(server: ServerControls, subject: str, every: int) -> None:
    """A message does not reach the server."""
    server.drop(subject, direction="to_server", count=ALWAYS, skip=every - 1, every=every)


def _lost_replies(server: ServerControls, subject: str, every: int) -> None:
    """A message is stored, or a request is carried out, and the ack or the reply is lost."""
    server.lose_replies(subject, count=ALWAYS, skip=every - 1, every=every)


def _duplicate_publishes(server: ServerControls, subject: str, every: int) -> None:
    """A message reaches the server twice."""
    server.duplicate(subject, direction="to_server", count=ALWAYS, skip=every - 1, every=every)


def _late_publishes(server: ServerControls, subject: str, every: int) -> None:
    """A message reaches the server late, behind those that were sent after it."""
    server.delay(subject, LATE, direction="to_server", count=ALWAYS, skip=every - 1, every=every)


def _lost_deliveries(server: ServerControls, subject: str, every: int) -> None:
    """A message does not reach its subscriber or consumer; consumers get it again after `ack_wait`."""
    server.drop(subject, count=ALWAYS, skip=every - 1, every=every)


def _duplicate_deliveries(server: ServerControls, subject: str, every: int) -> None:
    """A message reaches its subscriber or consumer twice."""
    server.duplicate(subject, count=ALWAYS, skip=every - 1, every=every)


def _late_deliveries(server: ServerControls, subject: str, every: int) -> None:
    """A message reaches its subscriber or consumer late."""
    server.delay(subject, LATE, count=ALWAYS, skip=every - 1, every=every)


def _cut_connections(server: ServerControls, subject: str, every: int) -> None:
    """The connection is lost in place of a message to the server."""
    server.cut_at(subject, count=ALWAYS, skip=every - 1, every=every)


FAULT_RUNS: dict[str, FaultRun] = {
    "undisturbed": _undisturbed,
    "lost-publishes": _lost_publishes,
    "lost-replies": _lost_replies,
    "duplicate-publishes": _duplicate_publishes,
    "late-publishes": _late_publishes,
    "lost-deliveries": _lost_deliveries,
    "duplicate-deliveries": _duplicate_deliveries,
    "late-deliveries": _late_deliveries,
    "cut-connections": _cut_connections,
}


def chosen_runs(only: Iterable[str] = (), without: Iterable[str] = ()) -> list[str]:
    """The names of the runs of a mark."""
    only, without = _names(only), _names(without)
    for name in (*only, *without):
        if name not in FAULT_RUNS:
            raise UsageError(f"a fault run must be one of {', '.join(FAULT_RUNS)}, got {name!r}")
    return [name for name in (only or FAULT_RUNS) if name not in without]


def _names(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)

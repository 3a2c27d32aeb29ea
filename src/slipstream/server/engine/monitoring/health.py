"""Health report of the stores: the last failed commit, and damaged messages and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.server.engine.journal import Journal

MAX_NAMED = 10  # damaged messages that a report names


class Health(NamedTuple):
    """The health of a server."""

    problems: tuple[str, ...] = ()
    damaged: tuple[tuple[str, int], ...] = ()  # stream (prefixed with its account) and sequence
    missing: tuple[tuple[str, int, int, int], ...] = ()  # stream, first and last sequence of a range, how many there

    @property
    def ok(self) -> bool:
        return not self.problems


def examine(journals: Sequence[Journal]) -> Health:
    """Problems in words; empty if there are none."""
    problems = [f"the last changes could not be stored: {each.failure}" for each in journals if each.failure]
    damaged = [found for each in journals for found in each.store.damaged()]
    losses = [loss for each in journals for loss in each.store.losses()]
    records = sum(each.store.corrupt_records - each.store.named_records for each in journals)
    if damaged:
        named = ", ".join(f"{seq} of {stream!r}" for stream, seq in damaged[:MAX_NAMED])
        more = f" and {len(damaged) - MAX_NAMED} more" if len(damaged) > MAX_NAMED else ""
        problems.append(f"damaged messages: {named}{more}")
    if losses:
        named = ", ".join(
            f"{count or 'some'} of {low} to {high} of {stream!r}" for stream, low, high, count in losses[:MAX_NAMED]
        )
        more = f" and {len(losses) - MAX_NAMED} more ranges" if len(losses) > MAX_NAMED else ""
        problems.append(f"missing messages: {named}{more}")
    faults = [fault for each in journals for fault in each.store.faults()]
    if faults:
        more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        problems.append(f"damage in the store: {', '.join(faults[:MAX_NAMED])}{more}")
    if records > 0 and not damaged and not losses and not faults:
        problems.append(f"records that do not match their checksums were read {records} times")
    return Health(tuple(problems), tuple(damaged), tuple(losses))

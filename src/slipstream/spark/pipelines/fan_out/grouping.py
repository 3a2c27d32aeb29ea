"""Choice of the outputs that share a read, by how far each has come.

Rows of a shared batch that an output has written before are left out for it, so outputs need not be at the same
offset; but none may be behind the beginning of the batch, and a batch that an output has begun must end for it where it
did. An output that does not fit reads by itself in this run, as it would without others, and may fit in the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slipstream.spark.pipelines.fan_out.checkpoints import CheckpointPosition, has_all_before

REACH = 100_000  # messages between the outputs of one read: those ahead wait until the others have read them


class SharingGroup(NamedTuple):
    """The outputs that share a read, and where it begins."""

    names: tuple[str, ...]
    continues: bool = False  # with the unfinished batch of the shared query
    start: str = ""  # the output behind whose last batch it begins; empty: at the beginning of the source


NO_GROUP = SharingGroup(())


def choose(outputs: Mapping[str, CheckpointPosition], shared: CheckpointPosition | None) -> SharingGroup:
    """The group of outputs for the next run; fewer than two share nothing. `shared` is the shared query itself."""
    if shared is not None and shared.pending is not None:
        fitting = [name for name, one in outputs.items() if _fits(one, shared)]
        if len(fitting) > 1:
            return SharingGroup(tuple(fitting), continues=True)
    settled = {name: one for name, one in outputs.items() if one.pending is None}
    begun = {name: one.end for name, one in settled.items() if one.end is not None}
    if not begun:
        fresh = tuple(settled)
        return SharingGroup(fresh) if len(fresh) > 1 else NO_GROUP
    newest = max(begun.values(), key=lambda end: (end.created, end.seq))  # of the newest stream of that name
    near = {
        name: end.seq
        for name, end in begun.items()
        if end.created == newest.created and end.seq >= newest.seq - REACH and end.skipped == newest.skipped
    }
    if len(near) < 2:
        return NO_GROUP
    return SharingGroup(tuple(near), start=min(near, key=lambda name: near[name]))


def _fits(output: CheckpointPosition, shared: CheckpointPosition) -> bool:
    """Whether an output can take part in the unfinished batch of the shared query."""
    end = shared.pending
    if end is None or (output.pending is not None and output.pending != end):
        return False
    return has_all_before(output.end, shared.end, end)

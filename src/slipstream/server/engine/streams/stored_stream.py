"""The stored record of a stream."""

from __future__ import annotations

import msgspec

from slipstream.server.engine.replication.fidelity import Fidelity


class StoredStream(msgspec.Struct, frozen=True):
    """The stored record of a stream, beside its messages."""

    created: int
    config: dict[str, object]
    # Subjects may have more messages than the limit allows: see `SubjectTrim`. Stored under its first name.
    trimming: bool = msgspec.field(default=False, name="thin")
    restoring: bool = False  # a restore is running: the stream is not visible
    positions: dict[str, tuple[int, str]] = {}  # of its sources: sequence, and the upstream's identity
    fidelity: Fidelity | None = None  # of a mirror
    removals: list[tuple[str, int]] = []  # purges that are not complete: filter, and the first sequence that stays

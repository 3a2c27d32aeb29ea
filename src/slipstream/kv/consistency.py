"""Consistency of a bucket's handle: the writes that each of its reads must reflect.

- `own-writes`, the default: all that was written through the handle, and nothing older than what it has shown before.
  A `get` counts that per key; listings, ranges, history, snapshots and watches must have seen the newest revision that
  the handle wrote or saw.
- `any`: whatever the replica has that answers first.
- `latest`: all that the bucket's leader had when the read was called.

The default is `any` for a read replica of a bucket in another domain, account or server: it has only a part of what
its origin's leader knows, and could not prove a listing.

In a session the session's own promise rules, which is stronger than `own-writes`; `latest` adds to it.
"""

from __future__ import annotations

from enum import StrEnum

from slipstream.errors import UsageError


class Consistency(StrEnum):
    """What the reads of a handle must have seen."""

    OWN_WRITES = "own-writes"
    ANY = "any"
    LATEST = "latest"


def check_consistency(value: str | None, *, in_session: bool) -> Consistency | None:
    """The consistency of that name (None: the default of the bucket), or a UsageError."""
    if value is None:
        return None
    try:
        consistency = Consistency(value)
    except ValueError:
        raise UsageError(f"consistency must be 'own-writes', 'any' or 'latest', got {value!r}") from None
    if in_session and consistency is Consistency.ANY:
        raise UsageError("consistency must be 'own-writes' or 'latest' in a session, got 'any'")
    return consistency

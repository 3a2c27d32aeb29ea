"""Rules of read replicas: what a mirror must keep so that its answers are the answers of its origin.

Servers let a mirror answer Direct Gets that are addressed to its origin (`mirror_direct`), so a replica that keeps
less, or more, than its origin makes half of the reads of the ORIGIN wrong: history is cut, revisions are "not found",
expired values come back. Whether a mirror in the account of its origin joins is not the client's choice: servers set
its `mirror_direct` to the `allow_direct` of the origin, at creation and at every update. Elsewhere it is.

A mirror with the same limit per subject, the same age and the same TTLs per message removes what its origin removes,
at the same sequences and times; limit markers arrive as messages. Limits on the size of a bucket do not work that way:
what they remove depends on what else was removed before, and when.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from slipstream.api import Retention, StreamConfig

# Options that a replica takes over from its origin, with the settings of the stream that they decide.
FOLLOWED: dict[str, tuple[str, ...]] = {
    "history": ("max_msgs_per_subject",),
    "ttl": ("max_age", "duplicate_window"),
    "value_ttl": ("allow_msg_ttl",),
}


def following(replica: StreamConfig, origin: StreamConfig, *, own: Collection[str] = ()) -> StreamConfig:
    """A replica's configuration that keeps what its origin keeps; options in `own` stay as they are."""
    settings = [setting for option, settings in FOLLOWED.items() if option not in own for setting in settings]
    return replica.replace(**{setting: getattr(origin, setting) for setting in settings})


def kept_differently(replica: StreamConfig, origin: StreamConfig) -> list[str]:
    """What makes a replica answer otherwise than its origin would: a text for each option; empty if it is a copy."""
    found = []
    for option, settings in FOLLOWED.items():
        has, wanted = getattr(replica, settings[0]), getattr(origin, settings[0])
        if has != wanted and not (has in _NONE and wanted in _NONE) and not (option == "value_ttl" and has):
            found.append(f"{option} must be {wanted}, got {has}")
    if 0 < replica.max_msg_size != origin.max_msg_size:
        found.append(f"max_value_size must be -1 or {origin.max_msg_size}, got {replica.max_msg_size}")
    if origin.allow_rollup_hdrs and not replica.allow_rollup_hdrs:
        found.append("allow_rollup_hdrs must be True, got False")
    for whose, config in (("", replica), (" of the origin", origin)):
        for setting in ("max_bytes", "max_msgs"):
            if (limit := getattr(config, setting)) > 0:
                found.append(f"{setting}{whose} must be -1 (what it removes differs at a replica), got {limit}")
        if config.retention != Retention.LIMITS.value:
            found.append(f"retention{whose} must be 'limits', got {config.retention!r}")
    mirror = replica.mirror
    if mirror and (mirror.filter_subject or mirror.subject_transforms or mirror.opt_start_seq or mirror.opt_start_time):
        found.append("it must mirror all subjects under their names, from the first message on")
    return found


_NONE = (0, -1, timedelta(0))  # no limit


def keeps_alike(before: StreamConfig, after: StreamConfig) -> bool:
    """Whether a change of a bucket's options leaves alone what it keeps."""
    settings = (
        "max_msgs_per_subject",
        "max_age",
        "allow_msg_ttl",
        "max_bytes",
        "max_msgs",
        "max_msg_size",
        "retention",
    )
    return all(getattr(before, setting) == getattr(after, setting) for setting in settings)


def grows(before: StreamConfig, after: StreamConfig) -> bool:
    """Whether a bucket keeps some values longer after a change of its options, or allows a TTL per value."""
    return (
        _at_most(before.max_msgs_per_subject) < _at_most(after.max_msgs_per_subject)
        or _at_most(before.max_age.total_seconds()) < _at_most(after.max_age.total_seconds())
        or after.allow_msg_ttl > before.allow_msg_ttl
    )


def loosens(before: StreamConfig, after: StreamConfig) -> bool:
    """Whether limits are lifted: what they removed before leaves no trace in the options that a bucket has then."""
    lifted = ("max_bytes", "max_msgs")
    return grows(before, after) or any(
        _at_most(getattr(before, setting)) < _at_most(getattr(after, setting)) for setting in lifted
    )


def _at_most(limit: float) -> float:
    return limit if limit > 0 else float("inf")

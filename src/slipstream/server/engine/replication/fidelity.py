"""Fidelity of a mirror: what its copy can say about the stream that it mirrors.

Theory of operation. A mirror that receives the messages of its upstream one after the other, without a gap, and removes
by the same rules, is the upstream **as of** its last sequence: exact plus next is exact. A mirror that was away gets
only what still exists. Its last sequence then runs ahead of its content: version 2 of a key was removed by version 3,
which it does not have yet, so it shows version 1. It is exact again once it has everything that removed what it missed:
at the latest when it reaches the last sequence that the upstream had when the gap was seen. That sequence is
`gap_until`; until then the copy speaks for nothing. (Not even for the state before the gap: with `max_msgs`, messages
after the gap push out a key whose newer version it has not got.)

Four things are kept beside the messages, in the same group, so that a restart finds them:

- `origin`: when the upstream was created that the messages are from. An upstream that was deleted and made again under
  the same name is another stream. A copy of both is a copy of neither (`is_mixed`). So is the copy of an upstream that
  lost messages, and gave their sequences to others.
- `gap_until`: see above. `UNKNOWN` while the upstream has not said where it ends.
- `is_whole`: false for ever once the mirror dropped something that the upstream may still have: by a filter, a start
  position, a limit of its own or a delete of its own.
- `has_leftovers`: the mirror may hold what the upstream has removed in a gap. A limit per subject, and a rollup of one
  subject, leave a newer message of that subject, which removes the older ones here too. A rollup of all subjects need
  not: the message that carried it may be gone as well. The same number of messages at the same sequence proves that
  nothing is left over, since a whole copy lacks nothing.

By its own name a mirror speaks for what it holds, and only a gap or two generations keep it from it. For its upstream
it speaks only if it is whole, has nothing left over, and both configurations remove alike now.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slipstream.api import Retention, StreamConfig, StreamSource
from slipstream.api.times import nanoseconds

UNKNOWN = 2**64  # beyond every sequence


class Fidelity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored state of a mirror's copy."""

    origin: int = 0  # nanoseconds since the epoch; 0: no message is from anywhere yet
    gap_until: int = 0
    is_whole: bool = True
    has_leftovers: bool = False
    is_mixed: bool = False

    def horizon(self, last_seq: int) -> int:
        """Where a copy of this copy, which has its last message at `last_seq`, is exact again after a gap."""
        return UNKNOWN if self.is_mixed else max(self.gap_until, last_seq)


class Difference(NamedTuple):
    """How a mirror's configuration removes differently than its upstream's."""

    drops: bool  # messages that the upstream keeps
    keeps: bool  # messages that the upstream removes


def is_partial(source: StreamSource, config: StreamConfig) -> bool:
    """Whether a mirror leaves out or renames messages by its configuration."""
    return bool(
        source.filter_subject
        or source.subject_transforms
        or source.opt_start_seq > 1
        or source.opt_start_time is not None
        or config.subject_transform is not None
    )


def difference(mirror: StreamConfig, upstream: StreamConfig) -> Difference:
    """What the rules of a mirror and its upstream do differently.

    Equal limits on all messages or bytes are no equal content: one delete in either stream shifts them, and sizes
    depend on the storage. So such limits are a difference, whichever stream has them, and limits of several messages
    per subject unless the upstream allows no deletes.
    """
    own, theirs = max(mirror.max_msgs_per_subject, 0), max(upstream.max_msgs_per_subject, 0)
    own_age, their_age = nanoseconds(mirror.max_age), nanoseconds(upstream.max_age)
    drops = (
        (own and (not theirs or own < theirs))
        or (own > 1 and not upstream.deny_delete)  # after a delete upstream an older message of the subject stays there
        or (own_age and (not their_age or own_age < their_age))
        or mirror.max_msgs > 0
        or mirror.max_bytes > 0
        or mirror.retention != Retention.LIMITS
        or (mirror.allow_rollup_hdrs and not upstream.allow_rollup_hdrs)
        or (mirror.allow_msg_ttl and not upstream.allow_msg_ttl)
    )
    keeps = (
        (theirs and (not own or own > theirs))
        or upstream.max_msgs > 0
        or upstream.max_bytes > 0
        or upstream.retention != Retention.LIMITS
        or (upstream.allow_rollup_hdrs and not mirror.allow_rollup_hdrs)
        or upstream.allow_msg_schedules  # the message of a schedule may remove the schedule
    )
    return Difference(bool(drops), bool(keeps))


def removes_inside(config: StreamConfig) -> bool:
    """Whether messages can remove others: otherwise what a copy misses was deleted or has expired, and no message
    after it tells more."""
    return bool(
        config.max_msgs_per_subject > 0
        or config.max_msgs > 0
        or config.max_bytes > 0
        or config.allow_rollup_hdrs
        or config.retention != Retention.LIMITS
    )


def sweeps(config: StreamConfig) -> bool:
    """Whether a message can remove messages of other subjects."""
    return bool(config.allow_rollup_hdrs or config.max_msgs > 0 or config.max_bytes > 0 or config.allow_msg_schedules)

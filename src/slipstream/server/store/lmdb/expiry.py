"""Index of expiring messages in LMDB: when the time to live of each message is over.

The table has one key (stream id, moment, sequence) for each message that says in its header how long it is to be kept.
A key is a hint: before a message expires its header is read again, so a stale or damaged key removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from struct import Struct

from slipstream.server.engine.ports import expires_at
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.records import HEAD, MESSAGE_KEY, is_sound
from slipstream.server.store.lmdb.segments import Delta
from slipstream.server.store.lmdb.view import View

MOST_UNPROVED = 4  # blocks: their messages are compared with the sum of the block, 0.7 ms each, when one expires

_KEY = Struct(">IQQ")
_head = HEAD.unpack_from

moment_key: Callable[[int, int, int], bytes] = _KEY.pack


def moment_of(value: bytes) -> int:
    """When a stored message is over; 0: never."""
    time, subject, header = _head(value)
    if not header:
        return 0
    begin = 16 + subject
    return expires_at(time, value[begin : begin + header])


def moments(env: Environment, sid: int, deltas: tuple[Delta, ...]) -> Iterator[tuple[int, int]]:
    """Moments and sequences of a log as the writer sees them, in order."""
    changed: dict[bytes, bool] = {}
    for delta in deltas:
        changed.update(delta.moments)
    fresh = sorted(key for key, there in changed.items() if there)
    for key in merge(_stored(env, sid, changed), fresh) if changed else _stored(env, sid, changed):
        _, moment, seq = _KEY.unpack(key)
        yield moment, seq


def _stored(env: Environment, sid: int, changed: dict[bytes, bool]) -> Iterator[bytes]:
    prefix = sid.to_bytes(4, "big")
    with env.read.cursor(db=env.expiries) as cursor:
        if cursor.set_range(prefix):
            for key in cursor.iternext(values=False):
                if not key.startswith(prefix):
                    return
                if len(key) == _KEY.size and key not in changed:
                    yield key


def take(view: View, delta: Delta, now: int, limit: int) -> list[int]:
    """The committed sequences that are over at `now`, of up to `limit` moments, which leave the table.

    They are fewer if they are in many blocks that were not looked at yet."""
    due: list[tuple[int, int]] = []
    base, unproved = view.base, set[int]()
    committed, proved, size = base.state.last_seq, base.proved, base.block
    for moment, seq in moments(view.env, base.sid, view.deltas):
        if moment > now or len(due) == limit:
            break
        if seq <= committed:
            if seq // size not in proved:
                unproved.add(seq // size)
                if len(unproved) > MOST_UNPROVED:
                    break
            due.append((moment, seq))
    found = []
    for moment, seq in due:
        delta.moments[moment_key(view.base.sid, moment, seq)] = False
        value = view.value(seq) if seq >= view.first else None
        if value is not None and is_sound(MESSAGE_KEY.pack(view.base.sid, seq), value) and moment_of(value) == moment:
            found.append(seq)
    return sorted(found)

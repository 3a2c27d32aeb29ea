"""Proof that the messages of a log are all there, and no others.

A checksum proves that a message belongs where it was found. It does not prove that a message which is not found never
was, nor that one which is found was not removed since: a page that was lost, or is an older one, takes messages away or
brings them back, each with a checksum that fits. So the record of a segment has the sums of its blocks (`segments.py`),
and they are compared where it matters:

- Nothing of a block is served, and no hole taken for one, before its messages add up to its sum. Their checksums are
  read once; after that every change goes through this process. (A block without holes would show that none is missing,
  but not that all are its own: a page of a copy of the store that went on alone has the same sequences.)
- Messages that a filter finds by the index are as complete as the index: it has a sum too, compared before the first
  use. An index that does not fit is made again from the messages.

A block that does not add up is reported. What is certain in it is still served (`is_certain`), and what is not found in
it is an error, not a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import lmdb

from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.records import (
    MESSAGE_KEY,
    CorruptMessageError,
    is_sound,
    subject_key,
    subject_of,
    unpack_row,
    weight,
)
from slipstream.server.store.lmdb.segments import COUNTED, UNSOUND, Base, share

SUMMED_PER_UNIT = 8  # messages that are compared with the sum of their block
MISSING = "is missing, and was not removed: a page of the store was lost"
DISORDER = "is not found where it should be: the keys there are those of another page"
UNCERTAIN = (
    "is among messages of which some are missing or removed: a page of the store is not the one that was written"
)

_key = MESSAGE_KEY.pack
_numbers = MESSAGE_KEY.unpack


def sum_block(env: Environment, base: Base, low: int, high: int) -> int:
    """What the stored messages from `low` to before `high` add up to."""
    total, before = 0, low - 1
    with env.raw_cursor(env.read) as cursor:
        if cursor.set_range(_key(base.sid, low)):
            for key, value in cursor.iternext():
                sid, seq = _numbers(key) if len(key) == MESSAGE_KEY.size else (0, 0)
                if sid != base.sid or not before < seq < high:  # the end, or a key that does not belong here
                    break
                before = seq
                if is_found(env, bytes(key)):
                    total += share(seq, value)
    return total


def sum_full_block(env: Environment, base: Base, low: int, high: int) -> int:
    """The same of a block without holes, by looking up each message: a page that LMDB cannot read is an error for a
    lookup, and may end the process of a scan."""
    total, messages = 0, env.messages
    raw = env.handle.begin(db=messages, buffers=True)
    try:
        is_same = raw.id() == env.read.id()  # it copies no values; but another group may be committed and not finished
        for seq in range(low, high):
            try:
                value = (raw if is_same else env.read).get(_key(base.sid, seq), db=messages)
            except lmdb.Error:
                if not is_same:
                    raise
                raw.abort()  # it reads nothing more
                raw = env.handle.begin(db=messages, buffers=True)
                is_same = raw.id() == env.read.id()
                continue
            if value is not None:
                total += share(seq, value)
    finally:
        raw.abort()
    return total


def is_found(env: Environment, key: bytes) -> bool:
    """Whether a message that a scan came to is found by its key, too. If a key of a branch is damaged, it may not be:
    such damage is known since the start."""
    return not env.found or env.read.get(key) is not None


def without_strays(
    env: Environment, stream: str, seq: int, items: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """The messages that a scan from `seq` on comes to. Raises at one that is in a page where it does not belong."""
    for key, value in items:
        if key in env.strays:
            raise CorruptMessageError(stream, seq, DISORDER)
        yield key, value
        seq = int.from_bytes(key[4:], "big") + 1


def sums_of(env: Environment, base: Base, number: int, first: int) -> list[int]:
    """The sums of the blocks of a segment, from the messages; none below `first` is alive."""
    start = number * base.size
    edges = range(start, start + base.size, base.block)
    return [sum_block(env, base, max(low, first), low + base.block) if low + base.block > first else 0 for low in edges]


def sum_of_index(env: Environment, prefix: bytes) -> int:
    """What the entries of a segment's index add up to."""
    total = 0
    with env.read.cursor(db=env.index) as cursor:
        if cursor.set_range(prefix):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    break
                if not env.found or env.read.get(key, db=env.index) == value:
                    total += weight(key, value)
    return total


def _are_all_sound(env: Environment, base: Base, low: int, high: int) -> bool:
    """Whether all messages from `low` to before `high` match their checksums: then those that do not add up are of
    another store, or of another time."""
    with env.raw_cursor(env.read) as cursor:
        if cursor.set_range(_key(base.sid, low)):
            for key, value in cursor.iternext():
                if bytes(key) >= _key(base.sid, high):
                    break
                if not is_sound(key, value):
                    return False
    return True


def bounds(base: Base, block: int) -> tuple[int, int]:
    """Where the living part of a block begins, and where it ends (not included)."""
    state = base.state
    return max(block * base.block, state.first_seq), min((block + 1) * base.block, state.last_seq + 1)


def is_full(base: Base, block: int) -> bool:
    """Whether a block has no holes."""
    low, high = bounds(base, block)
    return base.sum_of(block) // COUNTED == high - low


def prove(env: Environment, base: Base, block: int) -> None:
    """Before messages of a block are served for the first time."""
    if block not in base.lost:
        count(env, base, block)


def count(env: Environment, base: Base, block: int) -> None:
    """Compare the messages of a block with its sum."""
    low, high = bounds(base, block)
    adding = sum_full_block if is_full(base, block) else sum_block
    env.work.units += max(0, high - low) // SUMMED_PER_UNIT
    settle(env, base, block, adding(env, base, low, high) if low < high else 0)


def settle(env: Environment, base: Base, block: int, found: int) -> bool:
    """Note whether the messages of a block add up; true if they do not."""
    low, high = bounds(base, block)
    wanted = base.sum_of(block)
    if wanted == found:
        base.proved.add(block)
        base.counted.add(block)
        base.lost.pop(block, None)
        base.foreign.discard(block)
        return False
    base.proved.discard(block)
    base.counted.discard(block)
    base.lost[block] = missing = max(0, wanted // COUNTED - found // COUNTED)
    if is_full(base, block) and not missing:
        if not _are_all_sound(env, base, low, high):
            return True  # none is missing, and those that are damaged are reported when they are read
        base.foreign.add(block)
    env.report_loss(base.name, low, high - 1, missing)
    return True


def uncertain(env: Environment, base: Base, block: int, found: dict[str, list[int]]) -> dict[int, str]:
    """The sequences of a block that does not add up which any subject may have, with the reasons: those without a sound
    message, and all that are not certain if the messages may be others. `found` gets those that a scan did not come
    to."""
    low, high = bounds(base, block)
    known = {seq for seqs in found.values() for seq in seqs if low <= seq < high}
    poison: dict[int, str] = {}
    for seq in range(low, high):
        key = _key(base.sid, seq)
        value = env.read.get(key)
        if value is None:
            poison[seq] = MISSING
        elif not is_sound(key, value):
            poison[seq] = UNSOUND
        elif block in base.foreign and not is_certain(env, base, block, seq, value):
            poison[seq] = UNCERTAIN
        elif seq not in known:
            seqs = found.setdefault(subject_of(value), [])
            seqs.append(seq)
            seqs.sort()
    return poison


def check_found(env: Environment, base: Base, seq: int, value: bytes) -> None:
    """A message was found. Raises if it may have been removed."""
    block = seq // base.block
    if block in base.proved:
        return
    prove(env, base, block)
    if block in base.lost and not is_certain(env, base, block, seq, value):
        raise CorruptMessageError(base.name, seq, UNCERTAIN)


def is_certain(env: Environment, base: Base, block: int, seq: int, value: bytes) -> bool:
    """Whether a message of a block that does not add up is alive: all of the block are, or it is the only one of its
    subject that is. A bound of a row may be of a message that was removed: which one is left is known if both are the
    same."""
    if is_full(base, block):
        return block not in base.foreign
    subject = subject_of(value)
    row = base.row(subject)
    if row is None:
        key = base.sid.to_bytes(4, "big") + subject_key(subject)
        stored = env.read.get(key, db=env.subjects)
        known = unpack_row(key, stored) if stored is not None else None
        row = known[1] if known is not None and known[0] == subject else None
    return row == (1, seq, seq)


def check_absent(env: Environment, base: Base, seq: int) -> None:
    """A message was not found between the first and the last sequence. Raises if it was lost."""
    block = seq // base.block
    if block in base.counted:
        return
    if block not in base.lost:
        if not base.sum_of(block):
            return
        count(env, base, block)
    if block in base.lost:
        raise CorruptMessageError(base.name, seq, MISSING)


def check_poison(base: Base, seq: int) -> None:
    """A subject's messages were followed to one that may be of any subject. Raises."""
    found = base.poison.get(seq // base.size)
    if found is not None and seq in found:
        raise CorruptMessageError(base.name, seq, found[seq])


def check_gap(env: Environment, base: Base, low: int, high: int) -> None:
    """Nothing was found from `low` to before `high`. Raises if a message is missing there."""
    state = base.state
    low, high = max(low, state.first_seq), min(high, state.last_seq + 1)
    if low >= high:
        return
    if env.strays:
        _check_passed(env, base, low, high)
    for block in blocks_with(base, low, high - 1):
        if base.sum_of(block):
            begin, end = bounds(base, block)
            if low <= begin and high >= end:  # all of it: a message of it should have been found
                base.lost[block] = base.sum_of(block) // COUNTED
                base.proved.discard(block)
                base.counted.discard(block)
                env.report_loss(base.name, begin, end - 1, base.lost[block])
            check_absent(env, base, max(low, begin))


def _check_passed(env: Environment, base: Base, low: int, high: int) -> None:
    """A scan passed over the sequences from `low` to before `high`, in a file where some pages have keys of others.
    Raises if there are messages, which are found by their keys."""
    for seq in looked_up(env, base, low, high):
        env.report(base.name, seq)
        raise CorruptMessageError(base.name, seq, DISORDER)


def looked_up(env: Environment, base: Base, low: int, high: int, *, down: bool = False) -> Iterator[int]:
    """The sequences from `low` to before `high` that are found by their keys, in order."""
    blocks = blocks_with(base, low, high - 1)
    for block in sorted(blocks, reverse=True) if down else blocks:
        if base.sum_of(block):
            begin, end = bounds(base, block)
            seqs = range(max(low, begin), min(high, end))
            for seq in reversed(seqs) if down else seqs:
                if env.read.get(_key(base.sid, seq)) is not None:
                    yield seq


def blocks_with(base: Base, low: int, high: int) -> Iterable[int]:
    """Blocks of segments with messages that have sequences from `low` to `high`."""
    first, last = low // base.block, high // base.block
    if last - first <= 2 * base.per_segment * (len(base.segments) + 1):
        return range(first, last + 1)
    return _blocks_of_segments(base, first, last)


def _blocks_of_segments(base: Base, first: int, last: int) -> Iterator[int]:
    per = base.per_segment
    for number in sorted(base.segments):
        if first // per <= number <= last // per:
            yield from range(max(first, number * per), min(last, number * per + per - 1) + 1)


def check_index(env: Environment, base: Base, number: int) -> bool:
    """Before the index of a segment is used for the first time; whether it can be used."""
    wanted = base.index_sums.pop(number, None)
    if wanted is None:
        return True
    prefix = base.sid.to_bytes(4, "big") + number.to_bytes(8, "big")
    if sum_of_index(env, prefix) == wanted:
        return True
    env.corrupt_records += 1
    del base.indexed[number]
    if number in base.segments:
        base.unindexed.add(number)
    else:
        base.dead.discard(number)
        base.dropping.discard(number)
    return False

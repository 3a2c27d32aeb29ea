"""The checker: whether an answer keeps the promise of its read, against the exact states of the stream.

The promise of a single read: the stream's answer as of some operation at or after the wanted sequence, up to the moment
the answer arrived. Of a listing: that for each subject. Of a range: every message that exists in all of these states,
none that exists in none of them, in order; without an end, all that exists in one of them (what was replaced while it
was read is not missing together with what replaced it). The views of a session move forward through the states.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.wire import has_wildcard, matches
from tests.jetstream.reads.simulation.actions import Answer, Read
from tests.jetstream.reads.simulation.model import Entry, History

State = dict[int, Entry]


def broken(read: Read, answer: Answer, history: History) -> str:
    """Which promise an answer breaks, in words; empty if none."""
    if read.wanted > history.last:
        return f"answered, although sequence {read.wanted} does not exist (last {history.last})"
    states = history.states[history.index[read.wanted] :]
    if read.kind == "range":
        complete = history.states[history.index[min(max(read.wanted, read.end), history.last)] :]
        return _broken_range(read, answer.messages, states, complete)
    if read.kind == "many":
        return _broken_many(read, answer.messages, states)
    got = answer.messages[0] if answer.messages else None
    rights = [_right(read, state) for state in states]
    return "" if any(_is_same(got, right) for right in rights) else _words(got, rights)


def first_right(read: Read, answer: Answer, history: History, begin: int) -> int:
    """The first operation from `begin` on as of which the answer of a single read is right; -1 if there is none."""
    got = answer.messages[0] if answer.messages else None
    for number in range(max(begin, history.index[min(read.wanted, history.last)]), len(history.states)):
        if _is_same(got, _right(read, history.states[number])):
            return number
    return -1


def _right(read: Read, state: State) -> Entry | None:
    """The stream's answer to a single read in one state."""
    if read.kind == "last":
        for entry in reversed(state.values()):
            if entry.subject == read.subject or (has_wildcard(read.subject) and matches(read.subject, entry.subject)):
                return entry
        return None
    if read.kind == "seq":
        return state.get(read.seq)
    for entry in state.values():
        if entry.seq >= read.seq and matches(read.subject, entry.subject):
            return entry
    return None


def _words(got: StoredMessage | None, rights: Sequence[Entry | None]) -> str:
    expected = list(dict.fromkeys(right.seq if right is not None else None for right in rights))
    if got is None:
        return f"false absence: right is one of {expected}"
    if not any(right is not None and right.seq == got.seq and right.time == got.time for right in rights):
        newer = [seq for seq in expected if seq is not None and seq > got.seq]
        return f"stale: got {got.seq}, right is one of {expected}" if newer else f"gone: got {got.seq}, {expected}"
    return f"wrong: got {got.seq}, right is one of {expected}"


def _is_same(got: StoredMessage | None, right: Entry | None) -> bool:
    if got is None or right is None:
        return got is None and right is None
    return got.seq == right.seq and got.time == right.time and got.subject == right.subject


def _broken_many(read: Read, messages: Sequence[StoredMessage], states: Sequence[State]) -> str:
    got = {message.subject: message for message in messages}
    if len(got) != len(messages):
        return "a subject twice"
    subjects = {entry.subject for state in states for entry in state.values() if matches(read.subject, entry.subject)}
    for subject in sorted(subjects | set(got)):
        single = Read("last", read.wanted, subject)
        rights = [_right(single, state) for state in states]
        if not any(_is_same(got.get(subject), right) for right in rights):
            return f"{subject}: {_words(got.get(subject), rights)}"
    return ""


def _broken_range(
    read: Read, messages: Sequence[StoredMessage], states: Sequence[State], complete: Sequence[State]
) -> str:
    """`complete`: the states from the end of the range on; a message that is in all of them must be there."""
    seqs = [message.seq for message in messages]
    if seqs != sorted(set(seqs)):
        return f"not in order: {seqs}"
    if seqs and (seqs[0] < read.seq or (read.end and seqs[-1] > read.end)):
        return f"outside of the range: {seqs}"
    got = {(message.seq, message.time) for message in messages}
    for message in messages:
        if not any(message.seq in state and state[message.seq].time == message.time for state in states):
            return f"leftover: {message.seq} exists in no state from {read.wanted} on"
    end = read.end or read.wanted
    for entry in complete[0].values():
        is_asked_for = read.seq <= entry.seq <= end and matches(read.subject, entry.subject)
        is_lacking = is_asked_for and (entry.seq, entry.time) not in got
        if is_lacking and all(entry.seq in state for state in complete):
            return f"gap: {entry.seq} is missing"
    if not read.end and not any(_has_all(read, got, state) for state in states):
        return f"incomplete: of no state from {read.wanted} on everything is there, got {seqs}"
    return ""


def _has_all(read: Read, got: set[tuple[int, int]], state: State) -> bool:
    wanted = (entry for entry in state.values() if entry.seq >= read.seq and matches(read.subject, entry.subject))
    return all((entry.seq, entry.time) in got for entry in wanted)

"""Verdicts: what one answer of some replica proves about the stream at or after a wanted sequence.

For servers that ignore `min_last_seq`. Every decision about what an answer is worth is made here, by a function of the
answer alone; the drivers send the requests and act on the verdicts. No reply names its replica, so two answers never
prove anything together that depends on one state: each verdict rests on one answer. The evidence in an answer:

- `Nats-UpTo-Sequence` at the end of a multi-subject get is the responder's own last sequence, as long as the request
  had no `up_to_seq`, which is echoed. An anchor, a subject that has a message, makes that end come in any case.
- A message shows that the responder had reached its sequence, and one with `Nats-Num-Pending` p had reached seq + p.
- Sequences are never used twice. What is gone stays gone: a message that is missing where a later one exists is
  missing everywhere. What exists on an old copy may be gone on a newer one (a rollup, a limit).
- Stream info is one state of one server, with its last sequence: its own proof of freshness.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.api import StreamState
from slipstream.jetstream.reads.direct_get import BatchItem, Replies, StoredMessage
from slipstream.wire import matches

MOST_DELETED = 50_000  # deleted sequences that are worth listing for one proof


class Verdict(enum.Enum):
    """What an answer proves."""

    PRESENT = "it exists, at or after the wanted sequence"
    ABSENT = "it does not exist, at or after the wanted sequence"
    BEHIND = "the responder had not reached the wanted sequence"
    UNPROVEN = "the answer does not say"


class Judged(NamedTuple):
    """A verdict, the message it is about, and the sequence that the responder is known to have reached."""

    verdict: Verdict
    message: StoredMessage | None = None
    reached: int = 0


def judge_last(answer: Replies, subject: str, wanted: int) -> Judged:
    """The answer to a multi-subject get of a literal `subject`, or of a wildcard: its newest message, or none."""
    if answer.end is None:
        return Judged(Verdict.UNPROVEN)  # 404: without an end the responder's last sequence is unknown
    newest = _newest(answer.items, subject)
    reached = max(answer.end.up_to_seq, newest.seq if newest is not None else 0)
    if reached < wanted:
        return Judged(Verdict.BEHIND, newest, reached)
    if answer.end.pending > 0 or answer.end.up_to_seq < 0:  # not all of it, or no multi-subject get at all
        return Judged(
            Verdict.PRESENT if newest is not None and newest.seq >= wanted else Verdict.UNPROVEN, newest, reached
        )
    return Judged(Verdict.ABSENT if newest is None else Verdict.PRESENT, newest, reached)


def judge_seq(answer: Replies, seq: int, wanted: int) -> Judged:
    """The answer to a batch of one from `seq` on, of any subject: does the message with that sequence exist?

    One that exists on an old copy may be gone on a newer one: then the verdict is `UNPROVEN`, with the message.
    """
    if not answer.items:
        return Judged(Verdict.UNPROVEN)
    found, pending = answer.items[0]
    reached = found.seq + max(pending, 0)
    if found.seq > seq:
        return Judged(Verdict.ABSENT, None, reached)
    return Judged(Verdict.PRESENT if reached >= wanted else Verdict.UNPROVEN, found, reached)


def judge_next(answer: Replies, wanted: int) -> Judged:
    """The answer to a get of the next message of a subject: nothing can be missing before it, but it may be gone."""
    if not answer.items:
        return Judged(Verdict.UNPROVEN)
    found = answer.items[0].message
    return Judged(Verdict.PRESENT if found.seq >= wanted else Verdict.UNPROVEN, found, found.seq)


def judge_presence(newest: Judged, message: StoredMessage) -> Verdict:
    """Whether a message still exists, by the newest message of its subject as `judge_last` found it.

    That one is the message itself, or older (then the message is gone), or newer, which does not tell.
    """
    if newest.verdict not in (Verdict.PRESENT, Verdict.ABSENT):
        return newest.verdict
    if newest.message is None or newest.message.seq < message.seq:
        return Verdict.ABSENT
    return Verdict.PRESENT if newest.message.seq == message.seq else Verdict.UNPROVEN


def judge_beyond(answer: Replies, seq: int, wanted: int) -> Judged:
    """Whether `seq` lies beyond the end of the stream, by a multi-subject get of an anchor: then it is `ABSENT`."""
    if answer.end is None:
        return Judged(Verdict.UNPROVEN)
    reached = answer.end.up_to_seq
    if reached < wanted:
        return Judged(Verdict.BEHIND, None, reached)
    return Judged(Verdict.ABSENT if seq > reached else Verdict.UNPROVEN, None, reached)


def judge_bounded(chain: Replies, newest: StoredMessage | None) -> Verdict:
    """Whether `newest` is the last message of its subject up to a bound, on the copy that answered.

    `chain` is its subject's messages from it on, or from the first on if there is none. A request with a bound proves
    nothing about its responder: a message right in front of one beyond the bound does.
    """
    seqs = [item.message.seq for item in chain.items]
    if newest is None:
        return Verdict.ABSENT if seqs else Verdict.BEHIND  # the first message there is lies beyond the bound
    return Verdict.PRESENT if len(seqs) == 2 and seqs[0] == newest.seq else Verdict.BEHIND


def judge_page(answer: Replies, goal: int, *, is_bounded: bool) -> Verdict:
    """Whether a page of a multi-subject get is new enough to count; with a bound the end says nothing about that."""
    if answer.end is None:
        return Verdict.UNPROVEN
    return Verdict.BEHIND if answer.end.up_to_seq < goal and not is_bounded else Verdict.PRESENT


def judge_chain(answer: Replies, message: StoredMessage, newest: int) -> Verdict:
    """All messages of one subject from `message` on, up to at least `newest`: those that push it out are among them."""
    seqs = [item.message.seq for item in answer.items]
    if not seqs or seqs[-1] < newest:
        return Verdict.BEHIND if seqs else Verdict.UNPROVEN
    return Verdict.PRESENT if seqs[0] == message.seq else Verdict.ABSENT


def judge_rest(answer: Replies, pattern: str, after: int, goal: int, *, since: int = 0) -> Verdict:
    """Whether a multi-subject get of `pattern` and an anchor shows messages behind `after` (not older than `since`)."""
    if answer.end is None or not answer.items:  # without a message the responder is unknown
        return Verdict.UNPROVEN
    for message, _ in answer.items:
        if message.seq > after and message.time >= since and matches(pattern, message.subject):
            return Verdict.PRESENT
    if answer.end.pending > 0 or answer.end.up_to_seq < 0:
        return Verdict.UNPROVEN
    return Verdict.ABSENT if answer.end.up_to_seq >= goal else Verdict.BEHIND


def state_shows(state: StreamState, seq: int, wanted: int) -> Verdict:
    """Whether a message exists, by one state of one server; `UNPROVEN`: the deleted sequences must be known."""
    if state.last_seq < wanted:
        return Verdict.BEHIND
    if not state.messages or not state.first_seq <= seq <= state.last_seq:
        return Verdict.ABSENT
    if not state.num_deleted:
        return Verdict.PRESENT
    if not state.deleted:
        return Verdict.UNPROVEN
    return Verdict.ABSENT if seq in state.deleted else Verdict.PRESENT


def state_shows_rest(state: StreamState, after: int, end: int, goal: int) -> Verdict:
    """Whether any message lies behind `after` and up to `end` (0: to the last), by one state of one server."""
    if state.last_seq < goal:
        return Verdict.BEHIND
    first, last = max(after + 1, state.first_seq), min(end or state.last_seq, state.last_seq)
    if not state.messages or first > last:
        return Verdict.ABSENT
    if not state.num_deleted:
        return Verdict.PRESENT
    if not state.deleted:
        return Verdict.UNPROVEN
    gone = sum(first <= seq <= last for seq in state.deleted)
    return Verdict.ABSENT if gone == last - first + 1 else Verdict.PRESENT


def oldest_time(messages: Sequence[BatchItem]) -> int:
    """The time of the oldest message of an answer: before its stream was made, it is of another stream."""
    if len(messages) == 1:
        return messages[0].message.time
    return min((item.message.time for item in messages), default=0)


def responder(messages: Sequence[BatchItem]) -> str:
    """The stream that answered: the one asked, or a mirror of it; empty if there is no message to tell."""
    return messages[0].message.stream if messages else ""


def _newest(items: Sequence[BatchItem], pattern: str) -> StoredMessage | None:
    newest: StoredMessage | None = None
    for message, _ in items:
        if (newest is None or message.seq > newest.seq) and (
            message.subject == pattern or matches(pattern, message.subject)
        ):
            newest = message
    return newest

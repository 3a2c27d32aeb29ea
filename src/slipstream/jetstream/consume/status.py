"""What a consumer's subscription receives becomes messages, answers that are due, and errors: status management.

Pure; the time is an argument. Invariants: a status never counts as a message; the answer to a flow control request is
due when everything before it was taken, and once per subject.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import NamedTuple

from slipstream.api import names
from slipstream.errors import (
    ConsumerDeletedError,
    ConsumerGoneError,
    Error,
    MessageGapError,
    PullRefusedError,
    StatusError,
)
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX, split_reply
from slipstream.wire import Headers, Msg, parse_status

MISSED_HEARTBEATS = 3  # that many intervals without a sign of life, and there is an alarm
_PREFIX_SIZE = len(ACK_PREFIX)


class Meaning(enum.Enum):
    """What a status says to whoever reads messages."""

    ALIVE = "an idle heartbeat"
    FLOW = "the server waits for a sign that the messages before it were taken"
    ENDED = "a pull request is over: 404, 408, or it has got all it may"
    MOVED = "a pull request is over because the server or the leader changes: ask again"
    ABSENT = "503: nobody is there"
    ERROR = "anything else"


class Judgement(NamedTuple):
    """A status as it was understood; `error` is what to raise where the meaning is a matter of concern."""

    meaning: Meaning
    error: Error | None = None


_ENDED_409 = ("batch completed", "message size exceeds maxbytes")
_MOVED_409 = ("leadership change", "server shutdown")


def judge(msg: Msg) -> Judgement:
    """The meaning of what is no JetStream message: a status, or something that does not belong here."""
    status = parse_status(msg[3])
    if status is None:
        return Judgement(Meaning.ERROR, StatusError(0, f"a message of {msg[0]!r} that no consumer sent"))
    code, text = status
    lower = text.lower()
    if code == 100:
        return Judgement(Meaning.FLOW if msg[2] else Meaning.ALIVE)
    if code in (404, 408):
        return Judgement(Meaning.ENDED)
    if code == 503:
        return Judgement(
            Meaning.ABSENT, ConsumerGoneError(code, text or "No Responders", "no such consumer, or it moves")
        )
    if code == 409 and lower.startswith(_ENDED_409):
        return Judgement(Meaning.ENDED, PullRefusedError(code, text))
    if code == 409 and lower.startswith(_MOVED_409):
        return Judgement(Meaning.MOVED, StatusError(code, text))
    if code == 409 and lower.startswith("consumer deleted"):
        return Judgement(Meaning.ERROR, ConsumerDeletedError(code, text))
    if code in (400, 409, 423):
        return Judgement(Meaning.ERROR, PullRefusedError(code, text))
    return Judgement(Meaning.ERROR, StatusError(code, text))


def is_status(msg: Msg) -> bool:
    """Whether it is not a message of a consumer: those have an ack subject, whatever their headers say."""
    return msg[2][:_PREFIX_SIZE] != ACK_PREFIX


def pieces_of(msgs: list[Msg]) -> list[list[Msg] | Msg]:
    """Runs of messages, and the statuses between them. Most often that is one run, and the list itself."""
    if not [1 for msg in msgs if msg[2][:_PREFIX_SIZE] != ACK_PREFIX]:
        return [msgs]
    pieces: list[list[Msg] | Msg] = []
    run: list[Msg] = []
    for msg in msgs:
        if is_status(msg):
            if run:
                pieces.append(run)
                run = []
            pieces.append(msg)
        else:
            run.append(msg)
    if run:
        pieces.append(run)
    return pieces


class HeartbeatMonitor:
    """When something was heard last, and how long to wait for more before it is an alarm. Interval 0: no alarm."""

    __slots__ = ("_heard", "patience")

    def __init__(self, interval: float, now: float) -> None:
        self.patience = interval * MISSED_HEARTBEATS if interval > 0 else math.inf
        self._heard = now

    def hear(self, now: float) -> None:
        """A message or a status came, or somebody begins to listen."""
        self._heard = now

    def pause(self, seconds: float) -> None:
        """Nobody listened for so long: that time does not count."""
        self._heard += seconds

    def left(self, now: float) -> float:
        """Seconds until the alarm; not positive when it is due."""
        return self._heard + self.patience - now


class FlowControl:
    """Answers to flow control requests, each given once although requests and heartbeats repeat them."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered = ""

    def answer(self, subject: str) -> str:
        """The subject to answer on; empty if it was answered already."""
        if not subject or subject == self._answered:
            return ""
        self._answered = subject
        return subject


def stalled(msg: Msg) -> str:
    """The flow control subject in the heartbeat of a consumer that waits for an answer; empty if it does not."""
    return Headers.parse(msg[3]).get(names.CONSUMER_STALLED) or ""


def last_delivered(msg: Msg) -> tuple[int, int]:
    """Consumer and stream sequence of the last message before a heartbeat; -1 for what it does not say."""
    headers = Headers.parse(msg[3])
    return _number(headers.get(names.LAST_CONSUMER)), _number(headers.get(names.LAST_STREAM))


def pending_of(msg: Msg) -> tuple[int, int]:
    """Messages and bytes that a pull request which ended had left; -1 for what it does not say."""
    headers = Headers.parse(msg[3])
    return _number(headers.get(names.PENDING_MESSAGES)), _number(headers.get(names.PENDING_BYTES))


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else -1


class ControlReply(NamedTuple):
    """Publish nothing to this subject: the server may go on."""

    subject: str


class PushWatch:
    """One push subscription: chunks in order, with answers and errors at the places where they are due.

    `gaps`: consumer sequences are followed, and a missing message is an error to be told (not to be raised: what comes
    behind it is good). Queue members see only their share, so there is nothing to follow.
    """

    def __init__(self, consumer: str, *, gaps: bool) -> None:
        self.consumer = consumer
        self._gaps = gaps
        self._expected = 0  # the next consumer sequence; 0 before the first message
        self._flow = FlowControl()
        self._queue: deque[list[Msg] | ControlReply | Error] = deque()

    def feed(self, msgs: list[Msg]) -> None:
        """Take what arrived."""
        for piece in pieces_of(msgs):
            if isinstance(piece, list):
                if self._gaps:
                    self._follow(piece)
                self._queue.append(piece)
            else:
                self._status(piece)

    def take(self) -> list[Msg] | ControlReply | Error | None:
        """What is next: messages, an answer that is due now, an error; None if there is nothing.

        A `MessageGapError` is for the error event, any other is to be raised.
        """
        return self._queue.popleft() if self._queue else None

    def give_back(self, msgs: list[Msg]) -> None:
        """Messages that were taken and not handed over."""
        if msgs:
            self._queue.appendleft(msgs)

    @property
    def waiting(self) -> int:
        """How many messages are here."""
        return sum(len(item) for item in self._queue if isinstance(item, list))

    def _status(self, msg: Msg) -> None:
        meaning, error = judge(msg)
        if meaning is Meaning.FLOW:
            self._due(msg[2])
        elif meaning is Meaning.ALIVE:
            self._due(stalled(msg))
            if self._gaps and self._expected:
                self._came(last_delivered(msg)[0] + 1)
        elif error is not None:
            self._queue.append(error)

    def _due(self, subject: str) -> None:
        if subject := self._flow.answer(subject):
            self._queue.append(ControlReply(subject))

    def _follow(self, msgs: list[Msg]) -> None:
        seqs = [int(split_reply(msg[2])[6]) for msg in msgs]
        if self._expected and seqs == list(range(self._expected, self._expected + len(seqs))):
            self._expected += len(seqs)
            return
        for seq in seqs:
            if self._expected and seq != 1:  # 1: somebody made the consumer anew
                self._came(seq)
            self._expected = max(self._expected, seq + 1) if seq != 1 else 2

    def _came(self, seq: int) -> None:
        """`seq` is the next one that the server has sent, or will send."""
        if seq > self._expected:
            self._queue.append(MessageGapError(self.consumer, self._expected, seq))
            self._expected = seq

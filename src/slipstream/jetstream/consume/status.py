"""Status messages of consumers: heartbeats, flow control, the ends of pull requests, and errors.

A status arrives on the same subject as the messages, told apart by its reply subject: only a message has one that
begins with `$JS.ACK.`. Pure; the time is an argument. Invariants: a status never counts as a message; the reply to a
flow control request is due, once per subject, when everything before it was taken or is little.
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
    StrayMessageError,
)
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX, split_reply
from slipstream.wire import Headers, Msg, parse_status

MISSED_HEARTBEATS = 3  # intervals without message or heartbeat before it is an error
_PREFIX_SIZE = len(ACK_PREFIX)


class Meaning(enum.Enum):
    """What a status says to a reader of messages."""

    ALIVE = "an idle heartbeat"
    FLOW = "the server waits for a reply that the messages before it were taken"
    ENDED = "a pull request is over: 404, 408, or its batch or max_bytes is reached"
    MOVED = "a pull request is over because the server or the leader changes: send it again"
    ABSENT = "503: no responders"
    ERROR = "anything else"


class Judgement(NamedTuple):
    """The meaning of a status, and the error to raise where the meaning is one."""

    meaning: Meaning
    error: Error | None = None


# 409 has many meanings, told apart by the text alone, which is compared in lower case.
_ENDED_409 = ("batch completed", "message size exceeds maxbytes")
_MOVED_409 = ("leadership change", "server shutdown")


def judge(msg: Msg) -> Judgement:
    """The meaning of a frame that is no JetStream message: a status, or a message of another publisher."""
    status = parse_status(msg.header)
    if status is None:
        return Judgement(Meaning.ERROR, StrayMessageError(msg.subject))
    code, text = status
    lower = text.lower()
    if code == 100:
        return Judgement(Meaning.FLOW if msg.reply else Meaning.ALIVE)
    if code in (404, 408):
        return Judgement(Meaning.ENDED)
    if code == 503:
        return Judgement(
            Meaning.ABSENT,
            ConsumerGoneError(code, text or "No Responders", "no such consumer, or its leader is changing"),
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
    """Whether a frame is no message of a consumer: those have an ack subject, whatever their headers say."""
    return msg.reply[:_PREFIX_SIZE] != ACK_PREFIX


def flow_control_subject(msg: Msg) -> str:
    """The subject of the reply that a flow control request asks for; empty if a frame is something else."""
    is_request = bool(msg.reply) and bool(msg.header) and is_status(msg) and judge(msg).meaning is Meaning.FLOW
    return msg.reply if is_request else ""


def pieces_of(msgs: list[Msg]) -> list[list[Msg] | Msg]:
    """Runs of messages, and the statuses between them. Most often that is one run, and the list itself."""
    if not [1 for msg in msgs if msg.reply[:_PREFIX_SIZE] != ACK_PREFIX]:
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
    """How long a reader may wait before missed heartbeats are an error. Interval 0: for ever.

    `timeout` is for readers that wait for anything else, or for fewer of them.

    Only time spent reading counts: while the program does something else, between `suspend` and `resume`, heartbeats
    arrive and are not seen. A new monitor is suspended.
    """

    __slots__ = ("_heard", "_suspended", "timeout")

    def __init__(self, interval: float, now: float, *, timeout: float | None = None) -> None:
        self.timeout: float = interval * MISSED_HEARTBEATS if interval > 0 else math.inf
        if timeout is not None:
            self.timeout = timeout
        self._heard = now
        self._suspended = now

    def hear(self, now: float) -> None:
        """A message or a status arrived, or a new subscription begins."""
        self._heard = now

    def resume(self, now: float) -> None:
        """A reader waits from now on."""
        self._heard += now - self._suspended

    def suspend(self, now: float) -> None:
        """The reader does something else from now on."""
        self._suspended = now

    def left(self, now: float) -> float:
        """Seconds until missed heartbeats are an error; not positive when they are."""
        return self._heard + self.timeout - now


class FlowControl:
    """Replies to flow control requests, each sent once although requests and heartbeats repeat their subject."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered = ""

    def answer(self, subject: str) -> str:
        """The subject to reply to; empty if that was done already."""
        if not subject or subject == self._answered:
            return ""
        self._answered = subject
        return subject


def stalled(msg: Msg) -> str:
    """The flow control subject in the heartbeat of a consumer that waits for a reply; empty if it does not."""
    return Headers.parse(msg.header).get(names.CONSUMER_STALLED) or ""


def last_delivered(msg: Msg) -> tuple[int, int]:
    """Consumer and stream sequence of the last message before a heartbeat; -1 where it does not say."""
    headers = Headers.parse(msg.header)
    return _number(headers.get(names.LAST_CONSUMER)), _number(headers.get(names.LAST_STREAM))


def pending_of(msg: Msg) -> tuple[int, int]:
    """Messages and bytes that were left of a pull request when it ended; -1 where it does not say."""
    headers = Headers.parse(msg.header)
    return _number(headers.get(names.PENDING_MESSAGES)), _number(headers.get(names.PENDING_BYTES))


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else -1


class ControlReply(NamedTuple):
    """A subject to which an empty message is due: the server may send more."""

    subject: str


class PushState:
    """One push subscription: messages, flow control replies and errors, in the order in which they are due.

    `gaps`: consumer sequences are followed, and a missing message is an error to be reported (not raised: the messages
    behind it are good). A member of a queue group sees only its share, so there is nothing to follow; nor is there on a
    deliver subject that several consumers share. Heartbeats tell of a missing message at the end.

    `first`: the highest consumer sequence that the first message can have if none is missing. For a consumer that was
    created after its deliver subject was subscribed to that is 1. For another one it is what the consumer had delivered
    when the subscription was there, plus one: the messages up to it may have arrived here or elsewhere.
    """

    def __init__(self, consumer: str, *, gaps: bool, first: int = 1) -> None:
        self.consumer = consumer
        self._gaps = gaps
        self._expected = first  # the next consumer sequence
        self._has_begun = False
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
        """What is next: messages, a reply that is due now, an error; None if there is nothing.

        A `MessageGapError` is to be reported, any other to be raised.
        """
        return self._queue.popleft() if self._queue else None

    @property
    def waiting(self) -> int:
        """How many messages were not taken yet."""
        return sum(len(item) for item in self._queue if isinstance(item, list))

    def _status(self, msg: Msg) -> None:
        meaning, error = judge(msg)
        if meaning is Meaning.FLOW:
            self._due(msg.reply)
        elif meaning is Meaning.ALIVE:
            self._due(stalled(msg))
            if self._gaps:
                self._check_gap(last_delivered(msg)[0] + 1)
        elif error is not None:
            self._queue.append(error)

    def _due(self, subject: str) -> None:
        if subject := self._flow.answer(subject):
            self._queue.append(ControlReply(subject))

    def _follow(self, msgs: list[Msg]) -> None:
        replies = [split_reply(msg.reply) for msg in msgs]
        seqs = [int(reply[6]) for reply in replies]
        has_begun, self._has_begun = self._has_begun, True
        # The usual case, a run without a gap, in one comparison.
        if seqs == list(range(self._expected, self._expected + len(seqs))):
            self._expected += len(seqs)
            return
        if {reply[3] for reply in replies} != {self.consumer}:
            self._gaps = False
            return
        for seq in seqs:
            self._check_gap(seq)
            # Sequence 1: the consumer was deleted and created again.
            self._expected = max(self._expected, seq + 1) if has_begun and seq != 1 else seq + 1
            has_begun = True

    def _check_gap(self, seq: int) -> None:
        """`seq` is the next sequence that the server has sent, or will send: those before it are missing."""
        if seq > self._expected:
            self._queue.append(MessageGapError(self.consumer, self._expected, seq))
            self._expected = seq

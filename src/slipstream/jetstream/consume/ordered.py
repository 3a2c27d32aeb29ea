"""A consumer's messages in order and without gaps: what to create, what to hand over, when to begin anew.

Pure. Invariants: stream sequences only grow, and none that the consumer has is left out: a message whose consumer
sequence is not the next one is either one that was here already, and dropped, or the sign of a gap, and then nothing
behind it is handed over before a new consumer has delivered what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from zlib import crc32

import msgspec

from slipstream.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, ReplayPolicy
from slipstream.client.raw_columns import Packed
from slipstream.errors import Error, MessageGapError, UsageError
from slipstream.jetstream.consume.ack_subject import split_reply
from slipstream.jetstream.consume.status import (
    ControlReply,
    FlowControl,
    Meaning,
    judge,
    last_delivered,
    pieces_of,
    stalled,
)
from slipstream.jetstream.requests import check_seq
from slipstream.wire import Msg, check_filter

HEARTBEAT = 5.0
INACTIVE = 5.0  # a consumer that nobody listens to is gone after that many seconds
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0

_decode_numbers = msgspec.json.Decoder(list[int]).decode


class Run(NamedTuple):
    """Messages to hand over, with what their reply subjects say of each: stream sequence, time, how many follow."""

    messages: Packed | list[Msg]
    seqs: list[int]
    times: list[int]
    left: list[int]
    stream: str

    def subjects(self) -> list[str]:
        """Where they were published."""
        if isinstance(self.messages, Packed):
            return b"\n".join(self.messages.subjects).decode(errors="replace").split("\n")
        return [msg[0] for msg in self.messages]

    def payloads(self) -> list[bytes]:
        """What they hold."""
        return self.messages.payloads if isinstance(self.messages, Packed) else [msg[4] for msg in self.messages]

    def headers(self) -> list[bytes]:
        """Their header blocks, some of which may be empty; an empty list if all are."""
        return self.messages.headers if isinstance(self.messages, Packed) else [msg[3] for msg in self.messages]

    def each(self) -> list[Msg]:
        """The messages one by one."""
        return self.messages.messages() if isinstance(self.messages, Packed) else self.messages


def backoff(attempt: int, name: str) -> float:
    """How long to rest before the try after `attempt` failures; different for each consumer, or all come at once."""
    jitter = crc32(f"{name}.{attempt}".encode()) / 2**32
    pause: float = min(FIRST_PAUSE * 2 ** min(attempt, 16), LONGEST_PAUSE)
    return pause * (0.5 + jitter / 2)


def check_template(config: ConsumerConfig) -> None:
    """Refuse what cannot be part of an ordered consumer."""
    fixed = {
        "durable_name": config.durable_name,
        "deliver_subject": config.deliver_subject,
        "deliver_group": config.deliver_group,
        "max_deliver": config.max_deliver,
        "backoff": config.backoff,
        "name": config.name,
    }
    for name, value in fixed.items():
        if value:
            raise UsageError(f"{name}={value!r}: an ordered consumer chooses that itself")


def template(
    subjects: str | Sequence[str] = (),
    *,
    start_seq: int = 0,
    start_time: int | None = None,
    deliver_policy: str = "",
    headers_only: bool = False,
    replay_policy: str = ReplayPolicy.INSTANT.value,
    metadata: Mapping[str, str] | None = None,
) -> ConsumerConfig:
    """What an ordered consumer reads: the subjects (none: all), and where it begins."""
    filters = (subjects,) if isinstance(subjects, str) else tuple(subjects)
    filters = tuple(check_filter(one) for one in filters if one)
    starts = {
        DeliverPolicy.BY_START_SEQUENCE: bool(start_seq),
        DeliverPolicy.BY_START_TIME: start_time is not None,
    }
    given = [policy.value for policy, is_given in starts.items() if is_given] + [deliver_policy] * bool(deliver_policy)
    if len(set(given)) > 1:
        raise UsageError(
            f"start_seq={start_seq}, start_time={start_time}, deliver_policy={deliver_policy!r}: one is allowed"
        )
    try:
        policy = DeliverPolicy(given[0] if given else DeliverPolicy.ALL)
    except ValueError:
        allowed = ", ".join(DeliverPolicy)
        raise UsageError(f"bad deliver_policy {deliver_policy!r}: one of {allowed} is allowed") from None
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not filters:  # servers want to be told of which subjects
        filters = (">",)
    return ConsumerConfig(
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else (),
        deliver_policy=policy.value,
        opt_start_seq=check_seq(start_seq, "start_seq"),
        opt_start_time=start_time,
        headers_only=headers_only,
        replay_policy=replay_policy,
        metadata=metadata or {},
    )


class Ordered:
    """One ordered reader over any number of consumers, one after the other.

    `initial_pending` is how many messages the first consumer had to deliver; None before it was created.
    """

    def __init__(self, template: ConsumerConfig, *, heartbeat: float = HEARTBEAT) -> None:
        check_template(template)
        if heartbeat < 0.1:
            raise UsageError(f"bad heartbeat {heartbeat}: 0.1 seconds or more are allowed")
        self._template = template
        self.heartbeat = heartbeat
        self.initial_pending: int | None = None
        self.last_seq = 0  # of the last message handed over
        self.resets = 0
        self.name = ""  # of the consumer in use; empty while there is none
        self._floor: int | None = None  # every message of interest has a greater sequence
        self._cseq = 0  # the last consumer sequence
        self._stream = ""  # the stream, as the ack subjects have it
        self._prefix = "$"  # what the ack subjects of the consumer in use begin with, once it is known
        self._flow = FlowControl()
        self._queue: deque[list[Msg] | Msg | Packed] = deque()
        self.is_broken = True  # a consumer must be created before anything can be handed over

    @property
    def consumer_seq(self) -> int:
        """The last sequence of the consumer in use."""
        return self._cseq

    def config(self, name: str, deliver_subject: str) -> ConsumerConfig:
        """What to create: the first time as the user wants it, later from where we are."""
        start: dict[str, object] = {}
        if self.last_seq or self._floor is not None:
            start = {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE.value,
                "opt_start_seq": max(self.last_seq, self._floor or 0) + 1,
                "opt_start_time": None,
            }
        return self._template.replace(
            **start,
            name=name,
            deliver_subject=deliver_subject,
            ack_policy=AckPolicy.NONE.value,
            max_deliver=1,
            flow_control=True,
            idle_heartbeat=timedelta(seconds=self.heartbeat),
            inactive_threshold=timedelta(seconds=INACTIVE),
            ack_wait=timedelta(hours=22),
            mem_storage=True,
            num_replicas=1,
        )

    def created(self, info: ConsumerInfo) -> None:
        """A consumer was made: its messages come next."""
        self.name = info.name
        self._cseq = 0
        self._prefix = "$"
        self._flow = FlowControl()
        self._queue.clear()
        self.is_broken = False
        if self.initial_pending is None:
            self.initial_pending = info.num_pending + info.delivered.consumer_seq
        # Should it be lost before its first message, the next one must begin at the same place. The last messages per
        # subject have no such place: what they were then may not be what they are now, and both are right.
        if not info.delivered.consumer_seq and self._template.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT:
            self._floor = max(info.delivered.stream_seq, self._floor or 0)

    def broken(self) -> str:
        """The consumer is of no use any more; returns its name, to be deleted."""
        name, self.name = self.name, ""
        self.is_broken = True
        self.resets += bool(name)
        self._queue.clear()
        return name

    def feed(self, piece: list[Msg] | Packed) -> None:
        """Take what arrived for the consumer in use."""
        if isinstance(piece, Packed):
            self._queue.append(piece)
        else:
            self._queue.extend(pieces_of(piece))

    def take(self) -> Run | ControlReply | Error | None:
        """What is next: messages, an answer that is due now, the reason to begin anew; None if there is nothing."""
        while self._queue:
            piece = self._queue.popleft()
            if isinstance(piece, Packed):
                found: Run | ControlReply | Error | None = self._quick(piece, b".".join(piece.replies).decode())
                if found is None:  # not usual: one by one, then
                    self._queue.extendleft(reversed(pieces_of(piece.messages())))
            elif isinstance(piece, list):
                found = self._quick(piece, ".".join([msg[2] for msg in piece])) or self._carefully(piece)
            else:
                found = self._status(piece)
            if found is not None:
                return found
        return None

    def _quick(self, msgs: list[Msg] | Packed, replies: str) -> Run | None:
        """All in one step where, as is usual, nothing is amiss: the reply subjects as one text, 0.25 µs a message.

        Without what they all begin with, four numbers of each are left, or else it is not usual.
        """
        text = replies.replace(self._prefix, "").replace(".", ",")
        try:
            numbers = _decode_numbers(f"[{text}]")
        except msgspec.MsgspecError:
            return None
        count = len(msgs.replies) if isinstance(msgs, Packed) else len(msgs)
        first, seqs = self._cseq + 1, numbers[0::4]
        is_next = len(numbers) == 4 * count and numbers[1::4] == list(range(first, first + count))
        if not is_next or not self.last_seq < seqs[0] <= seqs[-1]:
            return None
        self._cseq += count
        self.last_seq = seqs[-1]
        return Run(msgs, seqs, numbers[2::4], numbers[3::4], self._stream)

    def _carefully(self, msgs: list[Msg]) -> Run | Error | None:
        """The same message by message: with duplicates, a gap, or another format of the reply subject."""
        kept: list[Msg] = []
        run = Run(kept, [], [], [], self._stream)
        for index, msg in enumerate(msgs):
            try:
                tokens = split_reply(msg[2])
            except Error as error:
                return error
            stream_seq, seq = int(tokens[5]), int(tokens[6])
            if seq <= self._cseq:
                continue  # a frame that came twice
            if seq > self._cseq + 1:
                if not kept:
                    return MessageGapError(self.name, self._cseq + 1, seq)
                self._queue.appendleft(msgs[index:])
                break
            self._cseq = seq
            if stream_seq > self.last_seq:
                self.last_seq = stream_seq
                kept.append(msg)
                run.seqs.append(stream_seq)
                run.times.append(int(tokens[7]))
                run.left.append(int(tokens[8]))
                self._stream = tokens[2]
                if len(tokens) == msg[2].count(".") + 1:
                    self._prefix = msg[2].rsplit(".", 4)[0] + "."
        return run._replace(stream=self._stream) if kept else None

    def _status(self, msg: Msg) -> ControlReply | Error | None:
        meaning, error = judge(msg)
        if meaning is Meaning.FLOW:
            subject = self._flow.answer(msg[2])
        elif meaning is Meaning.ALIVE:
            seen, _ = last_delivered(msg)
            if seen > self._cseq:
                return MessageGapError(self.name, self._cseq + 1, seen + 1)
            subject = self._flow.answer(stalled(msg))
        else:
            return error
        return ControlReply(subject) if subject else None

"""The state of an ordered consumer: which consumer to create, which messages to return, when to start over.

Theory of operation. An ordered consumer reads a stream by a sequence of throw-away push consumers. Each is ephemeral,
in memory, without acks (`ack_policy` none, `max_deliver` 1) and with flow control and idle heartbeats. The server keeps
no state for it that matters: the position is ours, the stream sequence of the last message returned (`last_seq`).

Every message carries two sequences in its reply subject. The *consumer sequence* counts the deliveries of one consumer
from 1 without gaps; the *stream sequence* grows, with gaps where messages were removed or do not match the filter. So
loss is seen in the consumer sequence alone:

    consumer sequence is the next one       return the message, advance both positions
    consumer sequence was seen before       a duplicate frame: drop it
    consumer sequence skips one or more     a gap: discard the consumer
    a heartbeat's Nats-Last-Consumer is ahead of us     a gap at the end: discard the consumer

A consumer is also discarded when three heartbeats are missed, the connection is lost, messages were dropped for want of
memory, or a status says that it is gone. A discarded consumer is deleted without waiting for it, and a new one is
created with `deliver_policy` by_start_sequence at `last_seq + 1`. Its consumer sequence begins at 1 again, so a late
frame of the old one must not be mistaken for one of its own: every consumer has a new inbox.

    BROKEN --created()--> READING --gap, error, silence: discard()--> BROKEN

Where to continue before the first message was returned is the subtle part. A consumer that starts at `new`, at `last`
or at a time would start somewhere else when it is created again, and skip what was stored in between. So the first
creation fixes a *floor*: the info of a new consumer says which stream sequence it starts behind. The last messages per
subject have no such position: what they were at the first creation may not be what they are now, and both are right.
So until they are complete they are asked for again, and what lies at or before `last_seq` is dropped: a consumer that
started behind it would deliver all versions of the subjects that follow, superseded and deleted ones too. A subject
that was written several times meanwhile shows its last message. They are complete when a message has none left behind
it, or as many were received as the first consumer had to deliver.

A stream that was deleted and made again counts from 1: a consumer at `last_seq + 1` would skip the beginning of the
new one, or wait until it gets that far. So each replacement is followed by a look at the stream (`is_another`): one
that was made after the last message was stored is another stream, and the reading ends as if it were gone. Messages of
a mirror are older than the mirror: it is compared with itself only, from the first look on.

With `min_last_seq` every consumer that starts at or before that sequence is one that has seen it: one that the server
holds back, or one that is proven by its placement (`consume.placement`).

Pure: no I/O, no clock. Invariants: stream sequences only grow; no message that a consumer of this configuration would
have delivered is left out; nothing behind a gap is returned before the gap is filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, cast

import msgspec

from slipstream.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, ReplayPolicy, StreamInfo
from slipstream.api.times import SECOND, instant
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
from slipstream.wire.arguments import check_seconds, check_text

HEARTBEAT = 5.0
CLOCK_MARGIN = SECOND  # by which the clocks of a cluster's servers may differ
INACTIVE = 5.0  # seconds after which the server removes a consumer whose inbox is not listened to

_decode_numbers = msgspec.json.Decoder(list[int]).decode


class MessageRun(NamedTuple):
    """Consecutive messages in columns, with the metadata of each: stream sequence, time, number pending behind it."""

    messages: Packed | list[Msg]
    seqs: list[int]
    times: list[int]
    left: list[int]
    stream: str

    def subjects(self) -> list[str]:
        """The subject of each."""
        return self.messages.names() if isinstance(self.messages, Packed) else [msg.subject for msg in self.messages]

    def payloads(self) -> list[bytes]:
        """The payload of each."""
        return self.messages.payloads if isinstance(self.messages, Packed) else [msg.payload for msg in self.messages]

    def headers(self) -> list[bytes]:
        """The header block of each, perhaps empty; an empty list if all are."""
        return self.messages.headers if isinstance(self.messages, Packed) else [msg.header for msg in self.messages]

    def each(self) -> list[Msg]:
        """The messages one by one."""
        return self.messages.messages() if isinstance(self.messages, Packed) else self.messages


def check_template(config: ConsumerConfig) -> None:
    """Reject what an ordered consumer sets itself."""
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
            raise UsageError(f"{name} of an ordered consumer must not be set, got {value!r}")


def template(
    subjects: str | Sequence[str] = (),
    *,
    start_seq: int = 0,
    start_time: int | datetime | None = None,
    deliver_policy: str = "",
    headers_only: bool = False,
    replay_policy: str = ReplayPolicy.INSTANT.value,
    metadata: Mapping[str, str] | None = None,
    min_last_seq: int = 0,
) -> ConsumerConfig:
    """The configuration of an ordered consumer: its subjects (none: all), where it starts, and what it has seen."""
    if not isinstance(subjects, str | Sequence) or isinstance(subjects, bytes):
        raise UsageError(f"subjects must be a subject or a sequence of subjects, got {subjects!r}")
    check_text(deliver_policy, "deliver_policy")
    filters = (subjects,) if isinstance(subjects, str) else tuple(subjects)
    filters = tuple(check_filter(one) for one in filters if one)
    starts = {
        DeliverPolicy.BY_START_SEQUENCE: bool(start_seq),
        DeliverPolicy.BY_START_TIME: start_time is not None,
    }
    wanted = [policy.value for policy, is_set in starts.items() if is_set] + [deliver_policy] * bool(deliver_policy)
    if len(set(wanted)) > 1:
        raise UsageError(
            "start_seq, start_time and deliver_policy are mutually exclusive, "
            f"got {start_seq}, {start_time} and {deliver_policy!r}"
        )
    try:
        policy = DeliverPolicy(wanted[0] if wanted else DeliverPolicy.ALL)
    except ValueError:
        raise UsageError(f"deliver_policy must be one of {', '.join(DeliverPolicy)}, got {deliver_policy!r}") from None
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not filters:  # servers require a filter for it
        filters = (">",)
    return ConsumerConfig(
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else (),
        deliver_policy=policy.value,
        opt_start_seq=check_seq(start_seq, "start_seq"),
        opt_start_time=None if start_time is None else instant(start_time, "start_time"),
        headers_only=headers_only,
        replay_policy=cast("ReplayPolicy", replay_policy),
        metadata=metadata or {},
        min_last_seq=check_seq(min_last_seq, "min_last_seq"),
    )


class OrderedState:
    """One ordered reader over any number of consumers, one after the other.

    `initial_pending` is how many messages the first consumer had to deliver; None before it was created.
    """

    def __init__(self, template: ConsumerConfig, *, heartbeat: float = HEARTBEAT) -> None:
        check_template(template)
        if check_seconds(heartbeat, "heartbeat") < 0.1:
            raise UsageError(f"heartbeat must be at least 0.1 seconds, got {heartbeat}")
        self._template = template
        self.heartbeat = heartbeat
        self.initial_pending: int | None = None
        self.last_seq: int = 0  # of the last message returned,
        self._last_time = 0  # and when that was stored
        self._made = 0  # when the stream was made, by the first look at it
        self.resets: int = 0
        self.name: str = ""  # of the consumer in use; empty while there is none
        self._floor: int | None = None  # every message to read has a greater stream sequence
        # Whether the last messages per subject are not complete, and how many the first consumer has left.
        self._is_initial = template.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT
        self._initial_left = 0
        self._cseq = 0  # the last consumer sequence
        self._stream = ""  # the name of the stream in ack subjects
        self._prefix = "$"  # of the ack subjects of the consumer in use, once its first message was seen
        self._flow = FlowControl()
        self._queue: deque[list[Msg] | Msg | Packed] = deque()
        self.is_broken: bool = True  # a consumer must be created before anything can be returned

    @property
    def consumer_seq(self) -> int:
        """The last sequence of the consumer in use."""
        return self._cseq

    def config(self, name: str, deliver_subject: str) -> ConsumerConfig:
        """The consumer to create: the first time from the template's start, later from our position."""
        start: dict[str, object] = {}
        if start_seq := self._start():
            start = {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE.value,
                "opt_start_seq": start_seq,
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

    def wanted(self, seen: int) -> int:
        """The sequence that the next consumer must have seen; 0 if any will do. `seen`: by the session."""
        wanted = max(self._template.min_last_seq, seen)
        start, is_by_seq = self._start(), self._template.deliver_policy == DeliverPolicy.BY_START_SEQUENCE
        if not start and is_by_seq:
            start = self._template.opt_start_seq
        return 0 if start > wanted else wanted

    def _start(self) -> int:
        """The stream sequence that the next consumer starts at; 0 where that is for its policy to say."""
        if self._is_initial or not (self.last_seq or self._floor is not None):
            return 0
        return max(self.last_seq, self._floor or 0) + 1

    @property
    def floor(self) -> int:
        """Every message to read has a greater stream sequence; 0 where the consumer's start does not tell it."""
        return self._floor or 0

    def created(self, info: ConsumerInfo) -> None:
        """A consumer was created: its messages are next."""
        self.name = info.name
        self._cseq = 0
        self._prefix = "$"
        self._flow = FlowControl()
        self._queue.clear()
        self.is_broken = False
        pending = info.num_pending + info.delivered.consumer_seq
        if self.initial_pending is None:
            self.initial_pending = pending
        self._initial_left = pending  # of a later consumer: with those that are dropped
        # Should it be lost before its first message, the next one must start at the same position (see the header).
        if not info.delivered.consumer_seq and self._template.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT:
            self._floor = max(info.delivered.stream_seq, self._floor or 0)

    @property
    def needs_look(self) -> bool:
        """Whether the consumer in use goes on where another one was, and the stream must be the same one."""
        return bool(self.last_seq)

    def is_another(self, info: StreamInfo) -> bool:
        """Whether the stream is another one than that of the messages so far, which was deleted.

        Clocks of servers differ, so that the first messages of a stream may seem older than it is.
        """
        if self._made or info.config.mirror is not None:
            is_another = 0 < self._made < info.created
        else:
            is_short = info.state.last_seq < self.last_seq
            is_another = info.created > self._last_time + (0 if is_short else CLOCK_MARGIN)
        if not is_another:
            self._made = max(self._made, info.created)
        return is_another

    def complete_initial(self) -> None:
        """The last messages per subject are complete: from now on every message behind them is wanted."""
        self._is_initial = False

    def _count_initial(self, count: int, left: int) -> None:
        """Count messages of the consumer in use, of which the last one has `left` behind it."""
        self._initial_left -= count
        if not left or self._initial_left <= 0:
            self.complete_initial()

    def discard(self) -> str:
        """Give up the consumer in use; returns its name, to be deleted."""
        name, self.name = self.name, ""
        self.is_broken = True
        self.resets += bool(name)  # only a consumer that was in use counts
        self._queue.clear()
        return name

    def feed(self, piece: list[Msg] | Packed) -> None:
        """Add frames that arrived for the consumer in use."""
        if isinstance(piece, Packed):
            self._queue.append(piece)
        else:
            self._queue.extend(pieces_of(piece))

    def take(self) -> MessageRun | ControlReply | Error | None:
        """What is next: messages, a reply that is due now, the reason to start over; None if there is nothing."""
        while self._queue:
            piece = self._queue.popleft()
            if isinstance(piece, Packed):
                found: MessageRun | ControlReply | Error | None = self._accept_run(piece, self._numbers_of(piece))
                if found is None:  # something is unusual: one by one
                    self._queue.extendleft(reversed(pieces_of(piece.messages())))
            elif isinstance(piece, list):
                text = ".".join([msg.reply for msg in piece]).replace(self._prefix, "")
                found = self._accept_run(piece, text) or self._accept_each(piece)
            else:
                found = self._status(piece)
            if found is not None:
                return found
        return None

    def _numbers_of(self, pack: Packed) -> str:
        """The ends of the reply subjects in one text; with all of each where this is no usual pack."""
        if pack.prefix and pack.prefix.decode(errors="replace") == self._prefix:
            return b".".join(pack.replies).decode(errors="replace")
        text = pack.prefix + (b"." + pack.prefix).join(pack.replies)
        return text.decode(errors="replace").replace(self._prefix, "")

    def _accept_run(self, msgs: list[Msg] | Packed, text: str) -> MessageRun | None:
        """All messages in one step; None unless each is the next one: no duplicate, no gap, no other format.

        The reply subjects are parsed as one text, 0.1 µs a message: without their common prefix four numbers of each
        are left, which make a JSON array.
        """
        try:
            numbers = _decode_numbers(f"[{text.replace('.', ',')}]")
        except msgspec.MsgspecError:
            return None
        count = len(msgs.replies) if isinstance(msgs, Packed) else len(msgs)
        # Per message: stream sequence, consumer sequence, time, pending.
        first, seqs = self._cseq + 1, numbers[0::4]
        is_next = len(numbers) == 4 * count and numbers[1::4] == list(range(first, first + count))
        if not is_next or not self.last_seq < seqs[0] <= seqs[-1]:
            return None
        self._cseq += count
        self.last_seq, self._last_time = seqs[-1], numbers[-2]
        if self._is_initial:
            self._count_initial(count, numbers[-1])
        return MessageRun(msgs, seqs, numbers[2::4], numbers[3::4], self._stream)

    def _accept_each(self, msgs: list[Msg]) -> MessageRun | Error | None:
        """The same message by message: with duplicates, a gap, or another format of the reply subject."""
        kept: list[Msg] = []
        run = MessageRun(kept, [], [], [], self._stream)
        for index, msg in enumerate(msgs):
            try:
                tokens = split_reply(msg.reply)
            except Error as error:
                if not kept:
                    return error
                self._queue.appendleft(msgs[index:])  # a reader that starts over goes on behind those before
                break
            stream_seq, seq = int(tokens[5]), int(tokens[6])
            if seq <= self._cseq:
                continue  # a duplicate frame
            if seq > self._cseq + 1:
                if not kept:
                    return MessageGapError(self.name, self._cseq + 1, seq)
                self._queue.appendleft(msgs[index:])
                break
            self._cseq = seq
            if self._is_initial:
                self._count_initial(1, int(tokens[8]))
            if stream_seq > self.last_seq:  # otherwise an earlier consumer delivered it
                self.last_seq, self._last_time = stream_seq, int(tokens[7])
                kept.append(msg)
                run.seqs.append(stream_seq)
                run.times.append(int(tokens[7]))
                run.left.append(int(tokens[8]))
                self._stream = tokens[2]
                if len(tokens) == msg.reply.count(".") + 1:
                    self._prefix = msg.reply.rsplit(".", 4)[0] + "."
        return run._replace(stream=self._stream) if kept else None

    def _status(self, msg: Msg) -> ControlReply | Error | None:
        meaning, error = judge(msg)
        if meaning is Meaning.FLOW:
            subject = self._flow.answer(msg.reply)
        elif meaning is Meaning.ALIVE:
            seen, _ = last_delivered(msg)
            if seen > self._cseq:  # the last messages before the heartbeat were lost
                return MessageGapError(self.name, self._cseq + 1, seen + 1)
            subject = self._flow.answer(stalled(msg))
        else:
            return error
        return ControlReply(subject) if subject else None

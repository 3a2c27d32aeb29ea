"""Pull requests in flight: how many messages to ask for, when to send the next request, when a fetch is over.

Theory of operation. A pull request is a message to `$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>` whose reply subject
is an inbox of ours. The server delivers up to `batch` messages to that inbox and then forgets the request, without a
word where the batch is full. A request that ends before that ends with a status:

    404 No Messages         `no_wait`: nothing was available. Sent behind the messages that were.
    408 Request Timeout     the request has expired; says how many messages and bytes it had left.
    409 Batch Completed, Message Size Exceeds MaxBytes      ended early: the rest of the batch will not come.
    409 Leadership Change, Server Shutdown                  ended by a move: send it again.
    409 Consumer Deleted, Exceeded Max…, 400, 423           an error of the request or of the consumer.
    503 no responders       no such consumer, or its leader is changing.
    100 Idle Heartbeat      not an end: the server still has the request.

There is no other sign, and a message does not say which request it belongs to. So requests are counted, not named: what
was requested and neither arrived nor was given back by a status is *pending*. A count that is too high stalls the
reader, one that is too low only requests too early; hence heartbeats, and `reset` whenever requests may have been lost
(reconnect, missed heartbeats, a change of the leader). The last token of the reply subject is the generation since the
last `reset`: a late status of an earlier one must not be counted. There is no way to cancel a request but to
unsubscribe its inbox; what the server had sent by then still arrives and belongs to the next reader.

Three kinds of readers:

- `Fetch` wants a number of messages once. It first asks with `no_wait` for what is available and, where that is
  nothing, with `expires` for what arrives in time. A consumer at its `max_ack_pending` does not answer `no_wait` at
  all, so after `NO_WAIT_TIMEOUT` the second request is sent without an answer to the first.
- `SingleRequests` serves any number of readers that want one message each over one shared inbox: as many requests as
  readers are in flight, and a message is for the first reader that takes it.
- `PullFlow` reads without end. Where the server has more, requests overlap: the next one is sent when no more than
  `threshold` messages are pending, so that it always has one to fill.

Pure; the time is an argument. Invariant: statuses end requests or become errors; they are never messages.
"""

from __future__ import annotations

import enum
import math

from slipstream.api import encode_json
from slipstream.api.times import nanoseconds
from slipstream.errors import Error, UsageError
from slipstream.jetstream.consume.ack_subject import num_pending
from slipstream.jetstream.consume.status import Meaning, is_status, judge, pending_of, pieces_of
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_integer, check_seconds

NO_WAIT_TIMEOUT = 1.0  # seconds for the answer to a `no_wait`: a consumer at its max_ack_pending sends none
MARGIN = 0.1  # a request expires that many seconds before the caller's deadline, so that its status arrives in time
MIN_EXPIRES = 0.001
GRACE = 1.0  # seconds that an answer may be late
MISSED = 2  # heartbeats: the request was lost, or ignored since too many wait
MAX_MESSAGES = 500
MAX_EXPIRES = 30.0
UNBOUNDED_BATCH = 1_000_000  # messages, where bytes are the limit
OVERLAPPING = 2  # so many requests of one loop may wait at the server at once,
FEW_WAITING = 64  # and one where the consumer's max_waiting, which all its readers share, is less than that
SMALL = 32  # messages: a program that wants no more gets them from the beginning
MAX_WINDOW_BYTES = 8 * 1024 * 1024  # a server that has 64 MiB to send to a client cuts it off


def expires_within(timeout: float) -> float:
    """How long a request may last for a caller that waits `timeout` seconds."""
    return max(timeout - min(MARGIN, timeout / 10), MIN_EXPIRES)


def no_wait_body(batch: int, *, max_bytes: int = 0) -> bytes:
    """A request for what is available now."""
    return encode_json({"batch": batch, "no_wait": True} | _bytes(max_bytes))


def lingering_body(batch: int, expires: float, *, max_bytes: int = 0, heartbeat: float = 0.0) -> bytes:
    """A request for what is available and what arrives until it expires."""
    beat: dict[str, int] = {"idle_heartbeat": nanoseconds(heartbeat)} if heartbeat > 0 else {}
    return encode_json({"expires": nanoseconds(expires), "batch": batch} | _bytes(max_bytes) | beat)


def _bytes(max_bytes: int) -> dict[str, int]:
    return {"max_bytes": max_bytes} if max_bytes else {}


def check_batch(batch: int, max_bytes: int) -> None:
    """Reject a batch that no server can fill."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise UsageError(f"the number of messages must be an integer of at least 1, got {batch!r}")
    check_integer(max_bytes, "max_bytes")  # 0: no limit


class PullState(enum.Enum):
    """The state of a fetch."""

    NO_WAIT = "asked for what is available"
    LINGERING = "nothing was available: asked for what arrives"
    DONE = "over"


class Fetch:
    """Up to `batch` messages: those that are available, or else those that arrive in time."""

    def __init__(
        self, batch: int, *, most: int | None = None, max_bytes: int = 0, max_expires: float = math.inf
    ) -> None:
        """`most`: how many messages the consumer delivers at once; the server waits for acks before it sends more."""
        check_batch(batch, max_bytes)
        self.batch: int = batch if most is None else min(batch, most)
        self.messages: list[Msg] = []
        self.received: int = 0  # messages that arrived; the caller may have dropped some
        self.statuses: int = 0  # frames that were no messages
        self.state: PullState = PullState.NO_WAIT
        self.open: int = 0  # requests in flight: messages may arrive for them
        self._requested = 0  # requests sent
        self._max_bytes = max_bytes
        self._max_expires = max_expires

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state is PullState.DONE

    @property
    def limit(self) -> int:
        """How many frames may arrive in all: the messages, and the status of each request before the last."""
        return self.batch + max(1, self._requested - 1)

    def request(self, left: float) -> bytes:
        """The body of the next request, when `left` seconds remain."""
        self.open += 1
        self._requested += 1
        if self.state is PullState.NO_WAIT:
            return no_wait_body(self.batch, max_bytes=self._max_bytes)
        expires = min(expires_within(left), self._max_expires)
        return lingering_body(self.batch, expires, max_bytes=self._max_bytes)

    def frame_timeout(self, left: float) -> float:
        """How long to wait for the next frame: the answer to a `no_wait` arrives at once, or not at all.

        Messages may arrive and the rest of the answer not: the consumer has reached its `max_ack_pending` with them.
        """
        left = max(left, 0.0)
        if self.state is not PullState.NO_WAIT:
            return left
        return min(left, NO_WAIT_TIMEOUT) if self.messages else min(left / 2, NO_WAIT_TIMEOUT)

    def timed_out(self) -> bool:
        """Nothing arrived within `frame_timeout`; whether the next request is due. False: the deadline has passed."""
        was_no_wait = self.state is PullState.NO_WAIT and not self.messages
        self.state = PullState.LINGERING
        return was_no_wait

    def connection_lost(self) -> None:
        """The connection is lost, and the requests with it."""
        self.open = 0

    def feed(self, msgs: list[Msg], left: float) -> bool:
        """Take what arrived; whether the next request is due. Raises a status that is an error."""
        statuses = [msg for msg in msgs if is_status(msg)]
        self.messages += [msg for msg in msgs if not is_status(msg)] if statuses else msgs
        self.received += len(msgs) - len(statuses)
        self.statuses += len(statuses)
        again = False
        for status in statuses:
            again = self._ended(status, left)
        if self.received >= self.batch:
            self.state = PullState.DONE
            self.open = max(0, self.open - 1)  # a request that was filled ends without a status
        return again and self.state is not PullState.DONE

    def _ended(self, msg: Msg, left: float) -> bool:
        """A status arrived; whether the next request is due."""
        meaning, error = judge(msg)
        if meaning in (Meaning.ALIVE, Meaning.FLOW):
            return False
        self.open = max(0, self.open - 1)  # a status of a forgotten request must not make it negative
        if self.open and meaning is Meaning.ENDED:
            return False  # the late answer to a `no_wait` that was given up
        if self.messages:  # an error that persists will be raised by the next fetch
            self.state = PullState.DONE
            return False
        if meaning is Meaning.ENDED and error is not None:  # the first message is too large for `max_bytes`
            raise error
        if meaning in (Meaning.ABSENT, Meaning.ERROR) and error is not None:
            raise error
        # A request may end long before the deadline, where the consumer has a max_expires: then it is sent again.
        if self.state is PullState.LINGERING and left <= MARGIN:
            self.state = PullState.DONE
            return False
        self.state = PullState.LINGERING
        return True


class SingleRequests:
    """Requests for one message each, whose answers arrive in one inbox: the first reader takes what arrives first.

    A request that got no answer in its time is forgotten.
    """

    def __init__(self) -> None:
        self.waiters = 0
        self._open: list[float] = []  # until when the answers to the requests in flight may arrive

    def is_due(self, now: float) -> bool:
        """Whether fewer requests than readers are in flight."""
        self._open = [until for until in self._open if until > now]
        return len(self._open) < self.waiters

    def asked(self, until: float) -> None:
        """A request was sent; its answer may arrive until then, and `GRACE` later."""
        self._open.append(until + GRACE)
        self._open.sort()  # answers are not named: they are taken for those of the oldest requests

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._open)

    def forget(self) -> None:
        """The connection or the inbox is gone, and the requests with it."""
        self._open = []

    def feed(self, msg: Msg) -> Msg | None:
        """The message, or None for a status that ended a request. Raises a status that is an error."""
        if not is_status(msg):
            self._answered()
            return msg
        meaning, error = judge(msg)
        if meaning in (Meaning.ALIVE, Meaning.FLOW):
            return None
        self._answered()
        if error is not None and meaning is not Meaning.MOVED:
            raise error
        return None

    def _answered(self) -> None:
        if self._open:
            self._open.pop(0)


class PullFlow:
    """Messages without end: requests overlap, so that a server that has messages always has one to fill.

    At most `max_messages` (or, if set, `max_bytes`) are pending; when no more than `threshold` of them are left, the
    difference is requested. A single request is for no more than `max_batch` messages and lasts no longer than
    `max_expires` seconds: the limits of the consumer. Statuses of requests from before a `reset` are ignored.

    No more than two requests wait at the server, since all readers of a consumer share its `max_waiting`, and what is
    too much is ignored without a word. Servers fill the requests that wait in turns, the older ones first or all alike.
    So those before the last one are filled when no more is pending than the last one is for, less what was pending when
    it was sent. And there is one only where `max_waiting` is small, or where the server has nothing left, as the last
    message says, unless the program has set the threshold.

    The messages that are pending have `MAX_WINDOW_BYTES` or less, by the size of those that have arrived.
    """

    def __init__(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: Duration = MAX_EXPIRES,
        heartbeat: Duration | None = None,
        max_batch: int = 0,
        max_expires: float = math.inf,
        max_waiting: int = 0,
    ) -> None:
        check_batch(max_messages, max_bytes)
        expires = check_seconds(expires, "expires")
        if expires < 1:
            raise UsageError(f"expires must be at least 1 second, got {expires}")
        expires = min(expires, max_expires)
        self.heartbeat: float = min(expires / 6, 5.0) if heartbeat is None else check_seconds(heartbeat, "heartbeat")
        if self.heartbeat < 0 or self.heartbeat * 2 >= expires:
            raise UsageError(
                f"heartbeat must be less than half of expires ({expires:g} s), or 0 for none, got {heartbeat}"
            )
        limit = max_bytes or max_messages
        self._has_own_threshold = threshold is not None
        self._threshold = limit // 2 if threshold is None else check_integer(threshold, "threshold")
        if not 0 <= self._threshold < limit:
            raise UsageError(f"threshold must be from 0 to {limit - 1}, got {threshold}")
        wanted = UNBOUNDED_BATCH if max_bytes else max_messages
        self._batch = min(wanted, max_batch or wanted)
        if self._batch < max_messages and not max_bytes:  # above the batch a full flow would request 0 messages
            self._threshold = min(self._threshold, self._batch // 2)
        if 0 < max_waiting < FEW_WAITING:
            self._threshold = 0
        self._max_bytes = max_bytes
        self.expires = expires
        self._generation = 0
        self._older_ended_at = 0  # when no more are pending, the requests before the last one have ended
        self._has_more = False  # the server, when it sent the last message
        self._size = 1.0  # bytes of a message, of late
        self._pending = 0  # messages requested that neither arrived nor were given back by a status,
        self._pending_bytes = 0  # and bytes

    @property
    def pending(self) -> int:
        """How many messages were requested and have not arrived."""
        return self._pending

    @property
    def first_window(self) -> int:
        """How many messages to request before anything is known about the program."""
        return self._batch if self._batch <= SMALL else 1

    @property
    def silence(self) -> float:
        """Seconds without an answer after which requests are void: lost, or without heartbeats expired."""
        return self.heartbeat * MISSED if self.heartbeat else self.expires + GRACE

    @property
    def token(self) -> str:
        """The last token of the reply subject of requests."""
        return str(self._generation)

    def request(self, *, window: int = UNBOUNDED_BATCH, waiting: int = 0) -> bytes:
        """The body of the request that is due; empty if none is.

        No more than `window` messages are to wait for the program, and `waiting` do so already.
        """
        if self._max_bytes:
            if self._pending_bytes > self._threshold:
                return b""
            size = self._max_bytes - self._pending_bytes
            batch = min(self._batch, window - self._pending - waiting)
        else:
            window = min(window, max(1, int(MAX_WINDOW_BYTES / self._size)))
            size, limit = 0, min(self._batch, window)
            batch = min(self._batch - self._pending, window - self._pending - waiting)
            if self._pending > self._overlap(limit) or batch < limit // 4:
                return b""
        if batch < 1:
            return b""
        self._older_ended_at = max(0, batch - self._pending)
        self._pending_bytes += size
        self._pending += batch
        return lingering_body(batch, self.expires, max_bytes=size, heartbeat=self.heartbeat)

    def _overlap(self, limit: int) -> int:
        """How many messages may be pending when the next request is sent."""
        if not self._has_own_threshold:
            limit = limit // 3 if self._has_more else 0  # a steady two thirds let the older one end first
        return min(self._threshold, limit, self._older_ended_at)

    def reset(self) -> None:
        """The requests are void: the connection, the server or the leader is another one."""
        self._generation += 1
        self._pending = self._pending_bytes = self._older_ended_at = 0

    def feed(self, msgs: list[Msg]) -> tuple[list[Msg], Error | None]:
        """Take what arrived: the messages, and the error behind them.

        A ConsumerGoneError may be transient; all others are final.
        """
        error: Error | None = None
        pieces = pieces_of(msgs)
        if len(pieces) == 1 and pieces[0] is msgs:
            self._count(msgs)
            return msgs, None
        messages: list[Msg] = []
        for piece in pieces:
            if isinstance(piece, list):
                self._count(piece)
                messages += piece
            else:
                error = self._status(piece) or error
        return messages, error

    def _count(self, msgs: list[Msg]) -> None:
        if not msgs:
            return
        self._pending = max(0, self._pending - len(msgs))
        self._has_more = num_pending(msgs[-1]) > 0
        size = sum([len(msg.header) + len(msg.payload) for msg in msgs])
        if self._max_bytes:
            size += sum([len(msg.subject) + len(msg.reply) for msg in msgs])
        else:  # then a mean is good enough
            size += len(msgs) * (len(msgs[-1].subject) + len(msgs[-1].reply))
        mean = size / len(msgs)
        self._size = mean if mean >= self._size else (self._size + mean) / 2  # larger is believed at once
        if self._max_bytes:
            # A request ends with its last message, even if it has bytes left.
            self._pending_bytes = max(0, self._pending_bytes - size) if self._pending else 0

    def _status(self, msg: Msg) -> Error | None:
        if msg.subject.rpartition(".")[2] != self.token:
            return None
        meaning, error = judge(msg)
        if meaning is Meaning.ENDED:
            left, size = pending_of(msg)
            if error is not None and size == self._max_bytes > 0:  # larger than a whole request
                return error
            # Without the header the status does not say how much it gives back: request all again, not too little.
            self._pending = max(0, self._pending - left) if left >= 0 else 0
            self._pending_bytes = max(0, self._pending_bytes - size) if size >= 0 else 0
        elif meaning is Meaning.MOVED:
            self.reset()
        elif meaning in (Meaning.ABSENT, Meaning.ERROR):
            self.reset()
            return error
        return None

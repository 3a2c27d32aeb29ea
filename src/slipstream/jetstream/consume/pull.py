"""Pull requests and what they bring: how many messages to ask for, when to ask again, when a fetch is over.

Pure; the time is an argument. Three readers: `Fetch` (a number of messages), `Singles` (one at a time, over one inbox)
and `Flow` (endless, with requests that overlap). Statuses end requests or raise errors; they are never messages.
"""

from __future__ import annotations

import enum
import math

from slipstream.api import encode_json
from slipstream.api.times import nanoseconds
from slipstream.errors import Error, UsageError
from slipstream.jetstream.consume.status import Meaning, is_status, judge, pending_of, pieces_of
from slipstream.wire import Msg

NO_WAIT_PATIENCE = 1.0  # a consumer with too many messages unacknowledged does not answer a `no_wait` at all
MARGIN = 0.1  # a request expires that much before the caller's patience ends, so that the server tells how it ended
SMALLEST = 0.001
GRACE = 1.0  # an answer that is that late will not come any more
MAX_MESSAGES = 500
MAX_EXPIRES = 30.0
MANY = 1_000_000  # messages, where bytes are the bound


def expires_within(timeout: float) -> float:
    """How long a request may linger for a caller who waits `timeout` seconds."""
    return max(timeout - min(MARGIN, timeout / 10), SMALLEST)


def no_wait_body(batch: int, *, max_bytes: int = 0) -> bytes:
    """What is there, now."""
    return encode_json({"batch": batch, "no_wait": True} | _bytes(max_bytes))


def lingering_body(batch: int, expires: float, *, max_bytes: int = 0, heartbeat: float = 0.0) -> bytes:
    """What is there and what comes until the request expires."""
    beat: dict[str, int] = {"idle_heartbeat": nanoseconds(heartbeat)} if heartbeat > 0 else {}
    return encode_json({"expires": nanoseconds(expires), "batch": batch} | _bytes(max_bytes) | beat)


def _bytes(max_bytes: int) -> dict[str, int]:
    return {"max_bytes": max_bytes} if max_bytes else {}


def check_batch(batch: int, max_bytes: int) -> None:
    """Refuse what no server can give."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise UsageError(f"bad number of messages {batch!r}: 1 or more are allowed")
    if max_bytes < 0:
        raise UsageError(f"bad max_bytes {max_bytes}: 0 (no bound) or more are allowed")


class PullState(enum.Enum):
    """Where a fetch stands."""

    ASKING = "asked for what is there"
    LINGERING = "nothing was there: asked for what comes"
    DONE = "over"


class Fetch:
    """Up to `batch` messages: those that are there, or else those that come in time."""

    def __init__(self, batch: int, *, max_bytes: int = 0, max_expires: float = math.inf) -> None:
        check_batch(batch, max_bytes)
        self.batch = batch
        self.messages: list[Msg] = []
        self.statuses = 0  # so many frames were no messages
        self.state = PullState.ASKING
        self.open = 0  # requests under way: messages may come for them
        self._asked = 0
        self._max_bytes = max_bytes
        self._max_expires = max_expires

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.state is PullState.DONE

    @property
    def limit(self) -> int:
        """How many frames may still come in all: the messages, and the status of each request before the last."""
        return self.batch + max(1, self._asked - 1)

    def ask(self, left: float) -> bytes:
        """The body of the next request, when `left` seconds remain."""
        self.open += 1
        self._asked += 1
        if self.state is PullState.ASKING:
            return no_wait_body(self.batch, max_bytes=self._max_bytes)
        expires = min(expires_within(left), self._max_expires)
        return lingering_body(self.batch, expires, max_bytes=self._max_bytes)

    def patience(self, left: float) -> float:
        """How long to wait for the next frame: an answer to `no_wait` comes at once, or not at all."""
        left = max(left, 0.0)
        return min(left / 2, NO_WAIT_PATIENCE) if self.state is PullState.ASKING and not self.messages else left

    def silence(self) -> bool:
        """Nothing came for as long as `patience` said; whether the next request is due. False: the time is up."""
        was_asking = self.state is PullState.ASKING and not self.messages
        self.state = PullState.LINGERING
        return was_asking

    def lost(self) -> None:
        """The connection is gone, and the requests with it."""
        self.open = 0

    def feed(self, msgs: list[Msg], left: float) -> bool:
        """Take what arrived; whether the next request is due. Raises what a status says."""
        statuses = [msg for msg in msgs if is_status(msg)]
        self.messages += [msg for msg in msgs if not is_status(msg)] if statuses else msgs
        self.statuses += len(statuses)
        again = False
        for status in statuses:
            again = self._ended(status, left)
        if len(self.messages) >= self.batch:
            self.state = PullState.DONE
            self.open = max(0, self.open - 1)  # filled; a request that ends so says nothing
        return again and self.state is not PullState.DONE

    def _ended(self, msg: Msg, left: float) -> bool:
        """A status came; whether to ask again."""
        meaning, error = judge(msg)
        if meaning in (Meaning.ALIVE, Meaning.FLOW):
            return False
        self.open = max(0, self.open - 1)
        if self.open and meaning is Meaning.ENDED:
            return False  # the late answer to a `no_wait` that was not waited for
        if self.messages:  # an error will be told by the next fetch, if it lasts
            self.state = PullState.DONE
            return False
        if meaning is Meaning.ENDED and error is not None:  # the first message is too large for `max_bytes`
            raise error
        if meaning in (Meaning.ABSENT, Meaning.ERROR) and error is not None:
            raise error
        if self.state is PullState.LINGERING and left <= MARGIN:
            self.state = PullState.DONE
            return False
        self.state = PullState.LINGERING
        return True


class Singles:
    """Requests for one message each, whose answers arrive in one place: whoever waits takes what comes first.

    A message does not say which request it answers, so requests are counted, not named. One that got no answer in its
    time is forgotten.
    """

    def __init__(self) -> None:
        self.waiters = 0
        self._open: list[float] = []  # until when the answers to the requests under way may come

    def is_due(self, now: float) -> bool:
        """Whether fewer requests than readers are under way."""
        self._open = [until for until in self._open if until > now]
        return len(self._open) < self.waiters

    def asked(self, until: float) -> None:
        """A request went out."""
        self._open.append(until + GRACE)
        self._open.sort()

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._open)

    def forget(self) -> None:
        """The connection is gone, or the inbox, and the requests with it."""
        self._open = []

    def feed(self, msg: Msg) -> Msg | None:
        """The message, or None for a status that ended a request. Raises what a status says."""
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


class Flow:
    """Messages without end: requests overlap, so that the server always has one to fill.

    At most `max_messages` (or, if given, `max_bytes`) are asked for and not here; when no more than `threshold` of them
    are left, as many are asked for as are missing. A single request is for no more than `most` messages and lasts no
    longer than `longest` seconds, which the consumer may say. Statuses of requests from before a `reset` are old news.
    """

    def __init__(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: float = MAX_EXPIRES,
        heartbeat: float | None = None,
        most: int = 0,
        longest: float = math.inf,
    ) -> None:
        check_batch(max_messages, max_bytes)
        if expires < 1:
            raise UsageError(f"bad expires {expires}: 1 second or more is allowed")
        expires = min(expires, longest)
        self.heartbeat = min(expires / 6, 5.0) if heartbeat is None else heartbeat
        if self.heartbeat < 0 or self.heartbeat * 2 >= expires:
            raise UsageError(
                f"bad heartbeat {heartbeat}: less than half of expires ({expires:g} s) is allowed, 0 is none"
            )
        limit = max_bytes or max_messages
        self._threshold = limit // 2 if threshold is None else threshold
        if not 0 <= self._threshold < limit:
            raise UsageError(f"bad threshold {threshold}: 0 to {limit - 1} is allowed")
        wanted = MANY if max_bytes else max_messages
        self._batch = min(wanted, most or wanted)
        if self._batch < max_messages and not max_bytes:
            self._threshold = min(self._threshold, self._batch // 2)
        self._max_bytes = max_bytes
        self._expires = expires
        self._generation = 0
        self._pending = 0  # messages asked for and not here, nor given up by the server,
        self._pending_bytes = 0  # and bytes

    @property
    def token(self) -> str:
        """The last token of the reply subject of requests."""
        return str(self._generation)

    def request(self) -> bytes:
        """The body of the request that is due; empty if none is."""
        if self._max_bytes:
            if self._pending_bytes > self._threshold:
                return b""
            size, batch = self._max_bytes - self._pending_bytes, self._batch
            self._pending_bytes += size
        else:
            if self._pending > self._threshold:
                return b""
            size, batch = 0, self._batch - self._pending
        self._pending += batch
        return lingering_body(batch, self._expires, max_bytes=size, heartbeat=self.heartbeat)

    def reset(self) -> None:
        """What was asked for will not come: the connection, the server or the leader is another."""
        self._generation += 1
        self._pending = self._pending_bytes = 0

    def feed(self, msgs: list[Msg]) -> tuple[list[Msg], Error | None]:
        """Take what arrived: the messages, and the error behind them.

        A `StatusError` of class ConsumerGoneError may pass by itself; all others are final.
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
        self._pending = max(0, self._pending - len(msgs))
        if self._max_bytes:
            size = sum(len(msg[0]) + len(msg[2]) + len(msg[3]) + len(msg[4]) for msg in msgs)
            # A request is over with its last message, whatever bytes are left of it.
            self._pending_bytes = max(0, self._pending_bytes - size) if self._pending else 0

    def _status(self, msg: Msg) -> Error | None:
        if msg[0].rpartition(".")[2] != self.token:
            return None
        meaning, error = judge(msg)
        if meaning is Meaning.ENDED:
            left, size = pending_of(msg)
            if error is not None and size == self._max_bytes > 0:  # the next message is larger than all we ask for
                return error
            self._pending = max(0, self._pending - left) if left >= 0 else 0
            self._pending_bytes = max(0, self._pending_bytes - size) if size >= 0 else 0
        elif meaning is Meaning.MOVED:
            self.reset()
        elif meaning in (Meaning.ABSENT, Meaning.ERROR):
            self.reset()
            return error
        return None

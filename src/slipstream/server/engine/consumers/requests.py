"""Pull requests: the parser of their bodies, the limits they are checked against, and the queue they wait in.

Requests take turns: each message goes to the first one, which then goes behind the others, so that workers that pull
from one consumer share its messages. With priorities, those of the lowest number take turns before all others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Annotated

import msgspec

from slipstream.api import NOT_JSON, ConsumerConfig, PriorityPolicy, read_json
from slipstream.api.names import PENDING_BYTES, PENDING_MESSAGES
from slipstream.api.times import format_duration, nanoseconds
from slipstream.wire.headers import status_block

NO_MESSAGES = status_block(404, "No Messages")
CONSUMER_DELETED = status_block(409, "Consumer Deleted")
PUSH_BASED = status_block(409, "Consumer is push based")
TOO_MANY_WAITING = status_block(409, "Exceeded MaxWaiting")
REQUESTS_PENDING = status_block(408, "Requests Pending")
LEVEL_MISSING = status_block(412, "Required Api Level")

# Heartbeats of a pull: not more often than this, whatever it asks for, and not more than this many a second for all
# pulls of a consumer. A client asks for seconds; one that asked for a nanosecond got 20,000 a second.
MIN_HEARTBEAT = 10_000_000
HEARTBEAT_SHARE = 100_000  # ns for each pull that waits: 10,000 heartbeats a second

Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class PullBody(msgspec.Struct):
    """The body of a pull request. Unknown fields are ignored."""

    expires: Number = 0
    batch: Number = 0
    max_bytes: Number = 0
    no_wait: bool = False
    idle_heartbeat: Number = 0
    group: str = ""
    min_pending: Number = 0
    min_ack_pending: Number = 0
    id: str = ""
    priority: Number = 0

    @property
    def waits(self) -> bool:
        """Whether it waits when there is no message. By the specification `no_wait` wins over `expires`. It does not
        mention heartbeats; with them a request waits for the first message (and only for that), as on nats-server."""
        return not self.no_wait or (self.idle_heartbeat > 0 and self.expires > 0)


class CompatPullBody(PullBody):
    """The body of a pull request on a server that answers as nats-server does: `expires` wins over `no_wait`."""

    @property
    def waits(self) -> bool:
        return not self.no_wait or self.expires > 0


class Request:
    """A pull request that waits for messages."""

    __slots__ = (
        "batch", "beat", "body", "expires", "grouped", "heartbeat", "is_over", "max_bytes", "reply",
    )  # fmt: skip

    def __init__(self, reply: str, body: PullBody, *, grouped: bool, now: int) -> None:
        """`grouped`: its body is JSON, which may name a priority group."""
        self.reply: str = reply
        self.body: PullBody = body
        self.grouped: bool = grouped
        self.batch: Number = max(body.batch, 1)
        self.max_bytes: Number = max(body.max_bytes, 0)  # 0: no bound
        # A request with `no_wait` is answered at once, whatever it says of its end. Its end counts where it has to wait
        # all the same: for acks of other messages, or for the requests before it.
        self.expires: int = now + body.expires if body.expires > 0 else 0
        self.is_over: bool = False
        self.heartbeat: Number = max(body.idle_heartbeat, MIN_HEARTBEAT) if body.idle_heartbeat > 0 else 0
        self.beat: int = now + self.heartbeat if self.heartbeat else 0  # when the next one is due

    @property
    def due(self) -> int:
        """When it expires or its next heartbeat is due; 0: never."""
        return min(self.expires, self.beat) if self.expires and self.beat else self.expires or self.beat

    @property
    def ends_here(self) -> bool:
        """Whether it ends when no message is left."""
        body = self.body
        return body.no_wait and (not body.waits or self.batch < max(body.batch, 1))

    def ended(self, code: int, text: str) -> bytes:
        """The status that ends it, with the messages and bytes that it did not get."""
        return status_block(code, text, [(PENDING_MESSAGES, str(self.batch)), (PENDING_BYTES, str(self.max_bytes))])


def parse(payload: bytes, *, compat: bool = False) -> tuple[PullBody, bool] | bytes:
    """The request in a body and whether it was JSON; or the status that refuses it."""
    text = payload.strip()
    if not text:
        return PullBody(batch=1), False
    if text[:1] != b"{":
        digits = text[1:] if text[:1] in b"+-" else text
        if digits.isdigit() and len(digits) < 19:
            return PullBody(batch=int(text)), False
        return PullBody(batch=1), False
    try:
        body = read_json(text, CompatPullBody if compat else PullBody)
    except NOT_JSON as exc:
        return status_block(400, f"Bad Request - {' '.join(str(exc).split())}")
    if body.idle_heartbeat > 0 and body.idle_heartbeat * 2 > body.expires:
        return status_block(400, "Bad Request - heartbeat value too large")
    return body, True


def refusal(body: PullBody, config: ConsumerConfig, *, grouped: bool, pin: str) -> bytes | None:
    """The status that refuses a request, by the consumer's limits; `pin` is the id of the pinned client."""
    if 0 < config.max_batch < body.batch:
        return status_block(409, f"Exceeded MaxRequestBatch of {config.max_batch}")
    longest = config.max_expires
    if longest and body.expires > nanoseconds(longest):
        return status_block(409, f"Exceeded MaxRequestExpires of {format_duration(nanoseconds(longest))}")
    if 0 < config.max_bytes < body.max_bytes:
        return status_block(409, f"Exceeded MaxRequestMaxBytes of {config.max_bytes}")
    return _group_refusal(body, config, pin) if grouped else None


def _group_refusal(body: PullBody, config: ConsumerConfig, pin: str) -> bytes | None:
    policy = config.priority_policy
    if (body.min_pending or body.min_ack_pending) and policy != PriorityPolicy.OVERFLOW:
        return status_block(400, "Bad Request - Not a Overflow Priority consumer")
    if body.id and policy != PriorityPolicy.PINNED_CLIENT:
        return status_block(400, "Bad Request - Not a Pinned Client Priority consumer")
    if not 0 <= body.priority <= 9:
        return status_block(400, "Bad Request - Priority must be between 0 and 9")
    if not policy:
        return None
    if not body.group:
        return status_block(400, "Bad Request - Priority Group missing")
    if body.group not in config.priority_groups:
        return status_block(400, "Bad Request - Invalid Priority Group")
    if pin and body.id and body.id != pin:
        return status_block(423, "Nats-Pin-Id mismatch")
    return None


class RequestQueue:
    """The requests that wait, in the order of their turns.

    There may be very many: what ends a request that is not in front (`end`), finding those that are due, and counting
    do not look at the others.
    """

    def __init__(self) -> None:
        self.prioritized = False
        self.wanted: int = 0  # messages, by all of them
        self._count = 0
        self._items: deque[Request] = deque()  # some have ended; the first one has not
        self._is_sorted = True  # by priority
        self._due: list[tuple[int, int, Request]] = []  # a heap; its times may be too early
        self._added = 0
        self._ending: dict[Request, None] = {}
        self._rounds: deque[Request] = deque()  # the order in which `visit` looks at them

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (request for request in self._items if not request.is_over)

    def add(self, request: Request) -> None:
        """Add a request behind all others; with priorities, behind those of its own."""
        self._count += 1
        self.wanted += request.batch
        self._insert(request)
        self._rounds.append(request)
        self.schedule(request)
        if request.body.no_wait:
            self._ending[request] = None
        self._clean()

    def _insert(self, request: Request) -> None:
        if not self.prioritized:
            self._is_sorted = False
            self._items.append(request)
            return
        if not self._is_sorted:
            self._items = deque(sorted(self._items, key=_priority_of))
            self._is_sorted = True
        items, priority = self._items, request.body.priority
        if not items or items[-1].body.priority <= priority:
            items.append(request)
        else:
            items.insert(bisect_right(items, priority, key=_priority_of), request)

    def front(self) -> Request:
        return self._items[0]

    def pop(self) -> Request:
        """End the first request."""
        request = self._items[0]
        self.end(request)
        return request

    def end(self, request: Request) -> None:
        """A request gets no more messages."""
        if not request.is_over:
            request.is_over = True
            self._count -= 1
            self.wanted -= request.batch
            self._ending.pop(request, None)
            self._clean()

    def took(self, request: Request, count: int) -> None:
        """A request got so many messages."""
        request.batch -= count
        self.wanted -= count

    def turn(self) -> None:
        """The first request had its turn."""
        if self._count > 1:
            self._insert(self._items.popleft())
            self._clean()

    def cycle(self) -> None:
        """The first request cannot use its turn: it goes behind all others."""
        self._items.rotate(-1)
        self._is_sorted = False
        self._clean()

    def _clean(self) -> None:
        items = self._items
        while items and items[0].is_over:
            items.popleft()
        if len(items) > 2 * self._count + 64:
            self._items = deque(request for request in items if not request.is_over)
        if len(self._rounds) > 2 * self._count + 64:
            self._rounds = deque(request for request in self._rounds if not request.is_over)
        if len(self._due) > 4 * self._count + 64:
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapify(self._due)

    def clear(self) -> list[Request]:
        """End all requests; returns them."""
        ended = list(self)
        for request in ended:
            request.is_over = True
        self._count = self.wanted = 0
        for each in (self._items, self._due, self._ending, self._rounds):
            each.clear()
        return ended

    # Time.

    def schedule(self, request: Request) -> None:
        """A request is due when it expires or its next heartbeat is."""
        when = request.due
        if when:
            self._added += 1
            heappush(self._due, (when, self._added, request))

    @property
    def next_due(self) -> int:
        """When the next request is due, or earlier; 0: never."""
        while self._due and self._due[0][2].is_over:
            heappop(self._due)
        return self._due[0][0] if self._due else 0

    def take_due(self, now: int, limit: int) -> list[Request]:
        """Requests that are due, at most so many. Those that go on must be given to `schedule` again."""
        found: list[Request] = []
        while len(found) < limit and 0 < self.next_due <= now:
            request = heappop(self._due)[2]
            if request.due <= now:
                found.append(request)
            else:  # it got a message, which puts off its heartbeat
                self.schedule(request)
        return found

    # Looking through them.

    def ending(self) -> list[Request]:
        """The requests that end when no message is left."""
        return [request for request in self._ending if request.ends_here]

    def visit(self, limit: int) -> list[Request]:
        """So many requests, those that were not visited for longest."""
        found: list[Request] = []
        rounds = self._rounds
        while rounds and len(found) < min(limit, self._count):
            request = rounds.popleft()
            if not request.is_over:
                rounds.append(request)
                found.append(request)
        return found


def _priority_of(request: Request) -> int:
    return request.body.priority

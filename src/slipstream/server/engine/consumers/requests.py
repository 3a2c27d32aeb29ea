"""Pull requests: the parser of their bodies, the limits they are checked against, and the queue they wait in.

Requests take turns: each message goes to the first one, which then goes behind the others, so that workers that pull
from one consumer share its messages. With priorities, those of the lowest number take turns before all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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


class Request:
    """A pull request that waits for messages."""

    __slots__ = (
        "batch", "beat", "body", "expires", "grouped", "heartbeat", "max_bytes", "reply",
    )  # fmt: skip

    def __init__(self, reply: str, body: PullBody, *, grouped: bool, now: int) -> None:
        """`grouped`: its body is JSON, which may name a priority group."""
        self.reply = reply
        self.body = body
        self.grouped = grouped
        self.batch = max(body.batch, 1)
        self.max_bytes = max(body.max_bytes, 0)  # 0: no bound
        # A request with `no_wait` is answered at once, whatever it says of its end. Its end counts where it has to wait
        # all the same: for acks of other messages, or for the requests before it.
        self.expires = now + body.expires if body.expires > 0 else 0
        self.heartbeat = max(body.idle_heartbeat, 0)
        self.beat = now + self.heartbeat if self.heartbeat else 0  # when the next one is due

    @property
    def ends_here(self) -> bool:
        """Whether it ends when no message is left."""
        body = self.body
        return body.no_wait and (not body.waits or self.batch < max(body.batch, 1))

    def ended(self, code: int, text: str) -> bytes:
        """The status that ends it, with the messages and bytes that it did not get."""
        return status_block(code, text, [(PENDING_MESSAGES, str(self.batch)), (PENDING_BYTES, str(self.max_bytes))])


def parse(payload: bytes) -> tuple[PullBody, bool] | bytes:
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
        body = read_json(text, PullBody)
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
    """The requests that wait, in the order of their turns."""

    def __init__(self) -> None:
        self.prioritized = False
        self._items: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._items)

    def add(self, request: Request) -> None:
        """Add a request behind all others; with priorities, behind those of its own."""
        items = self._items
        if not self.prioritized or not items or items[-1].body.priority <= request.body.priority:
            items.append(request)
            return
        at = next(i for i, other in enumerate(items) if other.body.priority > request.body.priority)
        items.insert(at, request)

    def front(self) -> Request:
        return self._items[0]

    def pop(self) -> Request:
        return self._items.popleft()

    def turn(self) -> None:
        """The first request had its turn."""
        if len(self._items) > 1:
            self.add(self._items.popleft())

    def cycle(self) -> None:
        """The first request cannot use its turn: it goes behind all others."""
        self._items.rotate(-1)

    def replace(self, requests: list[Request]) -> None:
        self._items = deque(requests)

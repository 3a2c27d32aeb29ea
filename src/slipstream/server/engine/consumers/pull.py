"""Pull delivery: messages go to the requests that wait for them, one each in turn.

A request ends when it is filled, when it expires, when its inbox has no subscriber any more, or with a status that says
why. Whether an inbox still has a subscriber is looked up when its request gets its turn, and whenever the requests are
counted.

With priority groups a request may have to stand back: with `overflow` until enough messages are pending, with
`prioritized` behind those of a lower number, with `pinned_client` unless its client is the one that is pinned.
"""

from __future__ import annotations

from typing import Any

from slipstream.api import ConsumerConfig, PriorityPolicy, format_time
from slipstream.api.names import LAST_CONSUMER, LAST_STREAM
from slipstream.api.times import ZERO, nanoseconds
from slipstream.server.engine.api.requests import level_suffices
from slipstream.server.engine.consumers.ack_handling import AckHandling
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.cursor import CHUNK, LOOK_UNITS, Cursor
from slipstream.server.engine.consumers.job import DeliveryJob
from slipstream.server.engine.consumers.outbound import Outbound, Recipient, add_header, headers_only
from slipstream.server.engine.consumers.requests import (
    CONSUMER_DELETED,
    HEARTBEAT_SHARE,
    LEVEL_MISSING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    TOO_MANY_WAITING,
    PullBody,
    Request,
    RequestQueue,
    parse,
    refusal,
)
from slipstream.server.engine.consumers.timing import MILLISECOND, EarliestTimer, IdleTimer
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer
from slipstream.wire.headers import status_block

VISITS = 1024  # requests that are looked at in one go
LOOKED_PER_UNIT = 2  # of work (`engine.jobs`)
MANY = 64


class _Farewell:
    """A job that answers the requests of a consumer that was deleted."""

    def __init__(self, services: Services, replies: list[str]) -> None:
        self._services = services
        self._replies = replies
        self._at = 0

    def run(self) -> tuple[Progress, int]:
        part = self._replies[self._at : self._at + VISITS]
        self._at += len(part)
        for reply in part:
            self._services.router.send(reply, CONSUMER_DELETED, b"")
        return (Progress.MORE if self._at < len(self._replies) else Progress.DONE), len(part)


class PullDelivery:
    """Delivers the messages of one consumer to pull requests."""

    bound = False  # pull consumers have no deliver subject

    def __init__(
        self,
        services: Services,
        cursor: Cursor,
        acks: AckHandling,
        job: DeliveryJob,
        idle: IdleTimer,
        advisories: ConsumerAdvisories,
        config: ConsumerConfig,
    ) -> None:
        self._services = services
        self._cursor = cursor
        self._state = cursor.state
        self._acks = acks
        self._job = job
        self._idle = idle
        self._advisories = advisories
        self._config = config
        self._queue = RequestQueue()
        self._timer = EarliestTimer(services.timers, self._look)  # for expiries and heartbeats of requests
        self._removes = self._unvisited = 0  # see `_drop_deserted`
        self._passed = 0  # requests in a row that cannot have a message now: after all of them the search ends
        self._looked = 0  # requests that a chunk has passed over, or ended
        self._is_tired = False  # the last chunk has passed over as many as it may
        self._pin = ""  # the id of the pinned client
        self._pinned_at = 0
        self._pin_timer: Timer | None = None
        self.configure(config)

    def configure(self, config: ConsumerConfig) -> None:
        """Take over a configuration."""
        self._config = config
        self._queue.prioritized = config.priority_policy == PriorityPolicy.PRIORITIZED
        # Nothing that would have to be looked at message by message.
        self._plain = not config.priority_policy and not config.headers_only and config.replay_policy == "instant"
        self._headers_only = config.headers_only
        self._overflow = config.priority_policy == PriorityPolicy.OVERFLOW
        self._pins = config.priority_policy == PriorityPolicy.PINNED_CLIENT
        if self._idle.threshold:  # as on nats-server: not all at the same moment
            self._idle.threshold += (100 + int(900 * self._services.router.chance())) * MILLISECOND

    def begin(self, now: int) -> None:
        """Nothing to do before the first request."""

    def flow(self, subject: str, now: int) -> None:
        """The answer to a flow control request; a pull consumer makes none."""

    # Requests.

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Take a pull."""
        if reply:
            if header and not level_suffices(header):
                self._services.router.send(reply, LEVEL_MISSING, b"")
            else:
                self.next_request(reply, payload, now)
        return True

    def next_request(self, reply: str, payload: bytes, now: int) -> None:
        """Queue a request, or answer it with the status that refuses it."""
        if not reply:
            return
        parsed = parse(payload, compat=self._services.compat)
        if isinstance(parsed, bytes):
            self._services.router.send(reply, parsed, b"")
            return
        body, grouped = parsed
        refused = refusal(body, self._config, grouped=grouped, pin=self._pin) or self._cannot_serve(body, now)
        if refused:
            self._services.router.send(reply, refused, b"")
            return
        if len(self._queue) >= self._config.max_waiting:
            if body.idle_heartbeat <= 0:  # a client that expects heartbeats asks again when it misses them
                self._services.router.send(reply, TOO_MANY_WAITING, b"")
            return
        request = Request(reply, body, grouped=grouped, now=now)
        if self._pin and body.id == self._pin:
            self._arm_pin(now)
        self._state.last_active = now
        self._queue.add(request)
        self._arm(request.due)
        self._job.wake()

    def _cannot_serve(self, body: PullBody, now: int) -> bytes | None:
        """The status for a request with `no_wait` when there is nothing for it, or other requests come first."""
        if len(self._queue) >= self._config.max_waiting:
            self._review(now)
            self._drop_deserted(VISITS)
        if not body.no_wait or not self._job.live:
            return None
        available = self._cursor.left + len(self._state.queue)
        if available <= 0:
            if body.waits:
                return None
            self._state.last_active = now
            return NO_MESSAGES
        if self._queue:
            self._review(now)
            self._drop_deserted(VISITS)
            if available < self._queue.wanted:
                self._state.last_active = now
                return REQUESTS_PENDING
        # It waits neither for acks of other messages nor for the consumer's `min_last_seq`.
        full = self._acks.full and not self._state.queue and not self._services.compat
        if not body.waits and (self._cursor.held or full):
            self._state.last_active = now
            return NO_MESSAGES
        return None

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for messages: a new one wakes the job by itself."""
        return len(self._queue) > 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        self._review(self._services.router.now)
        self._drop_deserted(VISITS)
        return len(self._queue)

    def _review(self, now: int, *, at_end: bool = False) -> None:
        """End the requests that have expired; send the heartbeats that are due. `at_end`: also end those that do not
        wait for the next message."""
        queue, router = self._queue, self._services.router
        for request in queue.take_due(now, VISITS):
            if request.expires and request.expires <= now:
                reason = (500, "Message Corrupt") if self._cursor.stopped_at else (408, "Request Timeout")
                router.send(request.reply, request.ended(*reason), b"")
                queue.end(request)
            elif request.ends_here:  # it has some messages, and acks must come before the next: as on nats-server
                router.send(request.reply, NO_MESSAGES, b"")
                queue.end(request)
            elif router.interest(request.reply)[0]:
                router.send(request.reply, self._heartbeat(), b"")
                request.beat = now + max(request.heartbeat, len(queue) * HEARTBEAT_SHARE)
                queue.schedule(request)
            else:
                queue.end(request)
        if at_end:
            for request in queue.ending():
                end = request.ended(500, "Message Corrupt") if self._cursor.stopped_at else NO_MESSAGES
                router.send(request.reply, end, b"")
                queue.end(request)

    def _drop_deserted(self, limit: int) -> None:
        """End requests whose inbox has no subscriber any more. With very many, a part of them each time."""
        queue, router = self._queue, self._services.router
        if router.removes != self._removes:  # otherwise no inbox has lost one since it was looked at
            self._removes, self._unvisited = router.removes, len(queue)
        visited = queue.visit(min(limit, self._unvisited))
        self._unvisited -= len(visited) if visited else self._unvisited
        for request in visited:
            if not router.interest(request.reply)[0]:
                queue.end(request)

    def _heartbeat(self) -> bytes:
        last = (LAST_CONSUMER, str(self._state.dseq)), (LAST_STREAM, str(self._state.next_seq - 1))
        return status_block(100, "Idle Heartbeat", last)

    def _arm(self, when: int) -> None:
        """Look at the requests at that time (0: none), or earlier."""
        if when:
            self._timer.arm(when)

    def _look(self, now: int) -> None:
        # A request with `no_wait` does not wait for acks either; on nats-server it does.
        self._review(now, at_end=self._acks.full and not self._services.compat)
        self._arm(max(self._queue.next_due, now + 1) if self._queue.next_due else 0)

    # Delivering.

    def deliver(self, now: int) -> tuple[Progress, int]:
        """Deliver one chunk; how the job stands, and how many messages went out."""
        if not self._queue:
            return Progress.DONE, 0
        if self._job.paused or self._cursor.held or self._cursor.at_end:
            self._review(now, at_end=True)
            return Progress.DONE, 0
        outbound = Outbound(self._services)
        if not self._is_tired:
            self._passed = 0
        self._looked, self._is_tired = 0, False
        again, fresh = self._cursor.upcoming(min(self._queue.wanted, CHUNK))
        sent, stuck = self._redeliver(again, outbound, now), False
        if len(again) == sent:
            before = sent
            sent += self._deliver_new(fresh, outbound, now)
            stuck = sent - before < len(fresh)
        outbound.flush()
        if sent:
            self._acks.delivered(now)
        return self._progress(outbound, now, sent, stuck=stuck or len(again) > sent, found=bool(again or fresh)), (
            LOOK_UNITS if self._cursor.is_looking else sent + self._looked // LOOKED_PER_UNIT
        )

    def _progress(self, outbound: Outbound, now: int, sent: int, *, stuck: bool, found: bool) -> Progress:
        """How the job stands after a chunk."""
        if not self._queue:
            return Progress.DONE
        if self._is_tired:
            return Progress.MORE
        if stuck:
            return Progress.BLOCKED if outbound.congested and not self._job.waits else Progress.DONE
        if self._cursor.at_end:
            self._review(now, at_end=True)
            return Progress.DONE
        if not found and not self._acks.full:
            if self._cursor.is_looking:
                return Progress.MORE
            self._cursor.found_nothing()
            if self._cursor.at_end or self._cursor.stopped_at:
                self._review(now, at_end=True)
            return Progress.DONE
        if self._acks.full and not self._state.queue:
            # What requests with `no_wait` did not get is not for them.
            self._review(now, at_end=not self._services.compat)
            return Progress.DONE
        return Progress.MORE if sent else Progress.DONE

    def _redeliver(self, records: list[Record], outbound: Outbound, now: int) -> int:
        sent, state = 0, self._state
        for record in records:
            seq, time, _, header, payload = record
            if self._headers_only:
                header, payload = headers_only(record)
            reply = f"{self._acks.prefix}{state.times(seq) + 1}.{seq}.{state.dseq + 1}.{time}.{self._cursor.left}"
            size = len(record.subject) + len(reply) + len(header) + len(payload)
            if not self._hand(size, outbound, now, (record.subject, reply, header, payload)):
                break
            state.deliver_again(seq, now)
            sent += 1
        return sent

    def _deliver_new(self, records: list[Record], outbound: Outbound, now: int) -> int:
        if not records or not self._queue:
            return 0
        if self._plain and self._is_one(outbound):
            return self._all_to_one(records, outbound, now)
        sent, state, cursor = 0, self._state, self._cursor
        prefix, bare, replays = f"{self._acks.prefix}1.", self._headers_only, self._job.replays
        unacked: list[int] = []
        for record in records:
            if replays and self._job.too_early(record, now):
                break
            seq, time, subject, header, payload = record
            if bare:
                header, payload = headers_only(record)
            reply = f"{prefix}{seq}.{state.dseq + 1}.{time}.{cursor.left - 1}"
            size = len(subject) + len(reply) + len(header) + len(payload)
            if not self._hand(size, outbound, now, (subject, reply, header, payload)):
                break
            cursor.delivered(record, now)
            sent += 1
            if replays:
                self._job.replayed(record, now)
            if not self._acks.required:
                unacked.append(seq)
        cursor.settle_unacked(unacked)
        return sent

    def _all_to_one(self, records: list[Record], outbound: Outbound, now: int) -> int:
        """Fill the requests of one client, one after the other. Hot: work is done once a request, not per message."""
        sent, total = 0, len(records)
        while sent < total and (request := self._choose(0, outbound, now)) is not None:
            recipient = outbound.to(request.reply)
            part = records[sent : sent + min(request.batch, recipient.capacity)]
            recipient.put_all(part, f"{self._acks.prefix}1.", self._state.dseq, self._cursor.left)
            self._cursor.delivered_all(part, now)
            sent += len(part)
            self._queue.took(request, len(part))
            if request.batch <= 0:
                self._queue.pop()
            elif request.heartbeat:
                request.beat = now + request.heartbeat
        return sent

    def _is_one(self, outbound: Outbound) -> bool:
        """Whether all requests are of one client, and none counts bytes: then there is no turn to take. With many it is
        cheaper to take turns than to look."""
        if len(self._queue) > MANY:
            return False
        session = outbound.to(self._queue.front().reply).session
        if session is None:
            return False
        return all(not request.max_bytes and outbound.to(request.reply).session is session for request in self._queue)

    def _hand(self, size: int, outbound: Outbound, now: int, message: tuple[str, str, bytes, bytes]) -> bool:
        """Give a message to the request whose turn it is; False if no request can have it now."""
        while (request := self._choose(size, outbound, now)) is not None:
            subject, reply, header, payload = message
            if self._pin:
                header = add_header(header, f"Nats-Pin-Id: {self._pin}")
            recipient = outbound.to(request.reply)
            if recipient.put(subject, reply, header, payload):
                self._served(request, recipient, size, now)
                return True
        return False

    def _served(self, request: Request, recipient: Recipient, size: int, now: int) -> None:
        """The request in front got a message."""
        self._queue.took(request, 1)
        if request.max_bytes:
            request.max_bytes -= size
            if not request.max_bytes:  # exactly used up; 0 would mean that there is no bound
                self._queue.took(request, request.batch)
        if request.batch <= 0:
            self._queue.pop()
            if request.max_bytes:
                recipient.status(request.ended(409, "Batch Completed"))
        else:
            if request.heartbeat:
                request.beat = now + request.heartbeat
            if len(self._queue) > 1:
                self._queue.turn()

    def _choose(self, size: int, outbound: Outbound, now: int) -> Request | None:
        """The request whose turn it is to get a message of that size; it is then in front."""
        queue = self._queue
        # Each request once: those that cannot be served now go behind the others. The next chunk looks at the rest.
        while self._passed < len(queue):
            if self._looked >= VISITS:
                self._is_tired = True
                return None
            request = queue.front()
            recipient = outbound.to(request.reply)
            if not recipient.capacity:  # its inbox has no subscriber left: not even a status can be sent
                queue.pop()
            elif request.expires and request.expires <= now:
                recipient.status(request.ended(408, "Request Timeout"))
                queue.pop()
            elif recipient.congested or not self._eligible(request, recipient):
                if queue and queue.front() is request:  # otherwise `_eligible` has ended it
                    queue.cycle()
                    self._passed += 1
            elif request.max_bytes and size > request.max_bytes:
                recipient.status(request.ended(409, "Message Size Exceeds MaxBytes"))
                queue.pop()
            else:
                self._passed = 0
                return request
            self._looked += 1
        self._passed = 0
        return None

    # Priority groups.

    def _eligible(self, request: Request, recipient: Recipient) -> bool:
        """Whether a request may have a message now, by its priority group."""
        body = request.body
        if self._overflow and (body.min_pending > 0 or body.min_ack_pending > 0):
            return 0 < body.min_pending <= self._cursor.left or 0 < body.min_ack_pending <= len(self._state.pending)
        if not self._pins:
            return True
        if not self._pin and not body.id:
            if body.group:  # a request without one is served, and pins no client
                self._take_pin(request)
            return True
        if body.id == self._pin:
            return True
        if body.id:  # of a client that the consumer was pinned to before
            recipient.status(request.ended(423, "Nats-Wrong-Pin-Id"))
            self._queue.pop()
        return False

    def _take_pin(self, request: Request) -> None:
        now = self._services.router.now
        self._pin, self._pinned_at = self._services.router.token(22), now
        request.body.id = self._pin  # its client learns the id from the header of the message
        self._arm_pin(now)
        self._advisories.pinned(request.body.group, self._pin)

    def _arm_pin(self, now: int) -> None:
        if self._pin_timer is not None:
            self._pin_timer.cancel()
        self._pin_timer = self._services.timers.at(
            now + nanoseconds(self._config.priority_timeout), lambda _: self.unpin("timeout")
        )

    def unpin(self, reason: str, group: str = "") -> None:
        """Unpin the client: the next request pins another one."""
        if self._pin_timer is not None:
            self._pin_timer.cancel()
            self._pin_timer = None
        if reason == "admin" or self._pin:
            self._pin, self._pinned_at = "", 0
            self._advisories.unpinned(group or self._config.priority_groups[0], reason)
        self._job.wake()

    def pins(self) -> list[dict[str, Any]]:
        """The state of the priority groups, for the consumer's info."""
        if not self._config.priority_groups:
            return []
        state: dict[str, Any] = {"group": self._config.priority_groups[0]}
        if self._pin:
            state["pinned_client_id"] = self._pin
        return [state | {"pinned_ts": format_time(self._pinned_at or ZERO)}]

    # Life.

    def used_until(self, now: int) -> int:
        """When the consumer was in use last."""
        self._review(now, at_end=True)
        self._drop_deserted(8 * VISITS)
        if self._queue:
            return now
        # A client may be at work on its messages until their ack wait is over, as on nats-server.
        return max([self._state.last_active, *self._acks.deadlines()])

    def stop(self) -> None:
        """The consumer is deleted: end all requests with that status."""
        self._timer.stop()
        if self._pin_timer is not None:
            self._pin_timer.cancel()
        farewell = _Farewell(self._services, [request.reply for request in self._queue.clear()])
        if farewell.run()[0] is Progress.MORE:
            self._services.jobs.go_on(farewell, self)

    def retire(self) -> None:
        """The server shuts down: end all requests with that status."""
        for request in self._queue.clear():
            self._services.router.send(request.reply, request.ended(409, "Server Shutdown"), b"")

"""A pull consumer: messages go to the requests that wait for them, one each in turn.

A request ends when it is filled, at its time, with its inbox, or with a status that says why. Whether somebody still
listens on its inbox is looked at when it gets its turn, and whenever the requests are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.api import ConsumerConfig, PriorityPolicy, format_time
from slipstream.api.names import LAST_CONSUMER, LAST_STREAM
from slipstream.api.times import ZERO
from slipstream.server.engine.api.requests import level_suffices
from slipstream.server.engine.consumers.ack_handling import MILLISECOND
from slipstream.server.engine.consumers.consumer import CHUNK, Consumer, nanos
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.outbound import Lane, Lanes
from slipstream.server.engine.consumers.requests import (
    CONSUMER_DELETED,
    LEVEL_MISSING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    TOO_MANY_WAITING,
    PullBody,
    Queue,
    Request,
    parse,
    refusal,
)
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Progress
from slipstream.server.engine.timers import Timer
from slipstream.wire.headers import status_block

if TYPE_CHECKING:
    from slipstream.server.engine.consumers.registry import Consumers


class PullConsumer(Consumer):
    """Delivers to whoever asks."""

    _timer: Timer | None = None
    _pin = ""
    _pinned_at = 0
    _pin_timer: Timer | None = None

    def __init__(
        self, group: Consumers, name: str, config: ConsumerConfig, *, created: int, ledger: DeliveryState | None = None
    ) -> None:
        self._queue = Queue()
        super().__init__(group, name, config, created=created, ledger=ledger)

    def configure(self, config: ConsumerConfig) -> None:
        super().configure(config)
        self._queue.prioritized = config.priority_policy == PriorityPolicy.PRIORITIZED
        # Nothing that would have to be looked at message by message.
        self._plain = not config.priority_policy and not config.headers_only and config.replay_policy == "instant"
        self._overflow = config.priority_policy == PriorityPolicy.OVERFLOW
        self._pins = config.priority_policy == PriorityPolicy.PINNED_CLIENT
        if self.threshold:  # as on nats-server: not all at the same moment
            self.threshold += (100 + int(900 * self.host.chance())) * MILLISECOND

    # Requests.

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Take a pull."""
        if reply:
            if header and not level_suffices(header):
                self.host.send(reply, LEVEL_MISSING, b"")
            else:
                self.next_request(reply, payload, now)
        return True

    def next_request(self, reply: str, payload: bytes, now: int) -> None:
        if not reply:
            return
        parsed = parse(payload)
        if isinstance(parsed, bytes):
            self.host.send(reply, parsed, b"")
            return
        body, grouped = parsed
        refused = refusal(body, self.config, grouped=grouped, pin=self._pin) or self._no_room(body, now)
        if refused:
            self.host.send(reply, refused, b"")
            return
        if len(self._queue) >= self.config.max_waiting:
            if body.idle_heartbeat <= 0:  # whoever waits for heartbeats asks again by itself, and in its own time
                self.host.send(reply, TOO_MANY_WAITING, b"")
            return
        request = Request(reply, body, grouped=grouped, now=now)
        if self._pin and body.id == self._pin:
            self._arm_pin(now)
        self.last_active = now
        self._queue.add(request)
        self._arm(min((at for at in (request.expires, request.beat) if at), default=0))
        self.wake()

    def _no_room(self, body: PullBody, now: int) -> bytes | None:
        """What a request that does not wait is told when there is nothing for it, or others are before it."""
        if len(self._queue) >= self.config.max_waiting:
            self._review(now)
        if not body.no_wait or not self.live:
            return None
        there = self.left + len(self.ledger.queue)
        if there <= 0:
            if body.waits:
                return None
            self.last_active = now
            return NO_MESSAGES
        if self._queue:
            self._review(now)
            if there < sum(request.batch for request in self._queue):
                self.last_active = now
                return REQUESTS_PENDING
        return None

    @property
    def waiting(self) -> int:
        self._review(self.host.now)
        return len(self._queue)

    def _review(self, now: int, *, at_end: bool = False) -> None:
        """End the requests that have expired or lost their listener; send the heartbeats that are due."""
        kept: list[Request] = []
        for request in self._queue:
            if request.expires and request.expires <= now:
                self.host.send(request.reply, request.ended(408, "Request Timeout"), b"")
            elif at_end and request.ends_here:
                self.host.send(request.reply, NO_MESSAGES, b"")
            elif self.host.listeners(request.reply)[0]:
                if request.beat and request.beat <= now:
                    self.host.send(request.reply, self._heartbeat(), b"")
                    request.beat = now + request.heartbeat
                kept.append(request)
        if len(kept) != len(self._queue):
            self._queue.replace(kept)

    def _heartbeat(self) -> bytes:
        last = (LAST_CONSUMER, str(self.ledger.dseq)), (LAST_STREAM, str(self.ledger.next_seq - 1))
        return status_block(100, "Idle Heartbeat", last)

    def _arm(self, when: int) -> None:
        """Look at the requests at that time, or earlier."""
        if not when:
            return
        timer = self._timer
        if timer is not None and timer.action is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._timer = self.host.timers.at(when, self._ring)

    def _ring(self, now: int) -> None:
        self._review(now, at_end=self.full)  # acks may be long in coming: who does not wait does not wait for them
        self._arm(min((at for r in self._queue for at in (r.expires, r.beat) if at), default=0))

    # Delivering.

    def work(self, now: int) -> tuple[Progress, int]:
        if not self._queue:
            return Progress.DONE, 0
        if self.paused or self.held or self.at_end:
            if not self.held:
                self._review(now, at_end=True)
            return Progress.DONE, 0
        lanes = Lanes(self.host)
        limit = min(sum(request.batch for request in self._queue), CHUNK) if len(self._queue) < CHUNK else CHUNK
        again, fresh = self.upcoming(limit)
        sent, stuck = self._again_to(again, lanes, now), False
        if len(again) == sent:
            before = sent
            sent += self._fresh_to(fresh, lanes, now)
            stuck = sent - before < len(fresh)
        lanes.flush()
        if sent:
            self.after_chunk(now)
        return self._standing(lanes, now, sent, stuck=stuck or len(again) > sent, found=bool(again or fresh)), sent

    def _standing(self, lanes: Lanes, now: int, sent: int, *, stuck: bool, found: bool) -> Progress:
        """How the job stands after a chunk."""
        if not self._queue:
            return Progress.DONE
        if stuck:
            return Progress.BLOCKED if lanes.congested and self._pace_timer is None else Progress.DONE
        if self.at_end:
            self._review(now, at_end=True)
            return Progress.DONE
        if not found and not self.full:
            self.exhausted()
            if self.at_end:
                self._review(now, at_end=True)
            return Progress.DONE
        return Progress.MORE if sent and (self.ledger.queue or not self.full) else Progress.DONE

    def _again_to(self, records: list[Record], lanes: Lanes, now: int) -> int:
        sent = 0
        for record in records:
            header, payload = self.shown(record)
            reply = self.ack_subject(record, self.ledger.times(record.seq) + 1, self.left)
            size = len(record.subject) + len(reply) + len(header) + len(payload)
            if not self._hand(size, lanes, now, (record.subject, reply, header, payload)):
                break
            self.ledger.deliver_again(record.seq, now)
            sent += 1
        return sent

    def _fresh_to(self, records: list[Record], lanes: Lanes, now: int) -> int:
        if not records or not self._queue:
            return 0
        if self._plain and self._is_one(lanes):
            return self._all_to_one(records, lanes, now)
        sent = 0
        prefix, bare = f"{self._ack_prefix}1.", self._bare
        gone: list[int] = []
        for record in records:
            if self._replay_to and self.too_early(record, now):
                break
            seq, time, subject, header, payload = record
            if bare:
                header, payload = self.shown(record)
            reply = f"{prefix}{seq}.{self.ledger.dseq + 1}.{time}.{self.left - 1}"
            size = len(subject) + len(reply) + len(header) + len(payload)
            if not self._hand(size, lanes, now, (subject, reply, header, payload)):
                break
            self.book(record, now)
            sent += 1
            if self._replay_to:
                self.replayed(record, now)
            if not self.acks:
                gone.append(seq)
        if gone:
            self.group.settled(gone)
        return sent

    def _all_to_one(self, records: list[Record], lanes: Lanes, now: int) -> int:
        """The requests of one client are filled one after the other. Hot: what a message costs here, it costs for every
        one of them."""
        sent, total = 0, len(records)
        while sent < total and (request := self._choose(0, lanes, now)) is not None:
            lane = lanes.to(request.reply)
            part = records[sent : sent + min(request.batch, lane.room)]
            lane.put_all(part, f"{self._ack_prefix}1.", self.ledger.dseq, self.left)
            self.book_all(part, now)
            sent += len(part)
            request.batch -= len(part)
            if request.batch <= 0:
                self._queue.pop()
            elif request.heartbeat:
                request.beat = now + request.heartbeat
        return sent

    def _is_one(self, lanes: Lanes) -> bool:
        """Whether all requests are of one client, and none counts bytes: nobody is there to share with."""
        session = lanes.to(self._queue.front().reply).session
        if session is None:
            return False
        return all(not request.max_bytes and lanes.to(request.reply).session is session for request in self._queue)

    def _hand(self, size: int, lanes: Lanes, now: int, message: tuple[str, str, bytes, bytes]) -> bool:
        """Give a message to the request whose turn it is; False if nobody can have it now."""
        while (request := self._choose(size, lanes, now)) is not None:
            subject, reply, header, payload = message
            if self._pin:
                pin = f"Nats-Pin-Id: {self._pin}\r\n\r\n".encode()
                header = (header[:-2] if header.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n") + pin
            lane = lanes.to(request.reply)
            if lane.put(subject, reply, header, payload):
                self._served(request, lane, size, now)
                return True
        return False

    def _served(self, request: Request, lane: Lane, size: int, now: int) -> None:
        """The request in front got a message."""
        request.batch -= 1
        if request.max_bytes:
            request.max_bytes -= size
            if not request.max_bytes:  # exactly used up
                request.batch = 0
        if request.batch <= 0:
            self._queue.pop()
            if request.max_bytes:
                lane.status(request.ended(409, "Batch Completed"))
        else:
            if request.heartbeat:
                request.beat = now + request.heartbeat
            if len(self._queue) > 1:
                self._queue.turn()

    def _choose(self, size: int, lanes: Lanes, now: int) -> Request | None:
        """Whose turn it is to get a message of that size; it is then in front."""
        queue = self._queue
        tries = len(queue)
        while tries > 0 and queue:
            request = queue.front()
            lane = lanes.to(request.reply)
            tries -= 1
            if not lane.room:
                queue.pop()
            elif request.expires and request.expires <= now:
                lane.status(request.ended(408, "Request Timeout"))
                queue.pop()
            elif lane.congested or not self._eligible(request, lane):
                if queue and queue.front() is request:
                    queue.cycle()
            elif request.max_bytes and size > request.max_bytes:
                lane.status(request.ended(409, "Message Size Exceeds MaxBytes"))
                queue.pop()
            else:
                return request
        return None

    # Priority groups.

    def _eligible(self, request: Request, lane: Lane) -> bool:
        """Whether a request may have a message now, by its priority group."""
        body = request.body
        if self._overflow and (body.min_pending > 0 or body.min_ack_pending > 0):
            return 0 < body.min_pending <= self.left or 0 < body.min_ack_pending <= len(self.ledger.pending)
        if not self._pins:
            return True
        if not self._pin and not body.id:
            if body.group:  # a request without one is served, and pins nobody
                self._take_pin(request)
            return True
        if body.id == self._pin:
            return True
        if body.id:  # of a client that the consumer was pinned to before
            lane.status(request.ended(423, "Nats-Wrong-Pin-Id"))
            self._queue.pop()
        return False

    def _take_pin(self, request: Request) -> None:
        now = self.host.now
        self._pin, self._pinned_at = self.host.token(22), now
        request.body.id = self._pin
        self._arm_pin(now)
        self.advisories.pinned(request.body.group, self._pin)

    def _arm_pin(self, now: int) -> None:
        if self._pin_timer is not None:
            self._pin_timer.cancel()
        self._pin_timer = self.host.timers.at(
            now + nanos(self.config.priority_timeout), lambda _: self.unpin("timeout")
        )

    def unpin(self, reason: str, group: str = "") -> None:
        """The consumer is nobody's any more: the next request takes it."""
        if self._pin_timer is not None:
            self._pin_timer.cancel()
            self._pin_timer = None
        if reason == "admin" or self._pin:
            self._pin, self._pinned_at = "", 0
            self.advisories.unpinned(group or self.config.priority_groups[0], reason)
        self.wake()

    def pins(self) -> list[dict[str, Any]]:
        if not self.config.priority_groups:
            return []
        state: dict[str, Any] = {"group": self.config.priority_groups[0]}
        if self._pin:
            state["pinned_client_id"] = self._pin
        return [state | {"pinned_ts": format_time(self._pinned_at or ZERO)}]

    # Life.

    def used_until(self, now: int) -> int:
        self._review(now, at_end=True)
        if self._queue:
            return now
        # Whoever has messages may be at work on them until their ack wait is over, as on nats-server.
        return max([self.last_active, *self.ack_deadlines()])

    def stop(self, *, deleted: bool) -> None:
        super().stop(deleted=deleted)
        for timer in (self._timer, self._pin_timer):
            if timer is not None:
                timer.cancel()
        if deleted:
            for request in self._queue:
                self.host.send(request.reply, CONSUMER_DELETED, b"")
        self._queue.replace([])

    def retire(self) -> None:
        super().retire()
        for request in self._queue:
            self.host.send(request.reply, request.ended(409, "Server Shutdown"), b"")
        self._queue.replace([])

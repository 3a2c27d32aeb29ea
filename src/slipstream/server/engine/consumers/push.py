"""A push consumer: messages go to whoever listens on its deliver subject, as long as somebody does.

With flow control it asks, behind so many bytes, whether they have been dealt with, and stops at the window until it
hears: the window begins at 2 MiB and doubles with each answer up to 32 MiB, as on nats-server. With a deliver group
each message goes to one of its members. Idle heartbeats say how far it is when there is nothing to deliver.
"""

from __future__ import annotations

from slipstream.api import ConsumerConfig
from slipstream.api.names import CONSUMER_STALLED, LAST_CONSUMER, LAST_STREAM
from slipstream.server.engine.consumers.ack_router import FLOW_PREFIX
from slipstream.server.engine.consumers.consumer import CHUNK, Consumer, nanos
from slipstream.server.engine.consumers.outbound import Lane, Lanes
from slipstream.server.engine.consumers.requests import PUSH_BASED
from slipstream.server.engine.core.session import ClientSub
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Progress
from slipstream.server.engine.timers import Timer
from slipstream.wire.headers import status_block

WINDOW = 32 * 1024 * 1024
FIRST_WINDOW = WINDOW // 16
FLOW_REQUEST = status_block(100, "FlowControl Request")


class PushConsumer(Consumer):
    """Delivers to its deliver subject."""

    active = False  # somebody listens
    _beat: Timer | None = None
    _window = FIRST_WINDOW
    _unseen = 0  # bytes that nobody has confirmed
    _asked = ""  # the flow control request that is not answered yet
    _asked_for = 0  # the bytes it is about
    _allowance = 0.0  # bytes, by the rate limit
    _allowed_at = 0
    _attending = ""

    def configure(self, config: ConsumerConfig) -> None:
        super().configure(config)
        self._heartbeat = nanos(config.idle_heartbeat)
        # Nothing that would have to be looked at message by message.
        self._plain = not (config.rate_limit_bps or config.headers_only) and config.replay_policy == "instant"
        self._rate = config.rate_limit_bps / 8  # bytes per second
        limit = self.group.stream.config.max_msg_size
        self._burst = limit if limit > 0 else self.host.max_payload
        if self._attending and self._attending != config.deliver_subject:
            self.host.attend(self._attending, self, False)
            self._attend()
            for seq in sorted(self.ledger.pending):  # whoever listens there has not seen them
                self.ledger.queue.setdefault(seq)
            self.interest_changed(self.host.now)

    def begin(self) -> None:
        if self.stopped or self.live:
            return
        self._attend()
        self.active = bool(self.host.members(self.config.deliver_subject, self.config.deliver_group))
        self._allowance, self._allowed_at = float(self._burst), self.host.now
        super().begin()
        self._arm_beat(self.host.now)

    def _attend(self) -> None:
        self._attending = self.config.deliver_subject
        self.host.attend(self._attending, self, True)

    @property
    def bound(self) -> bool:
        return self.active

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """A pull at the wrong address."""
        if reply:
            self.host.send(reply, PUSH_BASED, b"")
        return True

    def next_request(self, reply: str, payload: bytes, now: int) -> None:  # noqa: ARG002
        if reply:
            self.host.send(reply, PUSH_BASED, b"")

    def interest_changed(self, now: int) -> None:
        was = self.active
        self.active = bool(self.host.members(self.config.deliver_subject, self.config.deliver_group))
        if self.active and not was:
            self.wake()
        elif was and not self.active:
            self.last_active = now
            self.arm_idle(now)

    def _check_idle(self, now: int) -> None:
        if self.active:  # `interest_changed` begins again
            self._idle_timer = None
        else:
            super()._check_idle(now)

    def used_until(self, now: int) -> int:
        return now if self.active else self.last_active

    # Flow control and heartbeats.

    def flow(self, subject: str, now: int) -> None:  # noqa: ARG002
        if not self._asked or subject != self._asked:
            return
        self._window = min(self._window * 2, WINDOW)
        self._unseen = max(0, self._unseen - self._asked_for)
        self._asked, self._asked_for = "", 0
        self.wake()

    def _count(self, size: int, lane: Lane) -> bool:
        """Count bytes that go out; whether the window is still open."""
        self._unseen += size
        if not self._asked and self._unseen > self._window // 2:
            self._asked = f"{FLOW_PREFIX}{self.group.stream.name}.{self.name}.{self.host.token(4)}"
            self._asked_for = self._unseen
            lane.status(FLOW_REQUEST, self._asked)
        elif self._asked and self._unseen - self._asked_for >= self._window:
            self._asked_for += size
        return self._unseen <= self._window

    def _arm_beat(self, now: int) -> None:
        if not self._heartbeat or self.stopped:
            return
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self.host.timers.at(now + self._heartbeat, self._ring)

    def _ring(self, now: int) -> None:
        if self.active:
            values = [(LAST_CONSUMER, str(self.ledger.dseq)), (LAST_STREAM, str(self.ledger.next_seq - 1))]
            if self._asked:
                values.append((CONSUMER_STALLED, self._asked))
            self.host.send(self.config.deliver_subject, status_block(100, "Idle Heartbeat", values), b"")
        self._arm_beat(now)

    # Delivering.

    def work(self, now: int) -> tuple[Progress, int]:
        if not self.active or self.paused or self.held or self.at_end or self._closed:
            return Progress.DONE, 0
        lanes = Lanes(self.host)
        ways = self._ways(lanes)
        free = [lane for lane in ways if not lane.congested]
        if not free:
            return (Progress.BLOCKED if ways else Progress.DONE), 0
        again, fresh = self.upcoming(CHUNK)
        sent = self._send(again, free, now, fresh=False)
        if sent == len(again):
            sent += self._send(fresh, free, now, fresh=True)
        lanes.flush()
        if sent:
            self.after_chunk(now)
            self._arm_beat(now)
        if not again and not fresh and not self.full:
            self.exhausted()
            return Progress.DONE, 0
        go_on = sent and not self.at_end and not self._closed and self._pace_timer is None
        return (Progress.MORE if go_on and (self.ledger.queue or not self.full) else Progress.DONE), sent

    @property
    def _closed(self) -> bool:
        """Whether the window of flow control is used up."""
        return self.config.flow_control and self._unseen > self._window

    def _ways(self, lanes: Lanes) -> list[Lane]:
        """The ways out: one, or one for each member of the deliver group if nobody else listens."""
        to, group = self.config.deliver_subject, self.config.deliver_group
        if group:
            members = self.host.members(to, group)
            plain = all(type(sub) is ClientSub and not sub.max_msgs and sub.session.headers for sub in members)
            if plain and len(members) == self.host.audience(to):
                return [lanes.open(to, sub) for sub in members]
        lane = lanes.to(to)
        return [lane] if lane.there else []

    def _send(self, records: list[Record], lanes: list[Lane], now: int, *, fresh: bool) -> int:
        """Hand messages over."""
        if fresh and self._plain and len(lanes) == 1 and records and lanes[0].session is not None:
            return self._send_all(records, lanes[0], now)
        ledger, lane = self.ledger, lanes[0]
        sent, flow = 0, self.config.flow_control
        prefix, several = f"{self._ack_prefix}1.", len(lanes) > 1
        gone: list[int] = []
        for record in records:
            if fresh and self._replay_to and self.too_early(record, now):
                break
            seq, time, subject, header, payload = record
            if self._bare:
                header, payload = self.shown(record)
            if fresh:
                reply = f"{prefix}{seq}.{ledger.dseq + 1}.{time}.{self.left - 1}"
            else:
                reply = self.ack_subject(record, ledger.times(seq) + 1, self.left)
            size = len(subject) + len(reply) + len(header) + len(payload)
            if self._rate and self._too_fast(size, now):
                break
            if several:
                lane = lanes[int(self.host.chance() * len(lanes))]
            if not lane.room or not lane.put(subject, reply, header, payload):
                break
            if fresh:
                self.book(record, now)
                ledger = self.ledger
            else:
                ledger.deliver_again(seq, now)
            sent += 1
            if self._replay_to:
                self.replayed(record, now)
            if not self.acks:
                gone.append(seq)
            if flow and not self._count(size, lane):
                break
        if gone:
            self.group.settled(gone)
        return sent

    def _send_all(self, records: list[Record], lane: Lane, now: int) -> int:
        """All to one, up to the window. Hot: what a message costs here, it costs for every one of them."""
        ledger, prefix = self.ledger, f"{self._ack_prefix}1."
        records = records[: lane.room]
        if self.config.flow_control and records:
            digits = len(f"{prefix}{records[-1].seq}.{ledger.dseq + len(records)}.{records[-1].time}.{self.left}")
            sent, total = 0, len(records)
            while sent < total:  # a window's half at a time: the request for an answer goes in between
                room = (self._window // 2 if not self._asked else self._window) - self._unseen
                size = end = 0
                for end in range(sent, total):
                    _, _, subject, header, payload = records[end]
                    size += len(subject) + digits + len(header) + len(payload)
                    if size > room:
                        break
                part = records[sent : end + 1]
                lane.put_all(part, prefix, ledger.dseq, self.left)
                self.book_all(part, now)
                ledger = self.ledger
                sent = end + 1
                if not self._count(size, lane):
                    break
            return sent
        if records:
            lane.put_all(records, prefix, ledger.dseq, self.left)
            self.book_all(records, now)
        return len(records)

    def _too_fast(self, size: int, now: int) -> bool:
        """Whether the rate limit forbids so many bytes for the moment."""
        self._allowance = min(self._burst, self._allowance + (now - self._allowed_at) * self._rate / 1e9)
        self._allowed_at = now
        size = min(size, self._burst)
        if self._allowance >= size:
            self._allowance -= size
            return False
        self._pace(now + max(1, int((size - self._allowance) / self._rate * 1e9) + 1))
        return True

    def stop(self, *, deleted: bool) -> None:
        super().stop(deleted=deleted)
        if self._attending:
            self.host.attend(self._attending, self, False)
        if self._beat is not None:
            self._beat.cancel()

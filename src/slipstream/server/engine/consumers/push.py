"""Push delivery: messages go to the subscribers of the deliver subject, as long as there is one.

With flow control the server asks, behind so many bytes, whether they have been processed, and stops at the window until
the client answers: the window begins at 2 MiB and doubles with each answer up to 32 MiB, as on nats-server. With a
deliver group each message goes to one of its members. Idle heartbeats report the consumer's position when there is
nothing to deliver.
"""

from __future__ import annotations

from typing import Any

from slipstream.api import ConsumerConfig
from slipstream.api.names import CONSUMER_STALLED, LAST_CONSUMER, LAST_STREAM
from slipstream.api.times import nanoseconds
from slipstream.server.engine.consumers.ack_handling import AckHandling
from slipstream.server.engine.consumers.ack_router import FLOW_PREFIX
from slipstream.server.engine.consumers.cursor import CHUNK, LOOK_UNITS, Cursor
from slipstream.server.engine.consumers.job import DeliveryJob
from slipstream.server.engine.consumers.outbound import Outbound, Recipient, headers_only
from slipstream.server.engine.consumers.parent import ParentStream
from slipstream.server.engine.consumers.requests import PUSH_BASED
from slipstream.server.engine.consumers.timing import IdleTimer
from slipstream.server.engine.core.session import ClientSub
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer
from slipstream.wire.headers import status_block

WINDOW = 32 * 1024 * 1024
FIRST_WINDOW = WINDOW // 16
FLOW_REQUEST = status_block(100, "FlowControl Request")


class PushDelivery:
    """Delivers the messages of one consumer to its deliver subject."""

    waiting = 0  # push consumers have no pull requests
    is_wanted = True  # whether it has a subscriber is found out by a delivery

    def __init__(
        self,
        services: Services,
        stream: ParentStream,
        name: str,
        cursor: Cursor,
        acks: AckHandling,
        job: DeliveryJob,
        idle: IdleTimer,
        config: ConsumerConfig,
    ) -> None:
        self.bound: bool = False  # whether the deliver subject has a subscriber
        self._services = services
        self._stream = stream
        self._cursor = cursor
        self._state = cursor.state
        self._acks = acks
        self._job = job
        self._idle = idle
        self._watched = ""  # the deliver subject whose subscribers are watched
        self._beat: Timer | None = None
        # Flow control.
        self._flow_prefix = f"{FLOW_PREFIX}{stream.name}.{name}."
        self._window = FIRST_WINDOW
        self._unseen = 0  # bytes that the client has not confirmed
        self._asked = ""  # the flow control request that is not answered yet
        self._asked_for = 0  # the bytes it is about
        # The rate limit.
        self._allowance = 0.0  # bytes
        self._allowed_at = 0
        self.configure(config)

    def configure(self, config: ConsumerConfig) -> None:
        """Take over a configuration."""
        self._config = config
        self._heartbeat = nanoseconds(config.idle_heartbeat)
        # Nothing that would have to be looked at message by message.
        self._plain = not (config.rate_limit_bps or config.headers_only) and config.replay_policy == "instant"
        self._headers_only = config.headers_only
        self._rate = config.rate_limit_bps / 8  # bytes per second
        limit = self._stream.config.max_msg_size
        self._burst = limit if limit > 0 else self._services.max_payload
        if self._watched and self._watched != config.deliver_subject:
            self._services.router.watch_interest(self._watched, self, False)
            self._watch()
            for seq in sorted(self._state.pending):  # the subscribers of the new subject have not seen them
                self._state.queue.setdefault(seq)
            self.interest_changed(self._services.router.now)

    def begin(self, now: int) -> None:
        """Watch the deliver subject, and send heartbeats."""
        self._watch()
        self.bound = self._has_subscriber()
        self._allowance, self._allowed_at = float(self._burst), now
        self._arm_heartbeat(now)

    def _watch(self) -> None:
        self._watched = self._config.deliver_subject
        self._services.router.watch_interest(self._watched, self, True)

    def _has_subscriber(self) -> bool:
        return bool(self._services.router.subscribers(self._config.deliver_subject, self._config.deliver_group))

    def interest_changed(self, now: int) -> None:
        """A subscription on the deliver subject came or went."""
        was = self.bound
        self.bound = self._has_subscriber()
        if self.bound and not was:
            self._job.wake()
        elif was and not self.bound:
            self._state.last_active = now
            self._idle.arm(now)

    def used_until(self, now: int) -> int | None:  # noqa: ARG002
        """When the consumer was in use last; None while it has a subscriber: `interest_changed` arms the timer."""
        return None if self.bound else self._state.last_active

    def stop(self) -> None:
        """The consumer is deleted."""
        if self._watched:
            self._services.router.watch_interest(self._watched, self, False)
        if self._beat is not None:
            self._beat.cancel()

    def retire(self) -> None:
        """The server shuts down: subscribers see that by their connections."""

    def pins(self) -> list[dict[str, Any]]:
        """The state of the priority groups: push consumers have none."""
        return []

    # Pull requests: this consumer takes none.

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Reject a pull."""
        self.next_request(reply, payload, now)
        return True

    def next_request(self, reply: str, payload: bytes, now: int) -> None:  # noqa: ARG002
        """Reject a pull."""
        if reply:
            self._services.router.send(reply, PUSH_BASED, b"")

    # Flow control and heartbeats.

    def flow(self, subject: str, now: int) -> None:  # noqa: ARG002
        """Take the answer to a flow control request."""
        if not self._asked or subject != self._asked:
            return
        self._window = min(self._window * 2, WINDOW)
        self._unseen = max(0, self._unseen - self._asked_for)
        self._asked, self._asked_for = "", 0
        self._job.wake()

    def _count(self, size: int, recipient: Recipient) -> bool:
        """Count bytes that go out; whether the window is still open."""
        self._unseen += size
        if not self._asked and self._unseen > self._window // 2:
            self._asked = f"{self._flow_prefix}{self._services.router.token(4)}"
            self._asked_for = self._unseen
            recipient.status(FLOW_REQUEST, self._asked)
        elif self._asked and self._unseen - self._asked_for >= self._window:
            self._asked_for += size
        return self._unseen <= self._window

    @property
    def _window_closed(self) -> bool:
        """Whether the window of flow control is used up."""
        return self._config.flow_control and self._unseen > self._window

    def _arm_heartbeat(self, now: int) -> None:
        if not self._heartbeat or self._job.stopped:
            return
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self._services.timers.at(now + self._heartbeat, self._send_heartbeat)

    def _send_heartbeat(self, now: int) -> None:
        if self.bound:
            values = [(LAST_CONSUMER, str(self._state.dseq)), (LAST_STREAM, str(self._state.next_seq - 1))]
            if self._asked:
                values.append((CONSUMER_STALLED, self._asked))
            self._services.router.send(self._config.deliver_subject, status_block(100, "Idle Heartbeat", values), b"")
        self._arm_heartbeat(now)

    # Delivering.

    def deliver(self, now: int) -> tuple[Progress, int]:
        """Deliver one chunk; how the job stands, and how many messages went out."""
        cursor = self._cursor
        if not self.bound or self._job.paused or cursor.held or cursor.at_end or self._window_closed:
            return Progress.DONE, 0
        outbound = Outbound(self._services)
        recipients = self._recipients(outbound)
        free = [recipient for recipient in recipients if not recipient.congested]
        if not free:
            return (Progress.BLOCKED if recipients else Progress.DONE), 0
        again, fresh = cursor.upcoming(CHUNK)
        sent = self._send(again, free, now, fresh=False)
        if sent == len(again):
            sent += self._send(fresh, free, now, fresh=True)
        outbound.flush()
        if sent:
            self._acks.delivered(now)
            self._arm_heartbeat(now)
        full = self._acks.full
        if not again and not fresh and not full:
            if cursor.is_looking:
                return Progress.MORE, LOOK_UNITS
            cursor.found_nothing()
            return Progress.DONE, 0
        more = sent and not cursor.at_end and not self._window_closed and not self._job.waits
        return (Progress.MORE if more and (self._state.queue or not full) else Progress.DONE), sent

    def _recipients(self, outbound: Outbound) -> list[Recipient]:
        """All subscribers as one, or each member of the deliver group if there are no others."""
        to, group = self._config.deliver_subject, self._config.deliver_group
        if group:
            members = self._services.router.subscribers(to, group)
            plain = all(type(sub) is ClientSub and not sub.max_msgs and sub.session.headers for sub in members)
            if plain and len(members) == self._services.router.count_subscribers(to):
                return [outbound.open(to, sub) for sub in members]
        recipient = outbound.to(to)
        return [recipient] if recipient.reachable else []

    def _send(self, records: list[Record], recipients: list[Recipient], now: int, *, fresh: bool) -> int:
        """Send messages, new ones or redelivered ones, until something holds them back."""
        if fresh and self._plain and len(recipients) == 1 and records and recipients[0].session is not None:
            return self._send_all(records, recipients[0], now)
        state, cursor, recipient = self._state, self._cursor, recipients[0]
        sent, flow, replays = 0, self._config.flow_control, self._job.replays
        prefix, several = self._acks.prefix, len(recipients) > 1
        unacked: list[int] = []
        for record in records:
            if fresh and replays and self._job.too_early(record, now):
                break
            seq, time, subject, header, payload = record
            if self._headers_only:
                header, payload = headers_only(record)
            times, left = (1, cursor.left - 1) if fresh else (state.times(seq) + 1, cursor.left)
            reply = f"{prefix}{times}.{seq}.{state.dseq + 1}.{time}.{left}"
            size = len(subject) + len(reply) + len(header) + len(payload)
            if self._rate and self._too_fast(size, now):
                break
            if several:
                recipient = recipients[int(self._services.router.chance() * len(recipients))]
            if not recipient.capacity or not recipient.put(subject, reply, header, payload):
                break
            if fresh:
                cursor.delivered(record, now)
            else:
                state.deliver_again(seq, now)
            sent += 1
            if replays:
                self._job.replayed(record, now)
            if not self._acks.required:
                unacked.append(seq)
            if flow and not self._count(size, recipient):
                break
        cursor.settle_unacked(unacked)
        return sent

    def _send_all(self, records: list[Record], recipient: Recipient, now: int) -> int:
        """Send new messages to one client, up to the window. Hot: all work but the frames is done once a chunk."""
        state, cursor, prefix = self._state, self._cursor, f"{self._acks.prefix}1."
        records = records[: recipient.capacity]
        if self._config.flow_control and records:
            # Sizes count the ack subject as if all had as many digits as the last one.
            digits = len(f"{prefix}{records[-1].seq}.{state.dseq + len(records)}.{records[-1].time}.{cursor.left}")
            sent, total = 0, len(records)
            while sent < total:  # half a window at a time: the flow control request goes in between
                free = (self._window // 2 if not self._asked else self._window) - self._unseen
                size = end = 0
                for end in range(sent, total):
                    _, _, subject, header, payload = records[end]
                    size += len(subject) + digits + len(header) + len(payload)
                    if size > free:
                        break
                part = records[sent : end + 1]
                recipient.put_all(part, prefix, state.dseq, cursor.left)
                cursor.delivered_all(part, now)
                sent = end + 1
                if not self._count(size, recipient):
                    break
            return sent
        if records:
            recipient.put_all(records, prefix, state.dseq, cursor.left)
            cursor.delivered_all(records, now)
        return len(records)

    def _too_fast(self, size: int, now: int) -> bool:
        """Whether the rate limit forbids so many bytes for the moment; the job then waits."""
        self._allowance = min(self._burst, self._allowance + (now - self._allowed_at) * self._rate / 1e9)
        self._allowed_at = now
        size = min(size, self._burst)
        if self._allowance >= size:
            self._allowance -= size
            return False
        self._job.wait_until(now + max(1, int((size - self._allowance) / self._rate * 1e9) + 1))
        return True

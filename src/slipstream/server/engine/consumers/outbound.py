"""Outbound queues: the messages and statuses of one chunk, encoded together and pushed once to each connection.

Where one client is the only subscriber (nearly always), its frames are written out here. All that one connection gets
in a chunk is one queue, so it stays in order whichever of the connection's subscriptions it is for. Otherwise each
message takes the way through the router.
"""

from __future__ import annotations

from slipstream.server.engine.core.session import ClientSub, Session
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Services
from slipstream.wire import hmsg

NO_LIMIT = 1 << 62


class OutboundQueue:
    """What one connection gets in one chunk."""

    __slots__ = ("counts", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.counts: dict[ClientSub, int] = {}


class Outbound:
    """The recipients of one chunk, by the subject that they listen on."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._recipients: dict[str, Recipient] = {}
        self._queues: dict[Session, OutboundQueue] = {}
        self.congested: bool = False  # one of them does not keep up

    def to(self, subject: str) -> Recipient:
        """The subscribers of a subject."""
        recipient = self._recipients.get(subject)
        if recipient is None:
            sub = self._services.router.sole_client(subject, limited=True)
            recipient = self._recipients[subject] = self.open(subject, sub)
        return recipient

    def open(self, subject: str, sub: ClientSub | None) -> Recipient:
        """One subscription on a subject, or (None) all of them."""
        queue = None
        if sub is not None:
            queue = self._queues.get(sub.session)
            if queue is None:
                queue = self._queues[sub.session] = OutboundQueue()
        recipient = Recipient(self._services, subject, sub, queue)
        self.congested = self.congested or recipient.congested
        return recipient

    def flush(self) -> None:
        """Push the queues to their connections."""
        for session, queue in self._queues.items():
            if queue.frames:
                for sub, count in queue.counts.items():
                    sub.delivered += count
                data = b"".join(queue.frames)
                self._services.router.push(session, data, len(data))
                for sub in queue.counts:
                    if 0 < sub.max_msgs <= sub.delivered:
                        self._services.router.remove(sub)


class Recipient:
    """The subscribers of `to`, for one chunk."""

    __slots__ = ("_lead", "_queue", "_services", "_sub", "congested", "reachable", "to")

    def __init__(self, services: Services, to: str, sub: ClientSub | None, queue: OutboundQueue | None) -> None:
        self.to: str = to
        self._services = services
        self._sub, self._queue = sub, queue
        self._lead = ""
        self.reachable: bool
        self.congested: bool
        if sub is not None:
            self.reachable, self.congested = True, sub.session.congested
            self._lead = f" {sub.sid.decode()} "
        else:
            self.reachable, self.congested = services.router.interest(to)

    @property
    def session(self) -> Session | None:
        """The connection, if it is a single one."""
        return self._sub.session if self._sub is not None else None

    @property
    def capacity(self) -> int:
        """How many more messages it takes: a subscription may end after so many."""
        if not self.reachable:
            return 0
        sub, queue = self._sub, self._queue
        if sub is None or queue is None or not sub.max_msgs:
            return NO_LIMIT
        return max(0, sub.max_msgs - sub.delivered - queue.counts.get(sub, 0))

    def put(self, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """One message; whether there was a subscriber to get it."""
        queue, sub = self._queue, self._sub
        if queue is None or sub is None:
            self.reachable = self._services.router.forward(self.to, subject, reply, header, payload)
            return self.reachable
        queue.counts[sub] = queue.counts.get(sub, 0) + 1
        add = queue.frames.append
        if header:
            size = len(header)
            add(f"HMSG {subject}{self._lead}{reply} {size} {size + len(payload)}\r\n".encode())
            add(header)
        else:
            add(f"MSG {subject}{self._lead}{reply} {len(payload)}\r\n".encode())
        add(payload)
        add(b"\r\n")
        return True

    def put_all(self, records: list[Record], prefix: str, dseq: int, left: int) -> None:
        """New messages in a row, to one client that takes so many: `dseq` is the consumer sequence before the first,
        `left` what was left then. Hot: well under a microsecond a message."""
        queue, sub, lead = self._queue, self._sub, self._lead
        assert queue is not None
        assert sub is not None
        queue.counts[sub] = queue.counts.get(sub, 0) + len(records)
        add = queue.frames.append
        for seq, time, subject, header, payload in records:
            dseq += 1
            left -= 1
            if header:
                size = len(header)
                add(f"HMSG {subject}{lead}{prefix}{seq}.{dseq}.{time}.{left} {size} {size + len(payload)}\r\n".encode())
                add(header)
            else:
                add(f"MSG {subject}{lead}{prefix}{seq}.{dseq}.{time}.{left} {len(payload)}\r\n".encode())
            add(payload)
            add(b"\r\n")

    def status(self, block: bytes, reply: str = "") -> None:
        """A status, behind the messages so far."""
        queue, sub = self._queue, self._sub
        if queue is None or sub is None:
            self._services.router.forward(self.to, self.to, reply, block, b"")
            return
        queue.counts[sub] = queue.counts.get(sub, 0) + 1
        queue.frames.append(hmsg(self.to.encode(), sub.sid, block, b"", reply.encode()))


def add_header(block: bytes, line: str) -> bytes:
    """A header block with one more line."""
    head = block[:-2] if block.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n"
    return head + f"{line}\r\n\r\n".encode()


def headers_only(record: Record) -> tuple[bytes, bytes]:
    """Header and payload of a message for a consumer that wants no payloads."""
    return add_header(record.header, f"Nats-Msg-Size: {len(record.payload)}"), b""

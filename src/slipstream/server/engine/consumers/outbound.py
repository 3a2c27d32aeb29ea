"""Messages and statuses on their way to clients become frames: encoded together, pushed once to each connection.

Where one client is the only subscriber (nearly always), its frames are written out here; all that one connection gets
in a chunk stays in order, whichever of its subscriptions it is for. Otherwise each message takes the way through the
router.
"""

from __future__ import annotations

from slipstream.server.engine.core.session import ClientSub, Session
from slipstream.server.engine.ports import Record
from slipstream.server.engine.services import Host
from slipstream.wire import hmsg

NO_END = 1 << 62


class Parcel:
    """What one connection gets in one chunk."""

    __slots__ = ("counts", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.counts: dict[ClientSub, int] = {}


class Lanes:
    """The ways out of one chunk, by the subject that somebody listens on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lanes: dict[str, Lane] = {}
        self._parcels: dict[Session, Parcel] = {}
        self.congested = False  # somebody does not keep up

    def to(self, subject: str) -> Lane:
        """The way to whoever listens on a subject."""
        lane = self._lanes.get(subject)
        if lane is None:
            lane = self._lanes[subject] = self.open(subject, self._host.sole_client(subject, limited=True))
        return lane

    def open(self, subject: str, sub: ClientSub | None) -> Lane:
        """A way to one subscription on a subject, or (None) to all of them."""
        parcel = None
        if sub is not None:
            parcel = self._parcels.get(sub.session)
            if parcel is None:
                parcel = self._parcels[sub.session] = Parcel()
        lane = Lane(self._host, subject, sub, parcel)
        self.congested = self.congested or lane.congested
        return lane

    def flush(self) -> None:
        """Send what has gathered."""
        for parcel in self._parcels.values():
            if parcel.frames:
                (first, count), *others = parcel.counts.items()
                self._host.push(first, b"".join(parcel.frames), count)
                for sub, more in others:
                    sub.delivered += more
                for sub in parcel.counts:
                    if 0 < sub.max_msgs <= sub.delivered:
                        self._host.end(sub)


class Lane:
    """The way to whoever listens on `to`, for one chunk."""

    __slots__ = ("_host", "_lead", "_parcel", "_sub", "congested", "there", "to")

    def __init__(self, host: Host, to: str, sub: ClientSub | None, parcel: Parcel | None) -> None:
        self.to = to
        self._host = host
        self._sub, self._parcel = sub, parcel
        self._lead = ""
        if sub is not None:
            self.there, self.congested = True, sub.session.congested
            self._lead = f" {sub.sid.decode()} "
        else:
            self.there, self.congested = host.listeners(to)

    @property
    def session(self) -> Session | None:
        """The one connection that it leads to, if it is one."""
        return self._sub.session if self._sub is not None else None

    @property
    def room(self) -> int:
        """How many more messages it takes: a subscription may end after so many."""
        if not self.there:
            return 0
        sub, parcel = self._sub, self._parcel
        if sub is None or parcel is None or not sub.max_msgs:
            return NO_END
        return max(0, sub.max_msgs - sub.delivered - parcel.counts.get(sub, 0))

    def put(self, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """One message; whether anybody was there to get it."""
        parcel, sub = self._parcel, self._sub
        if parcel is None or sub is None:
            self.there = self._host.pass_on(self.to, subject, reply, header, payload)
            return self.there
        parcel.counts[sub] = parcel.counts.get(sub, 0) + 1
        add = parcel.frames.append
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
        parcel, sub, lead = self._parcel, self._sub, self._lead
        assert parcel is not None
        assert sub is not None
        parcel.counts[sub] = parcel.counts.get(sub, 0) + len(records)
        add = parcel.frames.append
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
        """A status for whoever listens, behind the messages so far."""
        parcel, sub = self._parcel, self._sub
        if parcel is None or sub is None:
            self._host.pass_on(self.to, self.to, reply, block, b"")
            return
        parcel.counts[sub] = parcel.counts.get(sub, 0) + 1
        parcel.frames.append(hmsg(self.to.encode(), sub.sid, block, b"", reply.encode()))

"""Messages and statuses on their way to one subject become frames: encoded together, pushed once.

Where one client is the only subscriber (nearly always), its frames are written out here. Otherwise each message takes
the way through the router.
"""

from __future__ import annotations

from slipstream.server.engine.host import Host
from slipstream.server.engine.session import ClientSub
from slipstream.wire import hmsg


class Lane:
    """The way to whoever listens on `to`, for one chunk."""

    __slots__ = ("_count", "_frames", "_host", "_lead", "_sub", "congested", "there", "to")

    def __init__(self, host: Host, to: str, sub: ClientSub | None = None) -> None:
        """With `sub`, the frames are for that subscription alone, whoever else listens."""
        self.to = to
        self._host = host
        self._sub = sub = sub if sub is not None else host.sole_client(to)
        self._frames: list[bytes] = []
        self._count = 0
        self._lead = ""
        if sub is not None:
            self.there, self.congested = True, sub.session.congested
            self._lead = f" {sub.sid.decode()} "
        else:
            self.there, self.congested = host.listeners(to)

    def put(self, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        """One message. Hot: well under a microsecond."""
        if self._sub is None:
            self._host.pass_on(self.to, subject, reply, header, payload)
            return
        self._count += 1
        add = self._frames.append
        if header:
            size = len(header)
            add(f"HMSG {subject}{self._lead}{reply} {size} {size + len(payload)}\r\n".encode())
            add(header)
        else:
            add(f"MSG {subject}{self._lead}{reply} {len(payload)}\r\n".encode())
        add(payload)
        add(b"\r\n")

    def status(self, block: bytes, reply: str = "") -> None:
        """A status for whoever listens, behind the messages so far."""
        if self._sub is None:
            self._host.pass_on(self.to, self.to, reply, block, b"")
            return
        self._count += 1
        self._frames.append(hmsg(self.to.encode(), self._sub.sid, block, b"", reply.encode()))

    def flush(self) -> None:
        """Send what has gathered."""
        if self._frames and self._sub is not None:
            self._host.push(self._sub, b"".join(self._frames), self._count)
            self._frames, self._count = [], 0

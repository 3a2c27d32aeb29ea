"""Messages of the user become frames: for the connection there is, or kept for the next one.

Invariants: nothing is sent that the server would cut us off for (bad subjects, too large a payload); what is kept is
bounded. A hot path, so frames are built in one go: a publish is 0.4 µs, a request 0.65 µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.client.options import Address, Options
from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error, RemoteProtocolError, UsageError
from slipstream.wire import Inbox, ServerInfo, check_subject, pub

LONGEST_NAMES = 4096 - 40  # bytes of all names in a line: with verb and sizes the server cuts us off at 4,096
BIG_PAYLOAD = 16 * 1024  # from here on a copy costs more than two more entries in the list
KNOWN_SUBJECTS = 4096

Draft = tuple[str, bytes, bytes]
"""A message to be sent with others: subject, payload and a whole header block, or an empty one."""


def check_names(what: str, *names: str, room: int = 0) -> None:
    """Refuse names that make a line too long."""
    size = sum(len(name.encode()) for name in names)
    if size + room > LONGEST_NAMES:
        raise UsageError(f"{what} of {size} bytes, at most {LONGEST_NAMES - room} are allowed")


class Kept(NamedTuple):
    """A frame for the next connection, how many bytes of it the server's limit is for, and of which request it is."""

    frame: bytes
    size: int
    token: str = ""


class Outgoing:
    """The half of a session that writes."""

    def __init__(self, options: Options, inbox: Inbox) -> None:
        self.options = options
        self.info = ServerInfo()
        self.max_payload = self.info.max_payload
        self.server: Address = options.servers[0]
        self.error: Error | None = None  # why it is closed
        self.out: list[bytes] = []
        self.out_size = 0
        self._is_open = False  # there is a connection in use
        self._prefixes: dict[str, bytes] = {}  # subjects checked lately -> the beginning of their PUB
        self._kept: list[Kept] = []
        self._kept_size = 0
        self._inbox = inbox
        self._inbox_base = inbox.base.encode()
        self._asked = 0  # requests so far: the last token of the inbox
        self._out_msgs = self._out_bytes = 0

    def publish(self, subject: str, payload: bytes, reply: str = "", header: bytes = b"") -> None:
        """Append a message to what is to be sent."""
        prefix = self._prefixes.get(subject) or self._check(subject)
        if payload.__class__ is not bytes:
            payload = _as_bytes(payload)
        size = len(payload)
        if size + len(header) > self.max_payload:
            raise too_large(size + len(header), self.max_payload)
        if size > BIG_PAYLOAD:
            self._publish_big(subject, payload, reply, header)
            return
        if reply or header:
            frame = self._headed(subject, payload, reply, header)
        else:
            frame = b"%b%d\r\n%b\r\n" % (prefix, size, payload)
        if not self._is_open:
            self._keep(frame, size + len(header))
            return
        self._out_msgs += 1
        self.out.append(frame)
        self.out_size += len(frame)

    def _ask(self, subject: str, payload: bytes, header: bytes) -> str:
        """As `publish`, with a fresh reply subject below the inbox; returns its last token."""
        prefix = self._prefixes.get(subject) or self._check(subject)
        count = self._asked + 1
        if (
            payload.__class__ is not bytes
            or (size := len(payload)) > BIG_PAYLOAD
            or size + len(header) > self.max_payload
            or not self._is_open
            or (header and not self.info.headers)
        ):
            self.publish(subject, payload, f"{self._inbox.base}{count}", header)
            if not self._is_open:
                self._kept[-1] = self._kept[-1]._replace(token=str(count))
        else:
            if header:
                head = len(header)
                frame = b"H%b%b%d %d %d\r\n%b%b\r\n" % (
                    prefix, self._inbox_base, count, head, head + size, header, payload,
                )  # fmt: skip
            else:
                frame = b"%b%b%d %d\r\n%b\r\n" % (prefix, self._inbox_base, count, size, payload)
            self._out_msgs += 1
            self.out.append(frame)
            self.out_size += len(frame)
        self._asked = count
        return str(count)

    def _ask_many(self, messages: Sequence[Draft]) -> int:
        """As `_ask` for each, in one go and for this connection only; returns the first token, the others follow it."""
        first, base = self._asked + 1, self._inbox_base
        self.publish_many(messages, [b"%b%d" % (base, number) for number in range(first, first + len(messages))])
        self._asked += len(messages)
        return first

    def publish_many(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Send a block of messages, each with its reply subject, which nobody checks, over this connection or never."""
        if not self._is_open:
            self.check()
            raise ConnectionLostError("not connected: a block of messages is not kept for the next connection")
        if not self.info.headers and any(header for _, _, header in messages):
            raise UsageError(f"{self.server} does not support headers")
        limit, known = self.max_payload, self._prefixes
        frames: list[bytes] = []
        for (subject, payload, header), reply in zip(messages, replies, strict=True):
            prefix = known.get(subject) or self._check(subject)
            head = len(header)
            total = head + len(payload)
            if total > limit:
                raise too_large(total, limit)
            if head:
                frames.append(b"H%b%b %d %d\r\n%b%b\r\n" % (prefix, reply, head, total, header, payload))
            else:
                frames.append(b"%b%b %d\r\n%b\r\n" % (prefix, reply, total, payload))
        self._out_msgs += len(frames)
        self._send(b"".join(frames))

    def answer(self, subject: str, payload: bytes) -> None:
        """As `publish` for a small payload to a reply subject, each of which is used once: nothing is remembered."""
        if not subject.isprintable() or " " in subject:  # what could break out of its line; a peer made it
            raise RemoteProtocolError(f"bad reply subject {subject[:64]!r}: one without control characters is expected")
        frame = b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
        if not self._is_open:
            self._keep(frame, len(payload))
            return
        self._out_msgs += 1
        self.out.append(frame)
        self.out_size += len(frame)

    def _publish_big(self, subject: str, payload: bytes, reply: str, header: bytes) -> None:
        """As `publish`; the payload is not copied into the frame."""
        total = len(header) + len(payload)
        head = self._headed(subject, b"", reply, header) if reply or header else pub(subject, b"")
        line = head[: -len(header) - 4].rpartition(b" ")[0]
        digits = b"%d" % total
        frame = [line, b" ", digits, b"\r\n", header, payload, b"\r\n"]
        if not self._is_open:
            self._keep(b"".join(frame), total)
            return
        self._out_msgs += 1
        self.out += frame
        self.out_size += len(line) + len(digits) + total + 5

    def _headed(self, subject: str, payload: bytes, reply: str, header: bytes) -> bytes:
        if reply and not reply.startswith(self._inbox.base):
            check_subject(reply)
        if reply and len(subject) + len(reply) > LONGEST_NAMES // 4:  # characters have up to four bytes
            check_names("a subject and a reply subject", subject, reply)
        if header and not self.info.headers:
            raise UsageError(f"{self.server} does not support headers")
        return pub(subject, payload, reply, header)

    def _check(self, subject: str) -> bytes:
        """A subject not seen lately: once checked, publishing to it again costs a look-up."""
        prefix = b"PUB %b " % check_subject(subject).encode()
        check_names("a subject", subject, room=len(self._inbox_base) + 10)  # for requests
        if len(self._prefixes) >= KNOWN_SUBJECTS:
            self._prefixes.clear()
        self._prefixes[subject] = prefix
        return prefix

    def _keep(self, frame: bytes, size: int) -> None:
        """There is no connection at the moment: the frame goes to the next one, if there is room."""
        self.check()
        limit = self.options.reconnect_buffer_bytes
        if self._kept_size + len(frame) > limit:
            raise ConnectionLostError(
                f"not connected, and {self._kept_size} bytes wait for the next connection already, {limit} are allowed"
            )
        self._out_msgs += 1
        self._kept.append(Kept(frame, size))
        self._kept_size += len(frame)

    def _send_kept(self) -> int:
        """Hand what was kept to the connection; returns how many messages are too large for this server."""
        fitting = [kept.frame for kept in self._kept if kept.size <= self.max_payload]
        refused = len(self._kept) - len(fitting)
        self.out += fitting
        self.out_size += sum(map(len, fitting))
        self._drop_kept()
        self._out_msgs -= refused
        return refused

    def _drop_request(self, token: str) -> None:
        """Nobody waits for it any more: sent later, it would do what its caller was told it had not done."""
        for kept in self._kept:
            if kept.token == token:
                self._kept.remove(kept)
                self._kept_size -= len(kept.frame)
                self._out_msgs -= 1
                return

    def _drop_kept(self) -> None:
        self._kept, self._kept_size = [], 0

    def _drop_out(self) -> None:
        self.out, self.out_size = [], 0

    def _send(self, frame: bytes) -> None:
        self.out.append(frame)
        self.out_size += len(frame)

    def take(self) -> bytes:
        """Everything to be sent now."""
        data = b"".join(self.out)
        self.out.clear()
        self.out_size = 0
        self._out_bytes += len(data)
        return data

    def check(self) -> None:
        """Raise the reason if the client is closed."""
        if self.error is not None:
            raise self.closed_error()

    def closed_error(self) -> ConnectionClosedError:
        """For a call on a closed client."""
        if isinstance(self.error, ConnectionClosedError):
            return ConnectionClosedError(*self.error.args)
        error = ConnectionClosedError(f"the client is closed: {self.error}")
        error.__cause__ = self.error
        return error


def too_large(size: int, limit: int) -> UsageError:
    """The error for a message that the server would cut us off for."""
    return UsageError(f"a message of {size} bytes (headers and payload), the server allows {limit}")


def _as_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload of type {type(payload).__name__}: bytes are allowed")

"""Outgoing frames: those for the current connection, and those kept for the next one.

Invariants: nothing is sent for which the server would close the connection (bad subjects, too large a payload); what
is kept is bounded. This is a hot path: a message is a few pieces, most of them known, which are joined once for all
that is sent in a turn. `wire.encode` has the same formats for everything that is sent less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from slipstream.client.address import Address
from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error, RemoteProtocolError, UsageError
from slipstream.wire import Inbox, ServerInfo, check_subject
from slipstream.wire.subjects import invalid_subject

LONGEST_NAMES = 4096 - 40  # bytes of all names in a line; with verb and sizes nats-server's limit is 4,096
BIG_PAYLOAD: Final = 16 * 1024  # the most that `try_publish` takes
KNOWN_SUBJECTS = 4096

_KNOWN_SIZES: Final = 4096
_LINES: Final[list[bytes]] = [b""] * _KNOWN_SIZES  # sizes of payloads as they end a line, once they were used
_ENDS: Final[list[bytes]] = [b"%03d " % number for number in range(1000)]  # the last three digits of a token

Draft = tuple[str, bytes, bytes]
"""A message to be sent with others: subject, payload, and a whole header block or an empty one."""


def check_names(what: str, *names: str, reserved: int = 0) -> None:
    """Reject names that make a protocol line too long; `reserved` bytes are for what is added to them."""
    size = sum([len(name.encode()) for name in names])
    if size + reserved > LONGEST_NAMES:
        raise UsageError(f"{what} must be at most {LONGEST_NAMES - reserved} bytes long, got {size}")


def _line(size: int) -> bytes:
    """A size as it ends a line."""
    line = b"%d\r\n" % size
    if size < _KNOWN_SIZES:
        _LINES[size] = line
    return line


class KeptFrame(NamedTuple):
    """A frame for the next connection, the size that counts against `max_payload`, and the token of its request."""

    frame: bytes
    size: int
    token: str = ""


class Outgoing:
    """What a client sends: publishes, requests and control frames, until the driver takes them.

    The session says which connection they are for: `is_open` while there is one in use, `server_is` when the server
    sent INFO, `close` at the end.
    """

    def __init__(self, inbox: Inbox, *, server: Address, keep_bytes: int) -> None:
        info = ServerInfo()
        self.is_open: bool = False  # there is a connection in use
        self.error: Error | None = None  # why the client is closed
        self.frames: list[bytes] = []
        self.size: int = 0  # bytes of all `frames`
        self.max_payload: int = info.max_payload
        self.reply_prefix: bytes = inbox.base.encode()  # of all requests; a token follows it
        self.sent_msgs: int = 0
        self.sent_bytes: int = 0
        self._has_headers = info.headers
        self._server = server
        self._prefixes: dict[object, bytes] = {}  # subjects checked lately -> the beginning of their PUB
        self._last_subject: object = None  # published to last, and checked,
        self._last_size: int = -1  # with so many bytes;
        self._last_head = b""  # the first line of such a message, once there were two in a row
        self._last_answer = b""  # an answer's payload,
        self._last_rest = b" 0\r\n\r\n"  # and what follows the subject of one
        self._keep_bytes = keep_bytes
        self.kept: list[KeptFrame] = []
        self._kept_size = 0
        self._inbox = inbox
        self._requests: int = 0  # so far: the last token of the inbox
        self._thousand: int = 0  # the reply subjects of so many requests,
        self._thousand_name = b""  # begin so, without their last three digits

    # Messages

    def try_publish(self, subject: object, payload: object) -> int:
        """Append a message as `publish` does, if nothing about it needs a closer look; returns `size`.

        0: it was not appended. The subject was not checked lately, there is no connection, or it is not small bytes.
        """
        if not isinstance(payload, bytes) or not self.is_open:
            return 0
        size = len(payload)
        if size > self.max_payload or size > BIG_PAYLOAD:
            return 0
        if subject is self._last_subject and size == self._last_size:
            head = self._last_head
            if not head:  # the second in a row
                head = self._last_head = b"%b%d\r\n" % (self._prefixes[subject], size)
            self.frames += (head, payload, b"\r\n")
            self.size += len(head) + size + 2
        else:
            try:
                prefix = self._prefixes.get(subject)
            except TypeError:  # a list or a dict
                return 0
            if prefix is None:
                return 0
            self._last_subject, self._last_size, self._last_head = subject, size, b""
            line = (_LINES[size] if size < _KNOWN_SIZES else b"") or _line(size)
            self.frames += (prefix, line, payload, b"\r\n")
            self.size += len(prefix) + len(line) + size + 2
        self.sent_msgs += 1
        return self.size

    def publish(self, subject: object, payload: object, reply: object = "", header: bytes = b"") -> None:
        """Append a message. What a program gave may be anything: a UsageError says what is wrong with it."""
        if not reply and not header and self.try_publish(subject, payload):
            return
        try:
            known = self._prefixes.get(subject)
        except TypeError:
            raise invalid_subject(subject) from None
        prefix = known or self._check(subject)
        data = payload if isinstance(payload, bytes) else _as_bytes(payload)
        total = len(data) + len(header)
        if total > self.max_payload:
            raise too_large(total, self.max_payload)
        head = self._head(prefix, len(data), reply, header)
        if not self.is_open:
            self._keep(b"%b%b%b\r\n" % (head, header, data), total)
            return
        self.sent_msgs += 1
        self.frames += (head, header, data, b"\r\n")
        self.size += len(head) + total + 2

    def request(self, subject: object, payload: object, header: bytes) -> int:
        """As `publish`, with a fresh reply subject below the inbox; returns its last token, a number."""
        try:
            known = self._prefixes.get(subject)
        except TypeError:
            raise invalid_subject(subject) from None
        prefix = known or self._check(subject)
        count = self._requests + 1
        if not isinstance(payload, bytes) or not self.is_open or len(payload) + len(header) > self.max_payload:
            self.publish(subject, payload, f"{self._inbox.base}{count}", header)
            if not self.is_open:
                self.kept[-1] = self.kept[-1]._replace(token=str(count))
        else:
            size = len(payload)
            if header:
                if not self._has_headers:
                    raise self._no_headers()
                rest = b"%b%d %d %d\r\n%b" % (self.reply_prefix, count, len(header), len(header) + size, header)
                self.frames += (b"H", prefix, rest, payload, b"\r\n")
                self.size += len(prefix) + len(rest) + size + 3
            elif count < 1000:
                rest = b"%b%d %d\r\n" % (self.reply_prefix, count, size)
                self.frames += (prefix, rest, payload, b"\r\n")
                self.size += len(prefix) + len(rest) + size + 2
            else:  # without a piece that is made for this message
                thousand = count // 1000
                if thousand != self._thousand:
                    self._thousand, self._thousand_name = thousand, b"%b%d" % (self.reply_prefix, thousand)
                name = self._thousand_name
                line = (_LINES[size] if size < _KNOWN_SIZES else b"") or _line(size)
                self.frames += (prefix, name, _ENDS[count - thousand * 1000], line, payload, b"\r\n")
                self.size += len(prefix) + len(name) + len(line) + size + 6
            self.sent_msgs += 1
        self._requests = count
        return count

    def next_token(self) -> str:
        """A token that no request has."""
        self._requests += 1
        return str(self._requests)

    def request_block(self, messages: Sequence[Draft]) -> int:
        """As `request` for each, at once and for this connection only; returns the first token, the others follow."""
        first, base = self._requests + 1, self.reply_prefix
        self.publish_block(messages, [b"%b%d" % (base, number) for number in range(first, first + len(messages))])
        self._requests += len(messages)
        return first

    def publish_block(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Append messages, each with its reply subject (which is not checked), for this connection only."""
        if not self.is_open:
            self.check()
            raise ConnectionLostError("not connected: a block of messages is not buffered for the next connection")
        if not self._has_headers and any(header for _, _, header in messages):
            raise self._no_headers()
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
        self.sent_msgs += len(frames)
        self.send(b"".join(frames))

    def answer(self, subject: str, payload: bytes) -> int:
        """As `publish`, for a small payload to a reply subject, which is used once: it is not remembered.

        Returns `size`.
        """
        name = subject.encode()
        if name.split() != [name]:  # a peer made it: it must not break out of its line
            raise RemoteProtocolError(
                f"a reply subject must have no spaces or control characters, got {subject[:64]!r}"
            )
        if payload is not self._last_answer:  # nearly all are the same
            size = len(payload)
            line = (_LINES[size] if size < _KNOWN_SIZES else b"") or _line(size)
            self._last_answer, self._last_rest = payload, b" %b%b\r\n" % (line, payload)
        rest = self._last_rest
        if not self.is_open:
            self._keep(b"PUB %b%b" % (name, rest), len(payload))
            return self.size
        self.sent_msgs += 1
        self.frames += (b"PUB ", name, rest)
        self.size += len(name) + len(rest) + 4
        return self.size

    def _head(self, prefix: bytes, size: int, reply: object, header: bytes) -> bytes:
        """What precedes the headers and the payload of a message."""
        if reply and not (isinstance(reply, str) and reply.startswith(self._inbox.base)):
            check_subject(reply)
        name = f"{reply} ".encode() if reply else b""
        if len(prefix) + len(name) > LONGEST_NAMES:
            check_names("a subject and its reply subject", prefix[4:-1].decode(), str(reply))
        if not header:
            return b"%b%b%d\r\n" % (prefix, name, size)
        if not self._has_headers:
            raise self._no_headers()
        return b"H%b%b%d %d\r\n" % (prefix, name, len(header), len(header) + size)

    def _no_headers(self) -> UsageError:
        return UsageError(f"{self._server} does not support headers")

    def _check(self, subject: object) -> bytes:
        """A subject not seen lately: once checked, publishing to it again costs a look-up."""
        name = check_subject(subject)
        prefix = b"PUB %b " % name.encode()
        check_names("a subject", name, reserved=len(self.reply_prefix) + 10)  # for the reply subject of a request
        if len(self._prefixes) >= KNOWN_SUBJECTS:
            self._prefixes.clear()
            self._last_subject, self._last_size = None, -1
        self._prefixes[name] = prefix
        return prefix

    # Control frames

    def send(self, frame: bytes) -> None:
        """Append a frame for the current connection."""
        self.frames.append(frame)
        self.size += len(frame)

    def send_or_keep(self, frame: bytes) -> None:
        """Append a control frame, or keep it for the next connection."""
        if self.is_open:
            self.send(frame)
        else:
            self.check()
            self.kept.append(KeptFrame(frame, 0))
            self._kept_size += len(frame)

    def take(self) -> bytes:
        """Everything to be sent now."""
        data = b"".join(self.frames)
        self.frames.clear()
        self.size = 0
        self.sent_bytes += len(data)
        return data

    # Between connections

    def _keep(self, frame: bytes, size: int) -> None:
        """There is no connection: keep the frame for the next one, within the bound."""
        self.check()
        if self._kept_size + len(frame) > self._keep_bytes:
            raise ConnectionLostError(
                f"not connected, and {self._kept_size} of {self._keep_bytes} bytes (reconnect_buffer_bytes) are "
                "already buffered for the next connection"
            )
        self.sent_msgs += 1
        self.kept.append(KeptFrame(frame, size))
        self._kept_size += len(frame)

    def server_is(self, server: Address, info: ServerInfo) -> None:
        """What the server of this connection takes, by its INFO."""
        self._server = server
        self._has_headers = info.headers
        self.max_payload = info.max_payload

    def send_kept(self) -> int:
        """Send what was kept; returns the number of messages left out because this server takes none so large."""
        fitting = [kept.frame for kept in self.kept if kept.size <= self.max_payload]
        rejected = len(self.kept) - len(fitting)
        self.frames += fitting
        self.size += sum(map(len, fitting))
        self.kept, self._kept_size = [], 0
        self.sent_msgs -= rejected
        return rejected

    def forget(self, token: str) -> None:
        """Drop a kept request that was cancelled: its caller was told that it had no effect, so it must have none."""
        for kept in self.kept:
            if kept.token == token:
                self.kept.remove(kept)
                self._kept_size -= len(kept.frame)
                self.sent_msgs -= 1
                return

    def drop(self) -> None:
        """Drop the frames of a connection that was lost."""
        self.frames, self.size = [], 0

    # The end

    def close(self, error: Error) -> None:
        """Take nothing more; frames of the current connection may still be taken."""
        self.error = error

    def drop_kept(self) -> None:
        """There will be no next connection."""
        self.kept, self._kept_size = [], 0

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
    """The error for a message for which the server would close the connection."""
    return UsageError(f"headers and payload must be at most {limit} bytes (the server's max_payload), got {size}")


def _as_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"payload must be bytes, not {type(payload).__name__}")

"""The raw scanner of one subscription: received frames to columns, for readers that take many messages at once.

Only frames whose reply subject has a certain prefix are taken, in the form that servers write; other frames of the
subscription go through the parser, and into the mailbox behind those that came before. This is a hot path: in runs of
one size a message costs less than half of what parser and mailbox take.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

from slipstream.wire import Msg
from slipstream.wire.frame_runs import run_pattern, scan_run

_RUN_LENGTH = 32  # frames of one size that are worth an expression of their own
_MOST_RUNS = 8  # such expressions: where sizes change all the time they cost more than they save
_RUN = rb"MSG (%b) %b(%b%b) %d\r\n%b\r\n"
_RUN_WITH_HEADERS = rb"HMSG (%b) %b(%b%b) %d %d\r\n%b%b\r\n"
_FRAME = rb"(H?)MSG (%b) %b (%b%b) (?:(\d{1,9}) )?(\d{1,9})\r\n"
# A name of a frame. All but spaces is what `re` takes fastest. It may go on over the end of a line only where the size
# of a message without reply can be taken for the beginning of a reply.
_NAME, _NAME_ON_LINE = rb"[^ ]+", rb"\S+"


class Packed(NamedTuple):
    """Messages in columns of equal length, one at least; `headers` is empty if none of them has any.

    `replies` are without the `prefix` that all of them have.
    """

    sid: bytes
    subjects: list[bytes]
    replies: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]
    size: int  # of all headers and payloads
    prefix: bytes = b""

    def names(self) -> list[str]:
        """The subject of each."""
        return _decoded(self.subjects)

    def messages(self) -> list[Msg]:
        """The messages one by one."""
        replies = _decoded(self.replies, self.prefix)
        return list(map(Msg, self.names(), repeat(self.sid), replies, self.headers or repeat(b""), self.payloads))


def _decoded(names: list[bytes], prefix: bytes = b"") -> list[str]:
    """The names behind a prefix, decoded in one step: none of them has a line feed, or a server broke the protocol."""
    decoded = (prefix + (b"\n" + prefix).join(names)).decode(errors="replace").split("\n")
    if len(decoded) != len(names):
        decoded = [(prefix + name).decode(errors="replace") for name in names]
    return decoded


def _shared_start(one: bytes, other: bytes) -> bytes:
    """What both begin with."""
    at = 0
    while at < len(one) and at < len(other) and one[at] == other[at]:
        at += 1
    return one[:at]


class Packer:
    """Takes the frames of one subscription out of received bytes, and passes them on in packs."""

    def __init__(self, sid: bytes, reply_prefix: str, hand_over: Callable[[Packed], None]) -> None:
        self._sid = sid
        self._reply_prefix = reply_prefix.encode()
        self._name = _NAME_ON_LINE if not reply_prefix or reply_prefix[0].isdigit() else _NAME
        self._frame: re.Pattern[bytes] | None = None  # made with the first bytes: the subscription may be waited for
        self._hand_over = hand_over
        self._run: re.Pattern[bytes] | None = None  # for frames like the last ones,
        self._run_prefix = b""  # whose replies begin so,
        self._run_header: bytes | None = b""  # and whose headers are this (None: of one size)
        self._run_size = 0  # of header and payload
        self._runs = 0
        self._has_looked = False  # for a run

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the whole frames at `pos`; returns where they end, and their number."""
        count = 0
        if self._run is not None:
            pos, count = self._scan_run(data, pos, self._run)
        pack = Packed(self._sid, [], [], [], [], 0)
        pos = self._scan_each(data, pos, pack)
        if number := len(pack.subjects):
            size = sum(map(len, pack.headers)) + sum(map(len, pack.payloads))
            headers = pack.headers if any(pack.headers) else []
            self._hand_over(pack._replace(headers=headers, size=size))
            if number >= _RUN_LENGTH:
                self._look_for_run(pack)
        return pos, count + number

    def _scan_each(self, data: bytes, pos: int, pack: Packed) -> int:
        if self._frame is None:
            names = re.escape(self._sid), re.escape(self._reply_prefix), self._name
            self._frame = re.compile(_FRAME % (self._name, *names))
        match, size = self._frame.match, len(data)
        # The first frames show whether there is a run to be taken at once: the others may be part of it.
        most = size if self._has_looked else _RUN_LENGTH
        _, subjects, replies, headers, payloads, _, _ = pack
        while len(subjects) < most and (found := match(data, pos)) is not None:
            mark, subject, reply, head, number = found.groups()
            begin = found.end()
            end = begin + int(number)
            if end + 2 > size or data[end] != 13 or data[end + 1] != 10:
                break
            body = begin
            if mark:
                body = begin + int(head or 0)
                if head is None or body > end:
                    break
            elif head is not None:
                break
            headers.append(data[begin:body])
            payloads.append(data[body:end])
            subjects.append(subject)
            replies.append(reply)
            pos = end + 2
        return pos

    def _look_for_run(self, pack: Packed) -> None:
        """Messages in a row whose headers and payloads have one size are taken together by an expression for those."""
        self._has_looked = True
        heads = set(pack.headers)
        head, size = len(pack.headers[0]), len(pack.payloads[0])
        is_alike = {len(header) for header in heads} == {head} and {len(payload) for payload in pack.payloads} == {size}
        if not is_alike or self._runs >= _MOST_RUNS:
            return
        self._runs += 1
        self._run_size = head + size
        self._run_header = (
            heads.pop() if len(heads) == 1 else None
        )  # of a headers-only consumer they often are the same
        shared = _shared_start(min(pack.replies), max(pack.replies))
        prefix = self._run_prefix = shared[: shared.rfind(b".") + 1]
        name, rest = self._name, re.escape(self._reply_prefix[len(prefix) :])
        known = name, re.escape(self._sid) + b" " + re.escape(prefix), rest, name
        payload = b"(.{%d})" % size if size else b""
        if head:
            header = b"(.{%d})" % head if self._run_header is None else re.escape(self._run_header)
            self._run = run_pattern(_RUN_WITH_HEADERS % (*known, head, head + size, header, payload))
        else:
            self._run = run_pattern(_RUN % (*known, size, payload))

    def _scan_run(self, data: bytes, pos: int, run: re.Pattern[bytes]) -> tuple[int, int]:
        """Take the run of frames at `pos`. A match is as long as its frame: no payload is taken for one."""
        frames = scan_run(run, data, pos)
        if frames is None:
            return pos, 0
        subjects, replies, *parts = frames.columns
        length, header = frames.length, self._run_header
        headers = parts.pop(0) if header is None else [header] * length if header else []
        payloads = parts.pop(0) if parts else [b""] * length
        size = length * self._run_size
        self._hand_over(Packed(self._sid, subjects, replies, headers, payloads, size, self._run_prefix))
        return frames.end, length

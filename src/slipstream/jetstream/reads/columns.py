"""The raw scanner of batched Direct Gets: replies to columns of subjects, sequences, times, headers and data.

Two ways in, one result. `scan` reads whole frames out of a chunk of received bytes, without an object per frame;
`deliver` takes the messages that the parser made of the frames that `scan` left alone (status lines, a frame that was
cut by the end of a chunk, anything unusual). Invariant: sequences only grow, or it is a protocol error.

This is a hot path: 1.6 µs a message against 3.8 through parser, sink and decoder, see `benchmarks/`. Messages of one
size in a row, which is what streams mostly hold, are taken together by an expression made for that size, in 1.1 µs.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from operator import lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from slipstream.api.times import parse_time
from slipstream.errors import Error, MessageNotFoundError, RemoteProtocolError
from slipstream.jetstream.reads.direct_get import BATCH_HEADERS, SERVER_HEADERS, EndOfBatch, StoredMessage, decode
from slipstream.wire import Msg
from slipstream.wire.frame_runs import run_pattern, scan_run

if TYPE_CHECKING:
    import pyarrow as pa

    from slipstream.frames.options import FrameOptions

# Behind `HMSG <reply> <sid> `: the sizes, and a header block whose last lines are the server's. The message's own
# headers stand between; the block must end right behind the server's, and where its size says.
_FRAME = re.compile(
    rb"(\d+ \d+)\r\nNATS/1\.0\r\n((?:[^\r\n]*\r\n)*?)"
    + SERVER_HEADERS % (rb"([^\r\n]*)", rb"([^\r\n]*)", rb"(\d{1,19})", rb"([-0-9T:]{19})\.?(\d{0,9})Z")
    + BATCH_HEADERS % (rb"\d+", rb"\d+")
    + rb"\r\n"
)
# Before a run's own part of the header block, and behind it: what all frames of one responder share is fixed.
_RUN_HEAD = rb"%b([^\r]*)\r\nNATS/1\.0\r\n%b"
_RUN_TAIL = BATCH_HEADERS % (rb"[^\r]*", rb"[^\r]*") + rb"\r\n%b\r\n"
_OWN = rb"(?:(?!Nats-Stream: )[^\r\n]+\r\n)*"
_RUN_LENGTH = 64  # frames of one size in a row that are worth an expression of their own
_MOST_RUNS = 4  # such expressions of one page: where sizes change all the time they cost more than they save
_SCALE = tuple(10 ** (9 - digits) for digits in range(10))
_REMEMBERED = 4096
_LONGEST_SIZES = 24
_new_message: Final[Callable[[tuple[Any, ...]], StoredMessage]] = partial(tuple.__new__, StoredMessage)


class Part(enum.Flag):
    """What of a message is read, beside its sequence."""

    NOTHING = 0
    SUBJECT = 1
    TIME = 2
    HEADER = 4
    DATA = 8
    ALL = 15


class Columns(NamedTuple):
    """Messages as columns of equal length. `times` are nanoseconds since the epoch; a header block may be empty.

    Parts that were not asked for may be blank (empty, or 0), but for the first time and the last subject, by which the
    responder is checked.
    """

    subjects: list[str]
    seqs: list[int]
    times: list[int]
    headers: list[bytes]
    data: list[bytes]
    stream: str

    @classmethod
    def empty(cls) -> Columns:
        """No messages."""
        return cls([], [], [], [], [], "")

    @classmethod
    def of(cls, messages: Sequence[StoredMessage], stream: str) -> Columns:
        """The columns of messages."""
        columns = cls([], [], [], [], [], stream)
        for message in messages:
            columns.subjects.append(message.subject)
            columns.seqs.append(message.seq)
            columns.times.append(message.time)
            columns.headers.append(message.header)
            columns.data.append(message.data)
        return columns

    def messages(self) -> list[StoredMessage]:
        """The same, message by message."""
        return list(self.each())

    def each(self) -> Iterator[StoredMessage]:
        """The same one by one: each is made when it is asked for, in C."""
        streams = repeat(self.stream, len(self.seqs))
        rows = zip(self.subjects, self.seqs, self.times, self.headers, self.data, streams, strict=True)
        return map(_new_message, rows)

    def to_arrow(self, **options: Unpack[FrameOptions]) -> pa.Table:
        """The same as an Arrow table; see FrameOptions. Needs the extra `arrow`."""
        from slipstream.frames.arrow import to_arrow  # with its dependencies, which are optional

        return to_arrow(self, **options)

    @classmethod
    def join(cls, pieces: Sequence[Columns]) -> Columns:
        """The messages of several pieces of one page, in their order."""
        if len(pieces) == 1:
            return pieces[0]
        whole = cls([], [], [], [], [], pieces[0].stream if pieces else "")
        for piece in pieces:
            whole.subjects.extend(piece.subjects)
            whole.seqs.extend(piece.seqs)
            whole.times.extend(piece.times)
            whole.headers.extend(piece.headers)
            whole.data.extend(piece.data)
        return whole

    def without(self, seqs: Container[int]) -> Columns:
        """The messages with other sequences."""
        return Columns.of([message for message in self.messages() if message.seq not in seqs], self.stream)

    def cut(self, count: int) -> Columns:
        """The first `count` messages."""
        subjects, seqs, times, headers, data, stream = self
        return Columns(subjects[:count], seqs[:count], times[:count], headers[:count], data[:count], stream)


class TakenColumns(NamedTuple):
    """What was taken of a page; `is_over`: nothing more will come of it."""

    columns: Columns
    is_over: bool


class ColumnPage:
    """One request's replies; a `BulkSink` of the client. `after` is the sequence before the first one asked for."""

    def __init__(self, asked: str, *, after: int = 0, min_last_seq: int = 0, parts: Part = Part.ALL) -> None:
        self.asked = asked
        self._parts = parts
        self.min_last_seq = min_last_seq
        self.finished: bool = False
        self.end: EndOfBatch | None = None
        self.last_seq: int = after
        self._error: Error | None = None
        self._stream = b""
        self._prefix = b""
        self._seconds: dict[bytes, int] = {}  # what neighbours share is read once
        self._sizes: dict[bytes, tuple[int, int]] = {}
        self._whole_sizes: dict[bytes, int] = {}  # of the frames that begin so
        self._length = -1  # of the last payload, and how many had it in a row
        self._in_a_row = 0
        self._run: re.Pattern[bytes] | None = None
        self._run_parts = parts
        self._runs = 0
        self._pieces: deque[Columns] = deque()

    # Called by the client

    def attach(self, prefix: bytes) -> None:
        """Every frame of ours begins with `prefix`: `HMSG <reply> <sid> `."""
        self._prefix = prefix

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the whole frames at `pos`; returns where they end, and their number. What is left is for the parser."""
        before = 0
        if self._run is not None:
            pos, before = self._scan_run(data, pos, self._run)
        prefix, match, scale, seconds, sizes = self._prefix, _FRAME.match, _SCALE, self._seconds, self._sizes
        size, skip = len(data), len(self._prefix)
        last, name, length, in_a_row = self.last_seq, self._stream, self._length, self._in_a_row
        piece = Columns([], [], [], [], [], "")
        subjects, seqs, times = piece.subjects.append, piece.seqs.append, piece.times.append
        headers, payloads = piece.headers.append, piece.data.append
        starts = data.startswith
        while starts(prefix, pos):
            found = match(data, pos + skip)
            if found is None:
                break
            line, own, stream, subject, number, second, fraction = found.groups()
            begin = pos + skip + len(line) + 2
            body = found.end()
            try:
                head, total = sizes[line]
                base = seconds[second]
            except KeyError:
                pair, nanos = self._size(line), self._second(second)
                if pair is None or nanos is None:
                    break
                (head, total), base = pair, nanos
            end = begin + total
            if end + 2 > size or body - begin != head or data[end] != 13 or data[end + 1] != 10:
                break
            seq = int(number)
            if seq <= last or stream != name:
                if seq <= last or name:  # one request, one responder
                    break
                name = self._stream = stream
            try:
                subjects(subject.decode())
            except UnicodeDecodeError:
                break
            last = seq
            seqs(seq)
            times(base + int(fraction) * scale[len(fraction)] if fraction else base)
            headers(b"NATS/1.0\r\n%b\r\n" % own if own else b"")
            payloads(data[body:end])
            pos = end + 2
            if total - head != length:
                length, in_a_row, self._run = total - head, 0, None
            in_a_row += 1
            if in_a_row >= _RUN_LENGTH and self._run is None and self._runs < _MOST_RUNS:
                self._make_run(length, bool(own))
                break
        self.last_seq, self._length, self._in_a_row = last, length, in_a_row
        if piece.seqs:
            self._pieces.append(piece)  # whole, in one step: another thread may take at any moment
        return pos, before + len(piece.seqs)

    def _make_run(self, length: int, has_headers: bool) -> None:
        """The next frames will be like the last ones."""
        self._runs += 1
        self._run_parts = parts = self._parts if has_headers else self._parts & ~Part.HEADER
        own = b"(%b)" % _OWN if Part.HEADER in parts else _OWN if has_headers else b""
        subject = rb"([^\r]*)" if Part.SUBJECT in parts else rb"[^\r]*"
        time = (rb"(.{19})\.?([^Z]*)" if Part.TIME in parts else rb"[^Z]*") + b"Z"
        payload = (b"(.{%d})" if Part.DATA in parts else b".{%d}") % length
        signature = SERVER_HEADERS % (re.escape(self._stream), subject, rb"([^\r]*)", time)
        head, tail = _RUN_HEAD % (re.escape(self._prefix), own), _RUN_TAIL % payload
        self._run = run_pattern(head + signature + tail)

    def _scan_run(self, data: bytes, pos: int, run: re.Pattern[bytes]) -> tuple[int, int]:
        """Take the frames at `pos` that are like those before; where they end, and their number.

        Each match begins where the one before ended, with a prefix that no publisher can know: so a payload or a header
        that imitates a frame can spoil the last match only, and the sum of the sizes shows it.
        """
        frames = scan_run(run, data, pos)
        if frames is None:
            return pos, 0
        lines, *found_parts = frames.columns
        whole_sizes = self._whole_sizes
        for line in {*lines} - whole_sizes.keys():
            self._size(line)
        try:
            end = pos + sum(map(whole_sizes.__getitem__, lines))
            whole = self._columns(deque(found_parts), frames.length)
            if Part.TIME not in self._run_parts or Part.SUBJECT not in self._run_parts:
                self._fill_ends(whole, data, pos, end - whole_sizes[lines[-1]])
        except (KeyError, ValueError):
            return pos, 0
        seqs = whole.seqs
        if end != frames.end or seqs[0] <= self.last_seq or not all(map(lt, seqs, islice(seqs, 1, None))):
            return pos, 0  # not what it seemed: read one by one
        self.last_seq = seqs[-1]
        self._pieces.append(whole)
        return end, frames.length

    def _columns(self, found: deque[list[bytes]], count: int) -> Columns:
        """The groups of a run's matches, in their order, as columns. Raises KeyError or ValueError for what is none."""
        parts = self._run_parts
        owns = found.popleft() if Part.HEADER in parts else []
        subjects = found.popleft() if Part.SUBJECT in parts else []
        numbers = found.popleft()
        times = self._times(found.popleft(), found.popleft()) if Part.TIME in parts else [0] * count
        payloads = found.popleft() if Part.DATA in parts else []
        return Columns(
            list(map(bytes.decode, subjects)) if subjects else [""] * count,
            _digits(numbers),
            times,
            [b"NATS/1.0\r\n%b\r\n" % own if own else b"" for own in owns] if owns else [b""] * count,
            payloads or [b""] * count,
            "",
        )

    def _fill_ends(self, columns: Columns, data: bytes, first: int, last: int) -> None:
        """The first time and the last subject, where they were left out."""
        skip = len(self._prefix)
        begin, end = _FRAME.match(data, first + skip), _FRAME.match(data, last + skip)
        if begin is None or end is None:
            raise ValueError("not a frame of a batch")
        if Part.TIME not in self._run_parts:
            columns.times[0] = self._times((begin[6],), (begin[7],))[0]
        if Part.SUBJECT not in self._run_parts:
            columns.subjects[-1] = end[4].decode()

    def _times(self, seconds: Sequence[bytes], fractions: Sequence[bytes]) -> list[int]:
        known = self._seconds
        for second in {*seconds} - known.keys():
            self._second(second)
        nanos = _digits([fraction.ljust(9, b"0") for fraction in fractions])
        return [known[second] + nano for second, nano in zip(seconds, nanos, strict=True)]

    def _size(self, line: bytes) -> tuple[int, int] | None:
        """Header size and total size; None if they are no sizes."""
        if len(line) > _LONGEST_SIZES:
            return None
        if len(self._sizes) >= _REMEMBERED:
            self._sizes.clear()
            self._whole_sizes.clear()
        head, _, total = line.partition(b" ")
        if not (head.isdigit() and total.isdigit()):
            return None
        pair = self._sizes[line] = int(head), int(total)
        self._whole_sizes[line] = len(self._prefix) + len(line) + pair[1] + 4
        return pair

    def _second(self, text: bytes) -> int | None:
        """Nanoseconds of a whole second; None if it is no time."""
        if len(self._seconds) >= _REMEMBERED:
            self._seconds.clear()
        try:
            nanos = self._seconds[text] = parse_time(text.decode() + "Z")
        except ValueError:  # UnicodeDecodeError is one
            return None
        return nanos

    def deliver(self, msg: Msg) -> bool:
        """Take a reply that the parser read; True once it is the last."""
        try:
            found = decode(msg, asked=self.asked, min_last_seq=self.min_last_seq)
            if isinstance(found, EndOfBatch):
                self.end = found
                self.finished = True
            else:
                self._add(found.message)
                self.finished = found.pending < 0  # a server without batches: one message, and no end follows
        except MessageNotFoundError:
            self.end = EndOfBatch(0, -1, -1)
            self.finished = True
        except Error as error:
            self.fail(error)
        return self.finished

    def fail(self, error: Error) -> None:
        """The connection is gone, or the answer is an error."""
        self._error = error
        self.finished = True

    def _add(self, message: StoredMessage) -> None:
        name = message.stream.encode()
        if message.seq <= self.last_seq:
            raise RemoteProtocolError(f"{self.asked}: sequence {message.seq} came after {self.last_seq}")
        if self._stream and name != self._stream:
            raise RemoteProtocolError(f"{self.asked}: answered by {self._stream.decode()} and by {message.stream}")
        self._stream = name
        self.last_seq = message.seq
        piece = Columns([message.subject], [message.seq], [message.time], [message.header], [message.data], "")
        self._pieces.append(piece)

    # Called by the reader

    def ready(self) -> bool:
        """Whether columns have arrived, or nothing more will."""
        return bool(self._pieces) or self.finished

    def take(self) -> TakenColumns:
        """What arrived since the last time; an error is raised once what came before it was taken."""
        # Looked at before anything is taken: what ends the page comes behind all it holds, and another thread may add
        # to it in between.
        is_over, error = self.finished, self._error
        pieces = []
        while self._pieces:
            pieces.append(self._pieces.popleft())
        if not pieces and error is not None:
            raise error
        stream = self._stream.decode(errors="replace")
        return TakenColumns(Columns.join(pieces)._replace(stream=stream), is_over)


def _digits(texts: Sequence[bytes]) -> list[int]:
    """Numbers of nothing but digits: int() also accepts signs, spaces and underscores."""
    if not b"".join(texts).isdigit():
        raise ValueError("not a number")
    return list(map(int, texts))

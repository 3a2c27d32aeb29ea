"""Model of a stream, and the checker of what concurrent clients read from it: the list of broken promises.

Every write is known by its sequence in the end: writers repeat one that was not acknowledged, under the same message
id. So the model knows for each message since when it exists and which later write removed it (a successor on its key,
a limit, a rollup), and with it the stream *as of* every sequence. A read must be right as of some sequence from
`wanted`, what it had to have seen, to `latest`, the number of writes that had begun when it ended. A session's reads
must be right as of sequences that never go back.

Not counted, as in the promise: messages with a TTL. Their keys begin with `TTL`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

NEVER = 1 << 62
TTL = "ttl"


class Kind(Enum):
    """What a write does beside adding a message."""

    PUT = "put"
    DELETE = "delete"  # a KV mark
    PURGE = "purge"  # a KV mark that removes the key's other messages
    ROLLUP_SUBJECT = "sub"
    ROLLUP_ALL = "all"


MARKS = (Kind.DELETE, Kind.PURGE)


class Write(NamedTuple):
    """One message, as it was written."""

    key: str
    value: bytes
    kind: Kind = Kind.PUT


class Got(NamedTuple):
    """One message, as it was read."""

    seq: int
    value: bytes

    def __repr__(self) -> str:
        return f"{self.seq} ({self.value[:16]!r})"


class Read(NamedTuple):
    """A read and its outcome. Which fields count depends on `path`."""

    reader: str  # of a session: its name; reads of one session are in order
    path: str
    key: str
    wanted: int
    latest: int
    got: object  # Got or None; of a range its sequences; of a listing a mapping, or the set of keys
    start: int = 0
    end: int = 0
    is_session: bool = False
    trace: Sequence[str] = ()  # what it asked, and was told


class Refusal(NamedTuple):
    """A read that raised, and when."""

    stream: str
    read: str
    begin: float
    end: float
    error: str
    trace: Sequence[str] = ()


class Model:
    """The stream as of every sequence. Call `settle` when all writes are known."""

    def __init__(self, *, per_subject: int = 0, in_all: int = 0) -> None:
        self.per_subject = per_subject
        self.in_all = in_all
        self.writes: dict[int, Write] = {}
        self.last = 0  # the highest sequence acknowledged to any client
        self.begun = 0  # writes that were sent, acknowledged or not: no sequence is higher
        self.removed: dict[int, int] = {}  # sequence -> the sequence that removed it
        self._keys: dict[str, list[int]] = {}
        self._all: list[int] = []  # without those with a TTL

    def wrote(self, seq: int, write: Write) -> None:
        """A write was acknowledged."""
        self.writes[seq] = write
        self.last = max(self.last, seq)

    def is_ttl(self, seq: int) -> bool:
        """Whether nothing is claimed of that message."""
        return seq in self.writes and self.writes[seq].key.startswith(TTL)

    def settle(self) -> None:
        """Find out when each message was removed."""
        self.removed.clear()
        self._keys.clear()
        alive: dict[str, deque[int]] = {}
        ordered: deque[int] = deque()
        count = 0
        for seq in sorted(self.writes):
            key, _, kind = self.writes[seq]
            gone: Iterable[int] = ()
            if kind is Kind.ROLLUP_ALL:
                gone = [each for seqs in alive.values() for each in seqs]
                alive.clear()
            elif kind in (Kind.ROLLUP_SUBJECT, Kind.PURGE):
                gone = alive.pop(key, ())
            mine = alive.setdefault(key, deque())
            gone = [*gone]
            mine.append(seq)
            ordered.append(seq)
            if self.per_subject and len(mine) > self.per_subject:
                gone.append(mine.popleft())
            self.removed.update(dict.fromkeys(gone, seq))
            count += 1 - len(gone)
            while self.in_all and count > self.in_all:
                oldest = ordered.popleft()
                if oldest not in self.removed:
                    self.removed[oldest] = seq
                    alive[self.writes[oldest].key].popleft()
                    count -= 1
            self._keys.setdefault(key, []).append(seq)
        self._all = [seq for seq in sorted(self.writes) if not self.writes[seq].key.startswith(TTL)]

    def keys(self, prefix: str) -> Iterator[str]:
        """Every key that was written and begins so."""
        return (key for key in self._keys if key.startswith(prefix))

    def unknown(self) -> list[int]:
        """Sequences that were acknowledged to nobody: somebody else wrote there."""
        return sorted({*range(1, self.last + 1)} - {*self.writes})

    def differences(self, seqs: Iterable[int]) -> str:
        """How a state of the stream differs from the model at its end; empty: not at all."""
        unknown = self.unknown()
        shown = {seq for seq in seqs if not self.is_ttl(seq)}
        alive = {seq for seq in self._all if seq not in self.removed}
        if not unknown and shown == alive:
            return ""
        only_there, only_here = sorted(shown - alive), sorted(alive - shown)
        return f"writes unknown {unknown[:5]}, in the stream alone {only_there[:5]}, in the model alone {only_here[:5]}"

    # Each of these gives the first sequence from `wanted` to `latest` as of which the answer is right; None: no such

    def newest(self, key: str, wanted: int, latest: int, seq: int) -> int | None:
        """`seq` is the newest message of `key` (empty: of all keys)."""
        seqs = self._seqs(key)
        at = bisect_left(seqs, seq)
        if at == len(seqs) or seqs[at] != seq:
            return None
        until = min(self.removed.get(seq, NEVER), seqs[at + 1] if at + 1 < len(seqs) else NEVER)
        as_of = max(wanted, seq)
        return as_of if as_of < until and as_of <= latest else None

    def absent(self, key: str, wanted: int, latest: int, *, marks: bool = False) -> int | None:
        """There is no message of `key`; with `marks`, or the newest is a mark."""
        seqs = self._seqs(key)
        at = bisect_right(seqs, wanted) - 1
        if at < 0:
            return wanted
        while at < len(seqs) and seqs[at] <= latest:
            seq = seqs[at]
            after = seqs[at + 1] if at + 1 < len(seqs) else NEVER
            since = seq if marks and self.writes[seq].kind in MARKS else self.removed.get(seq, NEVER)
            as_of = max(wanted, since)
            if as_of < after and as_of <= latest:
                return as_of
            at += 1
        return None

    def present(self, key: str, wanted: int, latest: int) -> int | None:
        """The newest message of `key` is a value."""
        seqs = self._seqs(key)
        at = max(bisect_right(seqs, wanted) - 1, 0)
        for seq in seqs[at : bisect_right(seqs, latest)]:
            if self.writes[seq].kind not in MARKS:
                as_of = self.newest(key, wanted, latest, seq)
                if as_of is not None:
                    return as_of
        return None

    def at(self, seq: int, wanted: int, latest: int, is_there: bool) -> int | None:
        """The message with the sequence `seq` is there, or is not."""
        gone = self.removed.get(seq, NEVER)
        if is_there:
            as_of = max(wanted, seq)
            return as_of if seq in self.writes and as_of < gone and as_of <= latest else None
        if wanted < seq:
            return wanted
        as_of = max(wanted, gone)
        return as_of if as_of <= latest else None

    def following(self, key: str, start: int, wanted: int, latest: int, seq: int) -> int | None:
        """`seq` (0: none) is the first message of `key` from `start` on."""
        seqs = self._seqs(key)
        as_of = max(wanted, seq)
        if seq and seq not in self.writes:
            return None
        for each in seqs[bisect_left(seqs, start) :]:
            if each == seq or (not seq and each > as_of):
                break
            as_of = max(as_of, self.removed.get(each, NEVER))
        return as_of if as_of <= latest and as_of < self.removed.get(seq, NEVER) else None

    def range(self, read: Read, seqs: Sequence[int]) -> str:
        """What is wrong with a range; empty: nothing."""
        if list(seqs) != sorted(set(seqs)):
            return f"is not in order: {seqs}"
        for seq in seqs:
            if seq not in self.writes:
                return f"shows {seq}, which was never written"
            if self.removed.get(seq, NEVER) <= read.wanted:
                return f"shows {seq}, removed by {self.removed[seq]}"
            if not read.start <= seq <= (read.end or NEVER) or (read.key and self.writes[seq].key != read.key):
                return f"shows {seq}, which is none of it"
        must = self._seqs(read.key)
        until = min(read.wanted, read.end or NEVER)
        shown = {*seqs}
        for seq in must[bisect_left(must, read.start) : bisect_right(must, until)]:
            if seq not in shown and self.removed.get(seq, NEVER) > read.latest:
                return f"lacks {seq}"
        return ""

    def _seqs(self, key: str) -> list[int]:
        return self._keys.get(key, []) if key else self._all


class History:
    """What was read of one stream, generation by generation: one that is made again begins a new model."""

    def __init__(self, stream: str, **limits: int) -> None:
        self.stream = stream
        self.limits = limits
        self.model = Model(**limits)
        self.reads: list[Read] = []
        self._past: list[tuple[Model, list[Read]]] = []
        self.count = 0

    @property
    def generations(self) -> int:
        """How often the stream was made again."""
        return len(self._past)

    def unknown(self) -> list[str]:
        """What is in past generations, and in no model: the checker is wrong there."""
        found = {n: model.unknown() for n, (model, _) in enumerate(self._past)}
        return [f"{self.stream}, generation {n}: {seqs[:5]} was written by nobody" for n, seqs in found.items() if seqs]

    def begin_again(self) -> None:
        """The stream was deleted and created again."""
        self._past.append((self.model, self.reads))
        self.model, self.reads = Model(**self.limits), []

    def read(self, read: Read) -> None:
        """A read ended."""
        self.reads.append(read)
        self.count += 1

    def broken(self) -> list[str]:
        """Every promise that was not kept. All writes must be known."""
        return [
            f"{self.stream}: {what}"
            for model, reads in (*self._past, (self.model, self.reads))
            for what in _broken(model, reads)
        ]


def _broken(model: Model, reads: Sequence[Read]) -> Iterator[str]:
    model.settle()
    floors: dict[str, int] = {}  # of each session: as of which sequence it has seen the stream
    for read in reads:
        floor = floors.get(read.reader, 0) if read.is_session else 0
        bounded = read._replace(wanted=max(read.wanted, floor))
        as_of, what = judge(model, bounded)
        if what:
            back = floor > read.wanted and not judge(model, read)[1]
            kind = "went back" if back else "falsely absent" if read.got is None else "wrong"
            yield "\n    ".join((f"{kind}: {_short(bounded)}: {what}", *read.trace))
        elif read.is_session:
            floors[read.reader] = max(floor, as_of)


def judge(model: Model, read: Read) -> tuple[int, str]:
    """As of which sequence a read is right, and what is wrong with it (empty: nothing)."""
    got = read.got
    latest = max(read.latest, read.wanted)
    if isinstance(got, Got):
        written = model.writes.get(got.seq)
        if written is None or written.value != got.value:
            return 0, f"{got.seq} was written as {written and written.value[:24]!r}"
        if not read.key and model.is_ttl(got.seq):
            return read.wanted, ""  # the newest of all is one of which nothing is claimed
    match read.path:
        case "last":
            found = (
                model.newest(read.key, read.wanted, latest, got.seq)
                if isinstance(got, Got)
                else model.absent(read.key, read.wanted, latest)
            )
        case "value":
            found = (
                model.newest(read.key, read.wanted, latest, got.seq)
                if isinstance(got, Got)
                else model.absent(read.key, read.wanted, latest, marks=True)
            )
        case "seq":
            found = model.at(read.start, read.wanted, latest, got is not None)
        case "next":
            seq = got.seq if isinstance(got, Got) else 0
            found = model.following(read.key, read.start, read.wanted, latest, seq)
        case "many":
            assert isinstance(got, Mapping)
            for key in model.keys(read.key):
                what = judge(model, Read(read.reader, "last", key, read.wanted, latest, got.get(key)))[1]
                if what:
                    return 0, f"{key}: {what}"
            return read.wanted, ""
        case "keys":
            assert isinstance(got, frozenset)
            for key in model.keys(read.key):
                if key in got:
                    as_of = model.present(key, read.wanted, latest)
                else:
                    as_of = model.absent(key, read.wanted, latest, marks=True)
                if as_of is None:
                    return 0, f"{key} is {'listed' if key in got else 'not listed'}"
            return read.wanted, ""
        case _:
            assert isinstance(got, list)
            seqs = [seq for seq in got if not model.is_ttl(seq)]
            return read.wanted, model.range(read._replace(latest=latest), seqs)
    if found is None:
        return 0, f"wrong as of every sequence from {read.wanted} to {latest}, {_lifetime(model, read)}"
    return found, ""


def _lifetime(model: Model, read: Read) -> str:
    """The key's messages around `wanted`, with what removed them."""
    if read.path == "seq":
        return f"{read.start} was removed by {model.removed.get(read.start)}"
    seqs = [seq for seq in model._seqs(read.key) if model.removed.get(seq, NEVER) > read.wanted][:3]
    return f"{read.key or 'all'}: {[(seq, model.removed.get(seq)) for seq in seqs]}"


def _short(read: Read) -> str:
    got = f"{len(read.got)} found" if isinstance(read.got, (list, Mapping, frozenset)) else read.got
    bounds = f" {read.start}..{read.end or ''}" if read.start or read.end else ""
    return f"{read.reader} {read.path} {read.key}{bounds} at {read.wanted} got {got}"

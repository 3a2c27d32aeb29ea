"""Session state: what a session has written, seen and found absent, per stream and (bounded) per subject.

Theory of operation
-------------------
"As of s" is the state of a stream right after sequence s. For each stream a session keeps:

- **seen**, W: the highest sequence written or read through it, or as of which it was told something. A read must be the
  stream's answer as of some s >= W. Within one generation of a stream it never goes down.
- **created**: when the stream was made; W means something for that generation only.
- **per subject (r, a)**: as of a, the newest message of the subject is r (0: it has none). A message at q says (q, q),
  an answer proven as of s says (found, s).

What is known of a subject proves an answer at no cost: a copy that shows r for it is right if (r, a) still holds as of
W. It does if a >= W, or if the session knows every sequence in (a, W] to be of another subject. That is so for the
**run**: its own writes, acknowledged one after the other without a gap. A rollup may remove other subjects, so it ends
the run. A stream with `max_msgs` or `max_bytes` removes its oldest message with any write, and one that transforms
subjects stores under others than were published: there runs do not count, nor before the configuration is known, nor
with a subject that the stream does not listen on (an import maps it). A duplicate's ack names a message that may be of
another subject: only its sequence counts. A subject that is evicted shortens the run to what lies behind what was known
of it, so "of another subject" stays true for all that are held.

**Generations.** A stream that was deleted and made again counts from one, and W would never be reached. W is lowered by
one thing only: stream info of a later generation than the known one, from a responder that is certainly the leader
(`is_firm`: a deposed leader may tell an old last sequence Z for seconds). What was noted before it was asked for cannot
be more than Z of the new generation; what was noted since is kept as it is. For that each note has a number, and the
*suffix maxima* are kept: the numbers at which the highest, the highest after that, ... was noted, which is one pair as
long as sequences grow. If `created` was never learned nothing is lowered: the info may be of an older generation. A
write that gets a lower sequence than was seen is a sign of it (`is_suspect`): the next read asks the leader.

**Tokens** carry all of it to another process, and are believed only when the stream's leader was heard: a stream made
later than the token says is another one (stale), one made earlier, or one that ends before what the token has seen, is
not the stream it was made with (foreign). With a secret they are signed; without one a token is a claim of its bearer,
who can deceive the session that begins with it, and no other.

**Handles** (`HandleState`). A handle of a bucket promises less than a session: its own writes are seen, and no read of
a subject goes back. A read of one subject wants a of what is known of that subject alone, so most answers prove
themselves: a message at q >= a, or r itself, which shows nothing older. Reads of many subjects want W. Two floors stand
for what is not known by subject: *evicted*, the highest a of those that are not held any more, counts for subjects that
are not held; *blind*, the newest own write whose subject was not noted, for all. "Not found" does not say as of when.
It is noted with an open a: not found again is the same state; a message after it may be older, and must be proven
against the newest sequence of the leader.

**Threads.** Several may use one session, and none waits for another. The state is changed by the thread that has the
turn (a list with one item, which is popped: one step). What happens in other threads meanwhile is appended to a second
list, which the next one with the turn takes in. `seen` counts what is in that list; `known` says "unknown", and a token
carries no subjects: both always true. An event leaves the list only after it has raised the state, and `seen` reads the
list before the state.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import eq
from typing import NamedTuple

import msgspec

from slipstream.api import StreamConfig, StreamInfo
from slipstream.errors import SessionTokenError, TokenMismatchError, UsageError
from slipstream.jetstream.reads.evidence import leader_word
from slipstream.wire import has_wildcard, matcher

MOST_SUBJECTS = 1024  # per stream; the one noted least recently is forgotten first
MOST_KEYS = 16_384  # the same for a handle: the floor of those forgotten makes reads of others cost more
OPEN = 1 << 63  # as of when nothing was found, where that is not known
MOST_IN_TOKEN = 16  # subjects per stream: tokens travel in cookies and headers
_LONGEST_IN_TOKEN = 128  # characters of a subject that is worth its place there
_MOST_MAXIMA = 32
_MAX_TOKEN = 1 << 20
_MAC_SIZE = 32
_OLD, _PLAIN, _SIGNED = b"[", b"\x02", b"\x03"  # first byte: version 1 (a JSON array), version 2, version 2 signed


class _Note(NamedTuple):
    """A message was written or read, or a read showed a state."""

    stream: str
    seq: int
    subject: str
    as_of: int
    is_own_write: bool = False
    breaks_run: bool = False

    def apply(self, state: _StreamState) -> None:
        if self.is_own_write and self.seq < state.seen and not state.is_of_handle:
            state.is_suspect = True
        state.raise_seen(self.as_of)
        if self.subject:
            state.know(self)
        elif self.is_own_write:
            state.is_suspect = state.is_suspect or self.seq < state.blind
            state.write_blind(self.seq)
        if self.is_own_write:
            state.extend_run(self)


class _Listed(NamedTuple):
    """Messages were read, each the newest of its subject when it was stored; the last one is the newest of all."""

    stream: str
    subjects: Sequence[str]
    seqs: Sequence[int]
    as_of: int

    def apply(self, state: _StreamState) -> None:
        state.raise_seen(self.as_of)
        state.know_many(self.subjects, self.seqs)


class _Absent(NamedTuple):
    """Nothing was found of a subject, by a copy that did not say as of when."""

    stream: str
    subject: str
    as_of: int = 0

    def apply(self, state: _StreamState) -> None:
        state.subjects.pop(self.subject, None)
        state.subjects[self.subject] = (0, OPEN)
        state.has_open = True
        state.evict()


class _Closed(NamedTuple):
    """The leader's newest sequence, asked for after subjects that are not held any more were found absent."""

    stream: str
    newest: int
    as_of: int = 0

    def apply(self, state: _StreamState) -> None:
        if state.evicted == OPEN:
            state.evicted = self.newest


class _Made(NamedTuple):
    """A stream was found to be made at a time."""

    stream: str
    created: int
    last_seq: int
    mark: int
    is_firm: bool
    config: StreamConfig | None
    as_of: int = 0

    def apply(self, state: _StreamState) -> None:
        if self.created < state.created:
            return
        if self.config is not None:
            state.configure(self.config)
        if self.created > state.created:
            if state.created and self.is_firm:
                state.restart(self.mark, self.last_seq)
            state.forget_subjects()  # which generation they are of is not known
            if state.created and not self.is_firm:
                return
        state.created = self.created
        if self.is_firm:
            state.is_claim = state.is_suspect = False


_Event = _Note | _Listed | _Absent | _Closed | _Made


def _nothing(_: str) -> bool:
    return False


class _StreamState:
    """What a session knows of one stream. Changed by the thread that has the turn."""

    __slots__ = (
        "blind",
        "count",
        "covers",
        "created",
        "evicted",
        "has_open",
        "is_claim",
        "is_of_handle",
        "is_suspect",
        "maxima",
        "run_end",
        "run_start",
        "seen",
        "subjects",
    )

    def __init__(self, *, is_of_handle: bool = False) -> None:
        self.is_of_handle = is_of_handle
        self.evicted = 0  # the highest a of subjects that are not held any more; OPEN if one of them was open
        self.blind = 0  # the newest own write whose subject was not noted
        self.has_open = False  # whether there may be subjects that were found absent, and nothing written blindly since
        self.created = 0
        self.seen = 0
        self.count = 0  # of notes
        self.maxima: list[tuple[int, int]] = []  # (number of the note, sequence): numbers grow, sequences fall
        self.subjects: dict[str, tuple[int, int]] = {}  # (r, a), the least recently noted first
        self.run_start, self.run_end = 1, 0  # own writes without a gap, both included
        self.covers: Callable[[str], bool] = _nothing  # what a write is stored under as it is, removing nothing else
        self.is_claim = False  # from a token, and the stream's leader was not heard yet
        self.is_suspect = False  # a write got a lower sequence than was seen: its ack was overtaken, or it is another

    def raise_seen(self, seq: int) -> None:
        self.count += 1
        maxima = self.maxima
        while maxima and maxima[-1][1] <= seq:
            maxima.pop()
        maxima.append((self.count, seq))
        if len(maxima) > _MOST_MAXIMA:
            maxima[-2:] = [(self.count, maxima[-2][1])]  # as if the higher one had been noted later: never too low
        self.seen = maxima[0][1]

    def know(self, note: _Note) -> None:
        subject, subjects = note.subject, self.subjects
        newest, as_of = subjects.pop(subject, (0, 0))
        if note.as_of > as_of or as_of == OPEN:
            newest, as_of = note.seq, note.as_of
        elif note.is_own_write and note.seq != newest:
            # A write below what was seen of its subject: acks overtook each other, or the stream was made again.
            self.forget_subjects()
            self.is_suspect = True
            newest, as_of = note.seq, note.as_of
        subjects[subject] = (newest, as_of)
        self.evict()

    def know_many(self, names: Sequence[str], seqs: Sequence[int]) -> None:
        """The same for many messages that were read. (A listing of 10,000 keys pays for each line here.)"""
        subjects = self.subjects
        if all(map(eq, map(subjects.get, names), zip(seqs, seqs, strict=True))):  # read before, not written since
            return
        notes = list(zip(seqs, seqs, strict=True))
        known = list(map(subjects.get, names))
        if known.count(None) == len(known) == len(set(names)):
            subjects.update(zip(names, notes, strict=True))
            self.evict()
            return
        for name, note in zip(names, notes, strict=True):
            old = subjects.get(name)
            if old is None:
                subjects[name] = note
            elif old[1] < note[1]:
                del subjects[name]
                subjects[name] = note
        self.evict()

    def write_blind(self, seq: int) -> None:
        """A write whose subject is not known: it may be of one that was found absent."""
        self.blind = max(self.blind, seq)
        if self.has_open:
            self.has_open = False
            for name, (_, as_of) in self.subjects.items():
                if as_of == OPEN:
                    self.subjects[name] = (-1, OPEN)

    def evict(self) -> None:
        """Keep the bound: what was noted least recently goes first, and leaves its a in a floor."""
        subjects = self.subjects
        while len(subjects) > (MOST_KEYS if self.is_of_handle else MOST_SUBJECTS):
            as_of = subjects.pop(next(iter(subjects)))[1]
            self.evicted = max(self.evicted, as_of)
            self._shorten_run(as_of)

    def extend_run(self, note: _Note) -> None:
        seq = note.seq
        if note.breaks_run or not self.covers(note.subject):
            self._shorten_run(seq)
            self.run_end = max(self.run_end, seq)
        elif seq == self.run_end + 1:
            self.run_end = seq
        elif seq > self.run_end:
            self.run_start = self.run_end = seq

    def _shorten_run(self, seq: int) -> None:
        self.run_start = max(self.run_start, seq + 1)

    def known(self, subject: str) -> int | None:
        known = self.subjects.get(subject)
        if known is None:
            return None
        newest, as_of = known
        if as_of >= self.seen or (as_of + 1 >= self.run_start and self.run_end >= self.seen):
            return newest
        return None

    def forget_subjects(self) -> None:
        is_open = self.evicted == OPEN or any(as_of == OPEN for _, as_of in self.subjects.values())
        self.evicted = OPEN if is_open else self.seen
        self.blind = min(self.blind, self.seen)
        self.has_open = False
        self.subjects.clear()
        self.run_start, self.run_end = self.seen + 1, self.seen

    def configure(self, config: StreamConfig) -> None:
        """Learn the configuration: runs count where a write removes nothing of other subjects."""
        if config.max_msgs > 0 or config.max_bytes > 0 or config.subject_transform is not None:
            self.covers = _nothing
            self._shorten_run(self.seen)
        else:
            patterns = [matcher(subject) for subject in config.subjects]
            self.covers = lambda subject: any(is_of(subject) for is_of in patterns)

    def restart(self, mark: int, last_seq: int) -> None:
        """Another generation, which has `last_seq`: what was noted up to `mark` cannot have been more of it."""
        since = self.maxima[bisect_right(self.maxima, mark, key=lambda pair: pair[0]) :]
        before = min(self.seen, last_seq)
        is_higher = before > (since[0][1] if since else 0)
        self.maxima = [(mark, before), *since] if is_higher else since
        self.seen = self.maxima[0][1] if self.maxima else 0


class SessionState:
    """What a session has written, seen and found absent. Several threads may use it."""

    __slots__ = ("_pending", "_secret", "_streams", "_turn")
    _is_of_handle = False

    def __init__(self, token: str = "", *, secret: bytes = b"") -> None:
        if not isinstance(secret, bytes):
            raise UsageError(f"secret must be bytes, got {type(secret).__name__}")
        self._secret = secret
        self._turn = [True]
        self._pending: list[_Event] = []  # of threads that did not get the turn
        self._streams = _read(token, secret) if token else {}

    # What is known

    def seen(self, stream: str) -> int:
        """W of a stream: the highest sequence seen; 0 for none."""
        pending = self._pending[:]  # before the state: a note leaves the list after it has raised the state
        state = self._streams.get(stream)
        seen = state.seen if state is not None else 0
        if pending:
            return max(seen, max((note.as_of for note in pending if note.stream == stream), default=0))
        return seen

    def wanted(self, stream: str, subject: str = "") -> int:  # noqa: ARG002
        """What a read of a literal subject (empty: of more than one) must have seen."""
        return self.seen(stream)

    def is_open(self, stream: str, subject: str) -> bool:  # noqa: ARG002
        """Whether a message of a subject must be proven against the leader's newest sequence: see `HandleState`."""
        return False

    def created(self, stream: str) -> int:
        """When the stream of those sequences was made, in nanoseconds; 0 if unknown."""
        state = self._streams.get(stream)
        return state.created if state is not None else 0

    def known(self, stream: str, subject: str) -> int | None:
        """The newest message of a subject as of `seen`: an answer with it proves itself. 0: none; None: unknown.

        That is no proof for a read that wants more than `seen`.
        """
        if not self._begin():
            return None
        try:
            state = self._streams.get(stream)
            return state.known(subject) if state is not None else None
        finally:
            self._turn.append(True)

    def seen_of(self, stream: str, subject: str) -> int:
        """The highest sequence seen of a subject; 0 if there is none, or it is not remembered."""
        state = self._streams.get(stream)
        known = state.subjects.get(subject) if state is not None else None
        return known[0] if known is not None else 0

    def mark(self, stream: str) -> int:
        """How many notes there are of a stream: to be taken before its info is asked for, for `made`."""
        state = self._streams.get(stream)
        return state.count if state is not None else 0  # those in the list count as later, which is safe

    def is_claim(self, stream: str) -> bool:
        """Whether what is known comes from a token, and no leader of the stream was heard yet: it may be foreign."""
        state = self._streams.get(stream)
        return state is not None and state.is_claim

    def is_suspect(self, stream: str) -> bool:
        """Whether a write got a lower sequence than was seen: the stream may have been made again, ask its leader."""
        state = self._streams.get(stream)
        return state is not None and state.is_suspect

    # What happens

    def note(
        self, stream: str, seq: int, subject: str = "", *, is_own_write: bool = False, breaks_run: bool = False
    ) -> None:
        """A message of that sequence was written or read.

        With the `subject` it is stored under, if that is known. `breaks_run`: it may have removed other subjects.
        """
        if seq:
            self._add(_Note(stream, seq, subject, seq, is_own_write, breaks_run))

    def note_state(self, stream: str, as_of: int, subject: str = "", seq: int = 0) -> None:
        """A read showed that as of `as_of` the newest message of a literal `subject` is `seq` (0: it has none)."""
        if as_of:
            self._add(_Note(stream, seq, "" if has_wildcard(subject) else subject, as_of))

    def note_many(self, stream: str, subjects: Sequence[str], seqs: Sequence[int]) -> None:
        """Messages in the order of their sequences were read."""
        for subject, seq in zip(subjects, seqs, strict=True):
            self.note(stream, seq, subject)

    def _add(self, event: _Event) -> None:
        if not self._begin():
            self._pending.append(event)
            return
        try:
            event.apply(self._state(event.stream))
        finally:
            self._turn.append(True)

    def _begin(self) -> bool:
        """Get the turn, if no other thread has it, and take in what others could not apply."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        pending = self._pending
        count = len(pending)
        if count:
            for event in pending[:count]:
                event.apply(self._state(event.stream))
            del pending[:count]  # what other threads append lies behind
        return True

    def _state(self, stream: str) -> _StreamState:
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _StreamState(is_of_handle=self._is_of_handle)
        return state

    def made(
        self,
        stream: str,
        created: int,
        last_seq: int,
        *,
        mark: int = 0,
        is_firm: bool = False,
        is_ours: bool = False,
        config: StreamConfig | None = None,
    ) -> bool:
        """Learn that a stream was made at `created` and has `last_seq`; False if a later one is known.

        `mark` is from before that was asked for; `is_firm`: who said so was certainly the leader then; `is_ours`: this
        session made the stream. Raises TokenMismatchError if the session's token speaks of another stream.
        """
        state = self._streams.get(stream)
        known = state.created if state is not None else 0
        if state is not None and state.is_claim and not is_ours:
            _check_claim(state, stream, created, last_seq, is_firm=is_firm)
        if created > known or (created == known and (is_firm or is_ours or config is not None)):
            self._add(_Made(stream, created, last_seq, mark, is_firm or is_ours, config))
        return created >= known

    def learn(self, stream: str, info: StreamInfo, mark: int) -> bool:
        """`made`, by stream info that was asked for after `mark`: of the stream, or of the one it mirrors."""
        config, last_seq = info.config, info.state.last_seq
        if config.mirror is not None:
            return True  # its sequences are those of its origin: when it was made itself says nothing about them
        return self.made(stream, info.created, last_seq, mark=mark, is_firm=_is_firm(info), config=config)

    def streams(self) -> list[str]:
        """The names of the streams of which something is known."""
        return sorted(set(self._streams) | {event.stream for event in self._pending[:]})

    def token(self) -> str:
        """The state as a text of letters, digits, `-` and `_`; signed, if there is a secret."""
        if self._begin():
            try:
                packed = {name: _packed(state) for name, state in sorted(self._streams.items())}
            finally:
                self._turn.append(True)
        else:
            packed = {name: _Packed(self.seen(name), self.created(name)) for name in self.streams()}
        raw = (_SIGNED if self._secret else _PLAIN) + msgspec.msgpack.encode(packed)
        if self._secret:
            raw += _mac(self._secret, raw)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class HandleState(SessionState):
    """What the reads and writes of one handle of a bucket have shown. Several threads may use it."""

    __slots__ = ()
    _is_of_handle = True

    def wanted(self, stream: str, subject: str = "") -> int:
        """What a read of a literal subject (empty: of more than one) must have seen, as far as that is a sequence."""
        if not subject or (self._pending and self._is_behind()):
            return self.seen(stream)
        state = self._streams.get(stream)
        if state is None:
            return 0
        known = state.subjects.get(subject)
        as_of = state.evicted if known is None else known[1]
        return state.blind if as_of == OPEN or as_of < state.blind else as_of

    def is_open(self, stream: str, subject: str) -> bool:
        """Whether nothing was found of a subject, and as of when is not known."""
        if not subject or has_wildcard(subject):
            return False
        self._is_behind()
        state = self._streams.get(stream)
        if state is None:
            return False
        known = state.subjects.get(subject)
        return (state.evicted if known is None else known[1]) == OPEN

    def known(self, stream: str, subject: str) -> int | None:
        """The newest message of a subject as of what is wanted of it. 0: none; None: unknown."""
        if self._is_behind():
            return None
        state = self._streams.get(stream)
        known = state.subjects.get(subject) if state is not None else None
        return known[0] if known is not None and state is not None and known[1] >= state.blind else None

    def takes(self, stream: str, subject: str, seq: int) -> bool:
        """Whether a copy that shows `seq` as the newest message of a subject (0: none) shows nothing older than before.

        Of a copy of the stream of that name that exists: who calls must know that. A message is noted then.
        """
        if self._pending and self._is_behind():
            return False
        state = self._streams.get(stream)
        if state is not None:
            known = state.subjects.get(subject)
            if known is None:
                if seq < state.evicted or seq < state.blind:
                    return False
            else:
                newest, as_of = known
                if seq <= as_of:
                    return seq == newest and as_of >= state.blind
                if seq < state.blind:
                    return False
        if not seq:
            return True
        try:
            self._turn.pop()
        except IndexError:
            self._pending.append(_Note(stream, seq, subject, seq))
            return True
        try:  # as `_Note` does it
            state = self._state(stream)
            state.raise_seen(seq)
            state.subjects.pop(subject, None)
            state.subjects[subject] = (seq, seq)
            state.evict()
        finally:
            self._turn.append(True)
        return True

    def floor(self, stream: str, subject: str) -> int:
        """What an answer must have seen beyond what is known of a subject; -1 if the stream's leader must be asked."""
        if self._pending and self._is_behind():
            return self.seen(stream)
        state = self._streams.get(stream)
        if state is None:
            return 0
        if state.is_suspect:
            return -1
        known = state.subjects.get(subject)
        if known is None:
            return state.blind if state.evicted == OPEN else max(state.evicted, state.blind)
        return state.blind if state.blind > known[1] else 0

    def is_forgotten(self, stream: str, subject: str) -> bool:
        """Whether a subject is not held, and those that are not held any more leave no sequence as a floor."""
        state = self._streams.get(stream)
        return state is not None and state.evicted == OPEN and subject not in state.subjects

    def held(self, stream: str, *, besides: Iterable[Sequence[str]] = ()) -> list[str]:
        """The subjects that are known to have a message, besides those in some sequences."""
        state = self._streams.get(stream)
        if state is None:
            return []
        subjects = state.subjects
        others = set(subjects)
        others.difference_update(*besides)
        if not others:
            return []
        return [name for name, (newest, _) in list(subjects.items()) if newest > 0 and name in others]

    def note_absent(self, stream: str, subject: str) -> None:
        """Nothing was found of a subject, by a copy that did not say as of when."""
        self._add(_Absent(stream, subject))

    def note_many(self, stream: str, subjects: Sequence[str], seqs: Sequence[int]) -> None:
        """Messages in the order of their sequences were read."""
        if seqs:
            self._add(_Listed(stream, subjects, seqs, seqs[-1]))

    def close(self, stream: str, newest: int) -> None:
        """The leader has that sequence: what was found absent before was so as of that one at the latest."""
        self._add(_Closed(stream, newest))

    def _is_behind(self) -> bool:
        """Whether there are events of other threads that cannot be taken in just now."""
        if not self._pending:
            return False
        if self._begin():
            self._turn.append(True)
        return bool(self._pending)


def _is_firm(info: StreamInfo) -> bool:
    """Whether stream info comes from the leader for certain: all its replicas have answered it lately.

    That it leads for long is not enough here: one that was cut off just now does too, and lacks what was written since.
    """
    word = leader_word(info)
    return word is not None and word.is_heard_by_all


# Tokens


class _Packed(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """One stream in a token of version 2. `subjects` are from the least to the most recently noted."""

    seen: int
    created: int = 0
    run_start: int = 1
    run_end: int = 0
    subjects: tuple[tuple[str, int, int], ...] = ()


class _OldToken(msgspec.Struct, array_like=True, frozen=True):
    """Version 1: sequences and times of creation only."""

    version: int
    streams: dict[str, tuple[int, int]]


def _packed(state: _StreamState) -> _Packed:
    known = [name for name in state.subjects if state.known(name) is not None and len(name) <= _LONGEST_IN_TOKEN]
    carried = frozenset(known[-MOST_IN_TOKEN:])
    left_out = max((as_of for name, (_, as_of) in state.subjects.items() if name not in carried), default=0)
    subjects = tuple((name, *known) for name, known in state.subjects.items() if name in carried)
    start = max(state.run_start, left_out + 1)
    if not subjects or start > state.run_end:
        start, end = 1, 0
    else:
        end = state.run_end
    return _Packed(state.seen, state.created, start, end, subjects)


def _unpacked(packed: _Packed) -> _StreamState:
    state = _StreamState()
    state.created, state.is_claim = packed.created, True
    if packed.seen:
        state.raise_seen(packed.seen)
    state.run_start, state.run_end = packed.run_start, packed.run_end
    state.subjects = {name: (newest, as_of) for name, newest, as_of in packed.subjects}
    return state


def _mac(secret: bytes, raw: bytes) -> bytes:
    return hmac.digest(secret, b"slipstream session token\n" + raw, "sha256")


def _read(token: str, secret: bytes) -> dict[str, _StreamState]:
    try:
        if not isinstance(token, str) or len(token) > _MAX_TOKEN:
            raise ValueError("too long, or not a str")
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        body = _checked(raw, secret)
        if raw[:1] == _OLD:
            old = msgspec.json.decode(raw, type=_OldToken)
            if old.version != 1:
                raise ValueError("no such version")
            streams = {name: _Packed(seen, created) for name, (seen, created) in old.streams.items()}
        else:
            streams = msgspec.msgpack.decode(body, type=dict[str, _Packed])
    except SessionTokenError:
        raise
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as exc:
        raise SessionTokenError(
            f"session token must be a value returned by Session.token(), got {str(token)[:24]!r}: "
            "begin a session without it"
        ) from exc
    if not all(_is_sane(packed) for packed in streams.values()):
        raise SessionTokenError("session token must contain ascending sequences; begin a session without it")
    return {name: _unpacked(packed) for name, packed in streams.items()}


def _checked(raw: bytes, secret: bytes) -> bytes:
    """The body of a token, if it is signed as it must be."""
    is_signed = raw[:1] == _SIGNED
    if not is_signed and raw[:1] not in (_OLD, _PLAIN):
        raise ValueError("no such version")
    if is_signed and not secret:
        raise SessionTokenError("session token is signed: pass the secret it was signed with as secret=")
    if secret and not is_signed:
        raise SessionTokenError(
            "session token must be signed: begin a session without it, and create tokens in sessions with secret="
        )
    if not is_signed:
        return raw[1:]
    if not hmac.compare_digest(_mac(secret, raw[:-_MAC_SIZE]), raw[-_MAC_SIZE:]):
        raise SessionTokenError(
            "session token has a wrong signature: it was changed, "
            "or signed with another secret; begin a session without it"
        )
    return raw[1:-_MAC_SIZE]


def _is_sane(packed: _Packed) -> bool:
    return (
        packed.seen >= 0
        and packed.created >= 0
        and packed.run_start >= 1
        and 0 <= packed.run_end <= packed.seen
        and len(packed.subjects) <= MOST_IN_TOKEN
        and all(0 <= newest <= as_of <= packed.seen for _, newest, as_of in packed.subjects)
    )


def _check_claim(state: _StreamState, stream: str, created: int, last_seq: int, *, is_firm: bool) -> None:
    """Compare what a token says with the stream that is here."""
    if created > state.created > 0:
        raise TokenMismatchError(
            f"{stream}: the session token is stale: the stream was recreated after the token was created. "
            "Begin a session without it",
            stream=stream,
            min_last_seq=state.seen,
        )
    if not is_firm:
        return
    if created < state.created:
        why = "the existing stream is older than the token's"
    elif state.seen > last_seq:
        why = f"the token has seen sequence {state.seen}, but the stream ends at {last_seq}"
    else:
        return
    raise TokenMismatchError(
        f"{stream}: the session token belongs to another stream: {why}. It comes from another cluster, "
        "account or domain, or the stream lost messages; begin a session without it",
        stream=stream,
        min_last_seq=state.seen,
    )

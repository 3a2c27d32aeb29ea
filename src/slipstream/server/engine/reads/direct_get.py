"""Direct Get: one peer of a stream answers from its log, single messages or batches.

Reads see the committed view only and change nothing. A batch is a job: it sends one chunk at a time, so that the loop
and other readers get their turn, and pauses while its reader does not keep up. A request with a `min_last_seq` that
this peer has not reached waits for a moment before it is rejected (read-after-write, RW rows).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from slipstream.api import (
    GetRequest,
    decode_get_request,
    decode_plain_get_request,
    format_time,
    names,
    parse_time,
)
from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.bounds import MAX_BRANCHES
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.jobs import RECEIVE_UNITS, SLICE_UNITS, Load, Progress
from slipstream.server.engine.ports import FEW_PATTERNS, MOST_UNFORESEEN, LogSnapshot, Record, Walk, has_wildcard
from slipstream.server.engine.reads.appended_body import decode_appended
from slipstream.server.engine.reads.frozen_log import LogView
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer
from slipstream.wire import hmsg, most_steps, msg
from slipstream.wire.headers import status_block

PREFIX = "$JS.API.DIRECT.GET."
QUEUE = "_sys_"

REJECT_DELAY = 500_000_000
DEPOSED_DELAY = 250_000_000  # added by a deposed leader, so that the real one answers first
MAX_MULTI = 1024
MAX_PATTERNS = 8192  # of `multi_last`: taking them apart is not done in slices
MAX_TOKENS = 2 * MAX_PATTERNS  # of those with wildcards together
MAX_SEQ = 2**64 - 1  # of the protocol: what is beyond is no number there
CHUNK = 512
CHUNK_BYTES = 256 * 1024
FEW_MESSAGES = 512  # of a stream that is searched in one piece
FEW_SUBJECTS = 256  # the same for the last message of a filter
KEPT_BYTES = 16 * 1024  # of messages that were gone when their turn came, and were found again

T = TypeVar("T")

NOT_FOUND = status_block(404, "Message Not Found")
NO_RESULTS = status_block(404, "No Results")
EMPTY = status_block(408, "Empty Request")
MALFORMED = status_block(408, "Malformed Request")
BAD = status_block(408, "Bad Request")
STALE = status_block(412, "Min Last Sequence")
TOO_MANY = status_block(413, "Too Many Results")
TOO_MANY_PATTERNS = status_block(413, f"Too Many Subjects, at most {MAX_PATTERNS}")
TOO_MANY_TOKENS = status_block(413, f"Too Many Subjects, wildcards with at most {MAX_TOKENS} tokens")
TOO_MANY_BRANCHES = status_block(413, f"Too Many Subjects, wildcards matched in at most {MAX_BRANCHES} steps")
TOO_BUSY = status_block(429, "Too Many Requests")
CORRUPT = status_block(500, "Message Corrupt")
DELETED = status_block(503, "Stream Deleted")


class WaitingRead(NamedTuple):
    """A request that waits for a sequence, with its deadline."""

    seq: int
    ready: Callable[[ReplicaPeer], None]  # called with the peer that has it: another one, if leadership moved
    reject: Callable[[], object]
    when: int
    timer: Timer
    owner: Session | None  # who asked


class ReadCounts:
    """How the Direct Gets of one replica went, since the server started. A redirected one is counted there and here."""

    __slots__ = ("batch", "last", "redirected", "rejected", "single", "waited")

    def __init__(self) -> None:
        # Answered: one message, a batch, the last ones of many subjects.
        self.single: int = 0
        self.batch: int = 0
        self.last: int = 0
        self.waited: int = 0
        self.rejected: int = 0
        self.redirected: int = 0


class ReplicaPeer:
    """One replica of a stream, and its member of the queue group that answers Direct Gets."""

    def __init__(self, services: Services, name: str, log: LogView, *, peer: str = "", created: int = 0) -> None:
        """`name` is the stream's, `peer` that of the replica."""
        self.name = name
        self.peer = peer
        self.created = created
        self.log = log
        self.redirects_to: ReplicaPeer | None = None  # the leader of a follower
        self.deposed = False  # no longer leads, but believes that it does
        # Of a mirror (`replication.fidelity`); all other streams are exact as of their last sequence.
        self.seen = 0  # the upstream was read up to here, whatever a filter left out
        self.gap_until = 0  # it speaks for nothing before it gets there
        self.is_true_copy = False  # it may speak for its upstream
        self.reads: ReadCounts = ReadCounts()
        self._services = services
        self._is_compat = services.compat
        self._cut = len(PREFIX) + len(name)
        self._load = services.jobs.load
        self._router = services.router
        self._waiting: list[WaitingRead] = []
        self.is_stopped: bool = False  # the stream was deleted
        self._lines = f"Nats-Stream: {name}\r\nNats-Subject: "
        self.first_lines: str = f"NATS/1.0\r\n{self._lines}"
        self._time, self._time_text = -1, ""  # of the message that was sent last

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Answer a Direct Get; `subject` may have the wanted subject appended."""
        if not reply or (len(subject) == self._cut and self._answer_plain(payload, reply)):
            return True
        request = parse_appended(subject[self._cut + 1 :], payload) if len(subject) > self._cut else parse(payload)
        if self._is_compat:
            request = parse_compat(subject[self._cut + 1 :], payload)
        if isinstance(request, bytes):
            self._router.send(reply, request, b"")
        elif request.min_last_seq > self.log.committed.last_seq or self.gap_until:
            self.wait_for(request, reply, now)
        else:
            self.answer(request, reply, self.stamp(request))
        return True

    def _answer_plain(self, payload: bytes, reply: str) -> bool:
        """Answer a request that names one message (by its sequence, or the last one of a literal subject) and nothing
        else, as most do. False if it is any other: then `parse` looks at it, and `answer` at what it asks for.

        All fields are read at once: compiled code has to look up each attribute of a msgspec object.
        """
        if self.gap_until or self._is_compat:
            return False
        try:
            fields = astuple(decode_plain_get_request(payload))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        seq: int
        last: str
        min_last_seq: int
        seq, last, following, batch, _, start, multi, up_to_seq, up_to_time, no_hdr, min_last_seq, as_of = fields
        if (
            (seq if last else not 0 < seq <= MAX_SEQ)
            or not 0 <= min_last_seq <= self.log.committed.last_seq
            or following or batch or multi or up_to_seq or start is not None or up_to_time is not None
            or "*" in last or ">" in last
        ):  # fmt: skip
            return False
        self._load.units += 1
        self.reads.single += 1
        try:
            record = self.log.last(last) if last else self.log.get(seq)
        except CorruptRecordError:
            self._router.send(reply, CORRUPT, b"")
            return True
        lines = stamp(self.peer, self.as_of(), self.created) if as_of else ""
        if record is None:
            self._router.send(reply, stamped(NOT_FOUND, lines), b"")
        else:
            self._router.answer(reply, b"" if no_hdr else self.block(record, lines), record.payload)
        return True

    def wait_for(self, request: GetRequest, reply: str, now: int) -> None:
        """A request that this peer may not be able to answer: a follower redirects it to the leader, others wait."""
        if request.min_last_seq <= self.as_of():
            self.answer(request, reply, self.stamp(request))
        elif self.redirects_to is not None:
            self.reads.redirected += 1
            self.redirects_to.wait_for(request, reply, now)
        else:
            self.park(
                request.min_last_seq,
                ready=lambda peer: peer.answer(request, reply, peer.stamp(request)),
                reject=lambda: self._reject(request, reply),
                now=now,
            )

    def _reject(self, request: GetRequest, reply: str) -> None:
        self.reads.rejected += 1
        self._services.router.send(reply, stamped(STALE, self.stamp(request)), b"")

    def as_of(self) -> int:
        """The sequence as of which this peer's data is that of the stream; 0 while a mirror has a gap."""
        reached = max(self.log.committed.last_seq, self.seen)
        return reached if reached >= self.gap_until else 0

    def stamp(self, request: GetRequest) -> str:
        """The header lines that a request with `as_of` gets; none otherwise."""
        return stamp(self.peer, self.as_of(), self.created) if request.as_of else ""

    def answer(self, request: GetRequest, reply: str, stamp: str) -> None:
        """Answer from the present state, at once or (a search that takes long) as of now."""
        if request.multi_last:
            self.reads.last += 1
            self._answer_multi(request, reply, stamp)
        elif request.batch:
            self.reads.batch += 1
            self._start(DirectBatch(self._services, self, request, reply, stamp), reply)
        elif is_quick(request):  # not by `look_up`, which costs a microsecond more
            self._load.units += 1
            self.reads.single += 1
            try:
                record = find(self.log, request)
            except CorruptRecordError:
                self._router.send(reply, CORRUPT, b"")
                return
            if record is None:
                self._router.send(reply, stamped(NOT_FOUND, stamp), b"")
            else:
                self._router.answer(reply, b"" if request.no_hdr else self.block(record, stamp), record.payload)
        else:
            self._answer_later(request, reply, stamp)  # apart: a function with inner ones makes an object for each call

    def _answer_later(self, request: GetRequest, reply: str, stamp: str) -> None:
        """Answer a request for one message that may take a search."""
        router = self._router
        self.reads.single += 1

        def found(record: Record | None) -> None:
            if record is None:
                router.send(reply, stamped(NOT_FOUND, stamp), b"")
            else:
                router.send(reply, b"" if request.no_hdr else self.block(record, stamp), record.payload)

        def failed(_: StoreError) -> None:
            router.send(reply, CORRUPT, b"")

        if not self.look_up(request, found, failed):
            router.send(reply, TOO_BUSY, b"")

    def look_up(
        self, request: GetRequest, found: Callable[[Record | None], None], failed: Callable[[StoreError], None]
    ) -> bool:
        """Find the message that a request for one asks for, as of now: at once where that takes no search. False: there
        are too many searches."""
        log, jobs = self.log, self._services.jobs
        jobs.load.units += 16
        few = FEW_SUBJECTS if request.last_by_subj else 0
        if is_quick(request) or log.committed.subjects <= few or log.committed.messages <= FEW_MESSAGES:
            try:
                record = find(log, request)
            except CorruptRecordError as exc:
                failed(exc)
            else:
                found(record)
            return True
        if log.is_crowded:
            return False
        pattern = request.last_by_subj or request.next_by_subj
        snapshot = log.snapshot()
        seq = 0 if request.last_by_subj else start_of(log, request)
        walk = last_walk(snapshot, pattern) if request.last_by_subj else snapshot.next(pattern, seq)
        return jobs.search(closing(snapshot, walk), found, failed)

    def _answer_multi(self, request: GetRequest, reply: str, stamp: str) -> None:
        log, router = self.log, self._services.router
        up_to = request.up_to_seq
        if request.up_to_time is not None:
            up_to = log.time_to_seq(parse_time(request.up_to_time)) - 1
            if up_to < log.committed.first_seq:
                router.send(reply, stamped(NO_RESULTS, stamp), b"")
                return
        bound = up_to
        up_to = up_to or log.committed.last_seq
        patterns = [pattern for pattern in request.multi_last if pattern]  # an empty one matches nothing here

        def found(seqs: list[int] | None) -> None:
            if not seqs:
                router.send(reply, TOO_MANY if seqs is None else stamped(NO_RESULTS, stamp), b"")
                return
            seqs = [seq for seq in seqs if seq >= request.seq]
            batch = DirectBatch(self._services, self, request, reply, stamp, seqs=seqs, up_to=up_to, bound=bound)
            self._start(batch, reply)

        if not up_to or not patterns:
            found([])
        elif log.is_crowded:
            router.send(reply, TOO_BUSY, b"")
        else:
            snapshot = log.snapshot()
            walk = snapshot.multi_last(patterns, up_to=up_to, limit=MAX_MULTI)

            def failed(_: StoreError) -> None:
                router.send(reply, CORRUPT, b"")

            if not self._services.jobs.search(closing(snapshot, walk), found, failed):
                router.send(reply, TOO_BUSY, b"")

    def _start(self, batch: DirectBatch, reply: str) -> None:
        jobs = self._services.jobs
        jobs.load.units += 4
        if not jobs.start(batch, jobs.load.asker):
            self._services.router.send(reply, TOO_BUSY, b"")

    def block(self, record: Record, extra: str) -> bytes:
        """The header block of a reply: the message's own headers, then ours."""
        seq, time, subject, header, _ = record
        if time != self._time:  # what arrived in one turn was stored at one time
            self._time, self._time_text = time, format_time(time)
        ours = f"{subject}\r\nNats-Sequence: {seq}\r\nNats-Time-Stamp: {self._time_text}\r\n{extra}\r\n"
        if header.endswith(b"\r\n\r\n"):
            return header[:-2] + f"{self._lines}{ours}".encode()
        return f"{self.first_lines}{ours}".encode()

    # Read-after-write.

    def park(self, seq: int, *, ready: Callable[[ReplicaPeer], None], reject: Callable[[], object], now: int) -> None:
        """Call `ready` (with the peer that can) as of `seq`, or `reject` when that takes too long; at once, if too many
        wait."""
        if not self._services.commit_waiters.wait(self, 1):
            reject()
            return
        self.reads.waited += 1
        owner = self._services.jobs.load.asker
        self._enter(seq, ready, reject, now + REJECT_DELAY + (DEPOSED_DELAY if self.deposed else 0), owner)

    def _enter(
        self,
        seq: int,
        ready: Callable[[ReplicaPeer], None],
        reject: Callable[[], object],
        when: int,
        owner: Session | None,
    ) -> None:
        waiting: WaitingRead

        def give_up(_: int) -> None:
            self._waiting.remove(waiting)
            self._services.commit_waiters.wait(self, -1)
            reject()

        waiting = WaitingRead(seq, ready, reject, when, self._services.timers.at(when, give_up), owner)
        self._waiting.append(waiting)

    def release(self) -> None:
        """Answer the waiting requests whose sequence was reached: some at once, very many in their clients' turns."""
        if not self._waiting:
            return
        last = self.as_of()
        reached_now = [waiting for waiting in self._waiting if waiting.seq <= last]
        if reached_now:
            self._waiting = [waiting for waiting in self._waiting if waiting.seq > last]
            self._services.commit_waiters.wait(self, -len(reached_now))
            for waiting in reached_now:
                waiting.timer.cancel()
            self._answer_released(reached_now)

    def _answer_released(self, reads: list[WaitingRead]) -> None:
        jobs = self._services.jobs
        by_owner: dict[Session | None, deque[WaitingRead]] = {}
        for waiting in reads:
            if jobs.load.units < RECEIVE_UNITS and waiting.owner not in by_owner:
                self.answer_released(waiting)
            else:
                by_owner.setdefault(waiting.owner, deque()).append(waiting)
        for owner, queue in by_owner.items():
            jobs.go_on(ReleasedReads(self, jobs.load, queue), owner if owner is not None else self)

    def answer_released(self, waiting: WaitingRead) -> None:
        """Answer a request whose sequence was reached. By the time of its turn a mirror may have a gap: then it waits
        again."""
        if waiting.seq > self.as_of():
            if self.is_stopped or not self._services.commit_waiters.wait(self, 1):
                waiting.reject()
            else:
                self._enter(waiting.seq, waiting.ready, waiting.reject, waiting.when, waiting.owner)
            return
        load = self._services.jobs.load
        load.units += 1
        load.owner = waiting.owner
        try:
            waiting.ready(self)
        finally:
            load.owner = None

    def inherit(self, other: ReplicaPeer) -> None:
        """Take over the waiting requests of another peer, with their deadlines."""
        for request in other.stop():
            self._services.commit_waiters.wait(self, 1)
            self._enter(request.seq, request.ready, request.reject, request.when, request.owner)
        self.release()

    def stop(self) -> list[WaitingRead]:
        """Cancel the waiting requests and return them; none of them counts as waiting afterwards."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.timer.cancel()
        self._services.commit_waiters.wait(self, -len(waiting))
        return waiting

    def end(self) -> None:
        """The stream was deleted: what it never reached is rejected."""
        self.is_stopped = True
        for waiting in self.stop():
            waiting.reject()


class ReleasedReads:
    """Requests of one client whose sequence was reached, very many at once, as a job."""

    def __init__(self, peer: ReplicaPeer, load: Load, reads: deque[WaitingRead]) -> None:
        self._peer, self._load, self._reads = peer, load, reads

    def run(self) -> tuple[Progress, int]:
        before = self._load.units
        while self._reads and self._load.units - before < SLICE_UNITS:
            self._peer.answer_released(self._reads.popleft())
            self._load.units += 1
        return Progress.MORE if self._reads else Progress.DONE, self._load.units - before


class DirectBatch:
    """A running batched Direct Get: messages from a sequence on, or (`seqs`) the last ones of many subjects."""

    def __init__(
        self,
        services: Services,
        peer: ReplicaPeer,
        request: GetRequest,
        reply: str,
        stamp: str,
        *,
        seqs: list[int] | None = None,
        up_to: int = 0,
        bound: int = 0,
    ) -> None:
        """`up_to`: where the responder stood, or the bound that was asked for; `bound`: only the latter."""
        self._services, self._peer, self._log = services, peer, peer.log
        self._reply, self._stamp = reply, stamp
        self._pattern = request.next_by_subj
        self._seqs = seqs
        self._up_to, self._bound = up_to, bound
        self._patterns = [pattern for pattern in request.multi_last if pattern]
        self._first = request.seq  # of `seqs`
        self._subjects: set[str] = set()  # of `seqs`, those that were sent
        self._has_lost = False  # a message of `seqs` was gone when its turn came
        self._kept: dict[int, Record] = {}  # found by a second look
        self._has_too_many = False  # subjects to find those that were lost
        self._at = 0  # next of `seqs`
        self._seq = start_of(peer.log, request)
        self._left = request.batch if request.batch > 0 or seqs is None else MAX_MULTI
        self._bytes = request.max_bytes if request.max_bytes > 0 else services.max_pending
        self._chunk_bytes = min(CHUNK_BYTES, services.max_pending // 4)
        self._plain = request.no_hdr and seqs is None  # as on nats-server, multi-subject gets keep their headers
        self._last = 0
        self._pending = -1  # counted with the first chunk
        self._counted = 0  # the last sequence when that was
        self._search: Walk[None] | None = None  # a count or a second look, on its way
        self._is_over = False  # all messages were sent, but the number of those left is being counted

    def run(self) -> tuple[Progress, int]:
        """Send one chunk, or do a slice of what must be known for the next one."""
        try:
            if self._peer.is_stopped:  # an end of the batch would claim that what was sent is all
                self._services.router.send(self._reply, DELETED, b"")
                progress, units = Progress.DONE, 1
            else:
                progress, units = self._run() if self._search is None else self._look()
        except StoreError:
            self._services.router.send(self._reply, CORRUPT, b"")
            progress, units = Progress.DONE, 1
        if progress is Progress.DONE and self._search is not None:
            self._search.close()
        return progress, units

    def _look(self) -> tuple[Progress, int]:
        assert self._search is not None
        if not self._services.router.interest(self._reply)[0]:
            return Progress.DONE, 0
        return Progress.MORE, self._advance()

    def _advance(self) -> int:
        """A slice of the search; the units of work."""
        units = 0
        try:
            while self._search is not None and units < SLICE_UNITS:
                units += next(self._search)
        except StopIteration:
            self._search = None
        return units

    def _run(self) -> tuple[Progress, int]:
        sub = self._services.router.sole_client(self._reply)
        there, congested = (
            (True, sub.session.congested) if sub is not None else self._services.router.interest(self._reply)
        )
        if not there:
            return Progress.DONE, 0  # the reader went away
        if congested:
            return Progress.BLOCKED, 0
        if self._is_over and self._must_look():
            self._look_again()
            return Progress.MORE, SLICE_UNITS // 4
        if self._is_over:
            self._services.router.send(self._reply, self._end(), b"")
            return Progress.DONE, 1
        if self._pending < 0:  # counting is not free: once, and with the first chunk, not while requests queue up
            if self._seqs is not None:
                self._pending = len(self._seqs)
            elif not self._count():
                return Progress.MORE, SLICE_UNITS // 4
        records = self._take() if self._left > 0 else []
        if not records and (self._search is not None or self._has_more() or (self._left > 0 and self._must_look())):
            return Progress.MORE, SLICE_UNITS
        if not records and not self._last and self._left > 0 and self._seqs is None:
            self._services.router.send(self._reply, stamped(NOT_FOUND, self._stamp), b"")
            return Progress.DONE, 0
        frames: list[bytes] = []
        if sub is not None:
            frames, count = self._encode(records, sub.sid)
        else:
            count = self._send(records)
        over = not records or self._left <= 0 or self._bytes <= 0
        # Not in the middle of a second look: the end would claim that nothing is left of what it is about to find.
        ends = over and self._search is None and not self._must_recount() and not self._must_look()
        if sub is not None:
            if ends:
                frames.append(hmsg(self._reply.encode(), sub.sid, self._end(), b""))
            data = b"".join(frames)
            sub.delivered += count + ends
            self._services.router.push(sub.session, data, len(data))
        elif ends:
            self._services.router.send(self._reply, self._end(), b"")
        if over and not ends:
            self._is_over = True
            if self._must_recount():
                self._count()
        return (Progress.DONE if ends else Progress.MORE), count

    def _has_more(self) -> bool:
        """Whether a scan stopped before the end, without having found anything."""
        return self._seqs is None and self._left > 0 and self._seq <= self._log.committed.last_seq

    def _must_recount(self) -> bool:
        return self._seqs is None and self._log.committed.last_seq != self._counted

    def _must_look(self) -> bool:
        """Whether messages were removed before their turn came, and newer or older ones may take their places."""
        return self._seqs is not None and self._has_lost and self._search is None and self._at == len(self._seqs)

    def _count(self) -> bool:
        """Count what is left, as of now; False if that takes a search."""
        log = self._log
        self._counted = log.committed.last_seq
        if is_everything(self._pattern) or log.committed.messages <= FEW_MESSAGES:
            self._pending = log.count(self._pattern, self._seq)
            return True
        if log.is_crowded:
            self._counted = -1
            return False
        snapshot = log.snapshot()

        def count() -> Walk[None]:
            self._pending = yield from snapshot.count((self._pattern,), self._seq)

        self._search = closing(snapshot, count())
        self._advance()
        return self._search is None

    def _take(self) -> list[Record]:
        """The messages of the next chunk. A damaged message after good ones is reported by the next chunk."""
        limit = min(CHUNK, self._left)
        if self._seqs is None:
            while True:
                try:
                    records, at = self._log.scan_some(
                        self._pattern, self._seq, limit=limit, max_bytes=self._chunk_bytes
                    )
                    if not records:
                        self._seq = at
                    return records
                except CorruptRecordError:
                    if limit == 1:
                        raise
                    limit //= 2
        records = []
        size = 0
        while True:
            load = self._services.jobs.load
            while (
                self._at < len(self._seqs)
                and len(records) < limit
                and size < self._chunk_bytes
                and load.units <= MOST_UNFORESEEN
            ):
                seq = self._seqs[self._at]
                record = self._kept.pop(seq, None) or self._log.get(seq)
                self._at += 1
                if record is not None:
                    records.append(record)
                    size += len(record.payload)
                    self._subjects.add(record.subject)
                else:  # removed since the subjects were looked up, perhaps by a newer message
                    self._pending -= 1
                    self._has_lost = True
            if not self._must_look() or self._log.is_crowded:
                return records
            self._look_again()

    def _look_again(self) -> None:
        """Add the newest messages of the subjects whose newest one was removed meanwhile; later, if there are too many
        searches. Some of those found are kept: a subject that is written all the time is not missed again."""
        assert self._seqs is not None
        if self._log.is_crowded:
            return
        self._has_lost = False
        seqs, snapshot = self._seqs, self._log.snapshot()
        known = set(seqs)

        def look() -> Walk[None]:
            newest = yield from snapshot.multi_last(self._patterns, up_to=self._bound, limit=MAX_MULTI)
            self._has_too_many = newest is None
            budget = KEPT_BYTES
            for seq in newest or ():
                if seq < self._first or seq in known:  # still there: it was sent
                    continue
                # Of the same moment: by now the message may be overwritten again, and its subject would be left out.
                record = snapshot.get(seq)
                if record is not None and record.subject not in self._subjects:
                    seqs.append(seq)
                    self._pending += 1
                    if budget > 0:
                        self._kept[seq] = record
                        budget -= len(record.payload)
                yield 1 if record is None else 1 + len(record.payload) // 4096

        self._search = closing(snapshot, look())
        self._advance()

    def _encode(self, records: list[Record], sid: bytes) -> tuple[list[bytes], int]:
        """A chunk as frames for one subscription, and how many messages `max_bytes` allowed. Hot."""
        reply = self._reply.encode()
        lead = f"HMSG {self._reply} {sid.decode()} "
        first = self._peer.first_lines
        frames: list[bytes] = []
        last, pending, left = self._last, self._pending, self._bytes
        last_text = str(last)
        middle, stamped = "", -1
        # Messages of one stream tend to be alike: the sizes in the line are formatted only when they change.
        fixed = size = total = -1
        sizes = ""
        count = 0
        for seq, time, subject, header, payload in records:
            if pending > 0:
                pending -= 1
            if header or self._plain:
                block = self._block(Record(seq, time, subject, header, payload), pending, last)
                frames.append(hmsg(reply, sid, block, payload) if block else msg(reply, sid, payload))
                last_text = str(seq)
            else:
                if time != stamped:  # what arrived in one turn was stored at one time
                    middle = f"\r\nNats-Time-Stamp: {format_time(time)}\r\nNats-Num-Pending: "
                    fixed = len(f"{first}\r\nNats-Sequence: {middle}\r\nNats-Last-Sequence: \r\n\r\n".encode())
                    stamped = time
                seq_text, pending_text = str(seq), str(pending)
                named = len(subject) if subject.isascii() else len(subject.encode())
                head = fixed + named + len(seq_text) + len(pending_text) + len(last_text)
                if head != size or head + len(payload) != total:
                    size, total = head, head + len(payload)
                    sizes = f"{lead}{size} {total}\r\n{first}"
                text = (
                    f"{sizes}{subject}\r\nNats-Sequence: {seq_text}{middle}{pending_text}"
                    f"\r\nNats-Last-Sequence: {last_text}\r\n\r\n"
                )
                frames.append(text.encode())
                frames.append(payload)
                frames.append(b"\r\n")
                last_text = seq_text
            last = seq
            count += 1
            left -= len(subject) + len(header) + len(payload)
            if left <= 0:
                break
        self._sent(count, last, pending, left)
        return frames, count

    def _send(self, records: list[Record]) -> int:
        """Publish a chunk to all subscribers; the number of messages within `max_bytes`."""
        last, pending, left = self._last, self._pending, self._bytes
        count = 0
        for record in records:
            pending -= pending > 0
            self._services.router.send(self._reply, self._block(record, pending, last), record.payload)
            last = record.seq
            count += 1
            left -= len(record.subject) + len(record.header) + len(record.payload)
            if left <= 0:
                break
        self._sent(count, last, pending, left)
        return count

    def _block(self, record: Record, pending: int, last: int) -> bytes:
        if self._plain:
            return b""
        return self._peer.block(record, f"Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n")

    def _sent(self, count: int, last: int, pending: int, left: int) -> None:
        self._last, self._pending, self._bytes = last, pending, left
        self._left -= count
        if count:
            self._seq = last + 1

    def _end(self) -> bytes:
        """The end of the batch: how many are left. nats-server says so in `Nats-Num-Pending`, the specification in
        `Nats-Pending-Messages`: both are there. 413 if subjects may be missing that later pages would not have."""
        if self._has_too_many:
            return TOO_MANY
        pending = self._pending
        values = [(names.NUM_PENDING, str(pending)), (names.LAST_SEQUENCE, str(self._last))]
        if self._seqs is not None:
            values.append((names.UP_TO_SEQUENCE, str(self._up_to)))
        if not self._services.compat:
            values.append((names.PENDING_MESSAGES, str(pending)))
        return stamped(status_block(204, "EOB", values), self._stamp)


def stamp(peer: str, as_of: int, created: int) -> str:
    """Who answers, as of which sequence, and of which stream: the lines of a request with `as_of`."""
    return f"{names.RESPONDER}: {peer}\r\n{names.AS_OF}: {as_of}\r\n{names.CREATED}: {created}\r\n"


def stamped(block: bytes, lines: str) -> bytes:
    """A status with those lines."""
    return block[:-2] + lines.encode() + b"\r\n" if lines else block


def parse(payload: bytes) -> GetRequest | bytes:
    """The request in a Direct Get's body, or the status that refuses it."""
    if not payload:
        return EMPTY
    request = _decode(payload)
    if request is None:
        return MALFORMED
    if refused := _check_patterns(request.multi_last):
        return refused
    by_time = request.start_time is not None
    last, following, multi = request.last_by_subj, request.next_by_subj, request.multi_last
    if not (request.seq or last or following or multi or by_time):
        return EMPTY
    if (
        (last and (request.seq or by_time or following or request.batch > 0 or multi))
        or (request.seq and by_time)
        or (following and multi)
        or (request.up_to_seq and request.up_to_time is not None)
    ):
        return BAD
    return request


def _check_patterns(patterns: Sequence[str]) -> bytes:
    """Whether `multi_last` is too much work for one turn; the status that refuses it, or nothing."""
    if len(patterns) > MAX_PATTERNS:
        return TOO_MANY_PATTERNS
    if len(patterns) <= FEW_PATTERNS:
        return b""
    wildcards = [pattern for pattern in patterns if has_wildcard(pattern)]
    tokens = 0
    for pattern in wildcards:
        tokens += pattern.count(".") + 1
    if tokens > MAX_TOKENS:
        return TOO_MANY_TOKENS
    return TOO_MANY_BRANCHES if most_steps(wildcards) > MAX_BRANCHES else b""


def parse_compat(subject: str, payload: bytes) -> GetRequest | bytes:
    """The request as nats-server reads it: `min_last_seq` and `as_of` are fields that it does not know, and a request
    with the subject appended may have a body, in which no other message is named."""
    if not subject:
        found = parse(payload)
        return found if isinstance(found, bytes) else msgspec.structs.replace(found, min_last_seq=0, as_of=False)
    request = _decode(payload) if payload else GetRequest()
    if request is None:
        return MALFORMED
    named = request.last_by_subj or request.next_by_subj or request.multi_last or request.seq or request.batch
    if named or request.up_to_seq or request.start_time is not None or request.up_to_time is not None:
        return BAD
    return GetRequest(last_by_subj=subject, no_hdr=request.no_hdr)


def parse_appended(subject: str, payload: bytes) -> GetRequest | bytes:
    """The request of a Direct Get with the subject appended. A body is a bad request, as the document says, unless it
    has `min_last_seq`, our `as_of`, or both, and nothing else."""
    if not payload:
        return GetRequest(last_by_subj=subject)
    try:
        body = decode_appended(payload)
    except (msgspec.ValidationError, OverflowError):
        return BAD
    except (msgspec.DecodeError, ValueError, RecursionError):
        return MALFORMED
    if (body.min_last_seq is None and body.as_of is None) or (body.min_last_seq or 0) > MAX_SEQ:
        return BAD
    return GetRequest(last_by_subj=subject, min_last_seq=body.min_last_seq or 0, as_of=bool(body.as_of))


def _decode(payload: bytes) -> GetRequest | None:
    try:
        request = decode_get_request(payload)
        if request.start_time is not None:
            parse_time(request.start_time)
        if request.up_to_time is not None:
            parse_time(request.up_to_time)
    except (msgspec.DecodeError, ValueError):
        return None
    if not (0 <= request.seq <= MAX_SEQ and 0 <= request.up_to_seq <= MAX_SEQ and 0 <= request.min_last_seq <= MAX_SEQ):
        return None
    return request


def start_of(log: LogView, request: GetRequest) -> int:
    """The sequence a request starts from."""
    return request.seq if request.start_time is None else log.time_to_seq(parse_time(request.start_time))


def is_everything(pattern: str) -> bool:
    return pattern in ("", ">")


def is_quick(request: GetRequest) -> bool:
    """Whether a message is found without a search, whatever the stream has."""
    pattern = request.last_by_subj or request.next_by_subj
    return ("*" not in pattern and ">" not in pattern) or is_everything(pattern) or not has_wildcard(pattern)


def last_walk(snapshot: LogSnapshot, pattern: str) -> Walk[Record | None]:
    """The newest message that matches."""
    seq = yield from snapshot.last(pattern)
    return snapshot.get(seq) if seq else None


def closing(snapshot: LogSnapshot, walk: Walk[T]) -> Walk[T]:
    """A walk that closes its snapshot at the end."""
    try:
        return (yield from walk)
    finally:
        snapshot.close()


def find(log: LogView, request: GetRequest) -> Record | None:
    """The message that a request for one asks for."""
    if request.last_by_subj:
        return log.last(request.last_by_subj)
    seq = start_of(log, request)
    if request.next_by_subj:
        records = log.scan(request.next_by_subj, seq, limit=1)
        return records[0] if records else None
    return log.get(seq)

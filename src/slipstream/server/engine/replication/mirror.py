"""Mirrors: a copy of the upstream with its sequences and times, which also answers Direct Gets for the upstream.

The mirror has the gaps of the upstream. Later deletions in either stream do not affect the other.

A mirror with `mirror_direct` answers Direct Gets that are addressed to its upstream, in the same queue group, once it
has caught up, and names itself. Where a filter or a transform hides the answer from it, it leaves the request to other
members of the group. It also does so with a `min_last_seq` if its copy is not that of the upstream (`fidelity`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slipstream.api import GetRequest, StreamConfig, StreamSource
from slipstream.server.engine.ports import Record
from slipstream.server.engine.reads.direct_get import (
    PREFIX,
    STALE,
    ReplicaPeer,
    parse,
    parse_appended,
    stamp,
    stamped,
)
from slipstream.server.engine.replication.fidelity import (
    UNKNOWN,
    Difference,
    Fidelity,
    difference,
    is_partial,
    removes_inside,
    sweeps,
)
from slipstream.server.engine.replication.ingest import Ingest, IngestServices
from slipstream.wire import subset_of

if TYPE_CHECKING:
    from slipstream.server.engine.streams.stream import Stream

CAUGHT_UP = 10  # messages that a mirror may lack and still count as caught up, at first


class Mirror(Ingest):
    """The ingest of a mirror."""

    def __init__(self, services: IngestServices, stream: Stream, source: StreamSource) -> None:
        self._stored = self._seen = 0
        self._expected = 1  # the sequence that follows without a gap
        self.was_caught_up: bool = False
        self._theirs: StreamConfig | None = None  # the upstream's configuration, when it was last known
        self._ours = stream.config  # this stream's at that time
        self._difference = Difference(drops=False, keeps=False)
        self._horizon, self._sweep, self._messages = UNKNOWN, UNKNOWN, -1  # of an upstream in the same account
        self._check: tuple[int, int] | None = None  # of one on another server: its messages as of a sequence to come
        self._uncounted: tuple[int, int] | None = None  # its messages before a sequence, to be compared later
        super().__init__(services, stream, source)
        self._saved = self._stored_fidelity()
        self._uncounted = self._expected, -1  # perhaps it was to be counted when a rollup is complete
        self._distrust()
        self._show()

    def _stored_fidelity(self) -> Fidelity:
        """What the store knows of the copy; nothing if it is new (or its first record was lost with a group), or was
        kept by a version that did not know what its copy is worth."""
        stream = self.stream
        if stream.fidelity is None:
            is_new = not stream.log.state.last_seq
            stream.fidelity = Fidelity() if is_new else Fidelity(gap_until=UNKNOWN, is_whole=False)
        return stream.fidelity

    @property
    def fidelity(self) -> Fidelity:
        assert self.stream.fidelity is not None
        return self.stream.fidelity

    def first_wanted(self) -> int:
        last = self.stream.log.state.last_seq
        self._stored = self._seen = last
        self._expected = last + 1
        self._check = self._uncounted = None
        if last or self.source.opt_start_seq or self.source.opt_start_time is None:
            return max(last + 1, self.source.opt_start_seq)
        return 0

    def start(self) -> None:
        self._reconfigured()
        super().start()

    def reset(self) -> None:
        super().reset()
        self._saved = self._stored_fidelity()
        self._uncounted = self._expected, -1  # perhaps it was to be counted when a rollup is complete
        self._distrust()

    def store(self, record: Record) -> None:
        if record.seq > self._expected:
            self._missed()
        self.stream.adopt(record)
        if self.stream.is_removing:
            self._distrust()
        self._stored = record.seq
        self._expected = record.seq + 1
        if self._check is not None and self._check[0] == record.seq:
            self._count(self._check[1])

    @property
    def _is_full(self) -> bool:
        # A rollup is complete before the next message: the number of messages is compared with the upstream's.
        return super()._is_full or self.stream.is_removing

    def looked(self, up_to: int) -> None:
        if up_to >= self._expected:
            self._missed()
            self._expected = up_to + 1
        if not self.is_remote and up_to == self._last:
            self._count(self._messages)
        self._seen = up_to
        self._save()
        self._show()

    def release(self) -> None:
        super().release()
        self._resolve()
        self._count_later()
        self._show()

    def _show(self) -> None:
        """Once the stored messages are committed, and what they replace is gone, reads may rely on everything up to
        where the upstream was read."""
        if self.stream.log.committed.last_seq >= self._stored and not self.stream.is_removing:
            gap_until = UNKNOWN if self.fidelity.is_mixed else self.fidelity.gap_until
            shown = self.stream.replicas.show(
                seen=self._seen, gap_until=0 if gap_until <= self._seen else gap_until, is_true_copy=self._is_true
            )
            if shown:
                self.stream.consumers.resume()
            if self._contact and self.next_seq and self._last - self.next_seq < CAUGHT_UP and not self._error:
                self.was_caught_up = True

    # What the copy is worth.

    @property
    def _is_true(self) -> bool:
        """Whether the copy may speak for the upstream."""
        known = self.fidelity
        return (
            known.is_whole
            and not known.has_leftovers
            and not known.is_mixed
            and known.origin > 0
            and not any(self._difference)
        )

    def _missed(self) -> None:
        """The upstream had no message where the next one was expected."""
        known, has_messages = self.fidelity, self.stream.log.state.messages > 0
        if not self.is_remote:
            gap_until, leftovers = self._horizon, has_messages and self._sweep >= self._expected
        elif self._theirs is None:
            gap_until, leftovers = UNKNOWN, has_messages
        else:
            gap_until = UNKNOWN if removes_inside(self._theirs) or self._theirs.mirror is not None else 0
            leftovers = has_messages and sweeps(self._theirs)
        self._check = self._uncounted = None
        self._learn(gap_until=max(known.gap_until, gap_until), has_leftovers=known.has_leftovers or leftovers)

    def _count(self, messages: int) -> None:
        """The upstream had so many messages as of the sequence that the mirror stands at. A whole copy has all of
        them, so the same number means the same messages."""
        known = self.fidelity
        if not (known.has_leftovers and known.is_whole):
            return
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        if self.stream.is_removing or (upstream is not None and upstream.is_removing):
            self._uncounted = self._expected, messages
        elif self.stream.log.state.messages == messages:
            self._learn(has_leftovers=False)

    def _count_later(self) -> None:
        """Compare the numbers once all is gone, here and in an upstream in the same account, that rollups replaced."""
        if self._uncounted is None or self.stream.is_removing:
            return
        expected, messages = self._uncounted
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        if upstream is not None:
            if upstream.is_removing:
                return
            state = upstream.log.committed
            messages = state.messages if state.last_seq + 1 == expected and upstream.created == self.met else -1
        self._uncounted = None
        if expected == self._expected:
            self._count(messages)
            self._save()

    def _learn(self, **changes: int) -> None:
        before = self.fidelity
        self.stream.fidelity = msgspec.structs.replace(before, **changes)
        if before != self.fidelity:
            self._distrust()

    def _distrust(self) -> None:
        """Nothing good is said before it is committed (`_show`); what is bad counts at once."""
        is_unclear = self.fidelity.is_mixed or self.stream.is_removing
        gap_until = UNKNOWN if is_unclear else self.fidelity.gap_until
        self.stream.replicas.distrust(gap_until=gap_until if gap_until > self._seen else 0, is_true_copy=self._is_true)

    def _save(self) -> None:
        """Store what has changed; not the end of a gap that is reached in the same group."""
        now, saved, position = self.fidelity, self._saved, self._expected - 1
        open_gap = now.gap_until != saved.gap_until and max(now.gap_until, saved.gap_until) > position
        if open_gap or now != msgspec.structs.replace(saved, gap_until=now.gap_until):
            self._saved = now
            self.stream.keep_fidelity(now)

    def _resolve(self) -> None:
        """A gap whose end the upstream did not know itself ends where the upstream stands when it does."""
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        if upstream is not None and self.fidelity.gap_until == UNKNOWN:
            self._learn(gap_until=horizon_of(upstream))
            self._save()

    def reading(self, upstream: Stream) -> None:
        self._horizon, self._sweep = horizon_of(upstream), upstream.last_sweep
        self._messages = upstream.log.committed.messages

    @property
    def needs_position(self) -> bool:
        return self.fidelity.gap_until == UNKNOWN and not self.fidelity.is_mixed

    def confirm(self, config: StreamConfig, last: int, messages: int) -> None:
        if last + 1 < self._expected:
            return  # it speaks of a time before
        self._compare_with(config)
        if self.needs_position:
            self._learn(gap_until=last)
        if self.fidelity.has_leftovers and messages >= 0:
            if last + 1 == self._expected:
                self._count(messages)
            else:
                self._check = last, messages
        self._save()
        self._show()

    def lost(self, last: int) -> None:
        if last < self._stored:
            self._learn(is_mixed=True)
            self._save()

    def _compare(self, last: int) -> None:
        super()._compare(last)
        if not self.is_remote:
            self.lost(last)

    def meet(self, created: int, config: StreamConfig) -> None:
        known = self.fidelity
        if known.origin != created and not known.is_mixed:
            if known.origin and self.next_seq > 1:
                self._learn(is_mixed=True)
            else:
                self._learn(origin=created)
        if self.met not in (0, created):
            # Where the earlier upstream had gaps at its end, this one may have messages.
            self.next_seq = self.first_wanted()
        super().meet(created, config)
        self._compare_with(config)
        if self._saved is not self.fidelity:
            self._save()

    def _compare_with(self, theirs: StreamConfig) -> None:
        """Note what the two configurations do differently from now on."""
        if self._theirs is theirs and self._ours is self.stream.config:
            return
        self._theirs, self._ours = theirs, self.stream.config
        drops, keeps = difference(self._ours, theirs)
        self._difference = Difference(drops or is_partial(self.source, self._ours), keeps)
        known = self.fidelity
        self._learn(is_whole=known.is_whole and not self._difference.drops, has_leftovers=known.has_leftovers or keeps)

    def _reconfigured(self) -> None:
        """The configuration of the mirror may have changed."""
        ours = self.stream.config
        if ours is self._ours:
            return
        if self._theirs is not None:
            self._compare_with(self._theirs)
        elif any(difference(ours, self._ours)) or is_partial(self.source, ours):
            self._learn(is_whole=False)  # whether the upstream removes the same is not known
        self._ours = ours
        self._save()

    # Direct Gets for the upstream.

    def may_answer(self, request: GetRequest) -> bool:
        """Whether the mirror may answer for its upstream."""
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        if not self.was_caught_up or (upstream is not None and not upstream.config.allow_direct):
            return False
        renames = bool(self.mappings) or self.stream.config.subject_transform is not None
        if not self.is_filtered or renames:
            return not renames
        wanted = request.multi_last or [request.last_by_subj or request.next_by_subj]
        return all(subject and subset_of(subject, self.filters[0]) for subject in wanted)

    def speaks(self, peer: ReplicaPeer) -> bool:
        """Whether the data of a peer is that of the upstream, as of the peer's `as_of`."""
        if self.fidelity.is_mixed:
            return False
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        if upstream is not None:
            if upstream.created != self.fidelity.origin:
                return False
            self._compare_with(upstream.config)
        return peer.is_true_copy

    @property
    def is_alone(self) -> bool:
        """Whether the upstream is not in this account, so that only its mirrors answer for it."""
        return self.is_remote or self.source.name not in self._services.streams


class MirrorResponder:
    """One peer of a mirror, as a member of the queue group of its upstream."""

    def __init__(self, services: IngestServices, peer: ReplicaPeer, mirror: Mirror) -> None:
        self._services, self._peer, self._mirror = services, peer, mirror
        self._cut = len(PREFIX) + len(mirror.source.name)

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        request = parse_appended(subject[self._cut + 1 :], payload) if len(subject) > self._cut else parse(payload)
        if isinstance(request, bytes):
            if self._mirror.is_alone and reply:
                self._services.router.send(reply, request, b"")
            return self._mirror.is_alone
        if not reply or not self._mirror.may_answer(request):
            return False  # the next member of the group answers
        peer, wanted = self._peer, request.min_last_seq
        if not wanted:
            peer.answer(request, reply, self._stamp(request, peer))
            return True
        speaks = self._mirror.speaks(peer)
        if speaks and wanted <= peer.as_of():
            peer.answer(request, reply, self._stamp(request, peer))
        elif speaks or self._mirror.is_alone:
            self._wait(request, reply, now)
        else:
            return False
        return True

    def _wait(self, request: GetRequest, reply: str, now: int) -> None:
        """A mirror waits for a moment, and never redirects."""

        def ready(peer: ReplicaPeer) -> None:
            if self._mirror.speaks(peer):
                peer.answer(request, reply, self._stamp(request, peer))
            else:
                reject()

        def reject() -> None:
            self._services.router.send(reply, stamped(STALE, self._stamp(request, self._peer)), b"")

        # One that cannot speak for the upstream rejects as late as one that lags.
        wanted = request.min_last_seq if self._mirror.speaks(self._peer) else UNKNOWN
        self._peer.park(wanted, ready=ready, reject=reject, now=now)

    def _stamp(self, request: GetRequest, peer: ReplicaPeer) -> str:
        if not request.as_of:
            return ""
        as_of = peer.as_of() if self._mirror.speaks(peer) else 0
        return stamp(peer.peer, as_of, self._mirror.fidelity.origin)


def horizon_of(upstream: Stream) -> int:
    """Where a mirror of the upstream is exact again after a gap that it saw just now."""
    last = upstream.log.committed.last_seq
    return last if upstream.fidelity is None else upstream.fidelity.horizon(last)

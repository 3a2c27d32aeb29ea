"""Mirrors: a copy of the upstream with its sequences and times, which also answers Direct Gets for the upstream.

The mirror has the gaps of the upstream. Later deletions in either stream do not affect the other.

A mirror with `mirror_direct` answers Direct Gets that are addressed to its upstream, in the same queue group, once it
has caught up, and names itself. Where a filter or a transform hides the answer from it, it leaves the request to other
members of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream.api import GetRequest, StreamSource
from slipstream.server.engine.ports import Record
from slipstream.server.engine.reads.direct_get import PREFIX, ReplicaPeer, parse, parse_appended
from slipstream.server.engine.replication.ingest import Ingest, IngestServices
from slipstream.wire import subset_of

if TYPE_CHECKING:
    from slipstream.server.engine.streams.stream import Stream

CAUGHT_UP = 10  # messages that a mirror may lack and still count as caught up, at first


class Mirror(Ingest):
    """The ingest of a mirror."""

    def __init__(self, services: IngestServices, stream: Stream, source: StreamSource) -> None:
        self._stored = self._seen = 0
        self.was_caught_up = False
        super().__init__(services, stream, source)

    def first_wanted(self) -> int:
        last = self.stream.log.state.last_seq
        self._stored = self._seen = last
        if last or self.source.opt_start_seq or self.source.opt_start_time is None:
            return max(last + 1, self.source.opt_start_seq)
        return 0

    def store(self, record: Record) -> None:
        self.stream.adopt(record, self._services.router.now)
        self._stored = record.seq

    def looked(self, up_to: int) -> None:
        self._seen = up_to
        self._show()

    def release(self) -> None:
        super().release()
        self._show()

    def _show(self) -> None:
        """Once the stored messages are committed, reads may rely on everything up to where the upstream was read."""
        if self.stream.log.committed.last_seq >= self._stored:
            self.stream.replicas.look(self._seen)
            if self._contact and self.next_seq and self._last - self.next_seq < CAUGHT_UP and not self._error:
                self.was_caught_up = True

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


class MirrorResponder:
    """One peer of a mirror, as a member of the queue group of its upstream."""

    def __init__(self, peer: ReplicaPeer, upstream: str, may_answer: Callable[[GetRequest], bool]) -> None:
        self._peer = peer
        self._cut = len(PREFIX) + len(upstream)
        self._may_answer = may_answer

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        request = parse_appended(subject[self._cut + 1 :], payload) if len(subject) > self._cut else parse(payload)
        if isinstance(request, bytes) or not reply or not self._may_answer(request):
            return False  # the next member of the group answers
        if request.min_last_seq > self._peer.log.committed.last_seq:
            self._peer.wait_for(request, reply, now)
        else:
            self._peer.answer(request, reply, self._peer.stamp(request))
        return True

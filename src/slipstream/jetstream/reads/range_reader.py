"""The state of a range read: which batched Direct Get comes next, and whether the range is complete.

Invariants: sequences only grow; memory is bounded by one page (`PAGE_BYTES`) plus the one in flight; a page that ends
before `end` proves nothing by itself (a lagging replica ends early too), so the state is `DOUBTFUL` until the driver
has found out which it was; a range without an `end` ends at a state of the stream in which all it has was read, so that
a message that was replaced by a newer one meanwhile is not missing together with it (`read_on`).
"""

from __future__ import annotations

import enum
from bisect import bisect_right

from slipstream.api import GetRequest
from slipstream.api.times import format_time
from slipstream.jetstream.reads.columns import ColumnPage, Columns, Part
from slipstream.jetstream.reads.direct_get import EndOfBatch

PAGE_MESSAGES = 20_000
PAGE_BYTES = 16 * 1024 * 1024


class RangeState(enum.Enum):
    """The states of a range read."""

    READING = "reading"  # ask for the next page
    DOUBTFUL = "doubtful"  # the responder has no more, but the end was not seen
    DONE = "done"


class RangeReader:
    """Messages of `subject` with `start <= seq <= end`; without an `end` (0) all there are, at least to `at_least`.

    `since`, a time in nanoseconds, takes the place of `start`. `trusting`: the server keeps `min_last_seq`, so a
    responder that answers at all has everything up to it.
    """

    def __init__(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        at_least: int = 0,
        since: int = 0,
        trusting: bool = False,
        parts: Part = Part.ALL,
    ) -> None:
        self.state = RangeState.DONE if end and start > end else RangeState.READING
        self.next_seq: int = max(start, 1)
        self.end = end
        self.goal: int = max(end, at_least)
        self.floor: int = end  # what the end of the range must have seen, whatever a session wants
        self._wanted = self.goal
        self._is_behind_store = False  # the page before came from the only store: a copy may be behind that
        self.filter: str = subject or ">"
        self.since = since
        self._trusting = trusting
        self._parts = parts

    def lower_goal(self, at_least: int) -> None:
        """Less is wanted than before: the stream was made again, and what a session has seen of it is gone."""
        wanted = max(self.end, at_least)
        if wanted < self._wanted:
            self.goal = self._wanted = wanted
            self.floor = self.end

    def read_on(self, last: int) -> None:
        """A state of the stream with that last sequence lacks what was removed since the read began: read up to it.

        What removed a message there is another one behind it.
        """
        if not self.end:
            self.goal = max(self.goal, last)
            self.floor = max(self.floor, last)

    def take_over(self, last: int, *, is_whole: bool) -> None:
        """A page was proven: by the only store (`last` is 0), or against a state of the leader with that last sequence.

        A copy may lack what was removed since, and be behind the only store that sent the page before.
        """
        if last and (not is_whole or self._is_behind_store):
            self.read_on(last)
        self._is_behind_store = not last

    @property
    def is_guaranteed(self) -> bool:
        """Whether the server keeps `min_last_seq`."""
        return self._trusting

    @property
    def is_of_all(self) -> bool:
        """Whether it is of all subjects."""
        return self.filter == ">"

    def pass_over(self, seq: int) -> None:
        """Everything up to a sequence was looked at, though the last messages of it are gone."""
        self.next_seq = max(self.next_seq, seq + 1)

    @property
    def is_done(self) -> bool:
        """Whether the range is complete."""
        return self.state is RangeState.DONE

    def request(self) -> GetRequest:
        """The next page's body. `next_by_subj` also without a filter: a server then skips deleted messages.

        A range asks for no more messages than it can hold: more would only delay the next request.
        """
        by_time = bool(self.since) and self.next_seq == 1
        return GetRequest(
            seq=0 if by_time else self.next_seq,
            start_time=format_time(self.since) if by_time else None,
            next_by_subj=self.filter,
            batch=min(PAGE_MESSAGES, self.end - self.next_seq + 1) if self.end else PAGE_MESSAGES,
            max_bytes=PAGE_BYTES,
            min_last_seq=self.goal if self._trusting else 0,
        )

    def page(self, asked: str) -> ColumnPage:
        """The sink for the replies to `request`."""
        return ColumnPage(asked, after=self.next_seq - 1, min_last_seq=self.goal, parts=self._parts)

    def accept(self, columns: Columns, page_end: EndOfBatch | None) -> Columns:
        """Move on by what arrived, `page_end` included; returns what of it belongs to the range."""
        last = max(columns.seqs[-1], self.next_seq - 1) if columns.seqs else self.next_seq - 1
        self.next_seq = last + 1
        end = self.end
        if end and last >= end:  # the end or something beyond it was seen: nothing can be missing before it
            self.state = RangeState.DONE
            if last > end:
                columns = columns.cut(bisect_right(columns.seqs, end))
        elif page_end is not None and page_end.pending <= 0:
            self.state = RangeState.DONE if self._trusting or last >= self.goal else RangeState.DOUBTFUL
        return columns

    # The outcomes of a doubt

    def finish(self) -> None:
        """The range was complete."""
        self.state = RangeState.DONE

    def resume(self) -> None:
        """There is more to read."""
        self.state = RangeState.READING

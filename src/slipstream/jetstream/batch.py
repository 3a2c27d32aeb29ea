"""A range of a stream becomes batched Direct Gets and the messages they bring, page after page.

Invariants: sequences only grow; memory is bounded by one page (`page_bytes`) plus the one under way; a page that ends
before `end` proves nothing by itself (a lagging replica ends early too), so the reader says `doubtful` and its driver
must find out before it may call the range complete.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from typing import NamedTuple

from slipstream.api import GetRequest
from slipstream.jetstream.columns import ColumnPage, Columns

PAGE_MESSAGES = 20_000
PAGE_BYTES = 16 * 1024 * 1024


class State(enum.Enum):
    """Where a range read stands."""

    READING = "reading"  # ask for the next page
    DOUBTFUL = "doubtful"  # the responder has no more, but the end was not seen
    DONE = "done"


class Progress(NamedTuple):
    """What came of a page so far, cut to the range; `page_over`: nothing more will come of it."""

    columns: Columns
    page_over: bool


class RangeReader:
    """Messages of `subject` with `start <= seq <= end`; without an `end` (0) all there are, at least to `at_least`.

    `trusting`: the server keeps `min_last_seq`, so a responder that answers at all has everything up to it.
    """

    def __init__(
        self, *, start: int = 1, end: int = 0, subject: str = "", at_least: int = 0, trusting: bool = False
    ) -> None:
        self.state = State.DONE if end and start > end else State.READING
        self.next_seq = max(start, 1)
        self.end = end
        self.goal = end or at_least
        self.pattern = subject or ">"
        self._trusting = trusting

    @property
    def is_done(self) -> bool:
        """Whether the range is complete."""
        return self.state is State.DONE

    def request(self) -> GetRequest:
        """The next page's body. `next_by_subj` also without a filter: a server then skips deleted messages.

        A range asks for no more than it can hold: what comes beyond it would only delay the next request.
        """
        return GetRequest(
            seq=self.next_seq,
            next_by_subj=self.pattern,
            batch=min(PAGE_MESSAGES, self.end - self.next_seq + 1) if self.end else PAGE_MESSAGES,
            max_bytes=PAGE_BYTES,
            min_last_seq=self.goal if self._trusting else 0,
        )

    def page(self, asked: str) -> ColumnPage:
        """Where the replies to `request` go."""
        return ColumnPage(asked, after=self.next_seq - 1, min_last_seq=self.goal)

    def feed(self, page: ColumnPage) -> Progress:
        """Take what arrived and move on."""
        over = page.finished  # before the take: what ends the page comes behind all it holds
        columns = page.take()
        last = columns.seqs[-1] if columns.seqs else self.next_seq - 1
        self.next_seq = last + 1
        end = self.end
        if end and last >= end:  # the end or something beyond it was seen: nothing can be missing before it
            self.state = State.DONE
            if last > end:
                columns = columns.cut(bisect_right(columns.seqs, end))
        elif over and page.end is not None and page.end.pending <= 0:
            self.state = State.DONE if self._trusting or last >= self.goal else State.DOUBTFUL
        return Progress(columns, over)

    def settle(self, last_seq_of_leader: int, next_message: int) -> None:
        """The leader's word on a doubtful range: its last sequence, and the next message it has (0: none)."""
        if next_message and (not self.end or next_message <= self.end):
            self.state = State.READING
        elif last_seq_of_leader >= self.goal:
            self.state = State.DONE

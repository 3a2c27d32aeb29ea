"""A range of a stream becomes batched Direct Gets and the messages they bring, page after page.

Invariants: sequences only grow; memory is bounded by one page (`page_bytes`) plus the one under way; a page that ends
before `end` proves nothing by itself (a lagging replica ends early too), so the reader says `doubtful` and its driver
must find out before it may call the range complete.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from slipstream.api import GetRequest
from slipstream.errors import Error, RemoteProtocolError
from slipstream.jetstream.direct import StoredMessage, decode_many
from slipstream.wire import Msg

PAGE_MESSAGES = 20_000
PAGE_BYTES = 16 * 1024 * 1024


class Page:
    """One request's replies, in order of arrival; a `ReplySink` of the client."""

    __slots__ = ("asked", "error", "finished", "min_last_seq", "replies")

    def __init__(self, asked: str, *, min_last_seq: int = 0) -> None:
        self.asked = asked
        self.min_last_seq = min_last_seq
        self.replies: list[Msg] = []
        self.finished = False
        self.error: Error | None = None

    def deliver(self, msg: Msg) -> bool:
        """Take a reply; True once it is the last. A status line ends a page, whatever it says."""
        self.replies.append(msg)
        header = msg.header
        if header[8:9] == b" " or b"\r\nNats-Num-Pending: " not in header:  # an old server sends one message and no end
            self.finished = True
        return self.finished

    def fail(self, error: Error) -> None:
        """The connection is gone."""
        self.error = error
        self.finished = True

    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finished

    def ready(self) -> bool:
        """Whether there is anything to take."""
        return bool(self.replies) or self.finished

    def take(self) -> list[Msg]:
        """What arrived since the last time; raises once the connection is lost."""
        if self.error is not None:
            raise self.error
        replies, self.replies = self.replies, []
        return replies


class State(enum.Enum):
    """Where a range read stands."""

    READING = "reading"  # ask for the next page
    DOUBTFUL = "doubtful"  # the responder has no more, but the end was not seen
    DONE = "done"


class Progress(NamedTuple):
    """What a chunk of replies brought."""

    messages: list[StoredMessage]
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
        self._subject = subject
        self._trusting = trusting

    @property
    def is_done(self) -> bool:
        """Whether the range is complete."""
        return self.state is State.DONE

    def request(self) -> GetRequest:
        """The next page's body. `next_by_subj` also without a filter: a server then skips deleted messages."""
        return GetRequest(
            seq=self.next_seq,
            next_by_subj=self._subject or ">",
            batch=PAGE_MESSAGES,
            max_bytes=PAGE_BYTES,
            min_last_seq=self.goal if self._trusting else 0,
        )

    def feed(self, page: Page) -> Progress:
        """Turn the page's new replies into messages and move on."""
        messages, over = decode_many(page.take(), asked=page.asked, min_last_seq=page.min_last_seq)
        last = self.next_seq - 1
        for message in messages:
            if message.seq <= last:
                raise RemoteProtocolError(f"{page.asked}: sequence {message.seq} came after {last}")
            last = message.seq
        self.next_seq = last + 1
        end = self.end
        if end and last >= end:  # the end or something beyond it was seen: nothing can be missing before it
            self.state = State.DONE
            while messages and messages[-1].seq > end:
                messages.pop()
        elif over is not None and over.pending <= 0:
            self.state = State.DONE if self._trusting or last >= self.goal else State.DOUBTFUL
        return Progress(messages, page.finished and not page.replies)

    def settle(self, last_seq_of_leader: int, next_message: int) -> None:
        """The leader's word on a doubtful range: its last sequence, and the next message it has (0: none)."""
        if next_message and (not self.end or next_message <= self.end):
            self.state = State.READING
        elif last_seq_of_leader >= self.goal:
            self.state = State.DONE

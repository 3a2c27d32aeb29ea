"""What the simulator and the rules say to each other: reads, the actions of a rule, their outcomes, and its answers.

A rule is a generator that yields actions and is sent their outcomes. It returns an answer, or raises `RefusedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.api import GetRequest, StreamInfo
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from tests.jetstream.reads.simulation.model import STREAM

# Actions


class AskDirect(NamedTuple):
    """A Direct Get of the stream or of a mirror; `traced`: the responder's node is reported with the answer."""

    request: GetRequest
    traced: bool = False
    stream: str = STREAM


class AskInfo(NamedTuple):
    """Stream info of the stream or of a mirror."""

    stream: str
    deleted: bool = False
    subjects: str = ""
    is_noted: bool = True  # the client learns from it since when the stream exists


class AskLeader(NamedTuple):
    """A Message Get."""

    request: GetRequest


class Wait(NamedTuple):
    """A pause before the next attempt; the read is refused if its time is up."""

    reason: str = ""


# Outcomes


class Direct(NamedTuple):
    """The replies to a Direct Get. `node` is known if it was traced."""

    replies: Replies
    node: str | None = None


class Got(NamedTuple):
    """The answer to a Message Get: None for 10037 (not found)."""

    message: StoredMessage | None


class Lost:
    """No reply in time."""


class NoLeader:
    """503: there is no leader to answer."""


class NotThere:
    """404: there is no such stream."""


Action = AskDirect | AskInfo | AskLeader | Wait
Outcome = Direct | StreamInfo | Got | Lost | NoLeader | NotThere | None


class RefusedError(Exception):
    """A rule raises instead of an answer."""


# Reads and their answers


@dataclass(frozen=True)
class Read:
    """What a reader asks for, and the sequence it must have seen."""

    kind: str  # last, seq, next, many, range
    wanted: int
    subject: str = ""  # of last, next and range; a pattern of many
    seq: int = 0  # of seq, next; the start of a range
    end: int = 0  # of a range
    is_from_leader: bool = False
    is_session: bool = False  # what it wants is all that the session has seen: `wanted` as the world counts it


class Answer(NamedTuple):
    """What a read returned: of `last`, `seq` and `next` one message or none, else all there are, in order."""

    messages: tuple[StoredMessage, ...]


Reading = Generator[Action, Outcome, Answer]


class Rules(Protocol):
    """The client under test: one per connection, with whatever it keeps between reads."""

    def read(self, read: Read) -> Reading:
        """Begin a read."""
        ...

    def wrote(self, seq: int, subject: str, *, is_rollup: bool) -> None:
        """The session of this connection has written a message."""
        ...


MakeRules = Callable[[Callable[[], float], str], Rules]  # of a clock and the name of the stream that is read

"""The goal of one trusted read: the sequence its answer must have reached, by when, and what it has shown so far.

It is all that differs from read to read: the parts that carry a read out belong to the stream and get the goal as an
argument. The sequence may fall while the read runs: a session that learns that its stream was deleted and made again
has seen less of the new one.
"""

from __future__ import annotations

from slipstream.api import GetRequest, StreamInfo
from slipstream.errors import MessageNotFoundError, StaleReadError
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.jetstream.reads.session import SessionState
from slipstream.jetstream.requests import describe_behind, missing


class ReadGoal:
    """How new one read of a stream must be (`wanted`), its time, and how new its answer is known to be (`reached`)."""

    __slots__ = (
        "_asked",
        "_mark",
        "_subject",
        "has_looked",
        "leader_silences",
        "policy",
        "reached",
        "session",
        "stream",
        "wanted",
        "with_leader",
    )

    def __init__(
        self, stream: str, wanted: int, session: SessionState | None, policy: RetryPolicy, *, subject: str = ""
    ) -> None:
        self._asked = wanted  # by the caller; a session may want more
        self._subject = subject  # the literal one that is read; empty for more than one
        self.stream: str = stream
        self.session: SessionState | None = session
        self.policy: RetryPolicy = policy
        self._mark = 0 if session is None else session.mark(stream)  # what is noted from now on is kept
        self.wanted: int = wanted if session is None else max(wanted, session.wanted(stream, subject))
        self.reached: int = 0
        self.leader_silences: int = 0
        self.with_leader: bool = False  # whether the leader's word was part of the proof
        self.has_looked: bool = False  # whether the leader was asked for the sake of the session

    def reach(self, seq: int) -> None:
        """The state of the answer is known to have reached a sequence."""
        self.reached = max(seq, self.reached)

    def learn(self, info: StreamInfo) -> bool:
        """Take the leader's word for when the stream was made; it may be another one, of which less was seen.

        False if the session knows a later one. Raises TokenMismatchError if its token speaks of another stream.
        """
        if self.session is None:
            return True
        is_current = self.session.learn(self.stream, info, self._mark)
        self.adapt()
        return is_current

    def adapt(self) -> int:
        """What is still wanted: less than before if the stream was found to have been made again.

        Never more: an answer that is there already need not show what the session did meanwhile, and must not be noted
        as if it did.
        """
        if self.session is not None:
            self.wanted = min(self.wanted, max(self._asked, self.session.wanted(self.stream, self._subject)))
        return self.wanted

    @property
    def is_claim(self) -> bool:
        """Whether what is wanted must be compared with the stream first: a token, or it may have been made again."""
        session = self.session
        return session is not None and (session.is_claim(self.stream) or session.is_suspect(self.stream))

    def for_all_of(self, seq: int) -> ReadGoal:
        """The same goal for a part of the read that must have reached a sequence too: the time is shared."""
        part = ReadGoal(self.stream, max(self._asked, seq), self.session, self.policy, subject=self._subject)
        part.has_looked = self.has_looked
        return part

    def known(self, subject: str) -> int | None:
        """The newest message of a subject as of what is wanted, if the session knows it; 0: there is none."""
        session = self.session
        if session is None or self.wanted > session.wanted(self.stream, subject):
            return None
        return session.known(self.stream, subject)

    # What goes wrong

    def stale(self, why: str, wanted: int = 0) -> StaleReadError:
        """No answer could be shown to have the wanted sequence, or the `wanted` one of a part of the read."""
        text = f"stream {self.stream!r}: {why}"
        return StaleReadError(text, stream=self.stream, min_last_seq=wanted or self.wanted)

    def behind(self, reached: int, wanted: int = 0) -> StaleReadError:
        """A replica has not reached the wanted sequence, or the `wanted` one of a part of the read."""
        wanted = wanted or self.wanted
        text = describe_behind(self.stream, wanted, reached)
        return StaleReadError(text, stream=self.stream, min_last_seq=wanted)

    def foreign(self, mirror: str) -> StaleReadError:
        """A stream answered that need not hold all of this one."""
        return self.stale(f"answered by {mirror!r}, which is not known to be a whole copy of it")

    def missing_of(self, request: GetRequest) -> MessageNotFoundError:
        """It is proven that there is no message that the request asks for."""
        return missing(self.stream, request)

"""Error policies of `consume()`: what happens to a message whose handler failed.

A policy is what a program states once; a decision is what is done with one message. `decide` derives the second from
the first, the number of deliveries, and whether the consumer's `max_deliver` allows another one. Invariant: a policy
that ends in a dead letter (or a `term`) reaches it on the last delivery at the latest. A `nak` there would be the end
of the message, since no server redelivers it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.api.times import SECOND, Duration, nanoseconds
from slipstream.errors import UsageError
from slipstream.wire.subjects import check_subject

# Seconds until the redelivery after the first failure, the second, and so on; the last one is for all that follow. No
# jitter: the delay counts from each failure, and these are not at the same time.
DELAYS = (1.0, 5.0, 30.0, 120.0)

Delays = Duration | Sequence[Duration]


def _seconds(delays: Delays) -> list[float]:
    spans = delays if isinstance(delays, Sequence) and not isinstance(delays, str) else [delays]
    seconds = [nanoseconds(span, "delays") / SECOND for span in spans]
    if not seconds or min(seconds) < 0:
        raise UsageError(f"delays must be one or more durations of at least 0 seconds, got {delays!r}")
    return seconds


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the message unacknowledged: the server redelivers it when its `ack_wait` is over."""


@dataclass(frozen=True, slots=True)
class Nak:
    """Have the message redelivered after a delay, which grows with its deliveries: the n-th of `delays`, or the last.

    `delays` are seconds or timedeltas, or a single one of them.
    """

    delays: Delays = DELAYS

    def __post_init__(self) -> None:
        _seconds(self.delays)


@dataclass(frozen=True, slots=True)
class Term:
    """Terminate the message: it is not redelivered. The reason (default: the exception) goes into an advisory."""

    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or "\r" in self.reason or "\n" in self.reason:
            raise UsageError(f"reason must be a single line of text, got {self.reason!r}")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Publish the message to `subject` with headers that say what happened, then terminate it.

    A stream must listen on the subject. The message is terminated only when that stream has stored the dead letter.
    """

    subject: str

    def __post_init__(self) -> None:
        check_subject(self.subject)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Have the message redelivered as by `Nak` until it was delivered `attempts` times in all, then apply `then`.

    On the last delivery that the consumer's `max_deliver` permits, `then` applies at once. Deliveries count, not
    failures: a delivery that a stopping worker returned, or did not handle in time, counts too. Only the server's count
    is shared by all workers.
    """

    attempts: int
    then: Leave | Term | DeadLetter | str = "term"
    delays: Delays = DELAYS

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise UsageError(f"attempts must be a whole number of at least 1, got {self.attempts!r}")
        last = NAMED.get(self.then) if isinstance(self.then, str) else self.then
        if not isinstance(last, Leave | Term | DeadLetter):
            raise UsageError(f"then must be 'leave', 'term' or a DeadLetter, got {self.then!r}")
        _seconds(self.delays)


@dataclass(frozen=True, slots=True)
class NakAfter:
    """The decision for a redelivery after `delay` seconds."""

    delay: float


Policy = Leave | Nak | Term | DeadLetter | Attempts
Decision = Leave | NakAfter | Term | DeadLetter
Decider = Callable[[Any, Exception], object]  # of a message and an error; gives a policy, a name or None, or awaits one
OnError = str | Policy | Decider

NAMED: dict[str, Policy] = {"leave": Leave(), "nak": Nak(), "term": Term()}


def policy_of(value: object, what: str = "on_error") -> Policy:
    """The policy that a value states by name or as itself; None leaves the message."""
    if value is None:
        return NAMED["leave"]
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]
    if isinstance(value, Policy):
        return value
    raise UsageError(
        f"{what} must be 'leave', 'nak', 'term', a policy (Nak, Term, DeadLetter, Attempts) or a function, "
        f"got {value!r}"
    )


def check_on_error(value: object) -> Policy | Decider:
    """The argument of `consume()`: a policy, or a function that decides for each message."""
    if callable(value) and not isinstance(value, type):
        return value
    return policy_of(value)


def decide(policy: Policy, *, delivered: int, is_last: bool) -> Decision:
    """What to do with a message that failed on its delivery number `delivered`; `is_last` if there is no further one.

    A message that cannot be redelivered is still negatively acknowledged: the server then stops to wait for it.
    """
    if isinstance(policy, Attempts):
        if is_last or delivered >= policy.attempts:
            return decide(policy_of(policy.then), delivered=delivered, is_last=is_last)
        policy = Nak(policy.delays)
    if isinstance(policy, Nak):
        return NakAfter(delay_after(policy.delays, delivered))
    return policy


def dead_letter_of(policy: object) -> DeadLetter | None:
    """The dead letter that a policy may end in, if that is known beforehand."""
    if isinstance(policy, Attempts):
        policy = policy.then
    return policy if isinstance(policy, DeadLetter) else None


def delay_after(delays: Delays, delivered: int) -> float:
    """Seconds until the redelivery of a message that was delivered so often."""
    seconds = _seconds(delays)
    return seconds[min(max(delivered, 1), len(seconds)) - 1]

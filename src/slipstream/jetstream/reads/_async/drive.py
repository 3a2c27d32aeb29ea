"""The driver of trusted reads over the asyncio client: sends what the rule asks for, waits, and retries.

The one place of a read that sleeps, switches servers and gives up. The rule yields requests and gets their outcomes; an
attempt of a server that guarantees `min_last_seq` itself says by its result whether there is an answer or something to
wait for (`Answer | Retry`). The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from slipstream.errors import (
    AuthorizationError,
    ConnectionClosedError,
    DirectGetNotAllowedError,
    Error,
    RequestTimeoutError,
    StaleReadError,
    StreamNotFoundError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_requests import LeaderRequests
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import Action, Direct, Info, ReadRule, Steps, Wait

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Attempt(Protocol[T_co]):
    """One try: the answer, or what to wait for before the next one. It does not sleep itself."""

    async def __call__(self) -> T_co | Retry: ...


class ReadDriver:
    """Carries out the reads of one stream, each within its time."""

    __slots__ = ("_client", "_context", "_direct", "_leader", "_rule")

    def __init__(self, context: JetStreamContext, rule: ReadRule, direct: DirectGets, leader: LeaderRequests) -> None:
        self._context = context
        self._client = context.client
        self._rule = rule
        self._direct = direct
        self._leader = leader

    async def run(self, goal: ReadGoal, steps: Steps[T]) -> T:
        """Carry out the steps of the rule; raises when the time is up, or what the rule does not handle."""
        outcome: Any = None
        failure: Error | None = None
        while True:
            try:
                action = steps.send(outcome) if failure is None else steps.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome, failure = None, None
            try:
                outcome = await self._carry_out(goal, action)
            except Error as error:
                if isinstance(action, Wait):
                    raise
                failure = error

    async def _carry_out(self, goal: ReadGoal, action: Action) -> Any:
        if isinstance(action, Direct):
            return await self._direct.ask(goal, action.request, is_named=action.is_named, copies=self._rule.copies)
        if isinstance(action, Wait):
            return await self.wait(goal, action.retry)
        if isinstance(action, Info):
            return await self._leader.info(goal, action)
        return await self._leader.message(goal, action.stream, action.request)

    async def repeat(self, goal: ReadGoal, attempt: Attempt[T]) -> T:
        """Repeat an attempt until it brings an answer; raises when the time is up."""
        while True:
            result = await attempt()
            if not isinstance(result, Retry):
                return result
            await self.wait(goal, result)

    async def wait(self, goal: ReadGoal, retry: Retry) -> None:
        """Do what must be done before the next attempt; raises when the time is up, or another attempt is in vain."""
        for reason in retry.reasons:
            if isinstance(reason, RequestTimeoutError):
                self.unanswered(goal, reason)  # the time has passed already
            elif isinstance(reason, ConnectionClosedError):
                raise reason
            else:
                if isinstance(reason, DirectGetNotAllowedError):
                    await self._check_direct_allowed(goal, reason)
                await self._pause(goal, reason)

    def unanswered(self, goal: ReadGoal, error: RequestTimeoutError) -> None:
        """An attempt was in vain. After several of them our own server may be the one that is cut off."""
        policy = goal.policy
        if policy.is_over:
            raise policy.why(error) from error
        policy.tries += 1
        if policy.silent():
            self._switch_server(goal, error)

    async def _pause(self, goal: ReadGoal, reason: Error) -> None:
        if goal.session is not None and not goal.has_looked and isinstance(reason, StaleReadError):
            # The stream may be another one of that name, which never reaches what the session has seen.
            goal.has_looked = True
            looked = await self.run(goal, self._rule.info(goal))
            if isinstance(looked, Retry):
                await self.wait(goal, looked)
        delay = goal.policy.next_pause(reason)
        if delay is None:
            raise goal.policy.why(reason)
        await self._client.sleep(delay)
        if goal.policy.stuck():
            self._switch_server(goal, reason)

    async def _check_direct_allowed(self, goal: ReadGoal, error: DirectGetNotAllowedError) -> None:
        """No responder for Direct Gets: raises if the stream does not allow them, else it is a matter of time."""
        try:
            info = await self._leader.info(goal, Info(self._rule.stream))
        except (StreamNotFoundError, AuthorizationError) as cause:
            raise error from cause
        if isinstance(info, Retry):
            await self.wait(goal, info)
        elif not info.config.allow_direct:
            raise error

    def _switch_server(self, goal: ReadGoal, error: Error) -> None:
        if self._context.leave_server(error):
            goal.policy.moved()

"""Reporter of events and of errors that no call can raise: to the user's handler, or to the log.

And of the user's functions that are called back: which can be one, and what became of a call. Invariant: a call whose
work was not done never passes for one that was. A coroutine that is not awaited and a generator that is not iterated
over do nothing at all; a message that was handed to one must not be acknowledged.
"""

from __future__ import annotations

import inspect
import logging
from types import CoroutineType, GeneratorType

from slipstream.client.events import ClientEvent, Connected, EventHandler, EventKind
from slipstream.errors import Error, UsageError

log: logging.Logger = logging.getLogger("slipstream.client")

_WARNINGS = (
    EventKind.CONNECT_FAILED, EventKind.DISCONNECTED, EventKind.LAME_DUCK, EventKind.SERVER_SHUTDOWN, EventKind.ERROR,
)  # fmt: skip


class Reporter:
    """Hands events to `on_event`; without a handler they are logged."""

    def __init__(self, on_event: EventHandler | None) -> None:
        self._on_event = on_event

    def report(self, event: ClientEvent | Connected) -> None:
        """Report an event; a handler that raises must not harm the connection. The first connection is logged."""
        if isinstance(event, Connected):
            log.info("%s: connected: %s", event.server, event.detail)
            return
        if self._on_event is None:
            level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
            more = event.error or event.detail
            log.log(level, "%s: %s%s", event.server, event.kind, f": {more}" if more else "")
            return
        try:
            self._on_event(event)
        except Exception:  # the user's code
            log.exception("on_event failed for %s", event.kind)

    def callback_failed(self, server: str, what: str, error: Exception) -> None:
        """Report an exception of the user's code: always with its traceback in the log."""
        log.error("%s failed", what, exc_info=error)
        if self._on_event is not None:
            self.report(ClientEvent(EventKind.ERROR, server, error))


def check_callback(callback: object, what: str = "callback", *, may_be_async: bool) -> None:
    """Reject a callback that cannot be called, or would do nothing: its worker would find out with the first message.

    A wrapper is taken at its word, since it may run the coroutine function inside; `check_result` sees what it did.
    """
    if not callable(callback):
        raise UsageError(f"{what} must be callable, got {callback!r}")
    functions = (callback, type(callback).__call__)
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in functions):
        raise UsageError(f"{what} must be a function that does its work when called, got the generator {callback!r}")
    if not may_be_async and any(inspect.iscoroutinefunction(one) for one in functions):
        raise UsageError(f"{what} must be a plain function here, got the coroutine function {callback!r}")


def check_result(result: object) -> None:
    """Raise UsageError for the result of a callback that did not do its work: a coroutine or a generator."""
    if result is None or not (
        inspect.isawaitable(result) or isinstance(result, GeneratorType) or inspect.isasyncgen(result)
    ):
        return
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()
    raise UsageError(f"a callback must have done its work when it returns, got a {type(result).__name__}: nothing ran")


def failure_of(error: BaseException) -> Exception:
    """What a callback raised, as an exception that can be reported: also a cancellation, or an exit."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"the callback raised {type(error).__name__}({error})"
    else:
        text = f"the callback was cancelled, or waited for what was cancelled elsewhere ({type(error).__name__})"
    failure = Error(text)
    failure.__cause__ = error
    return failure

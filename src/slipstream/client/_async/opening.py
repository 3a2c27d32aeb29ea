"""Results of calls that open something: to be awaited, or entered with `async with`, which closes them at the end.

`opens` is for calls that must wait for what they open, `Openable` for objects that are made without waiting. In the
blocking driver both do nothing: a call returns the object, which is a context manager.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Enterable(Protocol[T_co]):
    """A context manager, as far as it is needed here."""

    def __aenter__(self) -> Coroutine[Any, Any, T_co]: ...


class Opening(Coroutine[Any, Any, T]):
    """Something that is being opened: a coroutine that can be entered instead of awaited."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._opened: Any = None

    async def __aenter__(self) -> T:
        self._opened = await self._coroutine
        return cast("T", await self._opened.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return cast("bool | None", await self._opened.__aexit__(kind, error, trace))

    # A whole coroutine, so that `asyncio.create_task` and the like take it.

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Go on; called by the event loop."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception, such as CancelledError."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Give up the opening, as `close` of a coroutine does."""
        self._coroutine.close()

    def __repr__(self) -> str:
        return f"<{getattr(self._coroutine, '__qualname__', 'opening')}: await it, or enter it with `async with`>"


def opens(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Let a coroutine function that returns a context manager be entered directly: `async with kv.watch() as watch`."""

    @wraps(call)
    def opening(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return Opening(call(*args, **kwargs))

    return opening


class Openable:
    """A context manager that can be awaited instead of entered: it is open then, and to be closed by its user."""

    def __await__(self: _Enterable[T]) -> Generator[Any, Any, T]:
        return self.__aenter__().__await__()

"""Every public call that returns a context manager follows the one rule for opening; a forgotten one is found here."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import slipstream
from slipstream import Client, connect
from slipstream.client._async.opening import Openable, Opening, opens
from tests.conformance._async.test_opening import OF_CONSUMERS, OPENERS
from tests.ports import free_port

# Views of a bucket open nothing; a lock and an election are entered, or acquired and released by name: awaiting one
# would leave open whether it is held.
NO_OPENERS = {"KeyValue.read_only", "KeyValue.with_codec", "KeyValue.lock", "KeyValue.election"}
PACKAGES = ("client", "facade", "jetstream", "kv", "objects", "services")


def drivers() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(slipstream.__path__, "slipstream."):
        _, package, *rest = found.name.split(".")
        if package in PACKAGES and "_async" in rest[:-1]:
            yield importlib.import_module(found.name)


def public_calls() -> Iterator[tuple[str, Any]]:
    """All public functions and methods of the asyncio drivers, by name."""
    for module in drivers():
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__ or name.startswith("_"):
                continue
            if inspect.isfunction(value):
                if name in slipstream.__all__:
                    yield name, value
            elif inspect.isclass(value):
                for each, member in vars(value).items():
                    call = getattr(member, "__func__", member)
                    if inspect.isfunction(call) and not each.startswith("_"):
                        yield f"{name}.{each}", call


def returned_class(call: Any) -> type | None:
    try:
        hint = typing.get_type_hints(inspect.unwrap(call)).get("return")
    except NameError:  # a name for type checkers only
        return None
    found = typing.get_origin(hint) or hint
    return found if inspect.isclass(found) and found.__module__.startswith("slipstream.") else None


def openers() -> dict[str, Any]:
    """The public calls that return a context manager of ours."""
    return {
        name: call
        for name, call in public_calls()
        if name not in NO_OPENERS and hasattr(returned_class(call) or object, "__aenter__")
    }


def test_calls_that_open_something_can_be_awaited_and_entered() -> None:
    found = openers()
    assert {"KeyValue.watch", "Consumer.consume", "JetStream.session", "Consumer.messages"} <= found.keys()
    wrong = []
    for name, call in found.items():
        is_opening = inspect.iscoroutinefunction(inspect.unwrap(call)) and not inspect.iscoroutinefunction(call)
        if not is_opening and not issubclass(returned_class(call) or object, Openable):
            wrong.append(name)
    assert wrong == [], "decorate these with `opens`, or derive the class that they return from `Openable`"


def test_every_opener_is_tried_on_the_servers() -> None:
    assert sorted(openers().keys() - {*OPENERS, *OF_CONSUMERS}) == []


def test_what_can_be_closed_is_a_context_manager() -> None:
    wrong = []
    for name, call in public_calls():
        kind = returned_class(call)
        ends = [each for each in ("close", "aclose", "unsubscribe") if kind and hasattr(kind, each)]
        if kind and ends and not hasattr(kind, "__aenter__") and not kind.__name__.endswith(("Storage", "Feed")):
            wrong.append(f"{name} -> {kind.__name__} with {ends}")
    assert wrong == []


class Thing:
    """A context manager that writes down what happens to it."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def __aenter__(self) -> Thing:
        self.seen.append("entered")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
        self.seen.append(kind)
        return kind is ValueError


@opens
async def thing(*, fails: bool = False) -> Thing:
    """Make it."""
    await asyncio.sleep(0)
    if fails:
        raise LookupError("no")
    return Thing()


async def test_opening_is_entered_awaited_and_run_as_a_task() -> None:
    async with thing() as entered:
        assert entered.seen == ["entered"]
    assert entered.seen == ["entered", None]
    assert (await thing()).seen == []
    assert (await asyncio.create_task(thing())).seen == []
    assert (await asyncio.wait_for(thing(), 10)).seen == []
    assert [one.seen for one in await asyncio.gather(thing(), thing())] == [[], []]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(thing())
    assert task.result().seen == []
    assert thing.__doc__ == "Make it."


async def test_opening_that_fails_raises_where_it_is_entered() -> None:
    with pytest.raises(LookupError):
        async with thing(fails=True):
            raise AssertionError("not reached")
    with pytest.raises(LookupError):
        await thing(fails=True)


async def test_the_object_decides_about_an_exception_in_the_block() -> None:
    async with thing() as entered:
        raise ValueError
    assert entered.seen == ["entered", ValueError]


def test_forgotten_await_is_a_warning_as_for_every_coroutine() -> None:
    opening = thing()
    assert repr(opening) == "<thing: await it, or enter it with `async with`>"
    with pytest.warns(RuntimeWarning, match="coroutine 'thing' was never awaited"):
        del opening


async def test_connect_is_an_opening_of_the_class_that_connects() -> None:
    opening = connect(f"nats://127.0.0.1:{free_port()}")
    assert isinstance(opening, Opening)
    opening.close()
    assert Client.connect.__func__ is connect.__func__  # type: ignore[attr-defined]

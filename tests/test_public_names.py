"""The names of the package itself: each is imported when it is first used."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import slipstream
from slipstream import errors
from slipstream.version import VERSION


def test_every_public_name_can_be_imported() -> None:
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = slipstream.Nothing


def test_every_error_can_be_imported_from_the_package() -> None:
    declared = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    assert sorted(declared - {*slipstream.__all__}) == []


def test_public_errors_are_those_of_the_errors_module() -> None:
    for name in slipstream.__all__:
        if name.endswith("Error"):
            assert getattr(slipstream, name) is getattr(errors, name)


def test_importing_the_package_imports_neither_client_nor_server() -> None:
    code = (
        "import slipstream, sys; print({m for m in sys.modules if m.startswith('slipstream.')} - {'slipstream.form'})"
    )
    # `form` chooses between sources and compiled modules, before any other is imported.
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_version_is_an_attribute() -> None:
    assert slipstream.__version__ == VERSION


@pytest.mark.parametrize("name", ["api", "errors", "server", "testing"])
def test_submodules_are_attributes_before_they_are_imported(name: str) -> None:
    """An `except slipstream.errors.KeyNotFoundError` must not hide the error behind an AttributeError."""
    code = f"import slipstream; print(slipstream.{name}.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == f"slipstream.{name}\n"


def _classes(hint: Any) -> Iterator[type]:
    """The classes of this package in a type."""
    for part in typing.get_args(hint):
        yield from _classes(part)
    plain = typing.get_origin(hint) or hint
    if inspect.isclass(plain) and plain.__module__.startswith("slipstream."):
        yield plain


def _returned(kind: type) -> Iterator[tuple[str, type]]:
    """What the public methods and properties of a class return, and what its fields hold."""
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else inspect.unwrap(member)
        if not name.startswith("_") and inspect.isroutine(function) and hasattr(function, "__annotations__"):
            try:
                hint = typing.get_type_hints(function).get("return")
            except (NameError, TypeError):  # what is imported for types only is not there at run time
                continue
            for found in _classes(hint):
                yield f"{kind.__name__}.{name}", found


# Of the layers below: for programs that build on them, not for those that use them.
INTERNAL = {
    "Client",
    "ExpectedReplies",
    "JetStreamContext",
    "MessageRun",
    "Packed",
    "Setting",
    "Settings",
    "Traffic",
    "Worker",
}


def test_every_class_that_a_public_call_returns_is_public() -> None:
    public = {id(getattr(slipstream, name)) for name in slipstream.__all__}
    missing = {
        f"{found.__module__}.{found.__name__} (of {where})"
        for name in slipstream.__all__
        if inspect.isclass(kind := getattr(slipstream, name)) and not issubclass(kind, Exception)
        for where, found in _returned(kind)
        if id(found) not in public and found.__name__ not in INTERNAL and not found.__name__.startswith("_")
    }
    assert sorted(missing) == []

"""What the client offers beyond the specification is marked as an extension in the reference."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from slipstream.kv._async.key_value import KeyValue

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "kv.md"
# Calls of the document, with their arguments and the options that it names.
SPECIFIED = {
    "put": {"key", "value"},
    "get": {"key"},
    "create": {"key", "value"},
    "update": {"key", "value", "last"},
    "delete": {"key"},
    "purge": {"key"},
    "history": {"key"},
    "watch": {"filters", "include_history", "ignore_deletes", "meta_only", "updates_only"},
    "keys": {"filters"},
    "status": set[str](),
    "destroy": set[str](),
    "close": set[str](),
}


def extensions() -> set[str]:
    """Public methods that the document does not have, and arguments of the others that it does not name."""
    found: set[str] = set()
    for name, method in inspect.getmembers(KeyValue, inspect.isfunction):
        if name in SPECIFIED:
            found |= inspect.signature(method).parameters.keys() - {"self"} - SPECIFIED[name]
        elif not name.startswith("_"):
            found.add(name)
    return found


@pytest.mark.spec("KV-40")
def test_every_extension_is_marked_as_such_in_the_reference() -> None:
    table = REFERENCE.read_text().split("extension of this client")[1]
    rows = re.findall(r"^\| ([^|]+)\|", table, re.MULTILINE)
    marked = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert extensions() == marked
    assert SPECIFIED.keys() <= dict(inspect.getmembers(KeyValue, inspect.isfunction)).keys()


@pytest.mark.spec("KV-40")
def test_the_docstrings_say_what_is_an_extension() -> None:
    for documented, names in (
        (KeyValue, ["min_last_revision"]),
        (KeyValue.watch, ["min_last_revision", "resume_from"]),
    ):
        told = (inspect.getdoc(documented) or "").lower().split("extension")
        assert len(told) == 2
        assert all(name in told[1] for name in names)

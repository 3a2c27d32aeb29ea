"""One rule for all that opens something: the call returns it open, and `with` closes it at the end."""

from __future__ import annotations

from typing import TypeVar

C = TypeVar("C")


def opens(call: C) -> C:
    """Nothing to be done: what the call returns can be entered."""
    return call


class Openable:
    """A context manager that is open as it is made."""

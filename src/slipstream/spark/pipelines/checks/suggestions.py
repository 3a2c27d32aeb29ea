"""Suggestions in messages: the known name that a mistyped one is most like, or the names that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 12  # names in a message


def suggestion(name: str, known: Iterable[str], what: str) -> str:
    """The end of a message about an unknown name: "did you mean x?", or "`what` x, y and z"."""
    names = list(dict.fromkeys(known))
    lowered = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    if near:
        return f"did you mean {lowered[near[0]]}?"
    if not names:
        return f"{what} none"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"

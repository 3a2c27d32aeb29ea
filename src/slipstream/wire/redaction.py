"""URLs as logs, errors and `repr` may show them: without user, password and token."""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"^((?:\w+://)?).*@", re.DOTALL)


def redacted(url: str) -> str:
    """A URL, or several with commas, whose credentials are replaced by `***`."""
    return ",".join(_USER_INFO.sub(r"\1***@", one.strip()) for one in _split(url))


def _split(url: str) -> list[str]:
    """The parts between commas. A comma in a password would end a part early: its part is joined to the next `@`."""
    parts: list[str] = []
    for part in url.split(","):
        if parts and "://" in parts[-1] and "://" not in part and "@" in part and "@" not in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts

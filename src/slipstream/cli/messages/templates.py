"""`{{Count}}` and other templates in the bodies of `pub` and `reply`."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime

from slipstream.errors import UsageError

_PLACEHOLDER = re.compile(r"\{\{\s*\.?(\w+)\s*\}\}")


def fill(text: str, known: dict[str, str]) -> str:
    """Expand `{{Name}}` templates; raises UsageError for an unknown name."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise UsageError(
                f"unknown template {found[0]}; known: {', '.join(known)}; --no-templates leaves them unchanged"
            )
        return known[found[1]]

    return _PLACEHOLDER.sub(value, text)


def facts(count: int) -> dict[str, str]:
    """The templates of the message of this number."""
    now = datetime.now(UTC)
    return {
        "Count": str(count), "Time": f"{now:%H:%M:%S}", "TimeStamp": now.isoformat(), "Unix": str(int(now.timestamp())),
        "UnixNano": str(time.time_ns()), "ID": os.urandom(11).hex(),
    }  # fmt: skip

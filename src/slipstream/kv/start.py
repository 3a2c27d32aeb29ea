"""Where a feed of entries begins."""

from __future__ import annotations

import enum
from typing import NamedTuple


class From(enum.Enum):
    """The kinds of beginnings."""

    LATEST = "latest"  # the newest entry of each key, then what is new
    ALL = "all"  # everything that is kept
    NEW = "new"  # nothing but what is new
    REVISION = "revision"  # everything that is kept from a revision on


class Start(NamedTuple):
    """A beginning; `revision` is for `From.REVISION`."""

    kind: From
    revision: int = 0


LATEST = Start(From.LATEST)
ALL = Start(From.ALL)
NEW = Start(From.NEW)

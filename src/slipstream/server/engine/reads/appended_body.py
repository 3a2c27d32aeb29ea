"""The body of a Direct Get whose subject is appended to that of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec


class AppendedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that such a body may have."""

    min_last_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    as_of: bool | None = None


decode_appended: Callable[[bytes], AppendedBody] = msgspec.json.Decoder(AppendedBody).decode

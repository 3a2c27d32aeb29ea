"""Values and entries of buckets on the command line: how they are typed and how they are shown.

Values are bytes. With a codec whose values are something else (`json`, `msgpack`) they are typed and shown as JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from slipstream import Entry
from slipstream.cli.common import Shell, body
from slipstream.cli.kv.opening import structured_codec
from slipstream.cli.output import payload, readable
from slipstream.cli.values import rfc3339, show_time
from slipstream.errors import UsageError


def typed_value(shell: Shell) -> Any:
    """The value to store: the argument or stdin, read as JSON if the codec stores more than bytes."""
    data = body(shell.options.value)
    codec = structured_codec(shell.options)
    if not codec:
        return data
    try:
        return json.loads(data)
    except ValueError as error:
        raise UsageError(f"value must be JSON for the codec {codec}, got {readable(data)[:60]!r}") from error


def stored_bytes(value: Any) -> bytes:
    """A value as bytes, for output as it is."""
    return value if isinstance(value, bytes) else _json(value).encode()


def shown_value(value: Any) -> str:
    """A value, for users."""
    return readable(value) if isinstance(value, bytes) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """What MessagePack has and JSON has not: times as text, bytes and extensions in base64."""
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(getattr(value, "data", value)).decode()


def entry_fields(entry: Entry[Any]) -> dict[str, Any]:
    """An entry for JSON. The data of a codec's value that is not bytes is that value."""
    value = entry.value
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "created": rfc3339(entry.created),
        "operation": entry.operation.value,
        **(payload(value) if isinstance(value, bytes) else {"data": json.loads(_json(value))}),
    }


def show_entries(shell: Shell, entries: Iterable[Entry[Any]]) -> None:
    """Print entries with their values: as a table, or as a JSON list."""
    if shell.out.is_json:
        shell.out.json([entry_fields(entry) for entry in entries])
    else:
        rows = [(entry.key, entry.revision, shown_value(entry.value)[:80]) for entry in entries]
        shell.out.table(("Key", "Revision#", "Value"), rows, empty="no keys")


def show_line(shell: Shell, entry: Entry[Any], *, has_value: bool = True) -> None:
    """Print an entry as one line, as it happens."""
    if shell.out.is_json:
        shell.out.json(entry_fields(entry))
        return
    value = f": {shown_value(entry.value)}" if has_value and not entry.is_deleted else ""
    what = f"{entry.operation.value} {entry.bucket} > {entry.key} revision {entry.revision}"
    shell.out.text(f"[{show_time(entry.created)}] {what}{value}")

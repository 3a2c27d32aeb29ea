"""Recorded messages and rows as JSON lines: the input of a pipeline's test cases, and the output they expect.

A line of input is one message (`subject`, `data`, `headers`) or, for a bucket, one change (`key`, `value`,
`operation`). A payload is written as JSON where that gives the same values back, else as text, else in base64, so that
a broken message stays broken in the same way. Lines may have a `time`, which is what `_timestamp` will be, and the
number of the micro-batch (`batch`) that reads them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from slipstream.api.times import format_time, parse_time
from slipstream.errors import UsageError
from slipstream.kv.entry import Operation
from slipstream.kv.keys import check_key
from slipstream.wire import check_subject

FIRST_TIME = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z, for a first line without a time
SECOND = 1_000_000_000
_PAYLOADS = ("", "_base64")
_COMMON = ("headers", "time", "batch", "sequence")


class Recorded(NamedTuple):
    """One message of a stream, or one change of a bucket (whose `name` is the key)."""

    name: str
    data: bytes
    time: int  # nanoseconds since the epoch
    sequence: int
    headers: Mapping[str, list[str]]
    operation: str
    batch: int


def read_records(text: str, file: str, *, is_bucket: bool) -> list[Recorded]:
    """The messages in a text of JSON lines; `file` is named in a mistake, with the line."""
    found: list[Recorded] = []
    for number, line in lines_of(text):
        try:
            one = _record(_object(line), found[-1] if found else None, is_bucket=is_bucket)
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from error
        found.append(one)
    return found


def read_rows(text: str, file: str) -> list[dict[str, Any]]:
    """The rows in a text of JSON lines."""
    found = []
    for number, line in lines_of(text):
        try:
            found.append(_object(line))
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from error
    return found


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; empty ones, and those that begin with // or #, are left out."""
    # Not `splitlines`: U+2028 and others of its line breaks may be in a JSON text as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith(("//", "#")):
            yield number, line


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UsageError(f"a line must be a JSON object, got {line[:60]!r}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"a line must be a JSON object, got {line[:60]!r}")
    return found


def _record(line: dict[str, Any], before: Recorded | None, *, is_bucket: bool) -> Recorded:
    name_key, data_key = ("key", "value") if is_bucket else ("subject", "data")
    known = (name_key, *(data_key + ending for ending in _PAYLOADS), *_COMMON, *(("operation",) if is_bucket else ()))
    if unknown := sorted(line.keys() - set(known)):
        raise UsageError(f"unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
    name = line.get(name_key)
    if not isinstance(name, str):
        raise UsageError(f"{name_key} must be a string, got {name!r}")
    check_key(name) if is_bucket else check_subject(name)
    operation = line.get("operation", Operation.PUT.value)
    if operation not in [one.value for one in Operation]:
        raise UsageError(f"operation must be one of {', '.join(one.value for one in Operation)}, got {operation!r}")
    sequence = _whole(line, "sequence", before.sequence + 1 if before else 1)
    if before and sequence <= before.sequence:
        raise UsageError(f"sequence must be above {before.sequence}, that of the line before, got {sequence}")
    batch = _whole(line, "batch", before.batch if before else 1)
    if before and batch < before.batch:
        raise UsageError(f"batch must be at least {before.batch}, that of the line before, got {batch}")
    time = _time(line["time"]) if "time" in line else before.time + SECOND if before else FIRST_TIME
    return Recorded(name, payload(line, data_key), time, sequence, _headers(line.get("headers", {})), operation, batch)


def _whole(line: Mapping[str, Any], key: str, default: int) -> int:
    value = line.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{key} must be a whole number, 1 or more, got {value!r}")
    return value


def _time(text: Any) -> int:
    if not isinstance(text, str):
        raise UsageError(f"time must be a time such as 2026-01-31T12:00:00Z, got {text!r}")
    try:
        return parse_time(text)
    except ValueError as error:
        raise UsageError(f"time must be a time such as 2026-01-31T12:00:00Z, got {text!r}") from error


def _headers(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        raise UsageError(f"headers must be an object, got {value!r}")
    found = {}
    for name, one in value.items():
        values = [one] if isinstance(one, str) else one
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise UsageError(f"header {name!r} must be a string or a list of strings, got {one!r}")
        found[name] = values
    return found


def payload(line: Mapping[str, Any], key: str) -> bytes:
    """The bytes of a payload: a string as it is, any other JSON value as JSON."""
    if key in line and f"{key}_base64" in line:
        raise UsageError(f"{key} and {key}_base64 are mutually exclusive")
    if f"{key}_base64" in line:
        try:
            return base64.b64decode(line[f"{key}_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise UsageError(f"{key}_base64 must be base64, got {line[f'{key}_base64']!r}") from error
    value = line.get(key, "")
    return value.encode() if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> bytes:
    """A value as JSON, as short as it can be."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def payload_fields(data: bytes, key: str) -> dict[str, Any]:
    """A payload as the fields of a line, from which `payload` makes it again (JSON without white space and escapes)."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {f"{key}_base64": base64.b64encode(data).decode()}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {key: text}
    return {key: value} if _is_same(value, text) and not isinstance(value, str) else {key: text}


def _is_same(value: Any, text: str) -> bool:
    """Whether a JSON text is what its value gives, white space and escapes aside: no key twice, no digit lost."""
    plain = "".join(text.split())
    try:
        _compact(value)
    except UnicodeEncodeError:  # half a character, which only an escape can name
        return False
    return any(plain == "".join(json.dumps(value, ensure_ascii=escaped).split()) for escaped in (True, False))


def write_records(records: Iterable[Recorded], *, is_bucket: bool) -> str:
    """The text that `read_records` reads."""
    name_key, data_key = ("key", "value") if is_bucket else ("subject", "data")
    lines = []
    for one in records:
        line: dict[str, Any] = {name_key: one.name}
        if one.operation != Operation.PUT.value:
            line["operation"] = one.operation
        else:
            line |= payload_fields(one.data, data_key)
        if one.headers:
            line["headers"] = {
                name: values[0] if len(values) == 1 else list(values) for name, values in one.headers.items()
            }
        lines.append(_line({**line, "sequence": one.sequence, "time": format_time(one.time)}))
    return "".join(lines)


def write_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text that `read_rows` reads."""
    return "".join(map(_line, rows))


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"

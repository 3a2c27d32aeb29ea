"""Dead letters of a pipeline as a workflow: grouped by reason and column, and sent again after a fix.

A letter of a source is a message that could not be decoded: sent again, it is a new message of its stream, which the
pipeline reads with the schema of now. Letters of outputs are rows that a target rejected; they are listed only, since a
corrected step writes such rows when its output is reset. A letter is removed once its message is stored. A crash in
between sends it twice, unless the stream's duplicate window covers the time until the next attempt.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from slipstream.errors import (
    KeyNotFoundError,
    KeyRevisionError,
    MessageNotFoundError,
    StreamNotFoundError,
    UsageError,
)
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.spark.pipelines.checks.columns import source_columns
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.model import Pipeline, Source
from slipstream.wire import Headers

MISFIT = "does not fit the schema"
_INSTRUCTIONS = ("nats-msg-id", "nats-expected-", "nats-batch-", "nats-rollup", "nats-ttl")
_WHOLE = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}
_DATES = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


class Letter(NamedTuple):
    """One dead letter: of a source, or of an output (`is_row`)."""

    seq: int
    origin: str
    is_row: bool
    reason: str
    columns: tuple[str, ...]  # that do not fit the schema, as far as can be told
    message: StoredMessage


class Group(NamedTuple):
    """Letters of one origin with one reason and the same columns."""

    origin: str
    is_row: bool
    reason: str
    columns: str
    letters: int
    first: str
    last: str
    example: str


def letters_of(js: JetStream, pipeline: Pipeline, *, origin: str = "", reason: str = "") -> Iterator[Letter]:
    """The dead letters of a pipeline, of one source or output and with a reason that contains a text, if these are
    given."""
    if not pipeline.dead_letter:
        raise UsageError("this pipeline keeps no dead letters: set dead_letter in [pipeline]")
    sources = {one.name: one for one in pipeline.sources}
    names = [*sources, *(one.name for one in pipeline.outputs)]
    if origin and origin not in names:
        raise UsageError(f"there is no source or output {origin!r}; {suggestion(origin, names, 'the file has')}")
    stream = js.stream(pipeline.dead_letter)
    try:
        last = stream.info().state.last_seq
    except StreamNotFoundError:
        return
    if not last:
        return
    for message in stream.read(end=last):
        name = message.subject.removeprefix(f"{pipeline.dead_letter}.")
        headers = message.headers
        is_row = headers.get("Slipstream-Row") is not None
        text = headers.get("Slipstream-Reason") or ""
        if (origin and name != origin) or reason.lower() not in text.lower():
            continue
        source = None if is_row else sources.get(name)
        columns = misfits(source, message.data) if source is not None and text.startswith(MISFIT) else ()
        yield Letter(message.seq, name, is_row, MISFIT if text.startswith(MISFIT) else text, columns, message)


def groups_of(letters: Iterator[Letter] | Sequence[Letter]) -> list[Group]:
    """The letters by origin, reason and columns, the most frequent first."""
    found: dict[tuple[str, bool, str, str], list[Letter]] = {}
    for one in letters:
        found.setdefault((one.origin, one.is_row, one.reason, ", ".join(one.columns)), []).append(one)
    groups = []
    for key, members in found.items():
        times = [one.message.timestamp.strftime("%Y-%m-%dT%H:%M:%SZ") for one in (members[0], members[-1])]
        first, last = times
        groups.append(Group(*key, len(members), first, last, _excerpt(members[-1].message.data)))
    return sorted(groups, key=lambda one: (-one.letters, one.origin, one.reason, one.columns))


def _excerpt(data: bytes) -> str:
    text = " ".join(data.decode(errors="replace").split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def misfits(source: Source, data: bytes) -> tuple[str, ...]:
    """The columns of a JSON source whose values do not fit their types, as far as can be told without Spark."""
    if source.format != "json":
        return ()
    try:
        value = json.loads(data)
        columns = source_columns(source)
    except (ValueError, RecursionError, UsageError):
        return ()
    if not isinstance(value, dict):
        return ()
    has_formats = any("format" in name.lower() for name in source.parse)
    return tuple(
        name
        for name, kind in columns.items()
        if value.get(name) is not None and not (has_formats and kind in _DATES) and not fits(value[name], kind)
    )


def fits(value: Any, kind: str) -> bool:
    """Whether Spark reads a JSON value as this type; true where that is not known."""
    head = kind.partition("<")[0].partition("(")[0].strip().upper()
    if head in _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool) and -_WHOLE[head] <= value < _WHOLE[head]
    if head in ("DOUBLE", "FLOAT"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number or (isinstance(value, str) and value.lstrip("+-") in ("NaN", "Infinity", "INF"))
    if head == "DECIMAL":
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return is_number or isinstance(value, str)
    if head == "BOOLEAN":
        return isinstance(value, bool)
    if head in _DATES:
        return isinstance(value, str) and _is_time(value)
    if head == "ARRAY":
        return isinstance(value, list)
    if head in ("MAP", "STRUCT"):
        return isinstance(value, dict)
    return True


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text.strip())
    except ValueError:
        return False
    return True


def resend(js: JetStream, pipeline: Pipeline, letters: Sequence[Letter]) -> Counter[str]:
    """Send letters of sources again and remove them; returns how many were `sent`, how many are of `outputs`, and of
    how many a newer value of the key exists (`replaced`, which are removed)."""
    sources = {one.name: one for one in pipeline.sources}
    stream = js.stream(pipeline.dead_letter)
    done: Counter[str] = Counter()
    for one in letters:
        source = sources.get(one.origin)
        if one.is_row or source is None:
            done["outputs"] += 1
            continue
        outcome = _put(js, source, one) if source.bucket else _publish(js, pipeline, source, one)
        stream.delete_message(one.seq, erase=False)
        done[outcome] += 1
    return done


def _publish(js: JetStream, pipeline: Pipeline, source: Source, letter: Letter) -> str:
    subject = letter.message.headers.get("Slipstream-Subject") or ""
    if letter.message.headers.get("Slipstream-Truncated"):
        raise UsageError(f"dead letter {letter.seq} is truncated and cannot be sent again: its message was too large")
    js.publish(
        subject,
        letter.message.data,
        headers=_headers(js, source, letter.message),
        msg_id=f"resent.{pipeline.dead_letter}.{letter.seq}",
        expected_stream=source.stream,
    )
    return "sent"


def _headers(js: JetStream, source: Source, letter: StoredMessage) -> Headers:
    """The headers of the message, if its stream still has it."""
    found = Headers()
    sequence = letter.headers.get("Slipstream-Sequence") or ""
    try:
        original = js.stream(source.stream).get(int(sequence))
    except (MessageNotFoundError, ValueError):
        original = None
    if original is not None and original.subject == letter.headers.get("Slipstream-Subject"):
        for name, value in original.headers.items():
            if not name.lower().startswith(_INSTRUCTIONS):
                found.add(name, value)
    found.add("Slipstream-Resent", sequence)
    return found


def _put(js: JetStream, source: Source, letter: Letter) -> str:
    """Put a value again, unless its key has a newer one."""
    headers = letter.message.headers
    key, revision = headers.get("Slipstream-Key") or "", int(headers.get("Slipstream-Revision") or 0)
    try:
        js.key_value(source.bucket).update(key, letter.message.data, last=revision)
    except (KeyRevisionError, KeyNotFoundError):
        return "replaced"
    return "sent"

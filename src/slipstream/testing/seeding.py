"""Streams, messages and buckets that a test begins with: from dicts, or from a file of JSON lines.

A line is one message (`subject`, `data`, `headers`), one value of a bucket (`bucket`, `key`, `value`) or one stream
(`stream` and fields of its configuration). `data` and `value` may be any JSON: text is stored as it is, everything
else as JSON. `data_base64` and `value_base64` are for bytes. Empty lines, and lines that begin with # or //, are left
out. Files of `slipstream pipeline record` have this form.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slipstream import BlockingClient, StreamConfig
from slipstream.errors import Error, UsageError

Payload = Any  # bytes and text as they are, everything else as JSON
Streams = Mapping[str, str | Iterable[str]] | Iterable[StreamConfig]
Messages = Mapping[str, Payload] | Iterable[tuple[str, Payload]]
Buckets = Mapping[str, Mapping[str, Payload]]

IGNORED = frozenset(("time", "sequence", "batch", "operation"))  # fields of recordings: the server sets its own


class Line(NamedTuple):
    """One line of a file."""

    number: int
    fields: dict[str, Any]


def payload(value: Payload) -> bytes:
    """What is stored of a value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"value must be bytes, text or JSON, got {value!r}: {error}") from error


def seed(client: BlockingClient, streams: Streams, messages: Messages, kv: Buckets) -> None:
    """Create streams, publish messages, put values. A list as the value of a subject is several messages."""
    js = client.jetstream()
    if isinstance(streams, Mapping):
        for name, subjects in streams.items():
            js.create_stream(name, subjects=[subjects] if isinstance(subjects, str) else list(subjects))
    else:
        for config in streams:
            if not isinstance(config, StreamConfig):
                raise UsageError(f"streams must be a dict of names and subjects, or StreamConfigs, got {config!r}")
            js.create_stream(config)
    with js.publisher() as publisher:
        for subject, value in messages.items() if isinstance(messages, Mapping) else messages:
            several = isinstance(messages, Mapping) and isinstance(value, list)
            for one in value if several else [value]:
                publisher.publish(subject, payload(one))
    for bucket, values in kv.items():
        store = js.create_key_value(bucket)
        for key, value in values.items():
            store.put(key, payload(value))


def load(client: BlockingClient, path: str | os.PathLike[str]) -> int:
    """Do what each line of a file says; returns how many lines there were."""
    js = client.jetstream()
    count = 0
    buckets: dict[str, Any] = {}
    for number, fields in read_lines(path):
        try:
            if "subject" in fields:
                headers = fields.pop("headers", None)
                subject = fields.pop("subject")
                js.publish(subject, _take_payload(fields, "data"), headers=headers)
            elif "bucket" in fields:
                name, key = fields.pop("bucket"), fields.pop("key", "")
                if name not in buckets:
                    buckets[name] = js.create_key_value(name)
                buckets[name].put(key, _take_payload(fields, "value"))
            elif "stream" in fields:
                js.create_stream(fields.pop("stream"), **fields)
                fields.clear()
            else:
                raise UsageError(
                    f"a line must have a subject, a bucket or a stream, got {', '.join(fields) or 'nothing'}"
                )
            if unknown := [name for name in fields if name not in IGNORED]:
                raise UsageError(f"unknown field {unknown[0]!r}")
        except (Error, TypeError) as error:
            raise UsageError(f"{os.fspath(path)}:{number}: {error}") from error
        count += 1
    return count


def read_lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    """The lines of a file of JSON lines."""
    # Not `splitlines`: U+2028 and others of its line breaks may be in a JSON text as they are.
    for number, data in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        try:
            line = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{os.fspath(path)}:{number}: a line must be UTF-8: {error}") from error
        if not line.strip() or line.lstrip().startswith(("#", "//")):
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{os.fspath(path)}:{number}: a line must be a JSON object: {error}") from error
        if not isinstance(fields, dict):
            raise UsageError(f"{os.fspath(path)}:{number}: a line must be a JSON object, got {line[:60]!r}")
        yield Line(number, fields)


def _take_payload(fields: dict[str, Any], name: str) -> bytes:
    encoded = fields.pop(f"{name}_base64", None)
    if encoded is None:
        return payload(fields.pop(name, b""))
    if name in fields:
        raise UsageError(f"{name} and {name}_base64 are mutually exclusive")
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}_base64 must be base64, got {encoded!r}") from error

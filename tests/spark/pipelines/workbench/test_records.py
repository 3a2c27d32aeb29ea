"""Recorded messages: every payload comes back, and a mistake is told with its line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.spark.pipelines.workbench.records import (
    Recorded,
    payload,
    payload_fields,
    read_records,
    read_rows,
    write_records,
)

TIME = 1_769_853_600_123_456_789


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1,"word":"\xc3\xa9"}',
        b"",
        b"text",
        b'"a JSON string"',
        b'{"broken": ',
        b'{"n": 1} trailing',
        b'{"n":1,"n":2}',  # a key twice: Spark decides which counts
        b'{"n":0.12345678901234567890}',  # digits that a float has not
        b'{"n":1e3}',
        b"\xff\xfe",
        b"null",
        b"[1, 2]",
        b'{"half":"\\ud800"}',
    ],
)
def test_payload_comes_back_from_its_line(data: bytes) -> None:
    text = write_records([Recorded("a.b", data, TIME, 7, {"x": ["1", "2"], "y": ["3"]}, "PUT", 1)], is_bucket=False)
    (found,) = read_records(text, "f", is_bucket=False)
    assert found.data.replace(b" ", b"") == data.replace(b" ", b"")
    assert found == Recorded("a.b", found.data, TIME, 7, {"x": ["1", "2"], "y": ["3"]}, "PUT", 1)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_that_are_not_json_come_back_unchanged(data: bytes) -> None:
    found = payload(payload_fields(data, "data"), "data")
    assert b"".join(found.split()) == b"".join(data.split()) or json.loads(found) == json.loads(data)


def test_escapes_of_json_are_written_out() -> None:
    assert payload_fields(b'{"word": "\\u00e9"}', "data") == {"data": {"word": "\u00e9"}}


def test_changes_of_a_bucket() -> None:
    text = '{"key": "a", "value": {"n": 1}}\n# a comment\n\n{"key": "a", "operation": "DEL", "batch": 2}\n'
    first, second = read_records(text, "f", is_bucket=True)
    assert (first.name, first.data, first.operation, first.batch) == ("a", b'{"n":1}', "PUT", 1)
    assert (second.operation, second.sequence, second.batch, second.time - first.time) == ("DEL", 2, 2, 10**9)
    assert read_records(write_records([first, second], is_bucket=True), "f", is_bucket=True)[1].operation == "DEL"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "in.jsonl:2: a line must be a JSON object"),
        ("{", "in.jsonl:2: a line must be a JSON object"),
        ('{"data": 1}', "subject must be a string, got None"),
        ('{"subject": "a b"}', "in.jsonl:2: .*subject"),
        ('{"subject": "a", "dat": 1}', "unknown key 'dat'; known keys: subject, data"),
        ('{"subject": "a", "key": 1}', "unknown key 'key'"),
        ('{"subject": "a", "time": "noon"}', "time must be a time such as"),
        ('{"subject": "a", "time": 3}', "time must be a time such as"),
        ('{"subject": "a", "sequence": 1}', "sequence must be above 1"),
        ('{"subject": "a", "batch": 0}', "batch must be a whole number"),
        ('{"subject": "a", "batch": true}', "batch must be a whole number"),
        ('{"subject": "a", "headers": {"x": 1}}', "header 'x' must be a string or a list"),
        ('{"subject": "a", "headers": 1}', "headers must be an object"),
        ('{"subject": "a", "data": 1, "data_base64": ""}', "mutually exclusive"),
        ('{"subject": "a", "data_base64": "!"}', "data_base64 must be base64"),
    ],
)
def test_mistake_is_told_with_its_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_records(f'{{"subject": "a"}}\n{line}\n', "in.jsonl", is_bucket=False)


def test_operation_and_rows_are_checked() -> None:
    with pytest.raises(UsageError, match="operation must be one of PUT, DEL, PURGE, MaxAge, got 'SET'"):
        read_records('{"key": "a", "operation": "SET"}', "f", is_bucket=True)
    with pytest.raises(UsageError, match="f:1: a line must be a JSON object"):
        read_rows("1", "f")


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b"])
def test_line_breaks_of_unicode_end_no_line(text: str) -> None:
    line = json.dumps({"subject": "s", "data": text}, ensure_ascii=False)
    (found,) = read_records(f"{line}\r\n", "f", is_bucket=False)
    assert write_records([found], is_bucket=False).count("\n") == 1
    assert read_records(write_records([found], is_bucket=False), "f", is_bucket=False) == [found]

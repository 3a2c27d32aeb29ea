"""Headers: order, case and every value kept; nothing can be smuggled in; whatever a peer sent can be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import RemoteProtocolError, UsageError
from slipstream.wire import Headers, Status, parse_status
from slipstream.wire.headers import status_block

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12).map(lambda v: v.strip(" \t"))
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


@given(PAIRS)
def test_headers_survive_the_wire(pairs: list[tuple[str, str]]) -> None:
    headers = Headers(pairs)
    again = Headers.parse(headers.encode())
    assert again == headers
    assert again.items() == pairs
    assert parse_status(headers.encode()) is None


@given(st.binary(max_size=80))
def test_any_block_of_a_peer_can_be_read_and_passed_on(noise: bytes) -> None:
    block = b"NATS/1.0" + noise
    read = Headers.parse(block)
    parse_status(block)
    assert Headers.received(read.items()) == read
    assert Headers.parse(read.encode()) == read


def test_values_keep_their_order_and_names_their_case() -> None:
    headers = Headers([("B", "1"), ("a", "2"), ("B", "3"), ("b", "4")])
    assert headers.encode() == b"NATS/1.0\r\nB: 1\r\na: 2\r\nB: 3\r\nb: 4\r\n\r\n"
    assert headers["B"] == headers.get("B") == "1"
    assert headers.get_all("B") == ["1", "3"]
    assert headers.last("B") == "3"
    assert headers["b"] == "4"
    assert list(headers) == ["B", "a", "b"]
    assert len(headers) == 3
    assert headers.items() == [("B", "1"), ("a", "2"), ("B", "3"), ("b", "4")]
    assert "a" in headers
    assert "A" not in headers
    assert repr(Headers({"a": "1"})) == "Headers([('a', '1')])"


def test_a_dict_of_headers_has_the_first_value_of_each_name() -> None:
    headers = Headers([("A", "1"), ("b", ""), ("A", "2"), ("a", "3")])
    assert headers.keys() == ["A", "b", "a"]
    assert dict(headers) == {"A": "1", "b": "", "a": "3"}
    assert dict(**Headers({"x": "1"})) == {"x": "1"}


def test_absent_names() -> None:
    headers = Headers()
    assert headers.get("A") is None
    assert headers.get("A", "x") == "x"
    assert headers.get_all("A") == []
    assert headers.last("A") is None
    with pytest.raises(KeyError, match="A"):
        headers["A"]
    assert headers.encode() == b""
    assert Headers.parse(b"") == headers
    assert headers != {}


def test_they_are_made_of_mappings_pairs_and_headers() -> None:
    headers = Headers({"ab": ["1", "2"], "c": "3"})
    assert headers.items() == [("ab", "1"), ("ab", "2"), ("c", "3")]
    assert Headers(headers) == headers
    assert Headers(headers.items()) == headers
    assert Headers({"ab": (value for value in "12"), "c": "3"}) == headers
    assert Headers({"a": []}) == Headers() == Headers(None)


def test_a_copy_is_independent() -> None:
    headers = Headers({"a": "1"})
    copy = Headers(headers)
    copy.add("a", "2")
    headers.items().clear()
    assert headers.items() == [("a", "1")]


def test_setting_replaces_every_value() -> None:
    headers = Headers([("a", "1"), ("b", "2"), ("a", "3")])
    headers["a"] = "4"
    assert headers.items() == [("b", "2"), ("a", "4")]
    with pytest.raises(UsageError):
        headers.set("a", "x\r\ny: z")
    assert headers.items() == [("b", "2"), ("a", "4")]


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", ":", "a\r\nb", "a\n", "ä", "a\0", "\t", 5, None, b"a"])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="header name must be"):
        Headers([(name, "x")])


@pytest.mark.parametrize("value", ["\r", "\n", "x\r\nEvil: 1", "\0", "x\n", "\ud800", 5, None, b"x", ["a", "b\n"], [5]])
def test_a_bad_value_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="value of header 'A' must be"):
        Headers({"A": value})


@pytest.mark.parametrize(
    ("lines", "items"),
    [
        (b"A:1\r\n", [("A", "1")]),
        (b"A:   1\r\n", [("A", "1")]),
        (b"A: 1  \t\r\n", [("A", "1")]),
        (b"A:\r\n", [("A", "")]),
        (b"A: \r\n", [("A", "")]),
        (b"A: b: c\r\n", [("A", "b: c")]),
        (b"no colon\r\nA: 1\r\n", [("A", "1")]),
        (b": no name\r\nA: 1\r\n", [("A", "1")]),
        (b"\xc2\xa0A: \xc2\xa01\xc2\xa0\r\n", [("\xa0A", "\xa01\xa0")]),
        (b"A: \xff\r\n", [("A", "�")]),
        (b"A: 1", [("A", "1")]),
        (b"A: 1\nB: 2\r\n", [("A", "1\nB: 2")]),
        (b"", []),
    ],
)
def test_odd_lines_of_a_peer(lines: bytes, items: list[tuple[str, str]]) -> None:
    assert Headers.parse(b"NATS/1.0\r\n" + lines + b"\r\n").items() == items


@pytest.mark.parametrize("block", [b"A: 1\r\n\r\n", b"\r\n", b"HTTP/1.1 200\r\n\r\n", b"nats/1.0\r\n\r\n", b"NATS/1."])
def test_a_block_without_its_first_line_is_an_error(block: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"expected NATS/1\.0"):
        Headers.parse(block)
    assert parse_status(block) is None


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"NATS/1.0 503", Status(503, "")),
        (b"NATS/1.0 503 ", Status(503, "")),
        (b"NATS/1.0 404 No Messages", Status(404, "No Messages")),
        (b"NATS/1.0  404  No Messages ", Status(404, "No Messages")),
        (b"NATS/1.0 100 Idle Heartbeat", Status(100, "Idle Heartbeat")),
        (b"NATS/1.0 204 EOB", Status(204, "EOB")),
        (b"NATS/1.0 408 \xff", Status(408, "�")),
        (b"NATS/1.0", None),
        (b"NATS/1.0 ", None),
        (b"NATS/1.0 abc", None),
        (b"NATS/1.0 -5", None),
        (b"NATS/1.0 12345", None),
        ("NATS/1.0 ٤٠٤".encode(), None),
        (b"NATS/1.0X404", None),
        (b"NATS/1.1 404", None),
        (b"", None),
    ],
)
def test_status_lines(line: bytes, status: Status | None) -> None:
    assert parse_status(line + b"\r\n\r\n") == status
    assert parse_status(line + b"\r\nNats-Num-Pending: 1\r\n\r\n") == status
    assert parse_status(line) == status


def test_a_status_block_has_headers_too() -> None:
    block = status_block(204, "EOB", [("Nats-Num-Pending", "0"), ("Nats-Last-Sequence", "7")])
    assert block == b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 7\r\n\r\n"
    assert parse_status(block) == Status(204, "EOB")
    assert Headers.parse(block).items() == [("Nats-Num-Pending", "0"), ("Nats-Last-Sequence", "7")]
    assert status_block(503, "") == b"NATS/1.0 503\r\n\r\n"


def test_a_users_header_is_not_a_status() -> None:
    block = Headers({"Status": "204", "Description": "EOB"}).encode()
    assert parse_status(block) is None
    assert Headers.parse(block)["Status"] == "204"

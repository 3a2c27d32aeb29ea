"""nats-server's configuration format: what is accepted, what is refused, and where errors point to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.server.process.conf.tree import ConfigError, Value, parse, plain

FILES: dict[str, str] = {}


def plainly(value: Value) -> Any:
    if isinstance(value.data, dict):
        return {key: plainly(entry.value) for key, entry in value.data.items()}
    if isinstance(value.data, list):
        return [plainly(item) for item in value.data]
    return value.data


def tree(text: str, *, files: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> Any:
    def read(path: str) -> str:
        try:
            return (files or {})[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file", path) from None

    return plainly(parse(text, "dir/a.conf", read=read, environment=(environment or {}).get))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("a: 1", {"a": 1}),
        ("a = 1; b=2, c 3", {"a": 1, "b": 2, "c": 3}),
        ("a {b: c}", {"a": {"b": "c"}}),
        ("a{b c}", {"a": {"b": "c"}}),
        ("a\n{\n b: c\n}\n", {"a": {"b": "c"}}),
        ("a:\n  {b: c}", {"a": {"b": "c"}}),
        ("# one\na: 1 # two\n// three\nb: 2 // four\n", {"a": 1, "b": 2}),
        ("a: [1, 2\n3 # c\n 'x y', {b: 1}]", {"a": [1, 2, 3, "x y", {"b": 1}]}),
        ("a: []\nb: {}", {"a": [], "b": {}}),
        ('{"a": {"b": [true, "x", -1, 1.5]}, "c": "d"}', {"a": {"b": [True, "x", -1, 1.5]}, "c": "d"}),
        ('a: "t\\tn\\nq\\"b\\\\x\\x41"', {"a": 't\tn\nq"b\\xA'}),
        ("a: 'no \\ escape'", {"a": "no \\ escape"}),
        ("'a b': 1\n\"c:d\": 2", {"a b": 1, "c:d": 2}),
        ("a: yes, b: Off, c: TRUE, d: 'yes'", {"a": True, "b": False, "c": True, "d": "yes"}),
        ("a: 127.0.0.1:4222\nb: nats://x:1/y", {"a": "127.0.0.1:4222", "b": "nats://x:1/y"}),
        ("a: (\n one\n two ( )\n)\nb: 1", {"a": "\n one\n two ( )", "b": 1}),
        ("a: foo.*.bar, b: foo.>", {"a": "foo.*.bar", "b": "foo.>"}),
        ("a: 10s, b: 1h30m, c: 2m", {"a": "10s", "b": "1h30m", "c": 2_000_000}),
        ("a: 1, a: 2", {"a": 2}),
        ("pw: $2a$11$W2zko751KUvVy59mUTWmpOdWjpEm5qhcCZRd05GjI/sSOT.xtiHyG", {
            "pw": "$2a$11$W2zko751KUvVy59mUTWmpOdWjpEm5qhcCZRd05GjI/sSOT.xtiHyG"
        }),
        ("user: a\\x20b", {"user": "a b"}),
    ],
)  # fmt: skip
def test_a_text_is_read_as_nats_server_reads_it(text: str, wanted: Any) -> None:
    assert tree(text) == wanted


@pytest.mark.parametrize(
    ("word", "value"),
    [("1K", 1000), ("1KB", 1024), ("1kib", 1024), ("2Mb", 2 << 20), ("1GiB", 1 << 30), ("3T", 3 * 10**12),
     ("-1", -1), ("0", 0), ("1.25", 1.25), ("1b", "1b"), ("1x", "1x"), ("1.2.3", "1.2.3"), ("2024-01", "2024-01")],
)  # fmt: skip
def test_a_word_is_a_number_where_it_looks_like_one(word: str, value: object) -> None:
    assert plain(word) == value


def test_variables_come_from_the_maps_around_and_then_from_the_environment() -> None:
    text = "port: $P\nP2: 7\na { b: $P2, P3: x, c { d: $P3, e: $LIST } }"
    found = tree(text, environment={"P": "4333", "P3": "no", "LIST": "[1, $P]"})
    assert found == {"port": 4333, "P2": 7, "a": {"b": 7, "P3": "x", "c": {"d": "x", "e": [1, 4333]}}}
    assert tree("a: $X", environment={"X": "two words"}) == {"a": "two words"}


def test_a_variable_that_is_used_is_marked() -> None:
    value = parse("X: 1\nY: 2\na: $X", "f", read=str, environment=lambda _: None)
    assert isinstance(value.data, dict)
    assert [entry.is_variable for entry in value.data.values()] == [True, False, False]


def test_files_are_included_from_where_the_file_is() -> None:
    files = {"dir/b.conf": "b: 2\ninclude 'c/c.conf'", "dir/c/c.conf": "c: 3; d { e: 4 }"}
    found = tree('a: 1\ninclude b.conf\nx { include "c/c.conf" }', files=files)
    assert found == {"a": 1, "b": 2, "c": 3, "d": {"e": 4}, "x": {"c": 3, "d": {"e": 4}}}
    assert tree("include: 5") == {"include": 5}


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("a: 1\nb {", "2:4", "'}' is missing"),
        ("a: [1", "1:6", "']' is missing"),
        ("a:\nb: 1", "1:1", "key 'a' has no value"),
        ("a", "1:1", "key 'a' has no value"),
        ("a {b: }", "1:4", "key 'b' has no value"),
        ("x: 1\n  a: 'b", "2:6", "no closing '"),
        ("'a: 1", "1:1", "no closing '"),
        ("a: 1 b: 2", "1:6", "a value must be followed by"),
        ("a: \"\\q\"", "1:5", "an escape must be"),
        ("a: \"\\xZZ\"", "1:5", "must be followed by two hexadecimal digits"),
        ("a: .5", "1:4", "put it in quotes"),
        ("a: -x", "1:4", "put it in quotes"),
        ("a: $NOPE", "1:4", "variable 'NOPE'"),
        ("\n\ninclude nope.conf", "3:1", "cannot include 'dir/nope.conf'"),
        ("include", "1:1", "needs the name"),
        ("a: (\nb", "1:4", "')' on a separate line"),
        ("}", "1:1", "where a key was expected"),
        ("{a: 1} x", "1:8", "after the end"),
        (": 1", "1:1", "where a key was expected"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_parsed_is_rejected_with_its_position(text: str, position: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tree(text)
    assert str(caught.value).startswith(f"dir/a.conf:{position}: ")
    assert message in str(caught.value)


def test_nothing_refers_to_itself_for_ever() -> None:
    with pytest.raises(ConfigError, match="refers to itself"):
        tree("a: $A", environment={"A": "$A"})
    with pytest.raises(ConfigError, match=r"includes itself|more than 64 levels"):
        tree("include a.conf", files={"dir/a.conf": "include a.conf"})
    with pytest.raises(ConfigError, match="more than 64 levels"):
        tree("a: " + "[" * 100)


@given(st.text(alphabet="ab1 \n\t{}[]():=,;#/\"'\\$.-K", max_size=40))
def test_any_text_gives_a_tree_or_an_error_with_a_position(text: str) -> None:
    try:
        found = tree(text, environment={"a": "1"})
    except ConfigError as exc:
        found = {}
        seen = str(exc)
    else:
        seen = "dir/a.conf:"
    assert isinstance(found, dict)
    assert seen.startswith(("dir/a.conf:", "$a:"))


def test_an_error_in_an_included_file_names_that_file() -> None:
    with pytest.raises(ConfigError, match=r"^dir/b\.conf:2:4: "):
        tree("include b.conf", files={"dir/b.conf": "a: 1\nb {"})

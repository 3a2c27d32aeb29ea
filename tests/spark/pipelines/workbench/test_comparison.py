"""Comparison of rows: by key or by what they have in common, shown as a small table."""

from __future__ import annotations

from typing import Any

from slipstream.spark.pipelines.workbench.comparison import MISSING, UNEXPECTED, Difference, compare, difference_table


def test_equal_rows_in_any_order_do_not_differ() -> None:
    one: list[dict[str, Any]] = [{"a": 1, "b": {"x": 1.0, "y": None}}, {"a": 2}, {"a": 2}]
    other: list[dict[str, Any]] = [{"a": 2}, {"b": {"y": None, "x": 1}, "a": 1}, {"a": 2.0}]
    assert compare(one, other) == []
    assert compare(one, other[:2]) == [Difference("row 3", "", '{"a": 2}', MISSING)]
    assert compare([{"a": True}], [{"a": 1}]) == [
        Difference("row 1", "", '{"a": true}', MISSING),
        Difference("-", "", UNEXPECTED, '{"a": 1}'),
    ]


def test_rows_of_a_bucket_are_compared_by_key() -> None:
    wanted: list[dict[str, Any]] = [{"key": "ada", "value": {"n": 3, "s": "x"}}, {"key": "bob", "value": "1"}]
    found: list[dict[str, Any]] = [{"key": "eve", "value": "1"}, {"key": "ada", "value": {"n": 2, "t": "x"}}]
    assert compare(wanted, found, "key") == [
        Difference("ada", "value.n", "3", "2"),
        Difference("ada", "value.s", "x", "(absent)"),
        Difference("ada", "value.t", "(absent)", "x"),
        Difference("bob", "", '{"value": "1"}', MISSING),
        Difference("eve", "", UNEXPECTED, '{"value": "1"}'),
    ]


def test_rows_without_a_key_are_paired_with_the_nearest() -> None:
    wanted = [{"id": 1, "n": 1, "w": "a"}, {"id": 2, "n": 2, "w": "b"}]
    found = [{"id": 2, "n": 9, "w": "b"}, {"id": 1, "n": 1, "w": "a"}]
    assert compare(wanted, found) == [Difference("row 2", "n", "2", "9")]


def test_null_is_not_an_absent_column() -> None:
    assert compare([{"a": None, "b": 1}], [{"b": 1}]) == [Difference("row 1", "a", "null", "(absent)")]


def test_table_is_small() -> None:
    lines = difference_table([Difference(f"k{n}", "value.total", "1" * 100, "2") for n in range(30)])
    assert lines[0].split() == ["row", "column", "expected", "got"]
    assert max(map(len, lines)) < 100
    assert lines[-1] == "... and 10 more"

"""Validation of keys and key filters."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.kv.keys import any_of, check_key, check_pattern, check_patterns, filters_for


@pytest.mark.parametrize("key", ["a", "a.b", "A-/_=.z9", "/a/b", "x_kv"])
def test_good_keys_are_accepted(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\n", "_kv", "_kv.x", "a:b"])
def test_bad_keys_are_rejected(key: str) -> None:
    with pytest.raises(UsageError, match=r"key must .*, got"):
        check_key(key)


@pytest.mark.parametrize("pattern", ["a", "a.*", "*.b", ">", "a.>"])
def test_good_filters_are_accepted(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["a*", ">.a", "a..b", ".a", "a b", "ä"])
def test_bad_filters_are_rejected(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"key filter must be .*, got"):
        check_pattern(pattern)


def test_an_empty_filter_means_all_keys() -> None:
    assert check_pattern("") == ">"
    assert check_patterns(()) == (">",)


def test_filters_that_others_cover_are_dropped() -> None:
    assert check_patterns(("a.b", "a.*", "c", "a.b")) == ("a.*", "c")


def test_overlapping_filters_are_replaced_by_one_for_all_keys() -> None:
    assert filters_for(("a.*", "*.b")) == (">",)
    assert filters_for(("a.*", "b.*")) == ("a.*", "b.*")


def test_a_key_matches_if_any_filter_does() -> None:
    matches = any_of(("a.*", "*.b"))
    assert [key for key in ("a.x", "x.b", "x.y") if matches(key)] == ["a.x", "x.b"]

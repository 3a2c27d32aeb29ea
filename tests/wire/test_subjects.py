"""Subject rules against a model that knows nothing but their definition: the set of subjects a filter covers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.wire import (
    Inbox,
    check_filter,
    check_subject,
    has_wildcard,
    is_valid_filter,
    is_valid_subject,
    matcher,
    matches,
    overlaps,
    subset_of,
)

# `*x` and `>>` are ordinary tokens; `c` stands for every token that no filter below names.
_LITERALS = ("a", "b", "*x", ">>", "c")
_DEPTH = 4  # one more than the longest filter: enough to tell any two filters apart
UNIVERSE = [".".join(tokens) for n in range(1, _DEPTH + 1) for tokens in itertools.product(_LITERALS, repeat=n)]
_body = st.lists(st.sampled_from(("a", "b", "*x", ">>", "*", "*")), max_size=_DEPTH - 1)
filters = st.tuples(_body, st.booleans()).map(
    lambda parts: ".".join([*parts[0][: _DEPTH - 2], ">"] if parts[1] or not parts[0] else parts[0])
)


def covered(pattern: str) -> set[str]:
    """The definition, word by word."""
    tokens = pattern.split(".")
    found = set()
    for subject in UNIVERSE:
        words = subject.split(".")
        if tokens[-1] == ">":
            fits = len(words) >= len(tokens)
            pairs = zip(tokens[:-1], words, strict=False)
        else:
            fits = len(words) == len(tokens)
            pairs = zip(tokens, words, strict=False)
        if fits and all(token in ("*", word) for token, word in pairs):
            found.add(subject)
    return found


@given(filters)
def test_matches_is_the_definition(pattern: str) -> None:
    model = covered(pattern)
    fast = matcher(pattern)
    for subject in UNIVERSE:
        assert matches(pattern, subject) is (subject in model)
        assert fast(subject) is (subject in model)


@settings(max_examples=300)
@given(filters, filters)
def test_subsets_and_overlaps_are_those_of_the_sets(one: str, other: str) -> None:
    left, right = covered(one), covered(other)
    assert subset_of(one, other) is (left <= right)
    assert subset_of(other, one) is (right <= left)
    assert overlaps(one, other) is bool(left & right)
    assert overlaps(other, one) is bool(left & right)


@given(filters)
def test_every_filter_of_the_model_is_valid(pattern: str) -> None:
    assert is_valid_filter(pattern)
    assert check_filter(pattern) == pattern
    assert has_wildcard(pattern) is any(token in ("*", ">") for token in pattern.split("."))
    assert is_valid_subject(pattern) is not has_wildcard(pattern)


def test_a_matcher_takes_subjects_literally() -> None:
    assert matcher("a.*.c")("a.\n.c")
    assert matcher("a.>")("a.\n.x")
    assert matcher("a.+.*")("a.+.b")
    assert not matcher("a.+.*")("a.aa.b")
    assert not matcher("a.*")("a.")
    assert not matcher(">")("")


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "$JS.API.INFO", "a*", "a.b>", "日本.ä", "a\xa0b", "a\x1fb", "-_/=", "A.a"]
)
def test_good_subjects(subject: str) -> None:
    assert is_valid_subject(subject)
    assert check_subject(subject) == subject
    assert check_filter(subject) == subject


NEVER = [
    "", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nb", "a\n", " a", "a ", "a\0", "a\x0b", "a\x0c", "\ud800",
    "a.\udfff", None, 5, b"a",
]  # fmt: skip


@pytest.mark.parametrize("subject", [*NEVER, "*", ">", "a.*", "a.>", "*.a", ">.a"])
def test_bad_subjects(subject: Any) -> None:
    with pytest.raises(UsageError, match="subject must be") as caught:
        check_subject(subject)
    assert repr(subject) in str(caught.value)
    assert "or wildcards" in str(caught.value)


@pytest.mark.parametrize("subject", [*NEVER, ">.a", "a.>.b", ">.>", "*.>.*"])
def test_bad_filters(subject: Any) -> None:
    with pytest.raises(UsageError, match="subject filter must be") as caught:
        check_filter(subject)
    assert repr(subject) in str(caught.value)
    assert "'>'" in str(caught.value)


# --- inboxes ---------------------------------------------------------------------------------------------------------


def test_inboxes_are_unique_and_below_their_wildcard() -> None:
    inbox, other = Inbox("n1"), Inbox("n2")
    subjects = [box.next() for _ in range(1000) for box in (inbox, other)]
    assert len(set(subjects)) == 2000
    assert all(matches(inbox.wildcard, subject) for subject in subjects[::2])
    assert not any(matches(inbox.wildcard, subject) for subject in subjects[1::2])
    assert check_subject(subjects[0]).startswith("_INBOX.n1.")


def test_an_inbox_has_the_users_prefix() -> None:
    assert Inbox("x", prefix="_my.box").wildcard == "_my.box.x.*"
    for nonce, prefix in (("a b", "ok"), ("", "ok"), ("*", "ok"), ("x", "bad."), ("x", ">")):
        with pytest.raises(UsageError, match="subject must be"):
            Inbox(nonce, prefix=prefix)

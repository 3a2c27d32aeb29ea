"""A set of filters: the same answers as comparing its filters one by one, in fewer steps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.wire import SubjectSet, has_wildcard, is_valid_filter, matches, most_steps, overlaps, subset_of
from slipstream.wire.subject_set import literal_prefix

_LITERALS = ("a", "b", "*x", ">>", "c")
UNIVERSE = [".".join(tokens) for n in range(1, 4) for tokens in itertools.product(_LITERALS, repeat=n)]
filters = st.lists(st.sampled_from(("a", "b", "*x", ">>", "*", ">")), min_size=1, max_size=4).map(".".join)
filters = filters.filter(is_valid_filter)
sets = st.lists(filters, max_size=8)


@given(sets)
def test_set_matches_what_one_of_its_filters_matches(patterns: list[str]) -> None:
    chosen = SubjectSet(patterns)
    for subject in UNIVERSE:
        assert chosen.matches(subject) is any(matches(pattern, subject) for pattern in patterns)


@given(sets)
def test_no_subject_takes_more_steps_than_the_most(patterns: list[str]) -> None:
    chosen = SubjectSet(patterns)
    by_shapes = chosen.most_steps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.wire.subject_set.FEW_SHAPES", 0)
        by_tree = chosen.most_steps()
    assert by_tree <= by_shapes == most_steps(patterns)
    for subject in UNIVERSE:
        before = chosen.steps
        chosen.matches(subject)
        assert chosen.steps - before <= by_tree


def test_most_steps_of_filters_as_they_are_used_are_few() -> None:
    assert most_steps([f"a.{at}.*.x" for at in range(1000)]) == 5
    many = [f"{'.'.join(tokens)}.{at}" for at, tokens in enumerate(itertools.product(("a", "*"), repeat=8))]
    assert most_steps(many) == SubjectSet(many).most_steps() == 3 * 2**8 - 3


@given(sets, filters)
def test_overlapping_returns_a_filter_that_shares_a_subject(patterns: list[str], asked: str) -> None:
    found = SubjectSet(patterns).overlapping(asked)
    if found is None:
        assert not any(overlaps(pattern, asked) for pattern in patterns)
    else:
        assert found in patterns
        assert overlaps(found, asked)


@given(sets)
def test_covering_returns_another_filter_that_covers_a_filter_of_the_set(patterns: list[str]) -> None:
    chosen = SubjectSet(patterns)
    for asked in patterns:
        found = chosen.covering(asked)
        others = [pattern for pattern in patterns if pattern != asked and subset_of(asked, pattern)]
        assert found in others if others else found is None


@given(sets, filters)
def test_covering_of_a_filter_that_is_not_in_the_set(patterns: list[str], asked: str) -> None:
    found = SubjectSet(patterns).covering(asked)
    others = [pattern for pattern in patterns if pattern != asked and subset_of(asked, pattern)]
    assert found in others if others else found is None


@given(sets, st.data())
def test_discarded_filters_leave_no_trace(patterns: list[str], data: st.DataObject) -> None:
    chosen, left = SubjectSet(), list(dict.fromkeys(patterns))
    for pattern in patterns:
        known = pattern in list(chosen)
        assert chosen.add(pattern) is not known
        if data.draw(st.booleans()):
            chosen.overlapping("*.>")  # indexes the literals that there are
    while left:
        gone = left.pop(data.draw(st.integers(0, len(left) - 1)))
        assert chosen.discard(gone)
        assert not chosen.discard(gone)
        assert sorted(chosen) == sorted(left)
        assert len(chosen) == len(left)
        for asked in ("*.>", "a", "a.*", ">", "b.*.a", gone):
            found = chosen.overlapping(asked)
            assert found in left if found else not any(overlaps(pattern, asked) for pattern in left)
        for subject in UNIVERSE[:40]:
            assert chosen.matches(subject) is any(matches(pattern, subject) for pattern in left)


@given(sets)
def test_prefixes_are_disjoint_and_cover_all_subjects_of_the_wildcards(patterns: list[str]) -> None:
    chosen = SubjectSet(patterns)
    prefixes = chosen.prefixes()
    assert not any(one.startswith(other) for one, other in itertools.permutations(prefixes, 2))
    wild = [pattern for pattern in patterns if has_wildcard(pattern)]
    assert set(chosen.wildcards) == set(wild)
    assert set(chosen.literals) == set(patterns) - set(wild)
    for subject in UNIVERSE:
        if any(matches(pattern, subject) for pattern in wild):
            assert sum(subject.startswith(prefix) for prefix in prefixes) == 1


@pytest.mark.parametrize(
    ("pattern", "prefix"), [("a.b", "a.b"), ("a.*", "a."), ("a.b.>", "a.b."), (">", ""), ("*.a", ""), ("a*.b", "a*.b")]
)
def test_literal_prefix_ends_before_the_first_wildcard(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


def steps_to_compare(patterns: list[str]) -> int:
    """The steps that it takes to see that none of the filters overlaps another."""
    chosen = SubjectSet()
    for pattern in patterns:
        assert chosen.overlapping(pattern) is None
        assert chosen.covering(pattern) is None
        assert chosen.add(pattern)
    return chosen.steps


@pytest.mark.parametrize("form", ["s.{}.x", "s.{}.>", "s.{}.*.x", "{}", "a.b.c.{}.*", "*.a.{}"])
def test_comparing_filters_takes_steps_in_proportion_to_their_number(form: str) -> None:
    few, many = (steps_to_compare([form.format(i) for i in range(n)]) for n in (250, 2000))
    assert many <= 9 * few


def test_literals_and_wildcards_that_alternate_are_compared_in_linear_steps() -> None:
    def steps(count: int) -> int:
        return steps_to_compare([form.format(i) for i in range(count) for form in ("s.{}.x", "s.{}.*.y")])

    assert steps(2000) <= 9 * steps(250)


def test_matching_does_not_depend_on_the_number_of_filters() -> None:
    chosen = SubjectSet(f"s.{i}.>" for i in range(5000))
    assert chosen.matches("s.4321.x")
    assert not chosen.matches("s.nope.x")
    assert chosen.steps < 10


def test_filters_that_differ_behind_many_stars_are_counted_as_work() -> None:
    """The worst case of a tree of tokens: it shows in `steps`, by which callers pause."""
    heads = [".".join(tokens) for tokens in itertools.product(("a", "*"), repeat=6)]
    chosen = SubjectSet(f"{head}.x{i}" for i, head in enumerate(heads))
    assert not chosen.matches("a.a.a.a.a.a.y")
    assert 64 <= chosen.steps <= 200


@given(sets)
def test_matching_lists_every_filter_that_matches(patterns: list[str]) -> None:
    chosen = SubjectSet(patterns)
    for subject in UNIVERSE[:60]:
        expected = sorted({pattern for pattern in patterns if matches(pattern, subject)})
        assert sorted(chosen.matching(subject)) == expected


@given(sets, filters)
def test_all_overlapping_lists_every_filter_that_shares_a_subject(patterns: list[str], asked: str) -> None:
    found = sorted(SubjectSet(patterns).all_overlapping(asked))
    assert found == sorted({pattern for pattern in patterns if overlaps(pattern, asked)})


def test_texts_that_are_no_filters_match_nothing() -> None:
    chosen = SubjectSet(["a", "a.b", "a.*"])
    for text in ("", ".", "a.", "a..b", "a.b."):
        assert chosen.matching(text) == (["a.*"] if text == "a." else [])
        assert chosen.covering(text) in (None, "a.*")

"""Owners of subjects, against a model that compares every pair of filters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.server.engine.subject_index import SubjectIndex
from slipstream.wire import is_valid_filter, overlaps

filters = st.lists(st.sampled_from(("a", "b", "c", "*", ">")), min_size=1, max_size=3).map(".".join)
claims = st.lists(filters.filter(is_valid_filter), max_size=3, unique=True).map(tuple)
owners = st.sampled_from(("one", "two", "three"))


@given(st.lists(st.tuples(owners, claims), max_size=8), owners, claims, filters.filter(is_valid_filter))
def test_index_answers_as_if_all_filters_were_compared(
    changes: list[tuple[str, tuple[str, ...]]], owner: str, wanted: tuple[str, ...], pattern: str
) -> None:
    index, model = SubjectIndex(), dict[str, tuple[str, ...]]()
    for name, subjects in changes:  # owners may claim the same subjects: a lost group takes changes back one by one
        index.release(name, model.pop(name, ()))
        index.claim(name, subjects)
        model[name] = subjects
    own = model.get(owner, ())
    others = [theirs for name, subjects in model.items() if name != owner for theirs in subjects]
    new = [mine for mine in wanted if mine not in own]
    for _ in range(2):  # asking changes nothing
        taken = index.is_taken("subjects", wanted, owner=owner, own=own)
        assert taken is any(overlaps(mine, theirs) for mine in new for theirs in others)
    expected = {name for name, subjects in model.items() if any(overlaps(pattern, theirs) for theirs in subjects)}
    assert index.owners_of(pattern) == expected
    for name, subjects in model.items():
        index.release(name, subjects)
    assert index.owners_of(">") == set()

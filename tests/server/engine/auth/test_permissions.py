"""Permissions with many entries: the same answers as comparing the entries one by one, at a cost that does not grow."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slipstream.server.engine.auth.permissions import Rules
from slipstream.server.engine.auth.users import Permissions
from slipstream.wire import is_valid_filter, overlaps, subset_of
from tests.growth import cpu, grows_less

subjects = st.lists(st.sampled_from(("a", "b", "*", ">", "")), min_size=1, max_size=3).map(".".join)
entries = st.lists(subjects.filter(is_valid_filter), max_size=5).map(tuple)


@given(entries, entries, subjects)
def test_publish_lists_mean_that_an_entry_covers_the_subject(
    allow: tuple[str, ...], deny: tuple[str, ...], subject: str
) -> None:
    rules = Rules(Permissions(publish=allow, publish_deny=deny))
    valid = is_valid_filter(subject)
    allowed = valid and any(subset_of(subject, entry) for entry in allow)
    denied = valid and any(subset_of(subject, entry) for entry in deny)
    assert rules.may_publish(subject) is (allowed and not denied)


@given(entries, entries, subjects.filter(is_valid_filter))
def test_subscribe_lists_mean_that_an_entry_covers_the_filter(
    allow: tuple[str, ...], deny: tuple[str, ...], subject: str
) -> None:
    rules = Rules(Permissions(subscribe=allow, subscribe_deny=deny))
    allowed = any(subset_of(subject, entry) for entry in allow)
    denied = any(subset_of(subject, entry) for entry in deny)
    assert rules.may_subscribe(subject, "") is (allowed and not denied)
    assert rules.denies(subject, "") is denied
    assert rules.needs_guard(subject, "q") is any(overlaps(entry, subject) for entry in deny)


def test_a_check_costs_the_same_with_few_and_many_entries() -> None:
    attempts = itertools.count()

    def check(count: int) -> float:
        lists = tuple(f"s.{at}.>" for at in range(count))
        rules = Rules(Permissions(publish=lists, publish_deny=lists, subscribe=lists, subscribe_deny=lists))
        names = [f"s.x{next(attempts)}-{at}.y" for at in range(500)]  # none is remembered

        def all_of_them() -> None:
            for name in names:
                rules.may_publish(name)
                rules.may_subscribe(name, "q")
                rules.denies(name, "q")
                rules.needs_guard(name, "q")

        return cpu(all_of_them)

    assert grows_less(check, 40, 4000, times=4)

"""The routing table against a list that is searched from end to end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from slipstream.wire import Match, Router, matches, router
from slipstream.wire.router import CACHE_LIMIT

_token = st.sampled_from(("a", "b", "c"))
subjects = st.lists(_token, min_size=1, max_size=4).map(".".join)
patterns = st.tuples(st.lists(_token | st.just("*"), max_size=3), st.booleans()).map(
    lambda parts: ".".join([*parts[0], ">"] if parts[1] or not parts[0] else parts[0])
)
values = st.integers(0, 4)
queues = st.sampled_from(("", "", "q", "r"))


def nodes(table: Router[Any]) -> int:
    """How many nodes the tree has, the root aside."""
    count, stack = -1, [table._root]
    while stack:
        node = stack.pop()
        count += 1
        stack += [*node.children.values(), *(below for below in (node.star, node.rest) if below)]
    return count


def as_sets(match: Match[int]) -> tuple[set[int], dict[str, set[int]]]:
    assert len(match.plain) == len(set(match.plain))
    assert all(len(members) == len(set(members)) > 0 for _, members in match.queues)
    return set(match.plain), {queue: set(members) for queue, members in match.queues}


class RouterMachine(RuleBasedStateMachine):
    added = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.router: Router[int] = Router()
        self.model: set[tuple[str, int, str]] = set()

    def expected(self, subject: str) -> tuple[set[int], dict[str, set[int]]]:
        plain: set[int] = set()
        groups: dict[str, set[int]] = {}
        for pattern, value, queue in self.model:
            if matches(pattern, subject):
                (groups.setdefault(queue, set()) if queue else plain).add(value)
        return plain, groups

    @rule(target=added, pattern=patterns | subjects, value=values, queue=queues)
    def add(self, pattern: str, value: int, queue: str) -> tuple[str, int, str]:
        self.router.add(pattern, value, queue)
        self.model.add((pattern, value, queue))
        return pattern, value, queue

    @rule(entry=added)
    def remove(self, entry: tuple[str, int, str]) -> None:
        assert self.router.remove(*entry) is (entry in self.model)
        self.model.discard(entry)

    @rule(pattern=patterns | subjects, value=values, queue=queues)
    def remove_what_may_not_be_there(self, pattern: str, value: int, queue: str) -> None:
        self.remove((pattern, value, queue))

    @rule(subject=subjects)
    def match(self, subject: str) -> None:
        expected = self.expected(subject)
        assert as_sets(self.router.match(subject)) == expected
        assert as_sets(self.router.match_once(subject)) == expected

    @invariant()
    def size_and_values_agree(self) -> None:
        assert len(self.router) == len(self.model)
        assert sorted(self.router) == sorted(value for _, value, _ in self.model)

    @invariant()
    def no_node_is_left_behind(self) -> None:
        prefixes = {
            tuple(pattern.split(".")[: n + 1]) for pattern, _, _ in self.model for n in range(pattern.count(".") + 1)
        }
        assert nodes(self.router) == len(prefixes)


RouterMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRouter = RouterMachine.TestCase


def test_members_come_in_the_order_they_were_added() -> None:
    table: Router[str] = Router()
    for value in ("z", "a", "m"):
        table.add("x", value)
        table.add("x", value, "q")
    assert table.match("x") == Match(("z", "a", "m"), (("q", ("z", "a", "m")),))


def test_inboxes_that_came_and_went_leave_nothing() -> None:
    table: Router[int] = Router()
    table.add("_INBOX.keep.*", 0)
    before = nodes(table)
    for n in range(1000):
        table.add(f"_INBOX.{n}.*", n)
        table.match_once(f"_INBOX.{n}.1")
        assert table.remove(f"_INBOX.{n}.*", n)
    assert nodes(table) == before
    assert len(table._cache) == 0


def test_a_hundred_thousand_subscriptions_stay_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Router[int] = Router()
    for n in range(50_000):
        table.add(f"orders.{n}.new", n)
        table.add(f"orders.{n}.*", n + 50_000)
    table.add("orders.>", -1)
    assert len(table) == 100_001
    seen = 0
    original = dict.get

    class CountingDict(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal seen
            seen += 1
            return original(self, *args)

    orders = table._root.children["orders"]
    orders.children = CountingDict(orders.children)
    for n in range(0, 50_000, 50):
        assert table.match_once(f"orders.{n}.new") == Match((-1, n, n + 50_000), ())
    assert seen == 1000  # one step, however many there are beside it
    monkeypatch.setattr(router, "has_wildcard", lambda _: False)
    for n in range(50_000):
        assert table.remove(f"orders.{n}.new", n)
        assert table.remove(f"orders.{n}.*", n + 50_000)
    assert len(table) == 1
    assert nodes(table) == 2


def test_the_cache_is_used_and_bounded_in_subjects() -> None:
    table: Router[int] = Router()
    table.add("a.>", 1)
    assert table.match("a.b") is table.match("a.b")
    assert table.match_once("a.c") is not table.match_once("a.c")
    for n in range(CACHE_LIMIT + 10):
        assert table.match(f"a.{n}").plain == (1,)
        assert len(table._cache) <= CACHE_LIMIT
    assert 0 < len(table._cache) < CACHE_LIMIT


def test_the_cache_is_bounded_in_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "CACHE_MEMBERS", 1000)
    table: Router[int] = Router()
    for n in range(100):
        table.add("a.*", n)
        table.add("a.>", n, "q")
    for n in range(50):
        assert len(table.match(f"a.{n}").plain) == 100
        assert len(table._cache) <= 5
    table.add("b.*", 1)  # forgets all, the count as well
    assert table._cached_members == 0


def test_a_literal_forgets_only_itself() -> None:
    table: Router[int] = Router()
    table.add("a", 1)
    table.add("b", 1)
    a, b = table.match("a"), table.match("b")
    table.add("a", 1)  # nothing new
    assert table.match("a") is a
    table.add("a", 2)
    assert table.match("a") == Match((1, 2), ())
    assert table.match("b") is b
    table.add(">", 3)
    assert table.match("b") == Match((3, 1), ())

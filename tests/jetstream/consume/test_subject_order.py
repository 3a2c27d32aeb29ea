"""Order per subject, against a model: one of each subject at a time, in the order in which they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.jetstream.consume.subject_order import SubjectOrder

STEPS = st.lists(st.tuples(st.sampled_from(["add", "done"]), st.sampled_from("abc")), max_size=60)


@given(steps=STEPS)
def test_messages_of_a_subject_are_handled_one_after_the_other(steps: list[tuple[str, str]]) -> None:
    order: SubjectOrder[int] = SubjectOrder()
    running: dict[str, int] = {}
    added: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    handled: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for number, (step, subject) in enumerate(steps):
        if step == "add":
            added[subject].append(number)
            if order.add(subject, number):
                assert subject not in running
                running[subject] = number
                handled[subject].append(number)
            else:
                assert subject in running
        elif subject in running:
            del running[subject]
            if (following := order.done(subject)) is not None:
                running[subject] = following
                handled[subject].append(following)
        assert order.waiting == sum(len(added[name]) - len(handled[name]) for name in added)
        for name in added:
            assert handled[name] == added[name][: len(handled[name])]
            assert (name in running) or handled[name] == added[name]


def test_all_that_wait_can_be_taken_and_their_subjects_go_on() -> None:
    order: SubjectOrder[int] = SubjectOrder()
    assert [order.add(subject, number) for number, subject in enumerate("aababb")] == [
        True, False, True, False, False, False,
    ]  # fmt: skip
    assert sorted(order.take_waiting()) == [1, 3, 4, 5]
    assert (order.waiting, order.take_waiting()) == (0, [])
    assert not order.add("a", 6)
    assert (order.done("a"), order.done("a"), order.done("b")) == (6, None, None)
    assert order.add("b", 7)

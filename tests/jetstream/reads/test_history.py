"""The checker of the promise runs: each kind of broken promise is found, and what is right is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jetstream.reads.history import Got, History, Kind, Model, Read, Write

LATEST = 8


def written(**limits: int) -> Model:
    """a b a c(rollup of its subject) b(delete mark) a d(rollup of all) b."""
    model = Model(**limits)
    kinds = {4: Kind.ROLLUP_SUBJECT, 5: Kind.DELETE, 7: Kind.ROLLUP_ALL}
    for seq, key in enumerate("abacbadb", start=1):
        model.begun += 1
        model.wrote(seq, Write(key, b"%d" % seq, kinds.get(seq, Kind.PUT)))
    return model


def broken(reads: list[Read], **limits: int) -> list[str]:
    history = History("S", **limits)
    history.model = written(**limits)
    for read in reads:
        history.read(read)
    return history.broken()


def read(path: str, key: str, wanted: int, got: object, **more: Any) -> Read:
    return Read("r", path, key, wanted, LATEST, got)._replace(**more)


def message(seq: int) -> Got:
    return Got(seq, b"%d" % seq)


RIGHT = [
    read("last", "a", 1, message(1)),
    read("last", "a", 3, message(3)),
    read("last", "a", 3, message(6)),  # newer than it had to be
    read("last", "a", 6, None),  # the rollup at 7 was seen
    read("last", "", 5, message(6)),
    read("last", "x", 8, None),
    read("value", "b", 5, None),
    read("seq", "", 2, message(2), start=2),
    read("next", "a", 4, message(6), start=4),
    read("many", "", 6, {"d": message(7)}),
    read("keys", "", 6, frozenset("ac")),
    read("range", "", 6, [4, 5, 6], start=2, end=6),
    read("range", "", 6, [7], start=2),
]
WRONG = [
    read("last", "a", 3, message(1)),  # stale
    read("last", "a", 3, None, latest=6),  # falsely absent: the rollup was not written yet
    read("last", "a", 8, message(6)),  # gone
    read("last", "a", 1, Got(1, b"other")),
    read("last", "", 5, message(4)),
    read("value", "b", 2, None, latest=4),
    read("seq", "", 7, message(2), start=2),
    read("seq", "", 3, None, start=3, latest=4),
    read("next", "a", 3, message(6), start=1, latest=6),  # passed over 3
    read("many", "", 7, {"c": message(4), "d": message(7)}),
    read("keys", "", 6, frozenset("abc"), latest=7),
    read("range", "", 6, [4, 6], start=4, end=6, latest=6),  # a gap
    read("range", "", 8, [6, 7, 8], start=6),  # shows what is gone
    read("range", "", 6, [5, 4, 6], start=4, end=6),
]


@pytest.mark.parametrize("right", RIGHT, ids=lambda read: f"{read.path}-{read.wanted}")
def test_a_read_that_is_right_as_of_some_sequence_is_accepted(right: Read) -> None:
    assert broken([right], per_subject=2) == []


@pytest.mark.parametrize("wrong", WRONG, ids=lambda read: f"{read.path}-{read.wanted}")
def test_a_read_that_is_wrong_as_of_every_sequence_is_found(wrong: Read) -> None:
    assert len(broken([wrong], per_subject=2)) == 1


def test_a_session_that_goes_back_is_found() -> None:
    reads = [read("last", "a", 3, message(6), is_session=True), read("last", "b", 3, message(2), is_session=True)]
    assert broken(reads[:1]) == broken(reads[1:]) == []
    assert [line.split(":")[1] for line in broken(reads)] == [" went back"]


def test_a_session_that_finds_again_what_was_absent_is_found() -> None:
    reads = [read("last", "a", 6, None, is_session=True), read("last", "a", 6, message(6), is_session=True)]
    assert broken(reads[1:]) == []
    assert len(broken(reads)) == 1


def test_limits_of_the_whole_stream_remove_the_oldest() -> None:
    model = written(in_all=2)
    model.settle()
    assert [model.removed.get(seq) for seq in range(1, 9)] == [3, 4, 5, 6, 7, 7, None, None]
    assert model.differences([7, 8]) == ""
    assert "stream alone [6]" in model.differences([6, 7, 8])

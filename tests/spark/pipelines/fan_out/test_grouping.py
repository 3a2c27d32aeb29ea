"""Which outputs share a read, by how far each has come; without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.spark.pipelines.fan_out.checkpoints import KEPT, Checkpoint, CheckpointPosition
from slipstream.spark.pipelines.fan_out.grouping import NO_GROUP, REACH, SharingGroup, choose
from slipstream.spark.source.offsets import Offset

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
FRESH = CheckpointPosition(-1, None, None)


def at(seq: int, pending: int | None = None, *, batch: int = 5, created: str = NEW) -> CheckpointPosition:
    return CheckpointPosition(batch, Offset(seq, created), None if pending is None else Offset(pending, created))


def across(seq: int, pending: int) -> CheckpointPosition:
    """In a batch that begins in the old stream and ends in the new one."""
    return CheckpointPosition(5, Offset(seq, OLD), Offset(pending, NEW))


@pytest.mark.parametrize(
    ("outputs", "shared", "group"),
    [
        ({"a": FRESH, "b": FRESH}, None, SharingGroup(("a", "b"))),
        ({"a": FRESH}, None, NO_GROUP),
        ({}, None, NO_GROUP),
        # Not at the same offset: the read begins at the one that is behind.
        ({"a": at(20), "b": at(10), "c": at(20)}, None, SharingGroup(("a", "b", "c"), start="b")),
        # One that was added later, or is far behind, catches up alone.
        ({"a": at(20), "b": at(20), "c": FRESH}, None, SharingGroup(("a", "b"), start="a")),
        ({"a": at(REACH + 20), "b": at(REACH + 20), "c": at(19)}, None, SharingGroup(("a", "b"), start="a")),
        ({"a": at(REACH + 20), "b": at(20)}, None, SharingGroup(("a", "b"), start="b")),
        ({"a": at(20), "b": FRESH}, None, NO_GROUP),
        # A batch that was begun alone is finished alone.
        ({"a": at(20, 30), "b": at(20), "c": at(25)}, None, SharingGroup(("b", "c"), start="b")),
        ({"a": at(20, 30), "b": at(20, 30)}, None, NO_GROUP),
        # The stream was made again: sequences of the old one mean nothing in the new one.
        ({"a": at(900, created=OLD), "b": at(2), "c": at(3)}, None, SharingGroup(("b", "c"), start="b")),
        # Killed in a batch that goes on in the stream that was made again, whose loss is accepted.
        (
            {"a": at(900, created=OLD), "b": at(950, created=OLD), "c": at(30), "d": at(12), "e": at(899, created=OLD)},
            across(900, 30), SharingGroup(("a", "b", "c", "d"), continues=True),
        ),
        ({"a": at(900, created=OLD), "b": at(950, created=OLD)}, None, SharingGroup(("a", "b"), start="a")),
        # Killed in the middle of shared batch (20, 30]: before, in and behind the write of an output.
        ({"a": at(30), "b": at(20, 30), "c": at(20)}, at(20, 30), SharingGroup(("a", "b", "c"), continues=True)),
        # With one that failed for good, was reset, or began another batch meanwhile.
        ({"a": at(30), "b": at(20), "c": at(12, 20)}, at(20, 30), SharingGroup(("a", "b"), continues=True)),
        ({"a": at(30), "b": at(20), "c": FRESH}, at(20, 30), SharingGroup(("a", "b"), continues=True)),
        ({"a": at(30), "b": at(20, 30), "c": at(20, 27)}, at(20, 30), SharingGroup(("a", "b"), continues=True)),
        # Ahead of the shared batch, after a run without sharing.
        ({"a": at(25), "b": at(99)}, at(20, 30), SharingGroup(("a", "b"), continues=True)),
        # The very first batch.
        ({"a": FRESH, "b": at(30), "c": CheckpointPosition(-1, None, Offset(30, NEW))},
         CheckpointPosition(-1, None, Offset(30, NEW)), SharingGroup(("a", "b", "c"), continues=True)),
        # All were reset, or all but one: the old shared batch is nobody's.
        ({"a": FRESH, "b": FRESH}, at(20, 30), SharingGroup(("a", "b"))),
        ({"a": at(20), "b": FRESH}, at(20, 30), NO_GROUP),
        ({"a": at(20, 30), "b": FRESH, "c": FRESH}, at(20, 30), SharingGroup(("b", "c"))),
        # A shared query between two batches holds nothing.
        ({"a": at(20), "b": at(10)}, at(20), SharingGroup(("a", "b"), start="b")),
    ],
)  # fmt: skip
def test_outputs_share_a_read_only_where_none_loses_or_repeats_rows(
    outputs: dict[str, CheckpointPosition], shared: CheckpointPosition | None, group: SharingGroup
) -> None:
    assert choose(outputs, shared) == group


def text(seq: int) -> str:
    return "\n".join(("v1", json.dumps({"conf": {}}), json.dumps(Offset(seq, NEW).to_json())))


def test_checkpoint_knows_what_was_begun_and_committed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "one")
    assert checkpoint.position() == FRESH
    assert not (tmp_path / "one").exists()  # a look creates nothing
    checkpoint.begin(0, text(10))
    assert checkpoint.position() == CheckpointPosition(-1, None, Offset(10, NEW))
    checkpoint.begin(0, text(99))  # a batch that was begun keeps its end
    checkpoint.commit(0)
    assert checkpoint.position() == CheckpointPosition(0, Offset(10, NEW), None)
    query = checkpoint.query_id()
    assert query == Checkpoint(tmp_path / "one").query_id()
    other = Checkpoint(tmp_path / "other")
    other.start_behind(checkpoint, 0)
    assert other.position() == CheckpointPosition(0, Offset(10, NEW), None)
    assert other.query_id() != query
    for batch in range(1, KEPT + 5):
        checkpoint.begin(batch, text(10 + batch))
        checkpoint.commit(batch)
    assert not (tmp_path / "one" / "offsets" / "4").exists()
    assert checkpoint.position() == CheckpointPosition(KEPT + 4, Offset(KEPT + 14, NEW), None)
    assert len(list((tmp_path / "one" / "commits").iterdir())) == KEPT


@pytest.mark.parametrize(
    "content",
    ["v1\n{}\n{}\n{}", "v1\n{}", 'v2\n{}\n{"seq":1,"created":"x"}', "v1\n{}\n-", 'v1\n{}\n{"seq":"x"}', "v1\n{}\n1"],
)
def test_checkpoint_of_another_kind_of_query_is_not_shared(tmp_path: Path, content: str) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "3").write_text(content)
    assert Checkpoint(tmp_path).position() is None


def test_checksum_of_a_file_that_is_replaced_goes_with_it(tmp_path: Path) -> None:
    """Hadoop compares a file with its checksum, if there is one."""
    checkpoint = Checkpoint(tmp_path)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / ".0.crc").write_bytes(b"crc")
    checkpoint.begin(0, text(1))
    checkpoint.commit(0)
    assert sorted(one.name for one in (tmp_path / "commits").iterdir()) == ["0"]

"""Parts of the model that few seeds reach, directly."""

from __future__ import annotations

from typing import Any

from tests.server.simulation.loop import SECOND, Outbox, Time, VirtualLoop, Wire
from tests.server.simulation.model import Entry, GroupStates, ModelStream


def expired(**config: Any) -> ModelStream:
    """A stream with delete markers, whose only message has expired by second 10."""
    config = {"name": "A", "storage": "file", "retention": "limits", "max_age": SECOND, "discard": "old"} | config
    stream = ModelStream(config | {"subject_delete_marker_ttl": SECOND}, 1, 0)
    stream.put(Entry(1, SECOND, "A.x", b"", b""))
    return stream


def test_only_markers_that_nothing_takes_or_that_are_too_large_leave_at_once() -> None:
    assert expired().fleeting_markers(10 * SECOND) == 0
    assert expired(max_bytes=50).fleeting_markers(10 * SECOND) == 1
    stream = expired(retention="interest")
    assert stream.fleeting_markers(1 * SECOND) == 0  # it has not expired
    assert stream.fleeting_markers(10 * SECOND) == 1
    stream.consumers["c"] = ("A.*",)
    assert stream.fleeting_markers(10 * SECOND) == 0


def test_a_stream_whose_deletion_is_lost_counts_as_reopened() -> None:
    states = GroupStates()
    states.writer["A"] = expired()
    states.seal()
    states.sync()
    states.revert(0)
    assert states.reopened == set()
    del states.writer["A"]
    states.revert(0)
    assert states.reopened == {("A", 1)}


def test_an_outbox_tells_what_is_never_written() -> None:
    lost: list[bytes] = []
    wire = Wire(VirtualLoop(Time(0)), 1, lambda data: None)  # noqa: ARG005
    out = wire.outbox = Outbox([], lost.append)
    out.append(b"read")
    wire.write(b"".join(out))
    out.clear()
    assert lost == []
    wire.abort()
    out.append(b"not ")
    out.append(b"written")
    wire.write(b"".join(out))
    out.clear()
    assert lost == [b"not written"]

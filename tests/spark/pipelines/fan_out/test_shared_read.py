"""Failures of an output in a shared read, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from slipstream.spark.pipelines.fan_out.checkpoints import Checkpoint
from slipstream.spark.pipelines.fan_out.shared_read import MAX_FAILURES, SharedRead, SharingOutput
from slipstream.spark.source.offsets import Offset

AWAY = "slipstream.errors.ConnectionLostError: refused"
CRASHED = "org.S: Python worker failed to connect back."


def test_output_is_left_out_after_crashes_in_a_row_and_not_after_an_outage(tmp_path: Path) -> None:
    failures = iter([*[AWAY] * (2 * MAX_FAILURES), *[CRASHED] * MAX_FAILURES, "", *[CRASHED] * (MAX_FAILURES + 1)])

    def write(rows: object, batch: int) -> int:  # noqa: ARG001
        if text := next(failures):
            raise RuntimeError(text)
        return 1

    shared = Checkpoint(tmp_path / "shared")
    one = SharingOutput("one", mock.Mock(), write, Checkpoint(tmp_path / "one"))
    other = SharingOutput("other", mock.Mock(), lambda *_: 1, Checkpoint(tmp_path / "other"))
    read = SharedRead("orders", mock.Mock(), mock.Mock(), [one, other], shared)
    for batch in range(2):
        shared.begin(batch, f"v1\n{{}}\n{json.dumps(Offset(batch + 1, 'x').to_json())}")
    for _ in range(3 * MAX_FAILURES):
        with pytest.raises(RuntimeError):
            read._write(mock.MagicMock(), 0)
    read._write(mock.MagicMock(), 0)
    assert set(read.written(0)) == {"one", "other"}
    for _ in range(MAX_FAILURES):
        with pytest.raises(RuntimeError):
            read._write(mock.MagicMock(), 1)
    read._write(mock.MagicMock(), 1)
    assert (set(read.failed), set(read.written(1))) == ({"one"}, {"other"})

"""The log of events of a run."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.spark.pipelines.observe.events import LOG, OLDER, EventLog, late_rows, progress_details


def test_events_are_json_lines_and_reach_the_callback(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []
    log = EventLog(tmp_path / "state", seen.append)  # the folder is made
    log.add("query_started", "2026-01-31T09:00:00Z", output="a")
    log.add("query_failed", "2026-01-31T09:00:01Z", output="a", reason='two\nlines and "quotes"')
    lines = (tmp_path / "state" / LOG).read_text().splitlines()
    assert [json.loads(line) for line in lines] == seen
    assert seen[1] == {
        "at": "2026-01-31T09:00:01Z",
        "event": "query_failed",
        "output": "a",
        "reason": 'two\nlines and "quotes"',
    }


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = EventLog(tmp_path, max_bytes=1_000)
    for number in range(100):
        log.add("progress", "now", number=number)
    sizes = [(tmp_path / name).stat().st_size for name in (LOG, OLDER)]
    assert max(sizes) <= 1_000
    numbers = [
        json.loads(line)["number"] for name in (OLDER, LOG) for line in (tmp_path / name).read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 100))  # none is missing between the two files


def test_details_of_a_batch() -> None:
    progress = {
        "id": "q", "runId": "r", "batchId": 3, "numInputRows": 5, "processedRowsPerSecond": None,
        "durationMs": {"addBatch": 12}, "eventTime": {"watermark": "2026-01-31T09:00:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 2, "numRowsDroppedByWatermark": 1},
            {"numRowsTotal": 3, "numRowsDroppedByWatermark": 4},
        ],
        "sources": [{"startOffset": None, "endOffset": '{"seq": 7}', "numInputRows": 5}],
    }  # fmt: skip
    found = progress_details(progress)
    assert (found["state_rows"], found["late_rows"], found["rows_per_second"]) == (5, 5, 0.0)
    assert found["sources"] == [{"start": None, "end": {"seq": 7}, "rows": 5}]
    assert found["watermark"] == "2026-01-31T09:00:00.000Z"
    assert late_rows({"stateOperators": None}) == 0

"""Reports of batches: each is turned into text once."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from slipstream.spark.pipelines.observe.reports import reports_since


class Report:
    """What Py4J gives for a progress of Spark."""

    def __init__(self, batch: int, at: str, run: str = "00000000-0000-0000-0000-000000000001") -> None:
        self._batch, self._at, self._run = batch, at, run
        self.texts = 0

    def runId(self) -> str:  # noqa: N802 - as in Java
        return self._run

    def timestamp(self) -> str:
        return self._at

    def batchId(self) -> int:  # noqa: N802
        return self._batch

    def json(self) -> str:
        self.texts += 1
        found = {
            "id": self._run,
            "runId": self._run,
            "name": "q",
            "timestamp": self._at,
            "batchId": self._batch,
            "numInputRows": 5,
            "durationMs": {"addBatch": 1},
            "batchDuration": 1,
            "stateOperators": [],
            "sources": [],
            "sink": {"description": "x", "numOutputRows": -1},
            "observedMetrics": {"slipstream": {"rows": 3}},
        }
        return json.dumps(found)


def query(reports: list[Report]) -> Any:
    found = mock.Mock()
    found._jsq.recentProgress = lambda: reports
    return found


def numbers(found: Any) -> list[int]:
    return [one["batchId"] for one in found]


def test_only_new_reports_are_read() -> None:
    reports = [Report(batch, f"2026-01-31T09:00:0{batch}.000Z") for batch in range(3)]
    found, newest = reports_since(query(reports), "")
    assert numbers(found) == [0, 1, 2]
    assert found[0]["observedMetrics"]["slipstream"]["rows"] == 3
    assert found[0]["processedRowsPerSecond"] is None  # Spark leaves out what is no number
    assert reports_since(query(reports), newest) == ([], newest)
    reports += [Report(3, "2026-01-31T09:00:03.000Z"), Report(4, "2026-01-31T09:00:04.000Z")]
    found, newest = reports_since(query(reports), newest)
    assert numbers(found) == [3, 4]
    assert [one.texts for one in reports] == [1, 1, 1, 1, 1]
    assert reports_since(query(reports), newest)[0] == []


def test_reports_of_another_run_of_the_query_are_new() -> None:
    _, newest = reports_since(query([Report(3, "2026-01-31T09:00:03.000Z")]), "")
    again = Report(3, "2026-01-31T09:00:03.000Z", "00000000-0000-0000-0000-000000000002")
    assert numbers(reports_since(query([again]), newest)[0]) == [3]


def test_all_are_new_where_spark_has_dropped_the_one_that_was_read_last() -> None:
    reports = [Report(batch, f"2026-01-31T09:00:0{batch}.000Z") for batch in (5, 6)]
    assert numbers(reports_since(query(reports), "gone")[0]) == [5, 6]


def test_query_without_reports() -> None:
    assert reports_since(query([]), "") == ([], "")
    assert reports_since(query([]), "earlier") == ([], "earlier")

"""Statistics of workers."""

from __future__ import annotations

from slipstream.jetstream.consume.worker_stats import WorkerStats


def test_the_lag_is_what_was_pending_behind_the_newest_message() -> None:
    stats = WorkerStats()
    assert stats.lag == 0
    stats.last_reply = "$JS.ACK.JOBS.worker.1.7.7.1700000000000000000.93"
    assert stats.lag == 93
    stats.pull.renewed = 2
    assert (stats.messages, stats.renewed, stats.expired) == (0, 2, 0)

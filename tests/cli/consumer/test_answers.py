"""`consumer next --nak` and `--term`, `reset`, `copy`, `unpin` and settings of pulls."""

from __future__ import annotations

import pytest

from tests.cli.support import Cli


@pytest.fixture
def worker(cli: Cli, fresh: str) -> Cli:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "n {{Count}}", "--count", "4")
    cli.ok("consumer", "add", fresh, "w", "--wait", "10m")
    return cli


def test_a_message_that_is_refused_is_delivered_again(worker: Cli, fresh: str) -> None:
    assert worker.ok("consumer", "next", fresh, "w", "--raw", "--nak").out == "n 1\n"
    again = worker.ok("consumer", "next", fresh, "w").out
    assert ("n 1" in again, "delivery 2" in again) == (True, True)
    assert worker.ok("consumer", "next", fresh, "w", "--raw", "--nak=1h").out == "n 2\n"
    assert worker.ok("consumer", "next", fresh, "w", "--raw").out == "n 3\n"  # the second one waits for an hour


def test_a_message_that_is_terminated_is_not_delivered_again(worker: Cli, fresh: str) -> None:
    with worker.started("events", "--count", "1", "--stream", fresh, "--json", until="waiting") as events:
        assert worker.ok("consumer", "next", fresh, "w", "--raw", "--term", "broken").out == "n 1\n"
        out, _ = events.communicate(timeout=30)
    assert '"reason":"broken"' in out
    assert worker.ok("consumer", "info", fresh, "w", "--json").json["num_ack_pending"] == 0
    assert worker.ok("consumer", "next", fresh, "w", "--raw").out == "n 2\n"


def test_answers_exclude_each_other(worker: Cli, fresh: str) -> None:
    for wrong in (("--nak", "--term"), ("--nak", "--no-ack"), ("--nak=soon",)):
        assert worker.run("consumer", "next", fresh, "w", *wrong).code == 2


def test_a_consumer_is_reset(worker: Cli, fresh: str) -> None:
    worker.ok("consumer", "next", fresh, "w", "--count", "3")
    assert worker.run("consumer", "reset", fresh, "w", "2").code == 2  # it asks first
    assert worker.ok("consumer", "reset", fresh, "w", "2", "-f", "--json").json == {"reset_seq": 2}
    assert worker.ok("consumer", "next", fresh, "w", "--raw").out == "n 2\n"
    worker.ok("consumer", "next", fresh, "w", "--no-ack")
    assert worker.ok("consumer", "reset", fresh, "w", "-f").err == "w continues with sequence 3\n"
    assert worker.ok("consumer", "next", fresh, "w", "--raw").out == "n 3\n"
    assert worker.run("consumer", "reset", fresh, "none", "-f").code == 3


def test_a_copy_has_the_settings(worker: Cli, fresh: str) -> None:
    worker.ok("consumer", "next", fresh, "w")
    worker.ok("consumer", "copy", fresh, "w", "w2", "--max-pull-batch", "7", "--description", "second")
    made = worker.ok("consumer", "info", fresh, "w2", "--json").json
    assert (made["config"]["ack_wait"], made["config"]["max_batch"], made["num_pending"]) == (600 * 10**9, 7, 4)
    assert made["config"]["durable_name"] == "w2"
    assert worker.run("consumer", "copy", fresh, "w", "w2").code == 2
    assert worker.run("consumer", "copy", fresh, "none", "x").code == 3


def test_a_client_is_unpinned(worker: Cli, fresh: str) -> None:
    worker.ok("consumer", "add", fresh, "p", "--priority-groups", "jobs", "--priority-policy", "pinned_client")
    worker.ok("consumer", "unpin", fresh, "p", "jobs")
    assert worker.run("consumer", "unpin", fresh, "p", "others").code == 1

"""`stream cluster` and `consumer cluster`: who leads, and where the replicas are; `stream state` and `stream gaps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream import StreamConfig, StreamInfo, connect_blocking
from slipstream.cli.stream.cluster import Move, balanced
from slipstream.errors import RequestTimeoutError
from tests.cli.support import Cli
from tests.cluster import Cluster, wait_for


def test_state_is_that_of_the_info(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "x", "--count", "3")
    state = cli.ok("stream", "state", fresh, "--json").json
    assert (state["messages"], state["last_seq"]) == (3, 3)
    shown = cli.ok("stream", "state", fresh).out
    assert "Last sequence" in shown
    assert "Subjects held" in shown
    assert "Storage" not in shown
    assert cli.run("stream", "state", f"{fresh}-none").code == 3


def test_gaps_are_ranges_of_removed_sequences(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "x", "--count", "12")
    assert "no gaps" in cli.ok("stream", "gaps", fresh).err
    assert cli.ok("stream", "gaps", fresh, "--json").json == []
    for seq in (1, 3, 4, 5, 8, 12):  # the first one moves the beginning of the stream, and is no gap
        cli.ok("stream", "rmm", "-f", fresh, str(seq))
    ranges = cli.ok("stream", "gaps", fresh, "--json").json
    assert ranges[:2] == [{"first": 3, "last": 5}, {"first": 8, "last": 8}]
    assert "3" in cli.ok("stream", "gaps", fresh).out


def test_a_leader_hands_over(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("stream", "add", fresh, "--subjects", fresh, "--replicas", "3")
    our_cli.ok("consumer", "add", fresh, "c")

    def cluster() -> dict[str, object]:
        found: dict[str, object] = our_cli.ok("stream", "info", fresh, "--json").json["cluster"]
        return found

    first = cluster()["leader"]
    assert f"{first} stepped down" in our_cli.ok("stream", "cluster", "step-down", fresh).err
    assert cluster()["leader"] != first
    our_cli.ok("stream", "cluster", "step-down", fresh, "--preferred", str(first))
    assert cluster()["leader"] == first
    our_cli.run("consumer", "cluster", "step-down", fresh, "c")
    assert our_cli.run("stream", "cluster", "step-down", fresh, "--preferred", "nowhere").code == 1
    assert our_cli.run("stream", "cluster", "peer-remove", fresh, "nowhere", "-f").code == 1
    assert our_cli.run("stream", "cluster", "peer-remove", fresh, str(first)).code == 2  # not a terminal
    our_cli.ok("stream", "cluster", "peer-remove", fresh, str(first), "-f")


def test_a_stream_without_replicas_has_no_leader_to_step_down(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    done = cli.run("stream", "cluster", "step-down", fresh)
    assert done.code in (1, 4)  # nats-server without a cluster does not serve the request
    assert done.err.startswith("slipstream: error:")


def test_a_cluster_changes_leaders_and_balances_them(cluster: Cluster, tmp_path: Path, fresh: str) -> None:
    cli = Cli(cluster.urls[0], tmp_path)
    names = [f"{fresh}{n}" for n in range(3)]
    with connect_blocking(cluster.urls) as client:
        js = client.jetstream(timeout=30)
        quick = client.jetstream(timeout=1)

        def cluster_of(name: str) -> dict[str, Any]:
            """Without answer while there is no leader."""
            try:
                return dict(quick.stream(name).info().cluster)
            except RequestTimeoutError:
                return {}

        def is_current(name: str) -> bool:
            peers = cluster_of(name).get("replicas", ())
            return len(peers) == 2 and all(peer["current"] for peer in peers)

        for name in names:
            js.create_stream(StreamConfig(name, subjects=[name], num_replicas=3))
        try:
            target = js.stream(names[0]).info().cluster["replicas"][0]["name"]

            def is_led_by_target(name: str) -> bool:
                """Else ask (once more): on a busy machine the preferred server may lose the election that follows."""
                leader = cluster_of(name).get("leader")
                if leader and leader != target:
                    cli.ok("stream", "cluster", "step-down", name, "--preferred", target, "--timeout", "30s")
                return bool(leader == target)

            for name in names:
                wait_for(lambda name=name: is_led_by_target(name), f"the leader of {name}")  # type: ignore[misc]
            wait_for(lambda: all(map(is_current, names)), "current replicas")
            assert all(map(is_led_by_target, names))
            moves = cli.ok("stream", "cluster", "balance", *names, "--dry-run", "--json").json
            assert [(move["stream"], move["old"]) for move in moves] == [(names[0], target), (names[1], target)]

            def is_balanced() -> bool:
                leaders = [cluster_of(name).get("leader") for name in names]
                if all(leaders) and len(set(leaders)) < 3:
                    cli.ok("stream", "cluster", "balance", *names, "-f", "--timeout", "30s")
                return all(leaders) and len(set(leaders)) == 3

            wait_for(is_balanced, "a leader on each server")
            assert cli.run("stream", "cluster", "balance", "none", "-f").code == 3
            consumer = js.stream(names[0]).create_consumer("c")
            wait_for(lambda: bool(consumer.info().cluster.get("leader")), "a leader of the consumer")
            cli.ok("consumer", "cluster", "step-down", names[0], "c", "--timeout", "30s")
        finally:
            for name in names:
                js.delete_stream(name)


def _info(name: str, leader: str, *others: str) -> StreamInfo:
    peers = [{"name": other, "current": True} for other in others]
    return StreamInfo(config=StreamConfig(name), cluster={"leader": leader, "replicas": peers})


@pytest.mark.parametrize(
    ("infos", "moves"),
    [
        ([], []),
        ([_info("A", "n1")], []),  # no replicas
        ([_info("A", "n1", "n2"), _info("B", "n2", "n1")], []),
        ([_info("A", "n1", "n2"), _info("B", "n1", "n2"), _info("C", "n1", "n2")], [Move("A", "n1", "n2")]),
        (
            [_info("A", "n1", "n2", "n3"), _info("B", "n1", "n2", "n3"), _info("C", "n1", "n2", "n3")],
            [Move("A", "n1", "n2"), Move("B", "n1", "n3")],
        ),
    ],
)
def test_leaders_are_spread_evenly(infos: list[StreamInfo], moves: list[Move]) -> None:
    assert list(balanced(infos)) == moves

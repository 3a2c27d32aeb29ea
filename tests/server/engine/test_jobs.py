"""Fairness: the costly requests of one client, and what another client gets in the meantime."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from slipstream.server.engine.engine import Engine
from slipstream.server.engine.jobs import MAX_JOBS, RECEIVE_UNITS, SLICE_UNITS, STEP_UNITS, Jobs, Progress
from slipstream.server.engine.ports import Store
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Pong, pub
from tests.server.support import Client, Rig, headers, sequences, status

SUBJECTS = 12_000


@pytest.fixture(scope="module", params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """An engine with a stream BIG of very many subjects, `big.<n % 10>.<n>`, and SMALL with one."""
    path: Path = tmp_path_factory.mktemp("jobs")
    store: Store = LmdbStore(path / "s", map_size=1 << 28) if request.param == "lmdb" else MemoryStore()
    rig = Rig(store=store)
    client = rig.client()
    client.create("BIG", storage="file")
    client.create("SMALL", storage="file")
    for start in range(0, SUBJECTS, 500):
        client.send(b"".join(pub(f"big.{n % 10}.{n}", b"x") for n in range(start, start + 500)))
    client.publish("small.1")
    assert client.api("STREAM.INFO.BIG")["state"]["messages"] == SUBJECTS
    yield rig
    store.close()


class Neighbour:
    """A well-behaved client: in every turn it sends a request, which must be answered within a few turns."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.client = rig.client()
        self.turns = 0
        self.slowest = 0

    def live(self, *, until: int, of: Client, most: int = 5000) -> list[int]:
        """Turns of the server until another client has got so many messages; returns the work of each turn."""
        engine, work = self.rig.engine, []
        waiting = got = 0
        while got < until:
            self.turns += 1
            assert self.turns < most
            if not waiting:
                self.client.take()
                body = msgspec.json.encode({"last_by_subj": "small.1"})
                batch = msgspec.json.encode({"seq": 1, "batch": 1})
                for payload in (body, batch):
                    self.client.send(pub("$JS.API.DIRECT.GET.SMALL", payload, f"{self.client.inbox}n"), settle=False)
            waiting += 1
            work.append(self.rig.turn())
            if len(self.client.messages()) == 3:  # the message, the batch of one, its end
                self.slowest, waiting = max(self.slowest, waiting), 0
            got += len(of.messages())
        assert engine.load.client is None
        return work


def pipelined(client: Client, count: int, body: dict[str, object], *, stream: str = "BIG") -> bytes:
    payload = msgspec.json.encode(body)
    return b"".join(pub(f"$JS.API.DIRECT.GET.{stream}", payload, f"{client.inbox}{n}") for n in range(count))


LONG_READS: list[tuple[dict[str, object], int]] = [
    ({"last_by_subj": "*.*.none"}, 1),
    ({"last_by_subj": "*.7.17"}, 1),
    ({"seq": 1, "next_by_subj": "*.*.none"}, 1),
    ({"multi_last": ["*.*.none", "*.1.none"]}, 1),
    ({"multi_last": ["*.*.17", "*.*.18", "big.1.21"]}, 4),
    ({"seq": 1, "next_by_subj": "*.*.17", "batch": 5}, 2),
]


@pytest.mark.parametrize(("body", "answers"), LONG_READS, ids=lambda value: str(value)[:40])
def test_reader_beside_pipelined_searches_is_answered_within_a_few_turns(
    rig: Rig, body: dict[str, object], answers: int
) -> None:
    hostile, neighbour = rig.client(), Neighbour(rig)
    hostile.send(pipelined(hostile, 20, body), settle=False)
    work = neighbour.live(until=20 * answers, of=hostile)
    assert neighbour.slowest <= 4
    assert max(work) <= STEP_UNITS + RECEIVE_UNITS + SLICE_UNITS + 512  # a turn may exceed its budget by one slice
    assert neighbour.turns >= 20  # one search after the other, not all before anybody else's turn


REPORTS: list[tuple[str, dict[str, object]]] = [
    ("STREAM.INFO.BIG", {"subjects_filter": ">"}),
    ("STREAM.INFO.BIG", {"subjects_filter": "*.*.17"}),
    ("STREAM.INFO.GAPS", {"deleted_details": True}),
    ("STREAM.LIST", {}),
    ("CONSUMER.LIST.SMALL", {}),
]


@pytest.mark.parametrize(("subject", "body"), REPORTS, ids=lambda value: str(value)[:40])
def test_reader_beside_pipelined_reports_is_answered_within_a_few_turns(
    rig: Rig, subject: str, body: dict[str, object]
) -> None:
    hostile, neighbour = rig.client(), Neighbour(rig)
    if "S0" not in rig.engine.streams:
        for n in range(300):
            hostile.send(create(hostile, f"S{n}", [f"s.{n}.{m}" for m in range(20)]))
        for n in range(100):
            config = {"name": f"c{n}", "durable_name": f"c{n}", "ack_policy": "explicit"}
            hostile.api(f"CONSUMER.CREATE.SMALL.c{n}", {"stream_name": "SMALL", "config": config})
        hostile.send(create(hostile, "GAPS", ["gaps.*"]))
        hostile.send(b"".join(pub(f"gaps.{n % 3}", b"") for n in range(6000)))
        assert hostile.api("STREAM.PURGE.GAPS", {"filter": "gaps.1"})["purged"] == 2000
    hostile.take()
    payload = msgspec.json.encode(body)
    requests = b"".join(pub(f"$JS.API.{subject}", payload, f"{hostile.inbox}r{n}") for n in range(20))
    hostile.send(requests, settle=False)
    work = neighbour.live(until=20, of=hostile)
    assert neighbour.slowest <= 4
    assert max(work) <= STEP_UNITS + RECEIVE_UNITS + SLICE_UNITS + 1024
    assert neighbour.turns >= 2


@pytest.mark.parametrize("policy", ["all", "last", "last_per_subject"])
def test_reader_beside_consumers_that_begin_is_answered_within_a_few_turns(rig: Rig, policy: str) -> None:
    hostile, neighbour = rig.client(), Neighbour(rig)
    requests = []
    for n in range(10):
        name = f"{policy}{n}"
        config = {"name": name, "ack_policy": "none", "deliver_policy": policy, "filter_subject": "*.*.*"}
        body = msgspec.json.encode({"stream_name": "BIG", "config": config})
        requests.append(pub(f"$JS.API.CONSUMER.CREATE.BIG.{name}.*.*.*", body, f"{hostile.inbox}{n}"))
    hostile.send(b"".join(requests), settle=False)
    work = neighbour.live(until=10, of=hostile)
    assert neighbour.slowest <= 4
    assert neighbour.turns >= 20
    assert max(work) <= STEP_UNITS + RECEIVE_UNITS + SLICE_UNITS + 512


def create(client: Client, name: str, subjects: list[str]) -> bytes:
    config = {"name": name, "subjects": subjects, "storage": "file"}
    return pub(f"$JS.API.STREAM.CREATE.{name}", msgspec.json.encode(config), f"{client.inbox}made")


def test_info_with_subjects_is_of_one_state_and_includes_what_was_published_before(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    client.send(
        pub("big.1.fresh", b"")
        + pub("$JS.API.STREAM.INFO.BIG", b'{"subjects_filter":">","deleted_details":true}', f"{client.inbox}i"),
        settle=False,
    )
    for _ in range(3):  # the group is committed, and the search begins
        rig.turn()
    assert not client.messages()
    other.send(pub("big.1.later", b"") + pub("big.1.fresh", b""))
    rig.settle()
    (answer,) = client.messages()
    info = msgspec.json.decode(answer.payload)
    assert info["state"]["subjects"]["big.1.fresh"] == 1
    assert "big.1.later" not in info["state"]["subjects"]
    assert info["total"] == info["state"]["num_subjects"] == len(info["state"]["subjects"])
    assert sum(info["state"]["subjects"].values()) == info["state"]["messages"]
    assert client.api("STREAM.INFO.BIG", {"subjects_filter": "big.1.later"})["state"]["subjects"] == {"big.1.later": 1}


def test_info_that_waits_for_a_group_that_is_lost_is_answered() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    client.send(
        pub("s.1", b"", f"{client.inbox}p")
        + pub("$JS.API.STREAM.INFO.S", b'{"subjects_filter":">"}', f"{client.inbox}i"),
        settle=False,
    )
    rig.engine.failed(rig.engine.journals[0], OSError("no space left"), rig.now)
    rig.settle()
    answers = {
        message.subject.rpartition(".")[2]: msgspec.json.decode(message.payload) for message in client.messages()
    }
    assert "error" in answers["p"]
    assert answers["i"]["state"]["messages"] == 0


def test_order_of_the_requests_of_one_connection_is_kept_behind_a_search(rig: Rig) -> None:
    client = rig.client()
    search = pipelined(client, 1, {"last_by_subj": "*.*.none"})
    client.send(
        search
        + pub("small.1", b"new", f"{client.inbox}ack")
        + b"PING\r\n"
        + pub("$JS.API.DIRECT.GET.SMALL", b'{"last_by_subj":"small.1"}', f"{client.inbox}get"),
        settle=False,
    )
    assert not client.events
    rig.settle()
    events = client.take()
    assert isinstance(events[1], Pong)
    kinds = [event.subject.rpartition(".")[2] for event in events if not isinstance(event, Pong)]  # type: ignore[union-attr]
    assert kinds[0] == "0"
    assert sorted(kinds[1:]) == ["ack", "get"]
    client.send(b"PING\r\n")
    assert len(client.take()) == 1


def test_a_search_of_a_client_that_leaves_is_given_up(rig: Rig) -> None:
    client = rig.client()
    client.send(pipelined(client, 3, {"last_by_subj": "*.*.none"}), settle=False)
    assert client.cid in rig.engine.held_back
    rig.engine.disconnect(client.cid)
    rig.turn()
    assert not rig.engine.held_back
    assert not rig.engine.step(rig.now)
    assert not rig.store.log("BIG").is_crowded


def test_searches_answer_as_of_one_state_while_the_stream_changes(rig: Rig) -> None:
    reader, writer = rig.client(), rig.client()
    reader.send(pipelined(reader, 1, {"multi_last": ["*.*.17", "*.*.901"], "as_of": True}), settle=False)
    (before,) = [int(x) for x in [writer.api("STREAM.INFO.BIG")["state"]["last_seq"]]]
    writer.publish("big.7.17", b"newer")
    rig.settle()
    answers = reader.messages()
    assert len(sequences(answers)) == 2
    assert max(sequences(answers)) <= before
    end = headers(answers[-1])
    assert end["Nats-UpTo-Sequence"] == end["Slipstream-As-Of"] == str(before)
    reader.send(pipelined(reader, 1, {"last_by_subj": "*.7.17"}), settle=False)
    rig.settle()
    assert reader.messages()[0].payload == b"newer"


def test_very_many_parked_reads_that_one_commit_releases_are_answered_in_turns() -> None:
    rig = Rig()
    hostile, neighbour = rig.client(), Neighbour(rig)
    hostile.create("SMALL")
    hostile.publish("small.1")
    for _ in range(10):
        hostile.send(pipelined(hostile, 400, {"seq": 1, "min_last_seq": 2}, stream="SMALL"))
    assert not hostile.messages()
    hostile.send(pub("small.1", b"y"), settle=False)
    work = neighbour.live(until=4000, of=hostile)
    assert neighbour.slowest <= 4
    assert neighbour.turns > 5
    assert max(work) <= STEP_UNITS + RECEIVE_UNITS + SLICE_UNITS


def test_parked_reads_of_a_deleted_stream_are_rejected_at_once() -> None:
    rig = Rig()
    reader, admin = rig.client(), rig.client()
    admin.create("S")
    admin.publish("s.1")
    reader.send(pipelined(reader, 3, {"seq": 1, "min_last_seq": 2}, stream="S"))
    assert not reader.messages()
    admin.api("STREAM.DELETE.S")
    assert [status(answer)[0] for answer in reader.messages()] == [412, 412, 412]


class Endless:
    """A job that never ends."""

    def __init__(self, name: str, runs: list[str], units: int) -> None:
        self._name, self._runs, self._units = name, runs, units

    def run(self) -> tuple[Progress, int]:
        self._runs.append(self._name)
        return Progress.MORE, self._units


def test_slices_are_handed_out_by_account_then_by_owner() -> None:
    jobs = Jobs()
    runs: list[str] = []
    for _ in range(50):
        assert jobs.start(Endless("flood", runs, STEP_UNITS // 4), "A", owner="flood")
    jobs.start(Endless("quiet", runs, STEP_UNITS // 4), "A", owner="quiet")
    jobs.start(Endless("other", runs, STEP_UNITS // 4), "B", owner="other")
    for _ in range(10):
        assert jobs.step()
    assert len(runs) == 40
    assert abs(runs.count("other") - runs.count("flood") - runs.count("quiet")) <= 20
    for name in ("quiet", "other"):
        turns = [at // 4 for at, ran in enumerate(runs) if ran == name]
        assert max(later - earlier for earlier, later in pairwise(turns)) <= 2


def test_one_owner_cannot_take_all_places_for_jobs() -> None:
    jobs = Jobs()
    runs: list[str] = []
    while jobs.start(Endless("flood", runs, 1), "A", owner="flood"):
        pass
    assert jobs.start(Endless("quiet", runs, 1), "A", owner="quiet")
    assert len(runs) < MAX_JOBS


def test_engine_has_no_work_left_over(rig: Rig) -> None:
    engine: Engine = rig.engine
    rig.settle()
    assert not engine.held_back
    assert not engine.step(rig.now)

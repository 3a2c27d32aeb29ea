"""Consumers over a restart, a crash, and a group that could not be stored, with both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.server.engine.ports import Store
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import pub
from tests.server.engine.consumers.kit import SECOND, Bench, ack_of, seqs
from tests.server.support import START, Rig


class Machine:
    """A server that can be started anew on what its store has committed."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self._path = path
        self.store: Store = MemoryStore() if kind == "memory" else LmdbStore(path)
        self.bench = Bench(Rig(store=self.store), storage="file")

    def restart(self) -> Bench:
        """Cut off without a word: what is not committed is lost."""
        now = self.bench.rig.now
        if isinstance(self.store, LmdbStore):
            self.store.close()
            self.store = LmdbStore(self._path)
        else:
            self.store.abandon()
        self.bench = Bench(Rig(store=self.store, now=now), create=False)
        return self.bench


@pytest.fixture(params=["memory", "lmdb"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(request.param, tmp_path / "store")
    yield machine
    machine.store.close()


def without_times(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name != "ts"}


def test_a_consumer_is_unchanged_after_a_restart(machine: Machine) -> None:
    bench = machine.bench
    bench.fill(*["s.a"] * 200)
    bench.create(filter_subject="s.>", metadata={"k": "v"})
    messages = bench.pull(150)
    for message in messages[:70] + messages[100:110]:
        bench.client.send(pub(message.reply, b"+ACK"), settle=False)
    bench.ack(messages[120], sync=True)
    before = without_times(bench.info())
    bench = machine.restart()
    assert without_times(bench.info()) == before
    assert seqs(bench.pull(10)) == list(range(151, 161))


def test_acked_messages_are_not_redelivered_and_the_others_are(machine: Machine) -> None:
    bench = machine.bench
    bench.fill(*["s.a"] * 10)
    bench.create(ack_wait=SECOND)
    messages = bench.pull(8)
    for message in (messages[1], messages[4]):
        assert len(bench.ack(message, sync=True)) == 1
    bench = machine.restart()
    bench.rig.wait(1.1)
    again = bench.pull(20, no_wait=True)
    assert [(ack_of(m).seq, ack_of(m).times) for m in again if m.reply] == [
        (1, 2), (3, 2), (4, 2), (6, 2), (7, 2), (8, 2), (9, 1), (10, 1),
    ]  # fmt: skip


def test_plain_acks_are_durable_soon(machine: Machine) -> None:
    bench = machine.bench
    bench.fill("s.a", "s.b")
    bench.create()
    for message in bench.pull(2):
        bench.client.send(pub(message.reply, b"+ACK"), settle=False)
    bench.rig.wait(0.05)
    bench = machine.restart()
    assert bench.info()["num_ack_pending"] == 0


def test_an_uncommitted_ack_has_no_effect(machine: Machine) -> None:
    bench = machine.bench
    bench.fill("s.a")
    bench.create()
    (message,) = bench.pull()
    bench.rig.wait(0.05)
    bench.client.send(pub(message.reply, b"+ACK", "_INBOX.c1.z"), settle=False)
    bench = machine.restart()
    assert bench.info()["num_ack_pending"] == 1
    assert len(bench.ack(message, sync=True)) == 1
    assert bench.info()["num_ack_pending"] == 0


def test_a_deleted_consumer_stays_deleted(machine: Machine) -> None:
    bench = machine.bench
    bench.fill(*["s.a"] * 5)
    bench.create("a")
    bench.create("ab")
    bench.pull(3, "a")
    bench.client.api("CONSUMER.DELETE.S.a")
    bench = machine.restart()
    assert bench.client.api("CONSUMER.NAMES.S")["consumers"] == ["ab"]
    assert bench.create("a")["delivered"]["consumer_seq"] == 0
    assert all(not key.startswith("a\0b") for key in machine.store.log("S").kept())


def test_delivery_counts_and_given_up_messages_are_durable(machine: Machine) -> None:
    bench = machine.bench
    bench.fill("s.a", "s.b")
    bench.create(ack_wait=SECOND, max_deliver=2)
    bench.pull()
    for _ in range(2):
        bench.rig.wait(1.1)
        bench.pull(1, no_wait=True)
    bench.rig.wait(0.1)
    before = bench.info()
    bench = machine.restart()
    assert bench.info()["num_redelivered"] == before["num_redelivered"]
    bench.rig.wait(5)
    assert 1 not in seqs(bench.pull(5, no_wait=True))


def test_last_per_subject_resumes_after_a_restart(machine: Machine) -> None:
    bench = machine.bench
    bench.fill("s.a", "s.b", "s.c", "s.a", "s.d")
    bench.create(deliver_policy="last_per_subject", filter_subject="s.>")
    assert seqs(bench.pull(2)) == [2, 3]
    bench.rig.wait(0.1)
    bench = machine.restart()
    assert bench.info()["num_pending"] == 2
    bench.fill("s.e")
    assert seqs(bench.pull(9, no_wait=True)) == [4, 5, 6]


def test_a_consumer_in_memory_ends_with_the_server(machine: Machine) -> None:
    machine.bench.create(mem_storage=True)
    assert machine.restart().client.api("CONSUMER.NAMES.S")["total"] == 0


def test_an_update_and_a_pause_are_durable(machine: Machine) -> None:
    bench = machine.bench
    bench.create()
    bench.create(description="later", max_ack_pending=7)
    bench.client.api("CONSUMER.PAUSE.S.c", {"pause_until": "2040-01-01T00:00:00Z"})
    config = machine.restart().info()["config"]
    assert (config["description"], config["max_ack_pending"]) == ("later", 7)
    assert config["pause_until"] == "2040-01-01T00:00:00Z"


def test_a_purge_of_everything_keeps_the_consumers(machine: Machine) -> None:
    bench = machine.bench
    bench.fill(*["s.a"] * 5)
    bench.create()
    bench.pull(2)
    bench.client.api("STREAM.PURGE.S")
    bench = machine.restart()
    info = bench.info()
    assert (info["num_pending"], info["num_ack_pending"], info["delivered"]["consumer_seq"]) == (0, 0, 2)
    bench.fill("s.b")
    assert seqs(bench.pull()) == [6]


def test_a_lost_group_takes_back_the_consumers_it_created(machine: Machine) -> None:
    """A consumer that could not be stored is gone; one that could not be deleted is back; acks count again later."""
    bench = machine.bench
    rig = bench.rig
    bench.fill("s.a", "s.b")
    bench.create("stays")
    (message,) = bench.pull(1, "stays")
    rig.wait(0.1)
    client = bench.client
    client.take()
    body = b'{"stream_name":"S","config":{"durable_name":"lost"}}'
    client.send(pub("$JS.API.CONSUMER.DURABLE.CREATE.S.lost", body, "_INBOX.c1.1"), settle=False)
    client.send(pub(message.reply, b"+ACK", "_INBOX.c1.2"), settle=False)
    journal = rig.engine.journals[0]
    journal.seal()
    rig.engine.failed(journal, RuntimeError("the disk is full"), rig.now)
    rig.settle()
    answers = {answer.subject: answer.payload for answer in client.messages()}
    assert list(answers) == ["_INBOX.c1.1"]
    assert b"the disk is full" in answers["_INBOX.c1.1"]
    assert client.api("CONSUMER.NAMES.S")["consumers"] == ["stays"]
    rig.wait(0.1)
    bench = machine.restart()
    assert bench.info("stays")["delivered"]["consumer_seq"] == 1
    assert seqs(bench.pull(5, "stays", no_wait=True)) == [2]


def test_a_lost_deletion_restores_the_consumer(machine: Machine) -> None:
    bench = machine.bench
    rig = bench.rig
    bench.fill("s.a", "s.b")
    bench.create()
    bench.pull()
    rig.wait(0.1)
    bench.client.send(pub("$JS.API.CONSUMER.DELETE.S.c", b"", "_INBOX.c1.1"), settle=False)
    journal = rig.engine.journals[0]
    journal.seal()
    rig.engine.failed(journal, RuntimeError("the disk is full"), rig.now)
    rig.settle()
    assert bench.info()["num_ack_pending"] == 1
    assert seqs(bench.pull()) == [2]


def test_a_reset_consumer_is_still_reset_after_a_restart(machine: Machine) -> None:
    bench = machine.bench
    bench.fill(*["s.a"] * 100)
    bench.create()
    bench.pull(90)
    bench.rig.wait(0.1)
    assert bench.client.api("CONSUMER.RESET.S.c", {"seq": 40})["reset_seq"] == 40
    bench = machine.restart()
    info = bench.info()
    assert (info["num_pending"], info["num_ack_pending"], info["delivered"]["stream_seq"]) == (61, 0, 39)
    assert seqs(bench.pull(2)) == [40, 41]


def test_a_consumer_in_memory_outlives_a_lost_group(machine: Machine) -> None:
    bench = machine.bench
    rig = bench.rig
    bench.fill("s.a")
    body = b'{"stream_name":"S","config":{"name":"m","mem_storage":true}}'
    bench.client.send(pub("s.a", b"lost") + pub("$JS.API.CONSUMER.CREATE.S.m", body, "_INBOX.c1.1"), settle=False)
    journal = rig.engine.journals[0]
    journal.seal()
    rig.engine.failed(journal, RuntimeError("the disk is full"), rig.now)
    rig.settle()
    assert bench.info("m")["num_pending"] == 1
    assert seqs(bench.pull(5, "m", no_wait=True)) == [1]


def test_an_ack_lost_with_its_group_and_answered_later_is_durable(machine: Machine) -> None:
    bench = machine.bench
    rig = bench.rig
    bench.fill(*["s.a"] * 3)
    bench.create()
    (message,) = bench.pull(1)
    rig.wait(0.1)
    bench.client.send(pub(message.reply, b"+ACK"), settle=False)
    journal = rig.engine.journals[0]
    journal.seal()
    rig.engine.failed(journal, RuntimeError("the disk is full"), rig.now)
    rig.settle()
    assert len(bench.ack(message, sync=True)) == 1
    assert bench.info()["num_ack_pending"] == 0
    assert machine.restart().info()["num_ack_pending"] == 0


def test_a_reset_lost_with_its_group_leaves_no_records(machine: Machine) -> None:
    bench = machine.bench
    rig = bench.rig
    bench.fill(*["s.a"] * 3)
    bench.create()
    bench.pull(3)
    rig.wait(0.1)
    bench.client.send(pub("$JS.API.CONSUMER.RESET.S.c", b'{"seq":2}', "_INBOX.c1.1"), settle=False)
    journal = rig.engine.journals[0]
    journal.seal()
    rig.engine.failed(journal, RuntimeError("the disk is full"), rig.now)
    rig.wait(0.1)
    now = bench.info()
    then = machine.restart().info()
    for field in ("num_ack_pending", "num_pending", "delivered", "ack_floor"):
        assert now[field] == then[field], field


def test_a_consumer_of_new_messages_misses_none_after_a_crash_right_behind_its_creation(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a")
    bench.create("n", deliver_policy="new")  # durable, but where it begins is written with a later group
    bench.rig.engine.receive(bench.client.cid, bench.client._to_server.feed(b"PUB s.a 1\r\nx\r\n"), bench.rig.now)
    (journal,) = bench.rig.engine.journals
    journal.unsaved.clear()
    bench.rig.commit()
    store.close()
    store = LmdbStore(tmp_path)
    again = Bench(Rig(store=store), create=False)
    assert seqs(again.pull(5, "n", no_wait=True)) == [2]
    store.close()


def test_a_clock_that_was_set_back_while_the_server_was_down_does_not_delay_redelivery(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a")
    bench.create("c", ack_wait=SECOND)
    assert seqs(bench.pull(1)) == [1]
    bench.rig.wait(0.1)
    store.close()
    store = LmdbStore(tmp_path)
    again = Bench(Rig(store=store, now=START - 3600 * SECOND), create=False)
    again.ask_for(1, expires=5 * SECOND)
    again.rig.wait(2)
    assert seqs(again.client.messages()) == [1]
    store.close()

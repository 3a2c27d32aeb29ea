"""Streams that keep messages only as long as a consumer needs them: interest retention and work queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.server.engine.replication.ingest import HELD, Ingest
from slipstream.server.engine.replication.mirror import Mirror
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import pub
from tests.server.engine.consumers.kit import SECOND, Bench, seqs
from tests.server.support import Rig


def kept(bench: Bench) -> list[int]:
    """The sequences that the stream still has."""
    bench.rig.settle()
    log = bench.rig.engine.streams["S"].log
    return [record.seq for record in log.scan("", 0, limit=1000)]


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(store=LmdbStore(tmp_path / "store")) if request.param == "lmdb" else Rig()
    yield rig
    rig.store.close()


@pytest.fixture
def queue(rig: Rig) -> Bench:
    return Bench(rig, retention="workqueue")


@pytest.fixture
def interest(rig: Rig) -> Bench:
    return Bench(rig, retention="interest")


def code(answer: dict[str, Any]) -> int:
    return int(answer["error"]["err_code"])


# Work queues.


def test_an_acked_message_leaves_the_queue(queue: Bench) -> None:
    queue.fill(*["s.a"] * 4)
    queue.create()
    messages = queue.pull(3)
    assert kept(queue) == [1, 2, 3, 4]
    queue.ack(messages[1])
    assert kept(queue) == [1, 3, 4]
    queue.ack(messages[0], b"+TERM")
    queue.ack(messages[2], sync=True)
    assert kept(queue) == [4]
    assert queue.info()["num_pending"] == 1


def test_a_negatively_acked_message_stays(queue: Bench) -> None:
    queue.fill("s.a")
    queue.create()
    queue.ack(queue.pull()[0], b"-NAK")
    assert kept(queue) == [1]


def test_a_message_that_was_given_up_stays(queue: Bench) -> None:
    queue.fill("s.a")
    queue.create(max_deliver=1, ack_wait=SECOND)
    queue.pull()
    queue.rig.wait(2)
    assert kept(queue) == [1]


def test_a_late_ack_of_a_given_up_message_removes_it(rig: Rig) -> None:
    queue = Bench(rig, retention="workqueue")
    queue.fill("s.a", "s.a")
    queue.create(max_deliver=1, ack_wait=SECOND)
    late, _ = queue.pull(2)
    rig.wait(2)
    assert queue.info()["num_ack_pending"] == 0
    assert kept(queue) == [1, 2]
    queue.ack(late, sync=True)
    assert kept(queue) == [2]


def test_a_work_queue_wants_explicit_acks_and_all_messages(queue: Bench) -> None:
    assert code(queue.create(ack_policy="none")) == 10084
    assert code(queue.create(ack_policy="none", deliver_subject="d")) == 10098
    assert code(queue.create(ack_policy="all")) == 10098
    assert code(queue.create(deliver_policy="new")) == 10101


def test_consumers_of_a_work_queue_must_not_overlap(queue: Bench) -> None:
    queue.create("a", filter_subject="s.a.>")
    assert code(queue.create("b")) == 10099
    assert code(queue.create("b", filter_subject="s.*.1")) == 10100
    assert code(queue.create("b", filter_subjects=["s.b", "s.a.5"])) == 10100
    assert "error" not in queue.create("b", filter_subjects=["s.b", "s.c"])
    assert code(queue.create("b", filter_subjects=["s.b", "s.a.5"])) == 10100
    queue.client.api("CONSUMER.DELETE.S.a")
    assert "error" not in queue.create("c", filter_subject="s.a.>")


def test_messages_of_a_work_queue_wait_for_a_consumer(queue: Bench) -> None:
    queue.fill("s.a")
    queue.create()
    queue.client.api("CONSUMER.DELETE.S.c")
    assert kept(queue) == [1]


# Interest.


def test_a_message_without_interest_counts_and_is_not_kept(interest: Bench) -> None:
    assert interest.client.publish("s.a")["seq"] == 1
    interest.create("a", filter_subject="s.a")
    assert interest.client.publish("s.a")["seq"] == 2
    assert interest.client.publish("s.b")["seq"] == 3
    assert kept(interest) == [2]
    assert interest.info("a")["num_pending"] == 1


def test_a_message_is_removed_when_all_interested_consumers_acked(interest: Bench) -> None:
    interest.create("a")
    interest.create("b", filter_subject="s.b")
    interest.fill("s.a", "s.b", "s.b")
    of_a, of_b = interest.pull(3, "a"), interest.pull(3, "b", no_wait=True)
    assert seqs(of_b) == [2, 3]
    interest.ack(of_a[0])
    interest.ack(of_a[1])
    assert kept(interest) == [2, 3]
    interest.ack(of_b[0])
    assert kept(interest) == [3]
    interest.ack(of_b[1])
    assert kept(interest) == [3]
    interest.ack(of_a[2])
    assert kept(interest) == []


def test_without_acks_a_delivery_settles_a_message(interest: Bench) -> None:
    listener = interest.rig.client()
    listener.send(b"SUB d 1\r\n")
    interest.create(deliver_subject="d", ack_policy="none")
    interest.fill("s.a", "s.b")
    assert seqs(listener.messages()) == [1, 2]
    assert kept(interest) == []


def test_a_cumulative_ack_removes_all_messages_before(interest: Bench) -> None:
    interest.create(ack_policy="all")
    interest.fill(*["s.a"] * 4)
    interest.ack(interest.pull(4)[2])
    assert kept(interest) == [4]


def test_a_deleted_consumer_drops_its_interest(interest: Bench) -> None:
    interest.create("a", filter_subject="s.a")
    interest.create("b", filter_subjects=["s.a", "s.b"])
    interest.fill("s.a", "s.b", "s.a")
    interest.ack(interest.pull(1, "a")[0])
    interest.client.api("CONSUMER.DELETE.S.b")
    assert kept(interest) == [3]
    interest.client.api("CONSUMER.DELETE.S.a")
    assert kept(interest) == []
    assert interest.client.publish("s.a")["seq"] == 4


def test_a_narrower_filter_drops_interest(interest: Bench) -> None:
    interest.create(filter_subjects=["s.a", "s.b"])
    interest.fill("s.a", "s.b", "s.a")
    interest.create(filter_subject="s.a")
    assert kept(interest) == [1, 3]


def test_an_ack_and_its_removal_are_atomic(tmp_path: Path) -> None:
    """Neither is there after a crash without the other."""
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store), retention="workqueue")
    bench.fill(*["s.a"] * 3)
    bench.create()
    messages = bench.pull(2)
    bench.ack(messages[0], sync=True)
    bench.client.send(pub(messages[1].reply, b"+ACK"), settle=False)
    store.close()
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store, now=bench.rig.now), create=False)
    assert kept(bench) == [2, 3]
    assert bench.info()["num_ack_pending"] == 1
    store.close()


def test_a_stream_updated_to_interest_drops_unneeded_messages(rig: Rig) -> None:
    bench = Bench(rig)
    bench.fill(*["s.a"] * 3)
    bench.create(filter_subject="s.a")
    bench.fill("s.b", "s.a")
    for message in bench.pull(2):
        bench.ack(message)
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True, "retention": "interest"}
    assert "error" not in bench.client.api("STREAM.UPDATE.S", config)
    assert kept(bench) == [3, 5]


def test_a_large_stream_is_swept_in_pieces(rig: Rig) -> None:
    bench = Bench(rig, retention="interest")
    bench.create("a")
    bench.create("b", filter_subject="s.b")
    bench.client.send(b"".join(pub("s.a" if i % 2 else "s.b", b"") for i in range(3000)))
    bench.client.api("CONSUMER.DELETE.S.a")
    assert len(kept(bench)) == 1000  # of 1,500: as many as `kept` looks at
    assert bench.client.api("STREAM.INFO.S")["state"]["messages"] == 1500


def test_an_acked_message_whose_removal_was_lost_is_removed_with_the_next_group(rig: Rig) -> None:
    queue = Bench(rig, retention="workqueue", storage="file")
    queue.fill("s.a", "s.a")
    queue.create()
    first, _ = queue.pull(2)
    rig.wait(0.1)
    queue.client.send(pub(first.reply, b"+ACK"), settle=False)
    journal = rig.engine.streams["S"].journal
    journal.seal()
    rig.engine.failed(journal, OSError("the disk is full"), rig.now)
    assert [record.seq for record in rig.engine.streams["S"].log.scan("", 0, limit=5)] == [1, 2]
    rig.wait(0.1)
    assert kept(queue) == [2]
    assert queue.info()["num_ack_pending"] == 1
    assert not rig.engine.streams["S"].consumers.retention._leaving


def test_a_message_that_waited_for_a_mirror_stays_for_a_consumer_created_meanwhile(rig: Rig) -> None:
    bench = Bench(rig, retention="interest")
    bench.create("a")
    bench.client.create("M", subjects=[], mirror={"name": "S"})
    (mirror,) = rig.engine.streams["M"].ingests
    assert isinstance(mirror, Ingest)
    mirror.pause(HELD)
    bench.fill("s.a")
    bench.ack(bench.pull(1, "a")[0], sync=True)
    bench.create("b")
    mirror.resume()
    rig.settle()
    assert kept(bench) == [1]
    bench.ack(bench.pull(1, "b")[0], sync=True)
    assert kept(bench) == []


def test_an_acked_message_whose_copy_was_lost_with_its_removal_waits_for_the_mirror(rig: Rig) -> None:
    queue = Bench(rig, retention="workqueue", storage="file")
    queue.create()
    queue.client.create("M", subjects=[], mirror={"name": "S"}, storage="file")
    (mirror,) = rig.engine.streams["M"].ingests
    assert isinstance(mirror, Ingest)
    mirror.pause(HELD)
    queue.fill("s.a")
    (first,) = queue.pull(1)
    rig.wait(0.1)
    mirror.resume()
    rig.engine.step(rig.now)
    assert rig.engine.streams["M"].log.state.messages == 1
    queue.client.send(pub(first.reply, b"+ACK"), settle=False)
    assert rig.engine.streams["S"].log.state.messages == 0
    journal = rig.engine.streams["S"].journal
    journal.seal()
    mirror.pause(HELD)
    rig.engine.failed(journal, OSError("the disk is full"), rig.now)
    rig.settle()
    rig.wait(0.1)
    assert kept(queue) == [1]
    mirror.resume()
    rig.settle()
    assert [record.seq for record in rig.engine.streams["M"].log.scan("", 0, limit=5)] == [1]
    assert kept(queue) == []


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_an_acked_message_waits_for_the_mirror_that_lacks_it(rig: Rig, retention: str, storage: str) -> None:
    bench = Bench(rig, retention=retention)
    bench.create()
    bench.client.create("M", subjects=[], mirror={"name": "S"}, storage=storage)
    (mirror,) = rig.engine.streams["M"].ingests
    bench.fill("s.a")
    bench.ack(bench.pull()[0], sync=True)
    assert kept(bench) == []
    assert isinstance(mirror, Mirror)
    mirror.pause("held")
    bench.fill("s.b", "s.c")
    for message in bench.pull(2):
        bench.ack(message, sync=True)
    assert kept(bench) == [2, 3]
    mirror.resume()
    assert kept(bench) == []
    state = bench.client.api("STREAM.INFO.M")["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (3, 1, 3)


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_deleted_consumer_does_not_leave_acked_messages_for_a_mirror_that_has_them(
    rig: Rig, *, is_behind: bool
) -> None:
    bench = Bench(rig, retention="interest")
    bench.create("a")
    bench.create("b")
    bench.client.create("M", subjects=[], mirror={"name": "S"})
    (mirror,) = rig.engine.streams["M"].ingests
    assert isinstance(mirror, Ingest)
    if is_behind:
        mirror.pause(HELD)
    bench.fill("s.a", "s.b")
    bench.ack(bench.pull(1, "a")[0], sync=True)
    bench.client.api("CONSUMER.DELETE.S.b")
    rig.settle()
    if is_behind:
        assert kept(bench) == [1, 2]
        mirror.resume()
        rig.settle()
    assert kept(bench) == [2]
    assert [record.seq for record in rig.engine.streams["M"].log.scan("", 0, limit=5)] == [1, 2]

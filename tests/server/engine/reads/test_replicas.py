"""Streams with several replicas: who answers, what a replica that is held back says, who leads. Virtual time."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.errors import UsageError
from slipstream.server.engine.ports import Record
from slipstream.server.engine.reads.direct_get import DEPOSED_DELAY, REJECT_DELAY, ReplicaPeer
from slipstream.server.engine.reads.frozen_log import LogView
from slipstream.server.engine.reads.replicas import Replicas
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Msg
from tests.server.support import SECOND, START, Client, Rig, sequences, status

DELAY = REJECT_DELAY / SECOND
MESSAGE_GET = "$JS.API.STREAM.MSG.GET.S"
DIRECT_GET = "$JS.API.DIRECT.GET.S"
LAST = {"last_by_subj": "s.1"}


@pytest.fixture
def client() -> Client:
    """A client of an engine with a stream S of three replicas and one message on s.1."""
    client = Rig().client()
    client.create("S", num_replicas=3)
    client.publish("s.1", b"1")
    return client


def replicas(client: Client) -> Replicas:
    return client.rig.engine.streams["S"].replicas


def follower(client: Client, at: int = 1) -> ReplicaPeer:
    peer = replicas(client).peers[at]
    assert peer is not replicas(client).leader
    return peer


def hold(client: Client, *peers: ReplicaPeer) -> None:
    for peer in peers:
        replicas(client).hold(peer, client.rig.now)


def payloads(client: Client, count: int = 60, **body: Any) -> Counter[bytes]:
    """The answers to the same Direct Get, asked many times."""
    answers: Counter[bytes] = Counter()
    for _ in range(count):
        (answer,) = client.direct("S", LAST | body)
        answers[answer.payload] += 1
    return answers


def stored(answer: Msg) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(answer.payload)
    return decoded


def everything(log: LogView) -> list[Record]:
    return log.scan("", 0, limit=100_000)


# Direct Get.


@pytest.mark.spec("DG-03", "DG-05")
def test_every_replica_answers_from_its_own_data_and_exactly_one_each_time(client: Client) -> None:
    first, second = follower(client, 1), follower(client, 2)
    hold(client, first)
    client.publish("s.1", b"2")
    hold(client, second)
    client.publish("s.1", b"3")
    answers = payloads(client, 300)
    assert set(answers) == {b"1", b"2", b"3"}
    assert min(answers.values()) > 60
    for peer in (first, second):
        replicas(client).release(peer)
    assert payloads(client) == {b"3": 60}


@pytest.mark.spec("DG-03")
def test_the_appended_subject_is_spread_over_all_replicas_too(client: Client) -> None:
    hold(client, follower(client, 1))
    client.publish("s.1", b"2")
    hold(client, follower(client, 2))
    client.publish("s.1", b"3")
    answers = {client.ask(f"{DIRECT_GET}.s.1")[0].payload for _ in range(60)}
    assert answers == {b"1", b"2", b"3"}


@pytest.mark.parametrize("replica_count", [1, 2, 3, 4, 5])
def test_without_faults_every_replica_has_all_acknowledged_messages(replica_count: int) -> None:
    client = Rig().client()
    assert client.create("S", num_replicas=replica_count)["config"]["num_replicas"] == replica_count
    for n in range(20):
        client.publish("s.1", b"%d" % n)
        assert payloads(client, 5) == {b"%d" % n: 5}


@pytest.mark.spec("DG-05")
def test_a_held_replica_has_not_seen_deletes_purges_and_new_messages(client: Client) -> None:
    for n in range(2, 6):
        client.publish(f"s.{n % 3}", b"%d" % n)
    peer = follower(client)
    hold(client, peer)
    before = everything(peer.log)
    state = peer.log.committed
    client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    client.api("STREAM.PURGE.S", {"filter": "s.1"})
    client.publish("s.1", b"new")
    client.api("STREAM.PURGE.S")
    assert everything(peer.log) == before
    assert peer.log.committed == state
    last = peer.log.last("s.1")
    assert last is not None
    assert last.payload == b"4"
    assert dict(peer.log.subjects(">")) == {"s.0": 1, "s.1": 2, "s.2": 2}
    assert peer.log.multi_last(["s.*"]) == [3, 4, 5]
    assert peer.log.count("s.1", 2) == 1
    replicas(client).release(peer)
    assert everything(peer.log) == []


def test_batches_of_a_held_replica_end_where_it_stands(client: Client) -> None:
    client.publish("s.1", b"2")
    hold(client, follower(client, 1), follower(client, 2))
    client.publish("s.1", b"3")
    seen = {tuple(sequences(client.direct("S", {"seq": 1, "batch": 10}))) for _ in range(40)}
    assert seen == {(1, 2), (1, 2, 3)}


def test_a_deleted_stream_takes_its_held_replicas_along(client: Client) -> None:
    hold(client, follower(client))
    client.api("STREAM.DELETE.S")
    (answer,) = client.direct("S", LAST)
    assert status(answer)[0] == 503
    client.create("S", num_replicas=3)
    client.publish("s.1", b"new")
    assert payloads(client) == {b"new": 60}


# Read-after-write.


@pytest.mark.spec("RW-07")
def test_a_follower_that_lags_redirects_and_the_client_sees_one_good_answer(client: Client) -> None:
    hold(client, follower(client, 1), follower(client, 2))
    assert client.publish("s.1", b"2")["seq"] == 2
    assert set(payloads(client)) == {b"1", b"2"}
    assert payloads(client, min_last_seq=2) == {b"2": 60}
    for _ in range(30):
        assert sequences(client.direct("S", {"seq": 1, "batch": 5, "min_last_seq": 2})) == [1, 2]
        assert [answer.payload for answer in client.ask(f"{DIRECT_GET}.s.1", {"min_last_seq": 2})] == [b"2"]
    client.rig.wait(10)
    assert client.messages() == []


@pytest.mark.spec("RW-07", "RW-05")
def test_requests_redirected_by_a_follower_wait_at_the_leader(client: Client) -> None:
    hold(client, follower(client, 1), follower(client, 2))
    asked = [f"{client.inbox}{n}" for n in range(1000, 1010)]
    for reply in asked:
        body = b'{"last_by_subj":"s.1","min_last_seq":2}'
        client.send(b"PUB %b %b %d\r\n%b\r\n" % (DIRECT_GET.encode(), reply.encode(), len(body), body))
    assert client.messages() == []
    client.rig.wait(DELAY - 0.001)
    client.rig.client().publish("s.1", b"2")
    answers = client.messages()
    assert sorted(answer.subject for answer in answers) == asked
    assert {answer.payload for answer in answers} == {b"2"}


def test_a_held_follower_that_has_the_sequence_answers_itself(client: Client) -> None:
    hold(client, follower(client, 1), follower(client, 2))
    client.publish("s.1", b"2")
    assert set(payloads(client, min_last_seq=1)) == {b"1", b"2"}


@pytest.mark.spec("RW-15", on="E")
def test_rollups_keep_the_guarantee_on_replicas_that_lag_and_deletes_and_purges_do_not(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "storage": "memory", "num_replicas": 3}
    client.api("STREAM.UPDATE.S", config | {"allow_rollup_hdrs": True})
    client.publish("s.2", b"2")
    hold(client, follower(client, 1), follower(client, 2))
    seq = client.api("STREAM.INFO.S")["state"]["last_seq"]
    client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    client.api("STREAM.PURGE.S", {"filter": "s.2"})
    for subject in ("s.1", "s.2"):  # answers flip: no sequence tells the old state from the new
        statuses = {status(client.direct("S", {"last_by_subj": subject, "min_last_seq": seq})[0])[0] for _ in range(60)}
        assert statuses == {0, 404}
    seq = client.publish("s.1", b"gone", Nats_Rollup="sub")["seq"]
    assert payloads(client, min_last_seq=seq) == {b"gone": 60}
    seq = client.publish("s.1", b"all gone", Nats_Rollup="all")["seq"]
    for _ in range(60):
        assert sequences(client.direct("S", {"seq": 1, "batch": 9, "min_last_seq": seq})) == [seq]


@pytest.mark.spec("RW-06")
def test_a_deposed_leader_rejects_after_the_real_one_has_answered(client: Client) -> None:
    """The old leader does not know that it is deposed, and gets every Message Get that the new one gets."""
    old = replicas(client).leader
    replicas(client).depose(client.rig.now, unaware=True)
    assert client.publish("s.1", b"2")["seq"] == 2
    # Without a minimum the old leader's answer is there, and first: the race that a client may lose.
    assert [stored(answer)["message"]["seq"] for answer in client.ask(MESSAGE_GET, LAST)] == [1, 2]
    # With one, the real leader's comes at once; the rejection of the other is late.
    (answer,) = client.ask(MESSAGE_GET, LAST | {"min_last_seq": 2})
    assert stored(answer)["message"]["seq"] == 2
    client.rig.wait(DELAY + DEPOSED_DELAY / SECOND)
    assert [stored(answer)["error"]["err_code"] for answer in client.messages()] == [10180]
    replicas(client).release(old)
    assert [stored(answer)["message"]["seq"] for answer in client.ask(MESSAGE_GET, LAST)] == [2]


@pytest.mark.spec("RW-06")
@pytest.mark.parametrize("moment", [0.0, DELAY / 2, DELAY - 0.001])
def test_the_real_leader_is_heard_first_whenever_it_catches_up(client: Client, moment: float) -> None:
    replicas(client).depose(client.rig.now, unaware=True)
    client.ask(MESSAGE_GET, LAST | {"min_last_seq": 2})
    client.rig.wait(moment)
    client.rig.client().publish("s.1", b"2")
    client.rig.wait(5)
    first, second = client.messages()
    assert stored(first)["message"]["seq"] == 2
    assert stored(second)["error"]["err_code"] == 10180


@pytest.mark.spec("RW-06")
def test_the_real_leader_rejects_an_unreached_sequence_before_a_deposed_one(client: Client) -> None:
    replicas(client).depose(client.rig.now, unaware=True)
    client.ask(MESSAGE_GET, LAST | {"min_last_seq": 2})
    client.rig.wait(DELAY)
    assert len(client.messages()) == 1
    client.rig.wait(DEPOSED_DELAY / SECOND)
    assert len(client.messages()) == 1


@pytest.mark.spec("RW-06")
def test_a_deposed_leader_never_answers_a_direct_get_with_less_than_was_asked_for(client: Client) -> None:
    replicas(client).depose(client.rig.now, unaware=True)
    client.publish("s.1", b"2")
    for _ in range(30):
        answers = client.direct("S", LAST | {"min_last_seq": 2})
        if not answers:  # the deposed one was chosen: it says no, late
            client.rig.wait(DELAY + DEPOSED_DELAY / SECOND)
            assert [status(answer)[0] for answer in client.messages()] == [412]
        else:
            assert [answer.payload for answer in answers] == [b"2"]


def test_requests_that_wait_for_the_leader_go_over_to_the_next_one(client: Client) -> None:
    client.ask(DIRECT_GET, LAST | {"min_last_seq": 2})
    client.ask(MESSAGE_GET, LAST | {"min_last_seq": 2})
    replicas(client).depose(client.rig.now, unaware=True)
    client.rig.client().publish("s.1", b"2")
    assert [b'"seq":2' in answer.payload or answer.payload == b"2" for answer in client.messages()] == [True, True]
    client.rig.wait(5)
    assert client.messages() == []


# Leadership and scaling, by the API.


def test_step_down_moves_leadership_and_info_says_so(client: Client) -> None:
    name = client.rig.engine.settings.server_name
    cluster = client.api("STREAM.INFO.S")["cluster"]
    assert cluster["leader"] == name
    assert [(peer["name"], peer["current"], "lag" in peer) for peer in cluster["replicas"]] == [
        (f"{name}-2", True, False),
        (f"{name}-3", True, False),
    ]
    assert client.api("STREAM.LEADER.STEPDOWN.S")["success"] is True
    cluster = client.api("STREAM.INFO.S")["cluster"]
    assert cluster["leader"] == f"{name}-2"
    assert [peer["name"] for peer in cluster["replicas"]] == [name, f"{name}-3"]
    preferred = {"placement": {"preferred": f"{name}-3"}}
    assert client.api("STREAM.LEADER.STEPDOWN.S", preferred)["success"] is True
    assert client.api("STREAM.INFO.S")["cluster"]["leader"] == f"{name}-3"
    assert client.publish("s.1", b"2")["seq"] == 2
    assert payloads(client) == {b"2": 60}


def test_a_held_replica_is_reported_with_its_lag_and_cannot_lead(client: Client) -> None:
    peer = follower(client, 1)
    hold(client, peer, follower(client, 2))
    for n in range(4):
        client.publish("s.1", b"%d" % n)
    client.rig.wait(2)
    entry = client.api("STREAM.INFO.S")["cluster"]["replicas"][0]
    assert (entry["name"], entry["current"], entry["lag"], entry["active"]) == (peer.peer, False, 4, 2 * SECOND)
    assert client.api("STREAM.LEADER.STEPDOWN.S")["error"]["err_code"] == 10008
    with pytest.raises(UsageError, match="can lead"):
        replicas(client).depose(client.rig.now)
    with pytest.raises(UsageError, match="depose it first"):
        hold(client, replicas(client).leader)
    with pytest.raises(UsageError, match="has no replica 'nobody'"):
        replicas(client).find("nobody")


def test_a_peer_that_is_removed_is_replaced_by_a_new_one(client: Client) -> None:
    name = client.rig.engine.settings.server_name
    hold(client, follower(client, 1))
    client.publish("s.1", b"2")
    assert client.api("STREAM.PEER.REMOVE.S", {"peer": f"{name}-2"})["success"] is True
    assert payloads(client) == {b"2": 60}
    assert client.api("STREAM.PEER.REMOVE.S", {"peer": name})["success"] is True
    cluster = client.api("STREAM.INFO.S")["cluster"]
    assert {cluster["leader"], *(peer["name"] for peer in cluster["replicas"])} == {
        f"{name}-3", f"{name}-4", f"{name}-5",
    }  # fmt: skip
    assert client.api("STREAM.PEER.REMOVE.S", {"peer": "nobody"})["error"]["err_code"] == 10040
    assert client.api("STREAM.PEER.REMOVE.S")["error"]["err_code"] == 10003


def test_a_stream_of_one_replica_has_no_leadership_to_give_up(client: Client) -> None:
    client.create("ONE", num_replicas=1)
    for order in ("LEADER.STEPDOWN", "PEER.REMOVE"):
        assert client.api(f"STREAM.{order}.ONE")["error"]["err_code"] == 10010
    assert client.api("STREAM.INFO.ONE")["cluster"] == {"leader": client.rig.engine.settings.server_name}


@pytest.mark.spec("DG-08")
def test_message_get_is_answered_by_the_leader_only(client: Client) -> None:
    """Held followers would answer with what they have; each write is seen at once, also behind a change of leader."""
    hold(client, follower(client, 1), follower(client, 2))
    for n in range(2, 40):
        client.publish("s.1", b"%d" % n)
        (answer,) = client.ask(MESSAGE_GET, LAST)
        assert stored(answer)["message"]["seq"] == n
        if n == 20:
            replicas(client).release(replicas(client).peers[1])
            replicas(client).depose(client.rig.now, unaware=False)


@pytest.mark.spec("RW-10")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("limit", [-1, 1])
def test_scaling_under_load_keeps_every_promise(seed: int, limit: int) -> None:
    """Publishes, reads for old and new minimums, reads that wait, holds and changes of leader, while replicas come and
    go. An answer is the newest message of its subject as of some sequence at or after the minimum, whether the stream
    keeps all messages of a subject or only the newest."""
    rig = Rig(seed=seed)
    client, writer = rig.client(), rig.client()
    config = {
        "name": "S",
        "subjects": ["s.>"],
        "allow_direct": True,
        "storage": "memory",
        "max_msgs_per_subject": limit,
    }
    client.create("S", max_msgs_per_subject=limit)
    pick = random.Random(seed)
    written = [""]  # the subject of each sequence

    def publish() -> int:
        subject = f"s.{pick.randrange(3)}"
        written.append(subject)
        seq: int = writer.publish(subject, b"%d" % len(written))["seq"]
        return seq

    def newest(subject: str, as_of: int) -> int:
        return max((seq for seq in range(1, as_of + 1) if written[seq] == subject), default=0)

    def check_answer(subject: str, least: int, found: int) -> None:
        last = len(written) - 1
        assert found in {newest(subject, as_of) for as_of in range(least, last + 1)}, (subject, least, found, last)

    for _ in range(400):
        order = pick.random()
        group, last = replicas(client), len(written) - 1
        if order < 0.1:
            count = pick.randrange(1, 6)
            assert client.api("STREAM.UPDATE.S", config | {"num_replicas": count})["config"]["num_replicas"] == count
            assert len(group.peers) == count
        elif order < 0.25:
            peer = pick.choice(group.peers)
            if peer is not group.leader:
                (group.hold(peer, rig.now) if pick.random() < 0.6 else group.release(peer))
        elif order < 0.3 and any(not group.is_held(peer) for peer in group.peers if peer is not group.leader):
            group.depose(rig.now, unaware=False)
        elif order < 0.6 or not last:
            publish()
        else:
            subject, least = f"s.{pick.randrange(3)}", pick.choice((last, pick.randrange(1, last + 1)))
            body = {"last_by_subj": subject, "min_last_seq": least}
            (answer,) = client.direct("S", body)
            found = 0 if status(answer)[0] == 404 else sequences([answer])[0]
            check_answer(subject, least, found)
            (answer,) = client.ask(MESSAGE_GET, body)
            leaders = stored(answer)
            assert leaders["message"]["seq"] == newest(subject, last) if "message" in leaders else not found
            client.ask(DIRECT_GET, {"seq": last + 1, "min_last_seq": last + 1})
            if pick.random() < 0.5:
                client.rig.client().api("STREAM.UPDATE.S", config | {"num_replicas": pick.randrange(1, 6)})
            assert sequences([*client.messages(), *client.messages()]) == []
            publish()
            assert sequences(client.messages()) == [last + 1]
    rig.wait(5)
    assert client.messages() == []


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_held_replica_keeps_its_state_and_a_released_one_equals_the_leader(
    seed: int, storage: str, tmp_path: Path
) -> None:
    store = LmdbStore(tmp_path) if storage == "file" else None
    client = Rig(seed=seed, store=store).client()
    client.create("S", num_replicas=5, storage=storage, max_msgs_per_subject=4, max_msgs=60, allow_rollup_hdrs=True)
    group = replicas(client)
    pick = random.Random(seed)
    kept: dict[ReplicaPeer, tuple[object, list[Record]]] = {}
    for n in range(600):
        order = pick.random()
        if order < 0.6:
            rollup = {"Nats_Rollup": pick.choice(("sub", "all"))} if pick.random() < 0.02 else {}
            client.publish(f"s.{pick.randrange(30)}", b"%d" % n, **rollup)
        elif order < 0.7:
            state = client.rig.engine.streams["S"].log.committed
            client.api("STREAM.MSG.DELETE.S", {"seq": pick.randrange(1, state.last_seq + 2)})
        elif order < 0.73:
            body = pick.choice(({"filter": "s.1*"}, {"keep": 5}, {"filter": "s.3"}, {}))
            client.api("STREAM.PURGE.S", body)
        else:
            peer = pick.choice([peer for peer in group.peers if peer is not group.leader])
            if peer in kept:
                group.release(peer)
                del kept[peer]
            else:
                group.hold(peer, client.rig.now)
                kept[peer] = (peer.log.committed, everything(peer.log))
        leader = group.leader.log
        for peer in group.peers:
            expected = kept.get(peer) or (leader.committed, everything(leader))
            assert (peer.log.committed, everything(peer.log)) == expected
    for peer in list(kept):
        group.release(peer)
        assert everything(peer.log) == everything(group.leader.log)
    if store is not None:
        store.close()


def test_after_a_restart_every_replica_is_current(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    client = Rig(store=store).client()
    client.create("S", num_replicas=3, storage="file")
    client.publish("s.1", b"1")
    hold(client, follower(client, 1))
    client.publish("s.1", b"2")
    client.api("STREAM.LEADER.STEPDOWN.S")
    store.close()
    store = LmdbStore(tmp_path)
    client = Rig(store=store, now=START + SECOND).client()
    assert len(replicas(client).peers) == 3
    assert payloads(client) == {b"2": 60}
    store.close()


def test_a_group_that_is_lost_leaves_held_replicas_as_they_are(client: Client) -> None:
    rig = client.rig
    hold(client, follower(client, 1))
    client.publish("s.1", b"2")
    client.send(b"PUB s.1 1\r\n3\r\n", settle=False)
    (journal,) = rig.engine.journals
    rig.engine.failed(journal, OSError("no room"), rig.now)
    assert set(payloads(client)) == {b"1", b"2"}
    replicas(client).release(follower(client, 1))
    assert payloads(client) == {b"2": 60}

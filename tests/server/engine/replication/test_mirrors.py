"""Mirrors within the server: sequences, gaps, own deletes, Direct Gets for the upstream, promotion. Virtual time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.ports import Record
from slipstream.server.engine.reads.direct_get import REJECT_DELAY
from slipstream.server.engine.replication import ingest as ingest_module
from slipstream.server.engine.replication.ingest import CUT, HELD, Ingest
from slipstream.server.store.groups import write_group
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import pub
from tests.server.engine.consumers.kit import Bench
from tests.server.support import SECOND, START, Client, Rig, headers, sequences, status

DELAY = REJECT_DELAY / SECOND
LAST = {"last_by_subj": "s.1"}


@pytest.fixture
def client() -> Client:
    """A client of an engine with a stream S and its mirror M; one message on s.1."""
    client = Rig().client()
    client.create("S")
    mirror(client)
    client.publish("s.1", b"1")
    return client


def mirror(client: Client, name: str = "M", of: str = "S", **more: Any) -> dict[str, Any]:
    source = {"name": of} | {key: more.pop(key) for key in list(more) if key in SOURCE}
    return client.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", "mirror": source} | more)


SOURCE = ("opt_start_seq", "opt_start_time", "filter_subject", "subject_transforms", "external")


def ingest(client: Client, name: str = "M") -> Ingest:
    (found,) = client.rig.engine.streams[name].ingests
    assert isinstance(found, Ingest)
    return found


def contents(client: Client, name: str) -> list[Record]:
    return client.rig.engine.streams[name].log.scan("", 0, limit=10_000)


def answers(client: Client, count: int = 60, stream: str = "S", **body: Any) -> Counter[tuple[str, bytes]]:
    """Who answered the same Direct Get to a stream, and what."""
    found: Counter[tuple[str, bytes]] = Counter()
    for _ in range(count):
        (answer,) = client.direct(stream, LAST | body)
        found[headers(answer)["Nats-Stream"], answer.payload] += 1
    return found


# What a mirror holds.


def test_a_mirror_has_the_upstreams_messages_with_their_sequences_times_and_headers(client: Client) -> None:
    for n in range(5):
        client.rig.wait(0.5)
        client.publish(f"s.{n}", b"%d" % n, X_Custom=f"{n}")
    client.api("STREAM.MSG.DELETE.S", {"seq": 6})
    client.publish("s.9", b"last")
    assert contents(client, "M") != contents(client, "S")  # what is deleted upstream later stays
    assert [record for record in contents(client, "M") if record.seq != 6] == contents(client, "S")
    info = client.api("STREAM.INFO.M")
    assert info["mirror"] == {"name": "S", "lag": 0, "active": 0}
    assert info["config"]["mirror"] == {"name": "S"}
    assert "subjects" not in info["config"]
    assert (info["state"]["first_seq"], info["state"]["last_seq"]) == (1, 7)


def test_a_mirror_made_later_has_the_gaps_of_its_upstream(client: Client) -> None:
    for n in range(2, 2000):
        client.publish("s.1", b"%d" % n)
    client.api("STREAM.PURGE.S", {"seq": 100})
    client.api("STREAM.MSG.DELETE.S", {"seq": 150})
    client.api("STREAM.MSG.DELETE.S", {"seq": 1999})
    mirror(client, "LATE")
    assert contents(client, "LATE") == contents(client, "S")
    state = client.api("STREAM.INFO.LATE")["state"]
    assert (state["first_seq"], state["last_seq"], state["num_deleted"]) == (100, 1998, 1)
    client.publish("s.1")
    assert client.api("STREAM.INFO.LATE")["state"]["last_seq"] == 2000


def test_a_mirror_begins_at_its_start_sequence_or_time(client: Client) -> None:
    for n in range(2, 6):
        client.rig.wait(1)
        client.publish("s.1", b"%d" % n)
    mirror(client, "BY_SEQ", opt_start_seq=3)
    assert [record.seq for record in contents(client, "BY_SEQ")] == [3, 4, 5]
    time = client.api("STREAM.INFO.S")["state"]["last_ts"]
    mirror(client, "BY_TIME", opt_start_time=time)
    assert [record.seq for record in contents(client, "BY_TIME")] == [5]
    mirror(client, "BOTH", opt_start_time=time, opt_start_seq=4)  # the sequence counts
    assert [record.seq for record in contents(client, "BOTH")] == [4, 5]
    mirror(client, "AHEAD", opt_start_seq=8)
    for _ in range(4):
        client.publish("s.1")
    assert [record.seq for record in contents(client, "AHEAD")] == [8, 9]
    assert "error" not in client.api("STREAM.INFO.AHEAD")["mirror"]


def test_a_filtered_and_transforming_mirror(client: Client) -> None:
    for n in range(1, 7):
        client.publish(f"s.{n % 3}", b"%d" % n)
    mirror(client, "FILTERED", filter_subject="s.2")
    assert [(record.seq, record.subject) for record in contents(client, "FILTERED")] == [(3, "s.2"), (6, "s.2")]
    transforms = [{"src": "s.1", "dest": "one"}, {"src": "s.0", "dest": "zero.{{wildcard(1)}}"}]
    answer = mirror(client, "BAD", subject_transforms=transforms)
    assert answer["error"]["err_code"] == 10154
    transforms[1]["dest"] = "zero"
    mirror(client, "MAPPED", subject_transforms=transforms)
    assert [(record.seq, record.subject) for record in contents(client, "MAPPED")] == [
        (1, "one"), (2, "one"), (4, "zero"), (5, "one"), (7, "zero"),
    ]  # fmt: skip
    info = client.api("STREAM.INFO.MAPPED")["mirror"]
    assert (info["lag"], info["subject_transforms"]) == (0, transforms)


def test_a_mirror_has_limits_and_deletes_of_its_own(client: Client) -> None:
    mirror(client, "SMALL", max_msgs=2)
    for n in range(2, 6):
        client.publish("s.1", b"%d" % n)
    assert [record.seq for record in contents(client, "SMALL")] == [4, 5]
    assert client.api("STREAM.MSG.DELETE.M", {"seq": 3})["success"] is True
    assert client.api("STREAM.PURGE.SMALL")["purged"] == 2
    assert len(contents(client, "S")) == 5
    client.publish("s.1", b"6")
    assert [record.seq for record in contents(client, "M")] == [1, 2, 4, 5, 6]
    assert [record.seq for record in contents(client, "SMALL")] == [6]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_mirror_rolls_up_if_it_may(client: Client, allowed: bool) -> None:
    client.create("R", allow_rollup_hdrs=True)
    mirror(client, "MR", of="R", allow_rollup_hdrs=allowed)
    for n in range(3):
        client.publish(f"r.{n % 2}", b"%d" % n)
    client.publish("r.0", b"sub", Nats_Rollup="sub")
    kept = [b"1", b"sub"] if allowed else [b"0", b"1", b"2", b"sub"]
    assert [record.payload for record in contents(client, "MR")] == kept
    client.publish("r.9", b"all", Nats_Rollup="all")
    assert [record.payload for record in contents(client, "MR")] == ([b"all"] if allowed else [*kept, b"all"])


def test_publishing_to_a_mirror_is_not_possible(client: Client) -> None:
    (answer,) = client.ask("M", b"x")
    assert status(answer)[0] == 503


def test_a_mirror_waits_for_an_upstream_that_is_not_there_yet(client: Client) -> None:
    answer = mirror(client, "EARLY", of="LATER")
    assert answer["mirror"]["error"]["err_code"] == 10059
    assert answer["mirror"]["active"] == -1
    client.create("LATER")
    client.publish("later.1", b"1")
    assert [record.seq for record in contents(client, "EARLY")] == [1]
    client.api("STREAM.DELETE.LATER")
    assert client.api("STREAM.INFO.EARLY")["mirror"]["error"]["err_code"] == 10059
    client.create("LATER")
    client.publish("later.1", b"another")
    client.publish("later.1", b"more")
    assert [record.payload for record in contents(client, "EARLY")] == [b"1", b"more"]


def test_a_recreated_upstream_is_reported(client: Client) -> None:
    for _ in range(5):
        client.publish("s.1")
    client.api("STREAM.DELETE.S")
    client.create("S")
    client.publish("s.1", b"new")
    assert "recreated" in client.api("STREAM.INFO.M")["mirror"]["error"]["description"]
    assert client.api("STREAM.INFO.M")["state"]["last_seq"] == 6


@pytest.mark.parametrize("kept", [0, 1])
def test_gaps_at_the_end_of_a_deleted_upstream_are_not_gaps_of_the_recreated_one(kept: int) -> None:
    client = Rig().client()
    client.create("S")
    for number in range(kept):
        client.publish("s.1", b"old %d" % number)
    mirror(client)
    client.api("STREAM.PURGE.S", {"seq": 5})  # the mirror has read up to 4, and stored less
    client.rig.settle()
    client.api("STREAM.DELETE.S")
    client.create("S")
    for number in range(6):
        client.publish("s.1", b"new %d" % number)
    expected = [b"old 0"][:kept] + [b"new %d" % number for number in range(kept, 6)]
    assert [record.payload for record in contents(client, "M")] == expected


@pytest.mark.parametrize("config", [{"mirror": {"name": "S"}}, {"sources": [{"name": "S"}]}])
def test_a_recreated_work_queue_keeps_messages_that_a_held_copy_lacks(config: dict[str, Any]) -> None:
    bench = Bench(Rig())
    client = bench.client
    client.api("STREAM.CREATE.M", {"name": "M", "storage": "memory"} | config)
    client.api("STREAM.PURGE.S", {"seq": 5})
    client.rig.settle()
    ingest(client).pause(HELD)
    client.api("STREAM.DELETE.S")
    client.create("S", retention="workqueue")
    bench.create()
    bench.fill("s.1")
    bench.ack(bench.pull()[0], sync=True)
    assert [record.seq for record in contents(client, "S")] == [1]
    ingest(client).resume()
    client.rig.settle()
    assert [record.subject for record in contents(client, "M")] == ["s.1"]
    assert contents(client, "S") == []


def test_a_mirror_of_a_mirror(client: Client) -> None:
    mirror(client, "MM", of="M")
    client.publish("s.1", b"2")
    assert contents(client, "MM") == contents(client, "S")


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"subjects": ["x"]}, 10034),
        ({"sources": [{"name": "S"}]}, 10031),
        ({"first_seq": 5}, 10143),
        ({"filter_subject": "a", "subject_transforms": [{"src": "b", "dest": "c"}]}, 10150),
        ({"subject_transforms": [{"src": "b..c", "dest": "c"}]}, 10151),
        ({"subject_transforms": [{"src": "b", "dest": "c.{{wildcard(3)}}"}]}, 10154),
        ({"subject_transforms": [{"src": "b.*", "dest": "c"}, {"src": "b.c", "dest": "d"}]}, 10152),
        ({"of": "a.b"}, 10142),
        ({"of": "NEW"}, 10052),
        ({"max_msg_size": 10, "of": "SIZED"}, 10030),
        ({"external": {"api": "$JS.*.API", "deliver": ""}}, 10052),
        ({"external": {"api": "$JS.API", "deliver": ""}}, 10021),
        ({"external": {"api": "$JS.hub.API", "deliver": "d.*"}}, 10024),
    ],
)
def test_a_bad_mirror_is_refused(client: Client, config: dict[str, Any], err_code: int) -> None:
    client.create("SIZED", max_msg_size=100)
    assert mirror(client, "NEW", **config)["error"]["err_code"] == err_code


def test_a_mirror_cannot_be_changed_but_promoted(client: Client) -> None:
    client.publish("s.1", b"2", Nats_Msg_Id="a")
    base = {"name": "M", "storage": "memory"}
    assert client.api("STREAM.UPDATE.M", base | {"mirror": {"name": "OTHER"}})["error"]["err_code"] == 10055
    assert "error" not in client.api("STREAM.UPDATE.M", base | {"mirror": {"name": "S"}, "max_msgs": 100})
    promoted = client.api("STREAM.UPDATE.M", base | {"subjects": ["m.>"]})
    assert promoted["config"]["subjects"] == ["m.>"]
    assert "mirror" not in client.api("STREAM.INFO.M")
    assert client.publish("m.1", b"own")["seq"] == 3
    assert client.publish("m.1", b"again", Nats_Msg_Id="a")["duplicate"] is True  # known from its days as a mirror
    client.publish("s.1", b"3")
    assert [record.payload for record in contents(client, "M")] == [b"1", b"2", b"own"]
    assert answers(client) == {("S", b"3"): 60}


# Direct Gets.


@pytest.mark.spec("DG-06", on="E")
def test_a_mirror_answers_direct_gets_for_its_upstream_and_names_itself(client: Client) -> None:
    assert client.api("STREAM.INFO.M")["config"]["mirror_direct"] is True
    found = answers(client, 200)
    assert set(found) == {("S", b"1"), ("M", b"1")}
    assert min(found.values()) > 60
    appended = {headers(client.ask("$JS.API.DIRECT.GET.S.s.1")[0])["Nats-Stream"] for _ in range(40)}
    assert appended == {"S", "M"}
    batches = [client.direct("S", {"seq": 1, "batch": 5}) for _ in range(40)]
    assert {headers(batch[0])["Nats-Stream"] for batch in batches} == {"S", "M"}


def test_a_mirror_of_a_stream_without_direct_get_does_not_answer_for_it(client: Client) -> None:
    client.create("CLOSED", allow_direct=False)
    mirror(client, "MC", of="CLOSED", mirror_direct=True)
    client.publish("closed.1")
    assert client.api("STREAM.INFO.MC")["config"]["mirror_direct"] is False
    (answer,) = client.direct("CLOSED", {"seq": 1})
    assert status(answer)[0] == 503


def test_a_mirror_answers_under_its_own_name_when_it_allows_direct_gets(client: Client) -> None:
    mirror(client, "OWN", allow_direct=True)
    assert answers(client, 10, "OWN") == {("OWN", b"1"): 10}


@pytest.mark.spec("DG-06", on="E")
def test_a_held_mirror_answers_from_its_own_messages(client: Client) -> None:
    ingest(client).pause(HELD)
    client.publish("s.1", b"2")
    assert set(answers(client)) == {("S", b"2"), ("M", b"1")}
    assert client.api("STREAM.INFO.M")["mirror"] == {"name": "S", "lag": 1, "active": 0}
    ingest(client).resume()
    client.rig.settle()
    assert set(answers(client)) == {("S", b"2"), ("M", b"2")}


def test_a_mirror_that_is_cut_off_says_so(client: Client) -> None:
    ingest(client).pause(CUT)
    client.publish("s.1", b"2")
    client.rig.wait(3)
    client.api("STREAM.INFO.M")
    info = client.api("STREAM.INFO.M")["mirror"]
    assert (info["lag"], info["error"]["code"]) == (1, 503)
    assert info["active"] >= 3 * SECOND
    ingest(client).resume()
    client.rig.settle()
    assert client.api("STREAM.INFO.M")["mirror"] == {"name": "S", "lag": 0, "active": 0}
    assert len(contents(client, "M")) == 2


def test_a_mirror_answers_for_its_upstream_only_once_it_has_caught_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "CHUNK", 5)
    client.api("STREAM.DELETE.M")
    for n in range(2, 41):
        client.publish("s.1", b"%d" % n)
    body = b'{"name":"COLD","storage":"memory","mirror":{"name":"S"}}'
    client.send(b"PUB $JS.API.STREAM.CREATE.COLD %d\r\n%b\r\n" % (len(body), body), settle=False)
    rig = client.rig
    seen = []
    while rig.engine.step(rig.now) | rig.commit():
        asked = [client.ask("$JS.API.DIRECT.GET.S", {"seq": 1}, settle=False) for _ in range(30)]
        rig.flush()
        names = {headers(answer)["Nats-Stream"] for answer in client.messages()}
        seen.append((len(contents(client, "COLD")), names))
        assert asked == [[]] * 30
    assert [names for count, names in seen if count < 25] == [{"S"}] * 4
    assert seen[-1] == (40, {"S", "COLD"})


def test_a_filtered_mirror_leaves_requests_beyond_its_filter_to_the_upstream(client: Client) -> None:
    client.api("STREAM.DELETE.M")
    client.publish("s.2", b"two")
    mirror(client, "ONLY2", filter_subject="s.2")
    mirror(client, "MAPPED", subject_transforms=[{"src": "s.*", "dest": "t.{{wildcard(1)}}"}])
    mirror(client, "RENAMED", subject_transform={"src": "s.*", "dest": "r.{{wildcard(1)}}"})
    assert answers(client) == {("S", b"1"): 60}
    assert set(answers(client, last_by_subj="s.2")) == {("S", b"two"), ("ONLY2", b"two")}
    assert {len(client.direct("S", {"seq": 1, "batch": 5})) for _ in range(20)} == {3}
    assert {headers(client.direct("S", {"multi_last": ["s.*"]})[0])["Nats-Stream"] for _ in range(20)} == {"S"}


# Read-after-write.


@pytest.mark.spec("RW-08", "RW-05")
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_mirror_that_cannot_rejects_late_and_never_redirects(client: Client, replicas: int) -> None:
    client.api("STREAM.DELETE.M")
    mirror(client, num_replicas=replicas)
    ingest(client).pause(HELD)
    assert client.publish("s.1", b"2")["seq"] == 2
    outcomes: Counter[str] = Counter()
    for _ in range(60):
        found = client.direct("S", LAST | {"min_last_seq": 2})
        if not found:
            client.rig.wait(DELAY - 0.001)
            assert client.messages() == []
            client.rig.wait(0.001)
            found = client.messages()
            outcomes["rejected"] += 1
            assert [status(answer) for answer in found] == [(412, "Min Last Sequence")]
        else:
            outcomes[headers(found[0])["Nats-Stream"]] += 1
            assert [answer.payload for answer in found] == [b"2"]
    assert set(outcomes) == {"rejected", "S"}


@pytest.mark.spec("RW-08")
def test_a_mirror_that_can_answers(client: Client) -> None:
    assert client.publish("s.1", b"2")["seq"] == 2
    assert set(answers(client, min_last_seq=2)) == {("S", b"2"), ("M", b"2")}


@pytest.mark.parametrize(
    ("body", "believed"),
    [({"filter": "s.9", "seq": 3}, {"S", "M"}), ({"filter": "s.9", "seq": 4}, {"S"}), ({"filter": "s.9"}, {"S"})],
    ids=["as-upstream", "more", "all-of-it"],
)
def test_a_mirror_that_repeats_a_purge_of_its_upstream_still_speaks_for_it(
    client: Client, body: dict[str, Any], believed: set[str]
) -> None:
    """A purge that removes what the upstream has makes the copy a part of it, for ever."""
    for payload in (b"old", b"kept"):
        client.publish("s.9", payload)
    client.publish("s.1", b"4")
    assert client.api("STREAM.PURGE.S", {"filter": "s.9", "seq": 3})["purged"] == 1
    assert client.api("STREAM.PURGE.M", body)["purged"] >= 1
    assert set(answers(client, min_last_seq=4)) == {(stream, b"4") for stream in believed}


@pytest.mark.spec("RW-05", "RW-08")
def test_a_mirror_that_catches_up_in_time_answers_after_all(client: Client) -> None:
    ingest(client).pause(HELD)
    client.publish("s.1", b"2")
    waiting = [f"{client.inbox}{n}" for n in range(1000, 1040)]
    for reply in waiting:
        body = b'{"last_by_subj":"s.1","min_last_seq":2}'
        client.send(b"PUB $JS.API.DIRECT.GET.S %b %d\r\n%b\r\n" % (reply.encode(), len(body), body))
    first = client.messages()
    assert {headers(answer)["Nats-Stream"] for answer in first} == {"S"}
    client.rig.wait(DELAY - 0.001)
    ingest(client).resume()
    client.rig.settle()
    second = client.messages()
    assert {headers(answer)["Nats-Stream"] for answer in second} == {"M"}
    assert {answer.payload for answer in (*first, *second)} == {b"2"}
    assert sorted(answer.subject for answer in (*first, *second)) == sorted(waiting)


@pytest.mark.spec("RW-08")
def test_a_lagging_replica_of_a_mirror_rejects_without_redirecting(client: Client) -> None:
    client.api("STREAM.DELETE.M")
    client.api("STREAM.DELETE.S")
    client.create("S")
    mirror(client, num_replicas=3, allow_direct=True)
    group = client.rig.engine.streams["M"].replicas
    for peer in group.peers[1:]:
        group.hold(peer, client.rig.now)
    client.publish("s.1", b"1")
    outcomes = set()
    for _ in range(40):
        found = client.direct("M", LAST | {"min_last_seq": 1})
        if not found:
            client.rig.wait(DELAY)
            found = client.messages()
        outcomes.add((status(found[0])[0], found[0].payload))
        assert len(found) == 1
    assert outcomes == {(412, b""), (0, b"1")}


def test_a_filtered_mirror_satisfies_a_minimum_beyond_its_last_message(client: Client) -> None:
    """It has looked at everything up to there, and so it knows."""
    client.api("STREAM.DELETE.M")
    mirror(client, "ONE", filter_subject="s.1", allow_direct=True)
    assert client.publish("s.2", b"other")["seq"] == 2
    assert client.api("STREAM.INFO.ONE")["state"]["last_seq"] == 1
    assert answers(client, 10, "ONE", min_last_seq=2) == {("ONE", b"1"): 10}
    ingest(client, "ONE").pause(HELD)
    client.publish("s.2", b"other")
    assert client.direct("ONE", LAST | {"min_last_seq": 3}) == []


@pytest.mark.spec("KV-19", on="E")
def test_a_mirror_of_a_bucket_is_a_read_replica_of_it(client: Client) -> None:
    """Reads of keys are Direct Gets with the subject appended; the answer names the stream that gave it."""
    bucket = {"subjects": ["$KV.b.>"], "max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True}
    client.create("KV_b", **bucket)
    limits = {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True}
    mirror(client, "KV_edge", of="KV_b", **limits, mirror_direct=True, num_replicas=3)
    seq = client.publish("$KV.b.key", b"1")["seq"]

    def get(**body: Any) -> set[tuple[str, bytes]]:
        found = [client.ask("$JS.API.DIRECT.GET.KV_b.$KV.b.key", body or b"")[0] for _ in range(60)]
        return {(headers(answer)["Nats-Stream"], answer.payload) for answer in found}

    assert get() == get(min_last_seq=seq) == {("KV_b", b"1"), ("KV_edge", b"1")}
    ingest(client, "KV_edge").pause(HELD)
    client.publish("$KV.b.key", b"2")
    assert get() == {("KV_b", b"2"), ("KV_edge", b"1")}
    ingest(client, "KV_edge").resume()
    client.rig.settle()
    client.publish("$KV.b.key", b"", KV_Operation="PURGE", Nats_Rollup="sub")
    assert get() == {("KV_b", b""), ("KV_edge", b"")}


def test_an_external_of_the_own_domain_is_this_server() -> None:
    client = Rig(domain="here").client()
    client.create("S")
    mirror(client, external={"api": "$JS.here.API", "deliver": ""})
    client.publish("s.1", b"1")
    assert contents(client, "M") == contents(client, "S")


# What survives.


def test_a_mirror_resumes_after_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    client = Rig(store=store).client()
    client.create("S", storage="file")
    mirror(client, "A", storage="file")  # before and behind its upstream, by name
    mirror(client, "Z", storage="file", filter_subject="s.1")
    for n in range(1, 700):
        client.publish(f"s.{n % 3}", b"%d" % n)
    ingest(client, "A").pause(HELD)
    ingest(client, "Z").pause(HELD)
    for n in range(700, 900):
        client.publish(f"s.{n % 3}", b"%d" % n)
    client.api("STREAM.MSG.DELETE.S", {"seq": 10})
    assert len(contents(client, "A")) == 699
    store.close()
    store = LmdbStore(tmp_path)
    client = Rig(store=store, now=START + SECOND).client()
    client.rig.settle()
    assert [record for record in contents(client, "A") if record.seq != 10] == contents(client, "S")
    assert contents(client, "Z") == [record for record in contents(client, "A") if record.subject == "s.1"]
    assert sequences(client.direct("S", {"seq": 898, "batch": 5})) == [898, 899]
    store.close()


def test_a_lost_group_is_fetched_again(client: Client) -> None:
    rig = client.rig
    client.send(b"PUB s.1 1\r\n2\r\n", settle=False)
    rig.commit()  # the upstream's message is durable; the mirror has it in its open group
    rig.engine.step(rig.now)
    (journal,) = rig.engine.journals
    assert journal.store.pending
    rig.engine.failed(journal, OSError("no room"), rig.now)
    rig.settle()
    client.publish("s.1", b"3")
    assert contents(client, "M") == contents(client, "S")
    assert [record.seq for record in contents(client, "M")] == [1, 2, 3]


def unsettled(client: Client, verb: str, body: dict[str, Any], reply: str = "") -> None:
    """Send an API request, whose group stays open."""
    client.send(pub(f"$JS.API.STREAM.{verb}", msgspec.json.encode(body), reply), settle=False)


def lose_group(client: Client) -> None:
    rig = client.rig
    (journal,) = rig.engine.journals
    assert journal.store.pending
    rig.engine.failed(journal, OSError("no room"), rig.now)
    rig.settle()


@pytest.mark.parametrize("name", ["A", "Z"])  # before and behind its upstream, by name
@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_a_mirror_whose_creation_is_lost_leaves_its_upstream_alone(name: str, retention: str, tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    client = Rig(store=store).client()
    client.create("S", retention=retention, max_msgs=5)
    # What the mirror learns of its upstream changes with the loss.
    unsettled(client, "UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s.>"], "retention": retention})
    unsettled(client, f"CREATE.{name}", {"name": name, "storage": "memory", "mirror": {"name": "S"}})
    lose_group(client)
    assert list(client.rig.engine.streams) == ["S"]
    client.publish("s.1", b"1")
    # With retention by interest it is not kept: the mirror is gone.
    assert [record.seq for record in contents(client, "S")] == ([1] if retention == "limits" else [])
    mirror(client, name)
    client.publish("s.1", b"2")
    assert [record.seq for record in contents(client, name)] == ([1, 2] if retention == "limits" else [2])
    store.close()


def test_a_mirror_stays_when_the_creation_of_its_upstream_is_lost() -> None:
    client = Rig().client()
    mirror(client)
    unsettled(client, "CREATE.S", {"name": "S", "storage": "memory", "subjects": ["s.>"]})
    lose_group(client)
    assert list(client.rig.engine.streams) == ["M"]
    client.create("S")
    client.publish("s.1", b"1")
    assert contents(client, "M") == contents(client, "S")


def test_info_of_a_deleted_stream_is_an_error_while_another_one_is_created(client: Client) -> None:
    rig = client.rig
    (journal,) = rig.engine.journals
    reply = f"{client.inbox}info"
    client.send(b"PUB s.1 1\r\n2\r\n", settle=False)  # the report waits for its group
    unsettled(client, "INFO.S", {"subjects_filter": ">"}, reply)
    unsettled(client, "DELETE.S", {})
    batch = journal.seal()
    assert batch.group is not None
    write_group(journal.store, batch.group)
    unsettled(client, "CREATE.X", {"name": "X", "storage": "memory", "subjects": ["x"]})  # the list is open again
    rig.engine.committed(batch, rig.now)
    rig.settle()
    (answer,) = [message for message in client.messages() if message.subject == reply]
    assert msgspec.json.decode(answer.payload)["error"]["err_code"] == 10059


def test_a_very_wide_gap_is_crossed_at_once(client: Client) -> None:
    client.publish("s.1", b"2")
    client.api("STREAM.CREATE.WIDE", {"name": "WIDE", "subjects": ["w.>"], "storage": "memory", "first_seq": 1})
    mirror(client, "MW", of="WIDE")
    client.publish("w.1", b"a")
    client.api("STREAM.PURGE.WIDE", {"seq": 50_000_000})
    client.publish("w.1", b"b")
    assert [record.seq for record in contents(client, "MW")] == [1, 50_000_000]
    client.api("STREAM.MSG.DELETE.MW", {"seq": 1})
    assert client.api("STREAM.INFO.MW")["state"]["first_seq"] == 50_000_000


def test_full_mirror_that_discards_new_messages_keeps_what_it_has_and_goes_on_when_there_is_capacity() -> None:
    client = Rig().client()
    client.create("S")
    for n in range(5):
        client.publish(f"s.{n}")
    mirror(client, max_msgs=3, discard="new")
    assert [record.seq for record in contents(client, "M")] == [1, 2, 3]
    assert "maximum messages exceeded" in client.api("STREAM.INFO.M")["mirror"]["error"]["description"]
    client.api("STREAM.MSG.DELETE.M", {"seq": 1})
    client.publish("s.6")
    assert [record.seq for record in contents(client, "M")] == [2, 3, 4]
    client.api("STREAM.PURGE.M", {"keep": 1})
    client.rig.wait(1)
    assert [record.seq for record in contents(client, "M")] == [4, 5, 6]

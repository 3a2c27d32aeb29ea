"""What a mirror's copy is worth: gaps, leftovers, limits of its own, other generations.

Each case gave a wrong answer to a read with `min_last_seq` once. Virtual time; a mirror catches up one message a step.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.api import StreamConfig
from slipstream.server.engine.ports import Record, Store
from slipstream.server.engine.reads.direct_get import REJECT_DELAY
from slipstream.server.engine.replication import ingest as ingest_module
from slipstream.server.engine.replication.ingest import HELD, Ingest
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Msg
from tests.server.support import SECOND, START, Client, Rig, headers, sequences, status

DELAY = REJECT_DELAY / SECOND
LIMITS: dict[str, Any] = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True}


@pytest.fixture(autouse=True)
def one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "CHUNK", 1)


def world(store: Store | None = None, *, mirror: dict[str, Any] | None = None, **limits: Any) -> Client:
    """A stream S with one message per subject, unless told otherwise, and its mirror M with the same limits."""
    client = Rig(store=store).client()
    limits = limits or LIMITS
    client.create("S", **limits)
    make_mirror(client, "M", "S", **limits | (mirror or {}))
    return client


def make_mirror(client: Client, name: str, of: str, **more: Any) -> None:
    source = {"name": of} | {key: more.pop(key) for key in list(more) if key in ("filter_subject", "opt_start_seq")}
    body = {"name": name, "storage": "memory", "mirror": source, "allow_direct": True}
    assert "error" not in client.api(f"STREAM.CREATE.{name}", body | more)


def ingest(client: Client, name: str = "M") -> Ingest:
    (found,) = client.rig.engine.streams[name].ingests
    assert isinstance(found, Ingest)
    return found


def away(client: Client, *publishes: str, name: str = "M") -> None:
    """Publish to subjects while the mirror is held; then let it take its first step back."""
    ingest(client, name).pause(HELD)
    for subject in publishes:
        client.publish(subject, subject.encode())
    ingest(client, name).resume()


def step(client: Client, count: int = 1) -> None:
    for _ in range(count):
        client.rig.engine.step(client.rig.now)
        client.rig.commit()
    client.rig.flush()


def read(client: Client, stream: str, body: dict[str, Any]) -> Msg:
    """One Direct Get without letting the mirror go on; what waits is waited for."""
    answers = client.ask(f"$JS.API.DIRECT.GET.{stream}", body, settle=False)
    client.rig.flush()
    answers = answers or client.messages()
    if not answers:
        ingests = [ingest(client, name) for name in ("M", "B") if name in client.rig.engine.streams]
        going = [each for each in ingests if not each.paused]
        for each in going:
            each.pause(HELD)
        client.rig.wait(DELAY)
        for each in going:
            each.resume()
        answers = client.messages()
    (answer,) = answers
    return answer


def outcomes(client: Client, stream: str, count: int = 40, **body: Any) -> set[tuple[int, str, bytes]]:
    """Status, responder and payload of the same read, many times."""
    found = [read(client, stream, body) for _ in range(count)]
    return {(status(m)[0], headers(m).get("Nats-Stream", ""), m.payload) for m in found}


# Gaps.


@pytest.mark.spec("RW-02", "RW-08", "RW-19", on="E")
def test_a_mirror_that_catches_up_does_not_answer_before_it_has_what_removed_what_it_missed() -> None:
    """Version 1 of a is shown at last sequence 4, although version 2 at 3 was acknowledged: 5 removed it."""
    client = world()
    for subject in ("s.a", "s.b"):
        client.publish(subject, b"1")
    away(client, "s.a", "s.b", "s.a")  # 3, 4, 5: what is left is 4 and 5
    step(client)
    log = client.rig.engine.streams["M"].log
    assert log.committed.last_seq == 4
    record = log.last("s.a")
    assert record is not None
    assert record.seq == 1
    for wanted in (2, 3, 4):
        assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=wanted) == {(412, "", b""), (0, "S", b"s.a")}
        assert outcomes(client, "M", 5, last_by_subj="s.a", min_last_seq=wanted) == {(412, "", b"")}
    assert (0, "M", b"1") in outcomes(client, "S", last_by_subj="s.a")  # a plain read asks for nothing
    client.rig.settle()
    assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=5) == {(0, "S", b"s.a"), (0, "M", b"s.a")}


@pytest.mark.spec("RW-19", on="E")
def test_a_mirror_in_a_gap_says_that_it_speaks_for_nothing() -> None:
    client = world()
    client.publish("s.a", b"1")
    created = client.rig.engine.streams["S"].created

    def claims(stream: str) -> set[tuple[str, str]]:
        found = [headers(read(client, stream, {"last_by_subj": "s.a", "as_of": True})) for _ in range(30)]
        return {(each["Nats-Stream"], each["Slipstream-As-Of"]) for each in found}

    assert claims("S") == {("S", "1"), ("M", "1")}
    away(client, "s.b", "s.a", "s.b", "s.c")  # 2 to 5
    step(client)
    assert claims("S") == {("S", "5"), ("M", "0")}
    assert claims("M") == {("M", "0")}
    client.rig.settle()
    assert claims("S") == {("S", "5"), ("M", "5")}
    answer = next(m for m in (read(client, "S", {"last_by_subj": "s.a", "as_of": True}) for _ in range(99))
                  if headers(m)["Nats-Stream"] == "M")  # fmt: skip
    assert headers(answer)["Slipstream-Created"] == str(created)  # of the stream that it answers for


@pytest.mark.spec("RW-19", on="E")
def test_a_restart_in_a_gap_does_not_end_it(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    client = world(store, **LIMITS, storage="file")
    client.publish("s.a", b"1")
    away(client, "s.a", "s.b", "s.c", "s.a")  # 2 to 5
    step(client)
    assert client.rig.engine.streams["M"].log.committed.last_seq == 3
    store.close()
    store = LmdbStore(tmp_path)
    rig = Rig(store=store, now=START + SECOND)
    (mirror,) = rig.engine.streams["M"].ingests
    assert isinstance(mirror, Ingest)
    mirror.pause(HELD)
    client = rig.client()
    assert client.rig.engine.streams["M"].log.committed.last_seq == 3
    assert outcomes(client, "M", 5, last_by_subj="s.a", min_last_seq=2) == {(412, "", b"")}
    ingest(client).resume()
    client.rig.settle()
    assert outcomes(client, "M", 5, last_by_subj="s.a", min_last_seq=5) == {(0, "M", b"s.a")}
    assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=5) == {(0, "S", b"s.a"), (0, "M", b"s.a")}
    store.close()


@pytest.mark.spec("RW-19", on="E")
def test_a_new_mirror_speaks_for_nothing_until_it_has_caught_up() -> None:
    client = world()
    for subject in ("s.a", "s.b", "s.c", "s.a", "s.d"):  # 2, 3, 4 and 5 are left
        client.publish(subject, b"x")
    make_mirror(client, "B", "S", **LIMITS)
    client.api("STREAM.DELETE.B")
    body = msgspec.json.encode(
        {"name": "B", "mirror": {"name": "S"}, "allow_direct": True, "storage": "memory"} | LIMITS
    )
    client.send(b"PUB $JS.API.STREAM.CREATE.B %d\r\n%b\r\n" % (len(body), body), settle=False)
    seen = []
    for _ in range(8):
        step(client)
        log = client.rig.engine.streams["B"].log
        seen.append((log.committed.last_seq, status(read(client, "B", {"last_by_subj": "s.a", "min_last_seq": 1}))[0]))
    assert dict(seen)[3] == 412
    assert dict(seen)[4] == 412
    assert seen[-1] == (5, 0)


@pytest.mark.spec("RW-19", on="E")
def test_a_mirror_of_a_mirror_inherits_its_gap() -> None:
    client = world()
    make_mirror(client, "B", "M", **LIMITS)
    client.publish("s.a", b"1")
    ingest(client, "B").pause(HELD)
    away(client, "s.a", "s.b", "s.c", "s.a")  # 2 to 5
    step(client)  # M has 3, and a gap until 5
    ingest(client).pause(HELD)
    ingest(client, "B").resume()
    client.rig.settle()
    assert client.rig.engine.streams["B"].log.committed.last_seq == 3
    assert outcomes(client, "B", 5, last_by_subj="s.a", min_last_seq=2) == {(412, "", b"")}
    assert outcomes(client, "M", 20, last_by_subj="s.a", min_last_seq=2) == {(412, "", b"")}
    ingest(client).resume()
    client.rig.settle()
    assert outcomes(client, "M", last_by_subj="s.a", min_last_seq=5) == {(0, "M", b"s.a"), (0, "B", b"s.a")}


@pytest.mark.spec("RW-12", on="E")
def test_a_consumer_of_a_mirror_waits_until_the_gap_is_over() -> None:
    client = world()
    client.publish("s.a", b"1")
    away(client, "s.a", "s.b", "s.c", "s.a")  # 2 to 5
    step(client)
    ingest(client).pause(HELD)
    config = {"durable_name": "d", "ack_policy": "none", "deliver_policy": "last", "min_last_seq": 2}
    config |= {"filter_subject": "s.a"}
    client.api("CONSUMER.DURABLE.CREATE.M.d", {"stream_name": "M", "config": config})
    assert client.ask("$JS.API.CONSUMER.MSG.NEXT.M.d", {"batch": 1, "expires": 60 * SECOND}) == []
    ingest(client).resume()
    client.rig.settle()
    (message,) = client.messages()
    assert message.payload == b"s.a"


@pytest.mark.spec("RW-04", on="E")
def test_a_message_get_of_a_mirror_waits_until_the_gap_is_over() -> None:
    client = world()
    client.publish("s.a", b"1")
    away(client, "s.a", "s.b", "s.c", "s.a")  # 2 to 5
    step(client)
    ingest(client).pause(HELD)
    (answer,) = client.ask("$JS.API.STREAM.MSG.GET.M", {"last_by_subj": "s.a"})
    assert b'"seq":1' in answer.payload
    assert client.ask("$JS.API.STREAM.MSG.GET.M", {"last_by_subj": "s.a", "min_last_seq": 2}) == []
    client.rig.wait(DELAY)
    (answer,) = client.messages()
    assert b'"err_code":10180' in answer.payload


def test_a_follower_of_a_mirror_that_was_held_in_a_gap_keeps_it() -> None:
    client = world(mirror={"num_replicas": 3})
    client.publish("s.a", b"1")
    away(client, "s.a", "s.b", "s.c", "s.a")  # 2 to 5
    step(client)
    group = client.rig.engine.streams["M"].replicas
    held = [peer for peer in group.peers if peer is not group.leader]
    for peer in held:
        group.hold(peer, client.rig.now)
    client.rig.settle()
    found = Counter(status(read(client, "M", {"last_by_subj": "s.a", "min_last_seq": 2}))[0] for _ in range(40))
    assert set(found) == {0, 412}
    for peer in held:
        group.release(peer)
    assert outcomes(client, "M", last_by_subj="s.a", min_last_seq=5) == {(0, "M", b"s.a")}


# Leftovers.


@pytest.mark.spec("RW-19", on="E")
def test_what_a_rollup_removed_while_the_mirror_was_away_is_not_shown_for_the_stream() -> None:
    """The message that rolled up all subjects is gone too: nothing tells the mirror to remove a."""
    client = world()
    client.publish("s.a", b"1")
    ingest(client).pause(HELD)
    client.publish("s.r", b"all", Nats_Rollup="all")
    client.publish("s.r", b"3")
    ingest(client).resume()
    client.rig.settle()
    assert [record.seq for record in client.rig.engine.streams["M"].log.scan("", 0, limit=9)] == [1, 3]
    assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=2) == {(404, "", b"")}
    assert outcomes(client, "S", last_by_subj="s.r", min_last_seq=2) == {(0, "S", b"3")}
    client.publish("s.a", b"4")  # now it removes the leftover: both hold the same again
    assert outcomes(client, "S", last_by_subj="s.r", min_last_seq=4) == {(0, "S", b"3"), (0, "M", b"3")}


# Limits, filters and deletes of the mirror's own.


# F5: a mirror that holds less proves no absence
@pytest.mark.spec("RW-08", "RW-19", on="E")
@pytest.mark.parametrize(
    "mirror",
    [
        {"max_msgs": 2},
        {"max_bytes": 2000},
        {"max_msgs_per_subject": 0},
        {"allow_rollup_hdrs": False},
        {"max_age": 3600 * SECOND},
        {"filter_subject": "s.a"},
        {"opt_start_seq": 2},
        {"subject_transform": {"src": "s.z", "dest": "s.y"}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_mirror_that_holds_or_removes_other_messages_leaves_the_read_to_the_stream(mirror: dict[str, Any]) -> None:
    client = world(mirror=mirror)
    for n in range(1, 7):
        client.publish(f"s.{'abc'[n % 3]}", b"%d" % n)
    for body in ({"last_by_subj": "s.a"}, {"seq": 4}, {"multi_last": ["s.a"], "batch": 1}, {"seq": 1, "batch": 9}):
        for _ in range(20):
            answers = client.direct("S", body | {"min_last_seq": 6})
            assert headers(answers[0])["Nats-Stream"] == "S"
    assert sequences(client.direct("S", {"seq": 1, "batch": 9, "min_last_seq": 6})) == [4, 5, 6]


@pytest.mark.parametrize("deny_delete", [True, False])
def test_a_mirror_with_several_messages_of_a_subject_may_lack_one_after_a_delete_in_the_stream(
    deny_delete: bool,
) -> None:
    """It does not follow the delete, so that the limit takes a message which the stream still has."""
    client = world(max_msgs_per_subject=3, deny_delete=deny_delete)
    for _ in range(3):
        client.publish("s.a")
    is_deleted = "error" not in client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    assert is_deleted is not deny_delete
    client.publish("s.a")
    responders = set()
    for _ in range(20):
        (answer,) = client.direct("S", {"seq": 4 if deny_delete else 1, "min_last_seq": 4})
        assert not status(answer)[0]
        responders.add(headers(answer)["Nats-Stream"])
    assert responders == ({"S", "M"} if deny_delete else {"S"})


@pytest.mark.spec("RW-19", on="E")
def test_a_mirror_that_was_limited_once_or_lost_messages_of_its_own_stays_out_for_ever() -> None:
    client = world(allow_rollup_hdrs=True)
    for n in range(1, 5):
        client.publish("s.a", b"%d" % n)
    assert outcomes(client, "S", seq=1, min_last_seq=4) == {(0, "S", b"1"), (0, "M", b"1")}
    config = client.api("STREAM.INFO.M")["config"]
    client.api("STREAM.UPDATE.M", config | {"max_msgs": 2})
    assert outcomes(client, "S", seq=1, min_last_seq=4) == {(0, "S", b"1")}
    client.api("STREAM.UPDATE.M", config)
    assert outcomes(client, "S", seq=1, min_last_seq=4) == {(0, "S", b"1")}
    make_mirror(client, "B", "S", allow_rollup_hdrs=True)
    assert outcomes(client, "S", seq=1, min_last_seq=4) == {(0, "S", b"1"), (0, "B", b"1")}
    client.api("STREAM.MSG.DELETE.B", {"seq": 1})
    assert outcomes(client, "S", seq=1, min_last_seq=4) == {(0, "S", b"1")}


@pytest.mark.spec("RW-19", on="E")
def test_a_stream_that_keeps_more_than_before_is_not_read_from_a_mirror_with_the_old_limit() -> None:
    client = world()
    client.publish("s.a", b"1")
    config = client.api("STREAM.INFO.S")["config"]
    client.api("STREAM.UPDATE.S", config | {"max_msgs_per_subject": 5})
    client.publish("s.a", b"2")
    assert outcomes(client, "S", seq=1, min_last_seq=2) == {(0, "S", b"1")}
    config = client.api("STREAM.INFO.M")["config"]
    client.api("STREAM.UPDATE.M", config | {"max_msgs_per_subject": 5})
    assert outcomes(client, "S", seq=1, min_last_seq=2) == {(0, "S", b"1")}


# Generations.


# F6: the generation of a copy
@pytest.mark.spec("RW-19", on="E")
@pytest.mark.parametrize("held", [True, False])
def test_a_mirror_of_a_deleted_stream_does_not_answer_for_the_new_one(held: bool) -> None:
    client = world()
    for _ in range(10):
        client.publish("s.a", b"OLD")
    if held:
        ingest(client).pause(HELD)
    client.api("STREAM.DELETE.S")
    client.create("S", **LIMITS)
    seq = client.publish("s.a", b"NEW")["seq"]
    assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=seq) == {(0, "S", b"NEW")}
    for _ in range(15):  # the new stream overtakes the old mirror
        seq = client.publish("s.b", b"NEW")["seq"]
    assert outcomes(client, "S", last_by_subj="s.a", min_last_seq=seq) == {(0, "S", b"NEW")}
    if not held:
        assert outcomes(client, "M", 5, last_by_subj="s.a", min_last_seq=1) == {(412, "", b"")}


def test_a_mirror_that_was_promoted_speaks_for_itself() -> None:
    client = world()
    client.publish("s.a", b"1")
    away(client, "s.a", "s.b", "s.c", "s.a")
    step(client)
    ingest(client).pause(HELD)
    config = client.api("STREAM.INFO.M")["config"]
    del config["mirror"]
    client.api("STREAM.DELETE.S")
    assert "error" not in client.api("STREAM.UPDATE.M", config | {"subjects": ["s.>"], "mirror_direct": False})
    assert outcomes(client, "M", 5, last_by_subj="s.a", min_last_seq=2) == {(0, "M", b"1")}


# Mirrors of other servers: the driver's calls, by hand.


THEIRS = StreamConfig(name="S", subjects=("s.>",), max_msgs_per_subject=1, allow_rollup_hdrs=True, allow_direct=True)


def remote_world() -> tuple[Client, Ingest]:
    """A mirror M of a stream S on another server, which has s.a at 1 and s.b at 2."""
    client = Rig().client()
    source = {"name": "S", "external": {"api": "$JS.hub.API", "deliver": ""}}
    body = {"name": "M", "storage": "memory", "mirror": source, "allow_direct": True, "mirror_direct": True} | LIMITS
    assert "error" not in client.api("STREAM.CREATE.M", body)
    mirror = ingest(client)
    mirror.meet(START, THEIRS)
    give(client, 2, record(1, "s.a"), record(2, "s.b"))
    return client, mirror


def record(seq: int, subject: str) -> Record:
    return Record(seq, START, subject, b"", b"%d" % seq)


def give(client: Client, last: int, *records: Record) -> None:
    assert ingest(client).offer(records, records[-1].seq, last, client.rig.now)
    client.rig.settle()


def test_a_gap_in_what_another_server_sends_ends_where_that_server_says() -> None:
    client, mirror = remote_world()
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=2) == {(0, "M", b"1")}
    assert not mirror.needs_position
    give(client, 6, record(4, "s.b"))  # 3 was s.a; 5 and 6 are s.a and s.c
    assert mirror.needs_position
    mirror.confirm(THEIRS, 1, 1)  # of a server that lags
    assert mirror.needs_position
    assert outcomes(client, "M", 1, last_by_subj="s.a", min_last_seq=2) == {(412, "", b"")}
    mirror.confirm(THEIRS, 6, 3)
    assert not mirror.needs_position
    for seq, subject in ((5, "s.a"), (6, "s.c")):
        assert outcomes(client, "M", 1, last_by_subj="s.a", min_last_seq=2) == {(412, "", b"")}
        give(client, 7, record(seq, subject))
    assert outcomes(client, "M", 1, last_by_subj="s.a", min_last_seq=6) == {(0, "M", b"5")}
    # As many messages as there were: nothing is left over, and it speaks for the stream as well.
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=6) == {(0, "M", b"5")}


def test_messages_that_another_server_has_no_more_keep_its_mirror_from_speaking_for_it() -> None:
    client, mirror = remote_world()
    give(client, 4, record(4, "s.r"))  # 3 was a rollup of all subjects, on s.r
    mirror.confirm(THEIRS, 4, 1)
    assert outcomes(client, "M", 1, last_by_subj="s.a", min_last_seq=4) == {(0, "M", b"1")}  # what it holds
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=4) == {(412, "", b"")}
    give(client, 6, record(5, "s.a"), record(6, "s.b"))
    mirror.confirm(THEIRS, 6, 3)
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=6) == {(0, "M", b"5")}


@pytest.mark.parametrize("how", ["recreated", "lost"])
def test_a_mirror_of_a_server_that_begins_again_or_lost_messages_answers_no_such_read(how: str) -> None:
    client, mirror = remote_world()
    if how == "recreated":
        mirror.meet(START + 1, THEIRS)
    else:
        mirror.lost(2)
        assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=1) == {(0, "M", b"1")}
        mirror.lost(1)
    for stream in ("S", "M"):
        assert outcomes(client, stream, 1, last_by_subj="s.a", min_last_seq=1) == {(412, "", b"")}
    assert outcomes(client, "S", 1, last_by_subj="s.a") == {(0, "M", b"1")}


def test_a_recreated_stream_of_another_server_is_read_from_where_the_copy_ends() -> None:
    client, mirror = remote_world()
    assert mirror.offer([], 9, 9, client.rig.now)  # 3 to 9 were deleted
    assert mirror.next_seq == 10
    mirror.meet(START, THEIRS)
    assert mirror.next_seq == 10
    mirror.meet(START + 1, THEIRS)
    assert mirror.next_seq == 3
    give(client, 4, record(3, "s.a"), record(4, "s.b"))
    mirror.meet(START + 1, THEIRS)
    assert mirror.next_seq == 5


def test_limits_that_change_on_another_server_are_noticed_when_it_is_asked() -> None:
    client, mirror = remote_world()
    mirror.confirm(THEIRS.replace(max_msgs_per_subject=2), 2, 2)
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=1) == {(412, "", b"")}
    mirror.confirm(THEIRS, 2, 2)  # too late: it has removed what the stream kept
    assert outcomes(client, "S", 1, last_by_subj="s.a", min_last_seq=1) == {(412, "", b"")}


def test_a_bad_request_is_answered_by_the_mirror_if_the_stream_is_elsewhere() -> None:
    client, _ = remote_world()
    assert outcomes(client, "S", 1, seq=1, last_by_subj="s.a") == {(408, "", b"")}

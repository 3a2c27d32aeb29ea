"""Publishes that take long, to very many subscribers or past many: a client that pipelines them is served in slices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.server.engine.core.routing import MOST_TARGETS, TARGETS_PER_UNIT
from slipstream.server.engine.engine import BRANCHES_PER_UNIT
from slipstream.server.engine.jobs import RECEIVE_UNITS, STEP_UNITS
from slipstream.wire import Headers, Msg, Pong, pub
from tests.server.support import Client, Rig, status

SUBS, PUBLISHES = 1000, 60
TURN = (2 * RECEIVE_UNITS + STEP_UNITS) * TARGETS_PER_UNIT + 3 * SUBS  # deliveries, at most


def test_pipelined_publishes_to_many_subscribers_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = rig.client(), rig.client(), rig.client()
    reader.send(b"".join(b"SUB a.b %d\r\n" % n for n in range(SUBS)))
    reader.take()
    burst = b"".join(pub("a.b", b"%d" % n) for n in range(PUBLISHES))
    writer.send(burst + b"PING\r\n", settle=False)
    counts, total = [], 0
    while total < SUBS * PUBLISHES:
        other.send(b"PING\r\n", settle=False)  # it is answered in every turn
        rig.engine.step(rig.now)
        rig.flush()
        assert any(isinstance(event, Pong) for event in other.take())
        seen = reader.messages()
        assert [m.payload for m in seen[::SUBS]] == [
            b"%d" % n for n in range(total // SUBS, (total + len(seen)) // SUBS)
        ]
        counts.append(len(seen))
        total += len(seen)
        assert len(counts) < 100
    assert max(counts) <= TURN
    rig.settle()
    assert any(isinstance(event, Pong) for event in writer.take())  # behind its publishes


def test_pipelined_publishes_past_many_patterns_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = rig.client(), rig.client(), rig.client()
    tokens, count = 10, 5 * PUBLISHES
    patterns = (".".join("*" if n >> at & 1 else "a" for at in range(tokens)) for n in range(2**tokens))
    reader.send(b"".join(f"SUB {pattern}.z {sid}\r\n".encode() for sid, pattern in enumerate(patterns)))
    reader.send(b"SUB done 5000\r\n")
    reader.take()
    burst = b"".join(pub(f"{'.'.join('a' * tokens)}.b{n}", b"") for n in range(count))
    writer.send(burst + pub("done", b"") + b"PING\r\n", settle=False)
    turns = 0
    while not reader.messages():
        other.send(b"PING\r\n", settle=False)  # it is answered in every turn
        rig.engine.step(rig.now)
        rig.flush()
        assert any(isinstance(event, Pong) for event in other.take())
        turns += 1
        assert turns < 100
    branches = sum(2**at for at in range(5, tokens + 1)) * count  # at the tokens that meet more than a few
    assert turns >= branches / BRANCHES_PER_UNIT / (2 * RECEIVE_UNITS + STEP_UNITS)
    assert turns > 5


def test_few_subscribers_hold_up_no_publisher() -> None:
    rig = Rig()
    reader, writer = rig.client(), rig.client()
    reader.send(b"SUB a.b 1\r\nSUB a.* 2\r\n")
    reader.take()
    writer.send(b"".join(pub("a.b", b"x") for _ in range(3000)), settle=False)
    rig.flush()
    assert sum(isinstance(event, Msg) for event in reader.take()) == 6000


# What the server itself sends to very many subscribers: it is not sent in one turn either.

MOST = 2 * TURN  # a step and a commit


def by_turns(rig: Rig, reader: Client, total: int, other: Client | None = None) -> list[int]:
    """Turns until a client has so many messages; how many came with each."""
    counts: list[int] = []
    while sum(counts) < total:
        if other is not None:
            other.send(pub("other", b"x", f"{other.inbox}{len(counts)}"), settle=False)
        rig.turn()
        counts.append(len(reader.messages()))
        if other is not None:  # its ack does not wait
            assert list(other.answers()) == [str(len(counts) - 1)]
        assert len(counts) < 500
    return counts


def subscribed(rig: Rig, subject: str = "w", count: int = SUBS) -> Client:
    reader = rig.client()
    reader.send(b"".join(b"SUB %b %d\r\n" % (subject.encode(), n + 10) for n in range(count)))
    reader.take()
    return reader


def test_acks_to_many_subscribers_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = subscribed(rig), rig.client(), rig.client()
    writer.create("S")
    other.create("O", subjects=["other"])
    burst = b"".join(pub("s.x", b"x", "w") for _ in range(PUBLISHES))
    writer.send(burst, settle=False)
    writer.send(b"PING\r\n", settle=False)
    counts = by_turns(rig, reader, SUBS * PUBLISHES, other)
    assert max(counts) <= MOST
    assert len(counts) > 5
    rig.settle()
    assert any(isinstance(event, Pong) for event in writer.take())


def test_client_whose_acks_go_to_many_subscribers_waits_for_them() -> None:
    rig = Rig()
    reader, writer = subscribed(rig), rig.client()
    writer.create("S")
    log = rig.engine.streams["S"].log
    writer.send(b"".join(pub("s.x", b"x", "w") for _ in range(PUBLISHES)), settle=False)
    rig.turn()
    assert len(reader.messages()) < SUBS * PUBLISHES
    writer.send(b"".join(pub("s.x", b"x", "w") for _ in range(PUBLISHES)), settle=False)
    assert log.state.messages == PUBLISHES
    assert sum(by_turns(rig, reader, SUBS * PUBLISHES)) >= SUBS * PUBLISHES
    rig.settle()
    assert log.state.messages == 2 * PUBLISHES


def test_subject_of_acks_is_looked_up_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    reader, writer = subscribed(rig, "w.*"), rig.client()
    writer.create("S")
    router, looked = rig.engine.account().router, list[str]()
    match_once = router.matcher.match_once

    def counted(subject: str) -> Any:
        looked.append(subject)
        return match_once(subject)

    monkeypatch.setattr(router.matcher, "match_once", counted)
    writer.send(b"".join(pub("s.x", b"x", f"w.{n}") for n in range(PUBLISHES)), settle=False)
    looked.clear()
    rig.commit()
    assert len(looked) < PUBLISHES // 2
    counts = by_turns(rig, reader, SUBS * PUBLISHES)
    assert max(counts) <= MOST


def test_republished_messages_to_many_subscribers_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = subscribed(rig, "w.>"), rig.client(), rig.client()
    writer.create("S", republish={"src": ">", "dest": "w.>"})
    other.create("O", subjects=["other"])
    writer.send(b"".join(pub("s.x", b"%d" % n) for n in range(PUBLISHES)), settle=False)
    counts, seen = list[int](), list[Msg]()
    while len(seen) < SUBS * PUBLISHES:
        rig.turn()
        found = reader.messages()
        counts.append(len(found))
        seen += found
        assert len(counts) < 500
    assert max(counts) <= MOST
    assert [m.payload for m in seen[::SUBS]] == [b"%d" % n for n in range(PUBLISHES)]


def test_republished_messages_of_several_publishers_stay_in_the_order_of_the_stream() -> None:
    rig = Rig()
    reader, others = subscribed(rig, "w.>"), [rig.client() for _ in range(5)]
    others[0].create("S", republish={"src": ">", "dest": "w.>"})
    for n in range(3 * PUBLISHES):
        others[n % 3].send(pub(f"s.{n % 7}", b""), settle=False)
    sent = 3 * PUBLISHES
    seen: list[Msg] = []
    turns = 0
    while len(seen) < SUBS * sent:
        if turns in (2, 3):  # the next group is committed before all of the first is delivered
            assert len(seen) < SUBS * sent
            others[1 + turns].send(pub("s.late", b""), settle=False)
            sent += 1
        rig.turn()
        seen += reader.messages()
        turns += 1
        assert turns < 500
    assert turns > 5
    seqs = [Headers.parse(m.header).get("Nats-Sequence") for m in seen if m.sid == seen[0].sid]
    assert seqs == [str(n + 1) for n in range(sent)]
    for one in others:
        one.send(b"PING\r\n")
        assert any(isinstance(event, Pong) for event in one.take())  # it was released behind its last message


@pytest.mark.parametrize("kind", ["push", "pull", "direct"])
def test_deliveries_to_many_subscribers_take_several_turns(kind: str) -> None:
    rig = Rig()
    reader, client, other = subscribed(rig), rig.client(), rig.client()
    client.create("S", allow_direct=True)
    other.create("O", subjects=["other"])
    client.send(b"".join(pub("s.x", b"x") for _ in range(PUBLISHES)))
    config: dict[str, Any] = {"name": "d", "durable_name": "d", "ack_policy": "none"}
    if kind == "push":
        config["deliver_subject"] = "w"
    if kind != "direct":
        body = msgspec.json.encode({"stream_name": "S", "config": config})
        client.send(pub("$JS.API.CONSUMER.CREATE.S.d", body, f"{client.inbox}c"), settle=False)
    if kind == "pull":
        rig.settle()
        client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":%d}' % PUBLISHES, "w"), settle=False)
    if kind == "direct":
        client.send(pub("$JS.API.DIRECT.GET.S", b'{"seq":1,"batch":%d}' % PUBLISHES, "w"), settle=False)
    counts = by_turns(rig, reader, SUBS * PUBLISHES, other)
    assert max(counts) <= MOST
    assert len(counts) > 5


def test_pipelined_publishes_to_many_queue_groups_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = rig.client(), rig.client(), rig.client()
    reader.send(b"".join(b"SUB w q%d %d\r\n" % (n, n + 10) for n in range(SUBS)))
    reader.take()
    other.create("O", subjects=["other"])
    writer.send(b"".join(pub("w", b"x") for _ in range(PUBLISHES)), settle=False)
    counts = by_turns(rig, reader, SUBS * PUBLISHES, other)
    assert max(counts) <= TURN
    assert len(counts) > 5


def test_message_to_very_many_subscribers_is_delivered_in_slices_and_in_order() -> None:
    rig = Rig()
    count = 5 * MOST_TARGETS
    reader, writer = subscribed(rig, count=count), rig.client()
    writer.create("S", subjects=["w"])
    reader.send(b"SUB last 1\r\n")
    writer.send(pub("w", b"1") + pub("w", b"2") + pub("last", b""), settle=False)
    assert rig.engine.streams["S"].log.state.messages == 1  # what is no client has it at once
    seen: list[Msg] = []
    turns = 0
    while not seen or seen[-1].subject != "last":
        rig.engine.step(rig.now)
        rig.flush()
        found = reader.messages()
        assert len(found) <= 2 * MOST_TARGETS
        seen += found
        turns += 1
        assert turns < 100
    assert [m.payload for m in seen] == [b"1"] * count + [b"2"] * count + [b""]
    rig.settle()
    assert rig.engine.streams["S"].log.state.messages == 2


def test_subscription_that_ends_or_begins_during_a_fan_out_gets_nothing_of_it() -> None:
    rig = Rig()
    count = 3 * MOST_TARGETS
    reader, writer, late = subscribed(rig, count=count), rig.client(), rig.client()
    reader.send(b"UNSUB %d 1\r\n" % (count + 5))
    writer.send(pub("w", b"1") + pub("w", b"2"), settle=False)
    reader.send(b"UNSUB %d\r\n" % (count + 9), settle=False)  # the last one
    late.send(b"SUB w 1\r\n", settle=False)
    rig.settle()
    seen = reader.messages()
    assert len(seen) == 2 * (count - 1) - 1
    assert [m.sid for m in seen].count(b"%d" % (count + 5)) == 1
    assert {m.payload for m in late.messages()} <= {b"2"}


def test_answer_to_one_client_does_not_wait_for_deliveries_to_many_others() -> None:
    rig = Rig()
    reader, client, other = subscribed(rig), rig.client(), rig.client()
    client.create("S", allow_direct=True)
    client.send(b"".join(pub("s.x", b"x") for _ in range(PUBLISHES)))
    config = {"name": "d", "durable_name": "d", "ack_policy": "none", "deliver_subject": "w"}
    body = msgspec.json.encode({"stream_name": "S", "config": config})
    client.send(pub("$JS.API.CONSUMER.CREATE.S.d", body, f"{client.inbox}c"), settle=False)
    rig.turn()
    rig.turn()
    assert 0 < len(reader.messages()) < SUBS * PUBLISHES // 2
    other.send(pub("$JS.API.DIRECT.GET.S", b'{"seq":1000,"batch":2}', f"{other.inbox}b"), settle=False)
    rig.turn()
    rig.turn()
    assert [status(message)[0] for message in other.messages()] == [404]


def test_messages_of_one_subject_stay_in_order_when_most_of_its_subscribers_leave() -> None:
    """What is for few need not wait, unless it was for many a moment ago; whatever was sent in between."""
    rig = Rig()
    reader = rig.client()
    for subject in ("x", "y"):
        reader.send(b"".join(b"SUB %b %b%d\r\n" % (subject.encode(), subject.encode(), n) for n in range(MOST_TARGETS)))
        reader.send(b"SUB %b more-%b\r\n" % (subject.encode(), subject.encode()))
    reader.take()
    router = rig.engine.account().router
    for subject in ("x", "y"):
        router.send(subject, b"", b"first")
    reader.send(b"".join(b"UNSUB x%d\r\n" % n for n in range(MOST_TARGETS)), settle=False)
    router.send("x", b"", b"second")
    rig.settle()
    assert [each.payload for each in reader.messages() if each.subject == "x"] == [b"first", b"second"]

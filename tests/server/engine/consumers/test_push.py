"""Push consumers: subscribers, flow control, heartbeats, deliver groups, rate limits."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.wire import Msg, pub
from tests.server.engine.consumers.kit import MILLISECOND, SECOND, Bench, ack_of, headers, seqs, status, statuses
from tests.server.support import Client, Rig


@pytest.fixture
def bench() -> Bench:
    return Bench(Rig())


def listen(bench: Bench, subject: str = "d", queue: str = "") -> Client:
    client = bench.rig.client()
    client.send(f"SUB {subject} {queue} 9\r\n".encode())
    return client


def push(bench: Bench, name: str = "c", **config: Any) -> dict[str, Any]:
    return bench.create(name, **({"deliver_subject": "d"} | config))


def test_messages_are_pushed_with_their_own_subject(bench: Bench) -> None:
    listener = listen(bench)
    bench.fill("s.a")
    info = push(bench)
    assert info["push_bound"] is True
    bench.fill("s.b")
    first, second = listener.messages()
    assert [(m.subject, m.sid, m.payload) for m in (first, second)] == [("s.a", b"9", b"x"), ("s.b", b"9", b"x")]
    assert ack_of(first)[:5] == ("S", "c", 1, 1, 1)


def test_nothing_is_delivered_without_a_subscriber(bench: Bench) -> None:
    bench.fill("s.a", "s.b")
    assert "push_bound" not in push(bench)
    assert bench.info()["num_pending"] == 2
    listener = listen(bench)
    assert bench.info()["push_bound"] is True
    bench.rig.settle()
    assert bench.info()["delivered"]["consumer_seq"] == 2
    bench.rig.engine.disconnect(listener.cid)
    bench.fill("s.c")
    info = bench.info()
    assert ("push_bound" in info, info["num_pending"]) == (False, 1)


def test_a_wildcard_subscription_does_not_count_as_interest(bench: Bench) -> None:
    listener = bench.rig.client()
    listener.send(b"SUB d.> 9\r\n")
    bench.fill("s.a")
    assert "push_bound" not in push(bench, deliver_subject="d.x")
    assert listener.messages() == []


def test_without_acks_the_floor_follows_the_deliveries(bench: Bench) -> None:
    listener = listen(bench)
    push(bench, ack_policy="none")
    bench.fill("s.a", "s.b")
    assert seqs(listener.messages()) == [1, 2]
    info = bench.info()
    assert info["ack_floor"] == {"consumer_seq": 2, "stream_seq": 2}
    assert info["num_ack_pending"] == 0
    (no_responders,) = bench.client.ask("$JS.ACK.S.c.1.1.1.1.0", b"+ACK")
    assert status(no_responders)[0] == 503


@pytest.mark.spec("SW-12", on="E")
def test_idle_heartbeats_report_the_position(bench: Bench) -> None:
    listener = listen(bench)
    push(bench, idle_heartbeat=SECOND)
    bench.fill("s.a")
    listener.take()
    bench.rig.wait(2.1)
    beats = listener.messages()
    assert [status(beat) for beat in beats] == [(100, "Idle Heartbeat")] * 2
    assert headers(beats[0]) == {"Nats-Last-Consumer": "1", "Nats-Last-Stream": "1"}
    assert beats[0].reply == ""


def test_a_delivery_postpones_the_heartbeat(bench: Bench) -> None:
    listener = listen(bench)
    push(bench, idle_heartbeat=SECOND)
    bench.rig.wait(0.7)
    bench.fill("s.a")
    bench.rig.wait(0.7)
    assert statuses(listener.messages()) == []
    bench.rig.wait(0.4)
    assert statuses(listener.messages()) == [(100, "Idle Heartbeat")]


def flow_requests(messages: list[Msg]) -> list[Msg]:
    return [message for message in messages if status(message) == (100, "FlowControl Request")]


def test_flow_control_stops_at_the_window_until_it_is_answered(bench: Bench) -> None:
    listener = listen(bench)
    bench.fill(*["s.a"] * 12, payload=b"x" * 512 * 1024)
    push(bench, ack_policy="none", flow_control=True, idle_heartbeat=SECOND)
    messages = listener.messages()
    (request,) = flow_requests(messages)
    assert request.reply.startswith("$JS.FC.S.c.")
    assert messages.index(request) == 2  # behind the second message more than half of the window was used
    assert len(seqs(messages)) == 4
    bench.rig.wait(1.1)
    (beat,) = listener.messages()
    assert headers(beat) == {
        "Nats-Last-Consumer": "4", "Nats-Last-Stream": "4", "Nats-Consumer-Stalled": request.reply,
    }  # fmt: skip
    listener.send(pub(request.reply, b""))
    messages = listener.messages()
    assert len(seqs(messages)) >= 4
    for _ in range(4):
        for message in flow_requests(messages):
            listener.send(pub(message.reply, b""))
        messages = listener.messages()
    assert bench.info()["delivered"]["consumer_seq"] == 12


def test_an_old_or_foreign_answer_to_flow_control_changes_nothing(bench: Bench) -> None:
    listener = listen(bench)
    bench.fill(*["s.a"] * 12, payload=b"x" * 512 * 1024)
    push(bench, ack_policy="none", flow_control=True, idle_heartbeat=SECOND)
    listener.take()
    listener.send(pub("$JS.FC.S.c.zzzz", b""))
    assert listener.messages() == []


def test_a_deliver_group_shares_the_messages(bench: Bench) -> None:
    one, two = listen(bench, queue="g"), listen(bench, queue="g")
    other = listen(bench, queue="h")
    push(bench, deliver_group="g")
    bench.client.send(b"".join(pub("s.a", b"") for _ in range(100)))
    first, second = seqs(one.messages()), seqs(two.messages())
    assert sorted(first + second) == list(range(1, 101))
    assert min(len(first), len(second)) > 20
    assert seqs(other.messages()) == list(range(1, 101))  # another group gets its own, by the rules of subjects


def test_only_its_own_group_makes_a_consumer_active(bench: Bench) -> None:
    listen(bench)
    listen(bench, queue="h")
    bench.fill("s.a")
    assert "push_bound" not in push(bench, deliver_group="g")
    member = listen(bench, queue="g")
    assert seqs(member.messages()) == [1]


def test_a_congested_subscriber_blocks_its_consumer(bench: Bench) -> None:
    listener = listen(bench)
    push(bench)
    bench.rig.engine.congested(listener.cid, True)
    bench.fill("s.a", "s.b")
    assert listener.messages() == []
    bench.rig.engine.congested(listener.cid, False)
    bench.rig.settle()
    assert seqs(listener.messages()) == [1, 2]


def test_a_rate_limit_spreads_the_messages_over_time(bench: Bench) -> None:
    listener = listen(bench)
    bench.client.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "storage": "memory", "max_msg_size": 1000})
    bench.fill(*["s.a"] * 5, payload=b"x" * 900)
    push(bench, rate_limit_bps=8 * 1000)
    assert len(seqs(listener.messages())) == 1
    bench.rig.wait(1)
    assert len(seqs(listener.messages())) == 1
    bench.rig.wait(4)
    assert len(seqs(listener.messages())) == 3


def test_replay_at_the_original_speed(bench: Bench) -> None:
    bench.fill("s.a")
    bench.rig.wait(2)
    bench.fill("s.b")
    bench.rig.wait(0.5)
    bench.fill("s.c")
    listener = listen(bench)
    push(bench, replay_policy="original")
    assert seqs(listener.messages()) == [1]
    bench.rig.wait(1.9)
    assert listener.messages() == []
    bench.rig.wait(0.2)
    assert seqs(listener.messages()) == [2]
    bench.rig.wait(0.5)
    assert seqs(listener.messages()) == [3]
    bench.fill("s.d")
    assert seqs(listener.messages()) == [4]


def test_max_ack_pending_stops_and_acks_go_on(bench: Bench) -> None:
    listener = listen(bench)
    push(bench, max_ack_pending=2)
    bench.fill(*["s.a"] * 4)
    first, _ = messages = listener.messages()
    assert seqs(messages) == [1, 2]
    bench.ack(first)
    assert seqs(listener.messages()) == [3]


START = [
    ({"deliver_policy": "all"}, [1, 2, 3, 4, 5]),
    ({"deliver_policy": "last"}, [5]),
    ({"deliver_policy": "last", "filter_subject": "s.a"}, [4]),
    ({"deliver_policy": "new"}, []),
    ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, [3, 4, 5]),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T22:13:22Z"}, [3, 4, 5]),
    ({"deliver_policy": "last_per_subject", "filter_subject": ">"}, [3, 4, 5]),
    ({"deliver_policy": "last_per_subject", "filter_subjects": ["s.a", "s.b"]}, [4, 5]),
]


@pytest.mark.parametrize(("config", "wanted"), START, ids=str)
def test_deliver_policies_choose_the_first_message(bench: Bench, config: dict[str, Any], wanted: list[int]) -> None:
    for subject in ("s.a", "s.b", "s.c", "s.a", "s.b"):
        bench.fill(subject)
        bench.rig.wait(1)
    listener = listen(bench)
    assert push(bench, **config)["num_pending"] == len(wanted)
    messages = listener.messages()
    assert seqs(messages) == wanted
    assert [ack_of(message).pending for message in messages] == list(reversed(range(len(wanted))))
    bench.fill("s.a")
    assert seqs(listener.messages()) == [6]
    assert bench.info()["num_pending"] == 0


def test_last_per_subject_is_counted_through_removals(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.c", "s.a", "s.b")
    push(bench, deliver_policy="last_per_subject", filter_subject="s.>")
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    assert bench.info()["num_pending"] == 3
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 4})
    assert bench.info()["num_pending"] == 2
    bench.fill("s.d")
    listener = listen(bench)
    messages = listener.messages()
    assert seqs(messages) == [3, 5, 6]
    assert [ack_of(message).pending for message in messages] == [2, 1, 0]


def test_messages_published_before_in_the_same_turn_are_not_new(bench: Bench) -> None:
    listener = listen(bench)
    body = b'{"stream_name":"S","config":{"durable_name":"c","deliver_subject":"d","deliver_policy":"new"}}'
    bench.client.send(
        pub("s.a", b"before") + pub("$JS.API.CONSUMER.DURABLE.CREATE.S.c", body, "_INBOX.c1.q") + pub("s.a", b"after")
    )
    assert [message.payload for message in listener.messages()] == [b"after"]


@pytest.mark.spec("RW-12", on="E")
def test_a_consumer_waits_for_min_last_seq(bench: Bench) -> None:
    listener = listen(bench)
    bench.fill("s.a", "s.b")
    assert "error" not in push(bench, min_last_seq=4, filter_subject="s.a")
    assert bench.info()["config"]["min_last_seq"] == 4
    bench.create("pulled", min_last_seq=4)
    assert bench.pull(9, "pulled", expires=60 * SECOND) == []
    bench.fill("s.a")
    assert listener.messages() == []
    bench.client.take()
    bench.client.send(pub("s.a", b""))
    messages = listener.messages()
    assert seqs(messages) == [1, 3, 4]
    assert [ack_of(message).pending for message in messages] == [2, 1, 0]
    pulled = bench.client.messages()
    assert [(ack_of(m).seq, ack_of(m).pending) for m in pulled] == [(1, 3), (2, 2), (3, 1), (4, 0)]


def test_last_per_subject_is_looked_up_once_min_last_seq_is_reached(bench: Bench) -> None:
    listener = listen(bench)
    bench.fill("s.a", "s.b")
    push(bench, min_last_seq=3, deliver_policy="last_per_subject", filter_subject="s.>")
    bench.fill("s.a")
    assert seqs(listener.messages()) == [2, 3]


def test_an_ephemeral_without_subscriber_is_deleted(bench: Bench) -> None:
    listener = listen(bench)
    name = bench.request("CREATE.S", {"deliver_subject": "d"})["name"]
    assert len(name) == 8
    bench.rig.wait(30)
    assert bench.client.api("CONSUMER.NAMES.S")["consumers"] == [name]
    listener.send(b"UNSUB 9\r\n")
    bench.rig.wait(4.9)
    assert bench.client.api("CONSUMER.NAMES.S")["consumers"] == [name]
    bench.rig.wait(0.2)
    assert bench.client.api("CONSUMER.NAMES.S")["consumers"] == []


def test_a_returning_subscriber_keeps_its_ephemeral(bench: Bench) -> None:
    listener = listen(bench)
    bench.request("CREATE.S", {"deliver_subject": "d", "inactive_threshold": 2 * SECOND})
    listener.send(b"UNSUB 9\r\n")
    bench.rig.wait(1.5)
    listener.send(b"SUB d 9\r\n")
    bench.rig.wait(5)
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 1


def test_a_changed_deliver_subject_redelivers_all_pending(bench: Bench) -> None:
    listener = listen(bench)
    push(bench)
    bench.fill("s.a", "s.b")
    assert push(bench, deliver_subject="e")["error"]["err_code"] == 10013
    listener.send(b"UNSUB 9\r\n")
    second = listen(bench, "e")
    assert "error" not in push(bench, deliver_subject="e")
    bench.rig.settle()
    assert [(ack_of(m).seq, ack_of(m).times) for m in second.messages()] == [(1, 2), (2, 2)]


def test_another_subscriber_of_ack_subjects_gets_them_too(bench: Bench) -> None:
    """Another subscriber of the ack subjects gets the acks, and so does the consumer."""
    listener, watcher = listen(bench), bench.rig.client()
    push(bench)
    bench.fill("s.a")
    (message,) = listener.messages()
    watcher.send(b"SUB $JS.ACK.> 5\r\n")
    bench.ack(message)
    assert [seen.payload for seen in watcher.messages()] == [b"+ACK"]
    assert bench.info()["num_ack_pending"] == 0
    watcher.send(b"UNSUB 5\r\n")
    bench.fill("s.a")
    bench.ack(listener.messages()[0])
    assert bench.info()["num_ack_pending"] == 0


def test_a_pause_is_not_longer_than_it_was_asked_to_be(bench: Bench) -> None:
    listener = listen(bench)
    push(bench)
    until = bench.rig.now + 3 * SECOND + 5 * MILLISECOND
    answer = bench.client.api("CONSUMER.PAUSE.S.c", {"pause_until": "2023-11-14T22:13:23.005Z"})
    assert (answer["paused"], answer["pause_remaining"]) == (True, until - bench.rig.now)
    bench.fill("s.a")
    assert listener.messages() == []
    assert (bench.info()["paused"], bench.info()["pause_remaining"]) == (True, until - bench.rig.now)
    bench.rig.wait(3.01)
    assert seqs(listener.messages()) == [1]
    assert "paused" not in bench.info()


def test_a_limited_subscription_gets_its_messages_and_the_next_one_the_rest() -> None:
    bench = Bench(Rig())
    bench.fill(*["s.a"] * 5)
    first, second = bench.rig.client(), bench.rig.client()
    first.send(b"SUB d 5\r\nUNSUB 5 3\r\n")
    bench.create(deliver_subject="d", headers_only=True, ack_policy="none")
    assert seqs([message for message in first.messages() if message.sid == b"5"]) == [1, 2, 3]
    second.send(b"SUB d 5\r\n")
    assert seqs([message for message in second.messages() if message.sid == b"5"]) == [4, 5]


def test_a_tiny_inactive_threshold_costs_nothing_while_subscribed() -> None:
    bench = Bench(Rig())
    bench.client.send(b"SUB d 7\r\n")
    bench.request("CREATE.S.p", {"name": "p", "deliver_subject": "d", "inactive_threshold": 1_000})
    bench.rig.now += SECOND
    bench.rig.engine.timers.due(bench.rig.now)
    deadline = bench.rig.engine.timers.next_deadline()
    assert deadline is None or deadline - bench.rig.now > SECOND
    assert "error" not in bench.info("p")
    bench.client.send(b"UNSUB 7\r\n")
    bench.rig.wait(1)
    assert bench.info("p")["error"]["err_code"] == 10014

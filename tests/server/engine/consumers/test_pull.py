"""Pull consumers: requests, what they get, and what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.server import Permissions, User
from slipstream.wire import pub
from tests.server.engine.consumers.kit import SECOND, Bench, ack_of, headers, seqs, status, statuses
from tests.server.support import HELLO, Client, Rig

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.c"


@pytest.fixture
def bench() -> Bench:
    bench = Bench(Rig())
    bench.create()
    return bench


def test_a_pull_with_an_empty_body_gets_one_message(bench: Bench) -> None:
    bench.fill("s.a", "s.b")
    bench.client.take()
    bench.client.send(pub(NEXT, b"", "_INBOX.c1.pull"))
    (message,) = bench.client.messages()
    assert (message.subject, message.payload) == ("s.a", b"x")
    ack = ack_of(message)
    assert ack[:5] == ("S", "c", 1, 1, 1)
    assert ack.pending == 1
    assert ack.time == bench.rig.now


@pytest.mark.parametrize(("body", "count"), [(b"3", 3), (b"{}", 1), (b'{"batch":0}', 1), (b"nonsense", 1), (b"-1", 1)])
def test_the_body_may_be_a_number_or_left_open(bench: Bench, body: bytes, count: int) -> None:
    bench.fill(*["s.a"] * 5)
    bench.client.take()
    bench.client.send(pub(NEXT, body, "_INBOX.c1.pull"))
    assert len(bench.client.messages()) == count


def test_a_malformed_body_is_rejected(bench: Bench) -> None:
    bench.client.take()
    bench.client.send(pub(NEXT, b'{"batch":"x"}', "_INBOX.c1.pull"))
    (message,) = bench.client.messages()
    assert status(message)[0] == 400
    assert status(message)[1].startswith("Bad Request - ")


def test_a_request_waits_until_it_is_filled(bench: Bench) -> None:
    assert bench.pull(2) == []
    assert bench.info()["num_waiting"] == 1
    bench.fill("s.a")
    assert bench.info()["num_waiting"] == 1
    bench.fill("s.b")
    assert bench.info()["num_waiting"] == 0
    assert bench.info()["num_ack_pending"] == 2


def test_an_expired_request_reports_pending_messages_and_bytes(bench: Bench) -> None:
    bench.fill("s.a")
    assert seqs(bench.pull(3, expires=SECOND)) == [1]
    bench.rig.wait(0.9)
    assert bench.client.messages() == []
    bench.rig.wait(0.2)
    (end,) = bench.client.messages()
    assert status(end) == (408, "Request Timeout")
    assert headers(end) == {"Nats-Pending-Messages": "2", "Nats-Pending-Bytes": "0"}


def test_no_wait_gets_the_available_messages_and_then_no_messages(bench: Bench) -> None:
    bench.fill("s.a", "s.b")
    answers = bench.pull(5, no_wait=True)
    assert seqs(answers) == [1, 2]
    assert statuses(answers) == [(404, "No Messages")]
    assert statuses(bench.pull(5, no_wait=True)) == [(404, "No Messages")]
    assert bench.info()["num_waiting"] == 0


def test_no_wait_wins_over_expires(bench: Bench) -> None:
    assert statuses(bench.pull(5, no_wait=True, expires=10 * SECOND)) == [(404, "No Messages")]


def test_no_wait_with_heartbeats_waits_for_its_first_message(bench: Bench) -> None:
    """As on nats-server; the fetch of nats-py counts on it."""
    body: dict[str, Any] = {"no_wait": True, "expires": 10 * SECOND, "idle_heartbeat": 3 * SECOND}
    assert bench.pull(5, **body) == []
    bench.rig.wait(4)
    assert statuses(bench.client.messages()) == [(100, "Idle Heartbeat")]
    bench.client.send(pub("s.a", b"x", ""))
    answers = bench.client.messages()
    assert (seqs(answers), statuses(answers)) == ([1], [(404, "No Messages")])
    bench.fill("s.b", "s.c")
    answers = bench.pull(5, **body)
    assert (seqs(answers), statuses(answers)) == ([2, 3], [(404, "No Messages")])
    assert bench.pull(5, **body) == []
    bench.rig.wait(11)
    assert statuses(bench.client.messages())[-1] == (408, "Request Timeout")


def test_no_wait_with_heartbeats_does_not_wait_for_acks(bench: Bench) -> None:
    bench.create(max_ack_pending=2)
    bench.fill("s.a", "s.b", "s.c")
    answers = bench.pull(5, no_wait=True, expires=10 * SECOND, idle_heartbeat=SECOND)
    assert (seqs(answers), statuses(answers)) == ([1, 2], [(404, "No Messages")])


def test_no_wait_does_not_overtake_waiting_requests(bench: Bench) -> None:
    other = bench.rig.client()
    bench.create(max_ack_pending=1)
    bench.fill("s.a", "s.b", "s.c")
    assert seqs(bench.pull(5, client=other)) == [1]
    assert statuses(bench.pull(5, no_wait=True)) == [(408, "Requests Pending")]


def test_an_expiry_of_zero_or_less_is_none(bench: Bench) -> None:
    assert bench.pull(1, expires=-5) == []
    bench.rig.wait(100)
    assert bench.client.messages() == []
    assert bench.info()["num_waiting"] == 1


def test_max_bytes_ends_a_request_before_a_message_that_is_too_large(bench: Bench) -> None:
    bench.fill("s.a", payload=b"y" * 100)
    bench.fill("s.b", payload=b"z" * 500)
    answers = bench.pull(10, max_bytes=400, expires=SECOND)
    assert seqs(answers) == [1]
    (end,) = (message for message in answers if status(message)[0])
    assert status(end) == (409, "Message Size Exceeds MaxBytes")
    used = len("s.a") + len(answers[0].reply) + 100
    assert headers(end) == {"Nats-Pending-Messages": "9", "Nats-Pending-Bytes": str(400 - used)}


def test_a_filled_request_says_how_many_bytes_are_left_of_its_bound(bench: Bench) -> None:
    bench.fill("s.a")
    message, end = bench.pull(1, max_bytes=1000)
    assert status(end) == (409, "Batch Completed")
    used = len("s.a") + len(message.reply) + 1
    assert headers(end) == {"Nats-Pending-Messages": "0", "Nats-Pending-Bytes": str(1000 - used)}


def test_an_idle_request_gets_heartbeats(bench: Bench) -> None:
    bench.fill("s.a")
    bench.pull(2, expires=10 * SECOND, idle_heartbeat=SECOND)
    bench.rig.wait(2.5)
    beats = bench.client.messages()
    assert [status(beat) for beat in beats] == [(100, "Idle Heartbeat")] * 2
    assert headers(beats[0]) == {"Nats-Last-Consumer": "1", "Nats-Last-Stream": "1"}


def test_a_heartbeat_longer_than_half_the_expiry_is_rejected(bench: Bench) -> None:
    (answer,) = bench.pull(1, expires=SECOND, idle_heartbeat=SECOND)
    assert status(answer) == (400, "Bad Request - heartbeat value too large")


def test_a_request_ends_with_its_inbox_subscription(bench: Bench) -> None:
    other = bench.rig.client()
    bench.ask_for(1, client=other)
    other.send(b"UNSUB inbox\r\n")
    assert bench.info()["num_waiting"] == 0
    bench.fill("s.a")
    assert seqs(bench.pull(1)) == [1]


def test_the_requests_of_a_disconnected_client_end(bench: Bench) -> None:
    other = bench.rig.client()
    bench.ask_for(1, client=other)
    assert bench.info()["num_waiting"] == 1
    bench.rig.engine.disconnect(other.cid)
    bench.fill("s.a")
    assert bench.info()["num_waiting"] == 0
    assert seqs(bench.pull(1)) == [1]


def test_a_request_beyond_max_waiting_is_rejected(bench: Bench) -> None:
    bench.create("few", max_waiting=2)
    for _ in range(2):
        assert bench.pull(1, "few") == []
    assert statuses(bench.pull(1, "few")) == [(409, "Exceeded MaxWaiting")]
    assert bench.info("few")["num_waiting"] == 2
    assert bench.info()["config"]["max_waiting"] == 512


def test_a_request_with_heartbeats_beyond_max_waiting_gets_no_status(bench: Bench) -> None:
    bench.create("few", max_waiting=1)
    bench.pull(1, "few")
    assert bench.pull(1, "few", expires=10 * SECOND, idle_heartbeat=SECOND) == []


def test_requests_share_the_messages(bench: Bench) -> None:
    first, second = bench.rig.client(), bench.rig.client()
    bench.ask_for(10, client=first)
    bench.ask_for(10, client=second)
    bench.client.send(b"".join(pub("s.a", b"") for _ in range(10)))
    one, two = seqs(first.messages()), seqs(second.messages())
    assert sorted(one + two) == list(range(1, 11))
    assert len(one) == len(two) == 5


def test_request_limits_are_enforced(bench: Bench) -> None:
    bench.create("small", max_batch=2, max_expires=SECOND, max_bytes=100)
    refusals = [
        statuses(bench.pull(3, "small")),
        statuses(bench.pull(1, "small", expires=2 * SECOND)),
        statuses(bench.pull(1, "small", max_bytes=101)),
    ]
    assert refusals == [
        [(409, "Exceeded MaxRequestBatch of 2")],
        [(409, "Exceeded MaxRequestExpires of 1s")],
        [(409, "Exceeded MaxRequestMaxBytes of 100")],
    ]


def test_a_deleted_consumer_ends_waiting_requests(bench: Bench) -> None:
    waiting = bench.rig.client()
    bench.ask_for(1, client=waiting, expires=SECOND)
    assert bench.client.api("CONSUMER.DELETE.S.c")["success"] is True
    assert statuses(waiting.messages()) == [(409, "Consumer Deleted")]
    bench.ask_for(1, client=waiting)
    (no_responders,) = waiting.messages()
    assert status(no_responders)[0] == 503


def test_a_server_shutdown_ends_waiting_requests(bench: Bench) -> None:
    bench.ask_for(3, expires=10 * SECOND)
    bench.rig.engine.retire()
    bench.rig.settle()
    (end,) = bench.client.messages()
    assert status(end) == (409, "Server Shutdown")
    assert headers(end)["Nats-Pending-Messages"] == "3"


def test_a_pull_from_a_push_consumer_is_rejected(bench: Bench) -> None:
    bench.create("p", deliver_subject="d")
    assert statuses(bench.pull(1, "p")) == [(409, "Consumer is push based")]


def test_filters_select_and_count_messages(bench: Bench) -> None:
    bench.fill("s.a.1", "s.b.1", "s.c.1", "s.a.2", "s.b.2")
    bench.create("one", filter_subject="s.a.*")
    bench.create("two", filter_subjects=["s.b.>", "s.c.1"])
    assert (bench.info("one")["num_pending"], bench.info("two")["num_pending"]) == (2, 3)
    assert seqs(bench.pull(9, "one")) == [1, 4]
    two = bench.pull(9, "two")
    assert seqs(two) == [2, 3, 5]
    assert [ack_of(message).pending for message in two] == [2, 1, 0]


def test_filters_that_share_subjects_deliver_and_count_once(bench: Bench) -> None:
    bench.fill("s.b.c", "s.x.c", "s.b.y", "s.n.n")
    assert bench.create("both", filter_subjects=["s.*.c", "s.b.*"])["num_pending"] == 3
    assert seqs(bench.pull(9, "both")) == [1, 2, 3]


def test_headers_only_reports_the_payload_size(bench: Bench) -> None:
    bench.create("bare", headers_only=True)
    bench.client.publish("s.a", b"12345", Own="yes")
    bench.fill("s.b", payload=b"123")
    first, second = bench.pull(2, "bare")
    assert (first.payload, headers(first)) == (b"", {"Own": "yes", "Nats-Msg-Size": "5"})
    assert (second.payload, headers(second)) == (b"", {"Nats-Msg-Size": "3"})


def test_num_pending_is_exact_through_removals(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.a", "s.b", "s.a")
    bench.create("some", filter_subject="s.a")
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 3})
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    assert (bench.info()["num_pending"], bench.info("some")["num_pending"]) == (3, 2)
    assert seqs(bench.pull(1, "some")) == [1]
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    assert bench.info("some")["num_pending"] == 1
    bench.fill("s.a")
    assert (bench.info()["num_pending"], bench.info("some")["num_pending"]) == (3, 2)
    bench.client.api("STREAM.PURGE.S", {"filter": "s.a"})
    assert (bench.info()["num_pending"], bench.info("some")["num_pending"]) == (1, 0)
    bench.client.api("STREAM.PURGE.S")
    assert (bench.info()["num_pending"], bench.info("some")["num_pending"]) == (0, 0)
    bench.fill("s.a")
    assert seqs(bench.pull(5, "some", no_wait=True)) == [7]


def test_messages_that_limits_remove_are_not_counted_any_more() -> None:
    bench = Bench(Rig(), max_msgs=3)
    bench.create()
    bench.fill(*["s.a"] * 10)
    assert bench.info()["num_pending"] == 3
    assert seqs(bench.pull(5, no_wait=True)) == [8, 9, 10]


def test_a_large_batch_takes_several_chunks(bench: Bench) -> None:
    bench.create("all", max_ack_pending=-1)
    bench.client.send(b"".join(pub("s.a", b"%d" % i) for i in range(1500)))
    messages = bench.pull(1400, "all")
    assert seqs(messages) == list(range(1, 1401))
    assert ack_of(messages[-1]).pending == 100


def test_a_congested_client_waits_and_others_do_not(bench: Bench) -> None:
    slow, quick = bench.rig.client(), bench.rig.client()
    bench.ask_for(5, client=slow)
    bench.ask_for(5, client=quick)
    bench.rig.engine.congested(slow.cid, True)
    bench.fill(*["s.a"] * 3)
    assert (seqs(slow.messages()), seqs(quick.messages())) == ([], [1, 2, 3])
    bench.fill("s.a", "s.a", "s.a")
    assert (seqs(slow.messages()), seqs(quick.messages())) == ([], [4, 5])
    bench.rig.engine.congested(slow.cid, False)
    bench.rig.settle()
    assert seqs(slow.messages()) == [6]


def test_ack_and_next_in_one(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.c")
    (message,) = bench.pull(1)
    bench.client.take()
    bench.client.send(pub(message.reply, b"+NXT", "_INBOX.c1.next"))
    assert seqs(bench.client.messages()) == [2]
    assert bench.info()["ack_floor"]["stream_seq"] == 1
    bench.client.send(pub(message.reply, b'+NXT {"batch":1,"no_wait":true}', "_INBOX.c1.next"))
    assert seqs(bench.client.messages()) == [3]


def test_overlapping_pulls_of_one_client_stay_in_order(bench: Bench) -> None:
    client = bench.rig.client()
    client.send(b"SUB _INBOX.other.1 7\r\n")
    client.send(pub(NEXT, b"5", "_INBOX.other.1") + pub(NEXT, b"5", f"{client.inbox}2"))
    client.send(pub(NEXT, b'{"batch":3,"max_bytes":100000}', f"{client.inbox}3"))
    bench.client.send(b"".join(pub("s.a", b"") for _ in range(20)))
    assert seqs(client.messages()) == list(range(1, 14))


def test_a_subscription_that_ends_after_some_messages_gets_those_and_no_more(bench: Bench) -> None:
    client = bench.rig.client()
    client.send(b"SUB _INBOX.few 7\r\nUNSUB 7 3\r\n" + pub(NEXT, b"10", "_INBOX.few"))
    bench.client.send(b"".join(pub("s.a", b"") for _ in range(5)))
    assert seqs(client.messages()) == [1, 2, 3]
    info = bench.info()
    assert (info["num_waiting"], info["num_ack_pending"], info["num_pending"]) == (0, 3, 2)


def test_two_subscribers_of_one_inbox_both_get_the_message(bench: Bench) -> None:
    one, two = bench.rig.client(), bench.rig.client()
    for client in (one, two):
        client.send(b"SUB _INBOX.shared 7\r\n")
    one.send(pub(NEXT, b"2", "_INBOX.shared"))
    bench.fill("s.a", "s.b")
    assert seqs(one.messages()) == seqs(two.messages()) == [1, 2]


def test_a_subscription_that_ends_during_a_chunk_gets_no_more() -> None:
    """Through the router: two listeners, and both are to end after one message."""
    bench = Bench(Rig())
    bench.create()
    one, two = bench.rig.client(), bench.rig.client()
    for client in (one, two):
        client.send(b"SUB _INBOX.shared 7\r\nUNSUB 7 1\r\n")
    one.send(pub(NEXT, b"5", "_INBOX.shared"))
    bench.client.send(pub("s.a", b"") + pub("s.b", b""))
    assert seqs(one.messages()) == [1]
    assert (bench.info()["num_ack_pending"], bench.info()["num_pending"]) == (1, 1)


def test_permissions_apply_to_the_inbox_and_not_to_the_message() -> None:
    may = Permissions(subscribe=("_INBOX.>",), subscribe_deny=("s.>", "_INBOX.no"))
    users = (User(name="all", password="p"), User(name="joe", password="p", permissions=may))
    rig = Rig(users=users)

    def client(name: str) -> Client:
        hello = HELLO.replace(b"{", b'{"user":"%b","pass":"p",' % name.encode(), 1)
        return rig.client(hello)

    owner, joe = client("all"), client("joe")
    owner.create("S")
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    owner.api("CONSUMER.CREATE.S.c", body)
    owner.publish("s.a")
    joe.take()
    joe.send(pub(NEXT, b"1", f"{joe.inbox}1"))
    (message,) = joe.messages()
    assert message.subject == "s.a"
    joe.send(pub(message.reply, b"+ACK"))
    assert owner.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0


@pytest.mark.parametrize("how", ["delete", "purge"])
def test_last_per_subject_stays_exact_when_some_messages_are_removed(bench: Bench, how: str) -> None:
    """What came before them does not come in their place, and nothing is counted twice."""
    bench.fill("s.x", "s.y", "s.y", "s.y")
    last = bench.client.api("STREAM.INFO.S")["state"]["last_seq"]
    bench.create("last", deliver_policy="last_per_subject", filter_subjects=["s.x", "s.y"])
    assert seqs(bench.pull(1, "last")) == [last - 3]
    if how == "delete":
        bench.client.api("STREAM.MSG.DELETE.S", {"seq": last})
    else:
        bench.client.api("STREAM.PURGE.S", {"filter": "s.y", "keep": 2})
        bench.client.api("STREAM.MSG.DELETE.S", {"seq": last})
    assert bench.info("last")["num_pending"] == 0
    bench.fill("s.x")
    (message, end) = bench.pull(5, "last", no_wait=True)
    assert (ack_of(message).seq, ack_of(message).pending) == (last + 1, 0)
    assert status(end) == (404, "No Messages")


# F19: a pull that does not wait
@pytest.mark.spec("PS-07", on="E")
def test_no_wait_is_answered_at_once_where_others_wait_for_acks(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.c")
    bench.create("few", max_ack_pending=2)
    assert [status(answer) for answer in bench.pull(1, "few", no_wait=True)] == [(0, "")]
    answers = bench.pull(5, "few", no_wait=True)
    assert (seqs(answers), statuses(answers)) == ([2], [(404, "No Messages")])
    assert statuses(bench.pull(1, "few", no_wait=True)) == [(404, "No Messages")]
    assert statuses(bench.pull(1, "few", no_wait=True, expires=SECOND)) == [(404, "No Messages")]
    assert bench.info("few")["num_waiting"] == 0


@pytest.mark.spec("PS-07", on="E")
def test_no_wait_is_answered_at_once_while_the_consumer_waits_for_its_sequence(bench: Bench) -> None:
    bench.fill("s.a")
    bench.create("late", min_last_seq=2)
    assert statuses(bench.pull(1, "late", no_wait=True)) == [(404, "No Messages")]
    assert bench.pull(1, "late") == []
    bench.client.send(pub("s.b", b"x"))
    assert seqs(bench.client.messages()) == [1]
    assert seqs(bench.pull(1, "late", no_wait=True)) == [2]


def test_changed_filters_apply_to_the_rest_of_last_per_subject(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.c")
    bench.create("last", deliver_policy="last_per_subject", filter_subjects=["s.a", "s.b", "s.c"])
    assert seqs(bench.pull(1, "last")) == [1]
    bench.create("last", deliver_policy="last_per_subject", filter_subjects=["s.c", "s.d"])
    assert bench.info("last")["num_pending"] == 1
    bench.fill("s.b", "s.d")
    assert seqs(bench.pull(9, "last", no_wait=True)) == [3, 5]


def test_a_consumer_is_in_use_while_messages_wait_for_their_acks() -> None:
    """A client may be at work on a message until its ack wait is over, without any request."""
    bench = Bench(Rig())
    bench.fill("s.1")
    bench.create("e", durable_name="", inactive_threshold=SECOND, ack_wait=30 * SECOND)
    (message,) = bench.pull(1, "e")
    bench.rig.wait(25)
    assert bench.ack(message, sync=True) != []
    assert bench.info("e")["num_ack_pending"] == 0
    bench.rig.wait(7)
    assert bench.info("e")["error"]["err_code"] == 10014
    bench.create("e", durable_name="", inactive_threshold=SECOND, ack_wait=30 * SECOND, max_deliver=1)
    bench.pull(1, "e")
    bench.rig.wait(29)
    assert bench.info("e")["num_ack_pending"] == 1
    bench.rig.wait(40)
    assert bench.info("e")["error"]["err_code"] == 10014


def test_a_deeply_nested_body_is_rejected() -> None:
    bench = Bench(Rig())
    bench.fill("s.1")
    bench.create()
    deep = b'{"a":' * 60_000
    (answer,) = bench.client.ask("$JS.API.CONSUMER.MSG.NEXT.S.c", deep)
    assert b"400" in answer.header
    (message,) = bench.pull()
    bench.ack(message, b"-NAK " + deep)  # one that cannot be read asks for no pause
    assert len(bench.pull()) == 1


def test_messages_before_a_start_in_the_future_are_not_pending(bench: Bench) -> None:
    bench.create("later", deliver_policy="by_start_sequence", opt_start_seq=4)
    bench.create("filtered", deliver_policy="by_start_sequence", opt_start_seq=4, filter_subject="s.a")
    bench.fill("s.a", "s.b")
    assert [bench.info(name)["num_pending"] for name in ("later", "filtered")] == [0, 0]
    bench.fill("s.a", "s.a", "s.b", "s.a")
    assert [bench.info(name)["num_pending"] for name in ("later", "filtered")] == [3, 2]
    assert [ack_of(message).seq for message in bench.pull(9, "later", no_wait=True)[:3]] == [4, 5, 6]


def test_a_commit_wakes_no_consumer_without_requests(bench: Bench) -> None:
    engine = bench.rig.engine
    bench.create("d")
    bench.client.send(pub("s.a", b"x"), settle=False)
    bench.rig.commit()
    assert not engine.has_new_jobs
    bench.ask_for(2)  # one message is there
    bench.client.send(pub("s.b", b"y"), settle=False)
    bench.rig.commit()
    assert engine.has_new_jobs
    bench.rig.settle()
    assert seqs(bench.client.messages())[-1:] == [2]
    assert bench.info("d")["num_pending"] == 2
    assert seqs(bench.pull(2, "d")) == [1, 2]

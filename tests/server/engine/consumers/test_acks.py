"""Acks of all kinds, redelivery, and their advisories."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.wire import Msg, pub
from tests.server.engine.consumers.kit import SECOND, Bench, ack_of, seqs, status
from tests.server.support import Client, Rig


@pytest.fixture
def bench() -> Bench:
    bench = Bench(Rig())
    bench.fill(*["s.a"] * 5)
    return bench


def floor(bench: Bench) -> tuple[int, int]:
    info = bench.info()["ack_floor"]
    return info["consumer_seq"], info["stream_seq"]


def events(bench: Bench) -> Client:
    client = bench.rig.client()
    client.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.> 1\r\nSUB $JS.EVENT.METRIC.> 2\r\n")  # without audits of requests
    return client


def advisories(client: Client) -> list[tuple[str, dict[str, Any]]]:
    """Advisories: the end of their subject and what they say."""
    found = []
    for message in client.messages():
        body = msgspec.json.decode(message.payload)
        assert body.pop("id")
        assert body.pop("timestamp")
        found.append((message.subject.removeprefix("$JS.EVENT."), body))
    return found


def again(messages: list[Msg]) -> list[tuple[int, int]]:
    return [(ack_of(message).seq, ack_of(message).times) for message in messages if not status(message)[0]]


def test_the_ack_floor_is_below_the_oldest_unacked_message(bench: Bench) -> None:
    bench.create()
    messages = bench.pull(4)
    bench.ack(messages[1])
    assert floor(bench) == (0, 0)
    bench.ack(messages[0])
    assert floor(bench) == (2, 2)
    bench.ack(messages[3])
    assert floor(bench) == (2, 2)
    bench.ack(messages[2])
    assert floor(bench) == (4, 4)
    assert bench.info()["num_ack_pending"] == 0


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+OK"])
def test_what_counts_as_an_ack(bench: Bench, body: bytes) -> None:
    bench.create()
    bench.ack(bench.pull()[0], body)
    assert floor(bench) == (1, 1)


def test_an_ack_with_a_reply_is_answered_when_it_is_durable(bench: Bench) -> None:
    bench.create()
    (message,) = bench.pull()
    bench.client.take()
    bench.client.send(pub(message.reply, b"+ACK", "_INBOX.c1.sync"), settle=False)
    bench.rig.engine.step(bench.rig.now)
    bench.rig.flush()
    assert bench.client.messages() == []
    bench.rig.settle()
    (answer,) = bench.client.messages()
    assert (answer.subject, answer.payload) == ("_INBOX.c1.sync", b"")


def test_a_second_ack_is_answered_and_changes_nothing(bench: Bench) -> None:
    bench.create()
    first, _ = bench.pull(2)
    for _ in range(2):
        assert len(bench.ack(first, sync=True)) == 1
    assert floor(bench) == (1, 1)


def test_an_ack_of_an_undelivered_message_is_ignored(bench: Bench) -> None:
    bench.create()
    bench.pull()
    assert bench.client.ask("$JS.ACK.S.c.1.4.4.1.0", b"+ACK") == []
    assert bench.client.ask("$JS.ACK.S.c.1.x.4.1.0", b"+ACK") == []
    assert floor(bench) == (0, 0)


def test_the_longer_form_of_ack_subjects_is_understood(bench: Bench) -> None:
    bench.create()
    ack = ack_of(bench.pull()[0])
    (answer,) = bench.client.ask(f"$JS.ACK._.hash.S.c.1.{ack.seq}.{ack.dseq}.{ack.time}.0.more", b"+ACK")
    assert answer.payload == b""
    assert floor(bench) == (1, 1)


def test_a_cumulative_ack_settles_all_before(bench: Bench) -> None:
    bench.create(ack_policy="all")
    messages = bench.pull(4)
    bench.ack(messages[2])
    assert floor(bench) == (3, 3)
    assert bench.info()["num_ack_pending"] == 1
    bench.ack(messages[0])
    assert floor(bench) == (3, 3)
    bench.ack(messages[3])
    assert bench.info()["num_ack_pending"] == 0


def test_messages_not_acked_in_time_are_redelivered(bench: Bench) -> None:
    bench.create(ack_wait=SECOND)
    bench.ack(bench.pull(2, expires=20 * SECOND)[0])
    bench.ask_for(5, expires=60 * SECOND)
    bench.client.take()
    bench.rig.wait(0.99)
    assert bench.client.messages() == []
    bench.rig.wait(0.1)
    assert again(bench.client.messages()) == [(2, 2), (3, 2)]
    assert bench.info()["num_redelivered"] == 2
    assert bench.info()["delivered"] == {
        "consumer_seq": 7, "stream_seq": 5, "last_active": "2023-11-14T22:13:21Z",
    }  # fmt: skip


def test_a_redelivered_message_has_its_ack_count_for_it(bench: Bench) -> None:
    bench.create(ack_wait=SECOND)
    bench.pull()
    bench.rig.wait(1.1)
    (message,) = bench.pull()
    assert (ack_of(message).seq, ack_of(message).times, ack_of(message).dseq) == (1, 2, 2)
    bench.ack(message)
    info = bench.info()
    assert (info["num_redelivered"], info["num_ack_pending"]) == (0, 0)
    assert floor(bench) == (2, 1)


def test_backoff_sets_the_pace_of_redeliveries(bench: Bench) -> None:
    config = bench.create(backoff=[SECOND, 3 * SECOND], max_deliver=4, max_ack_pending=1)["config"]
    assert config["ack_wait"] == SECOND
    bench.pull(1)
    times = []
    start = bench.rig.now
    for _ in range(3):
        bench.ask_for(1)
        while not bench.client.messages():
            bench.rig.wait(0.25)
        times.append((bench.rig.now - start) // (SECOND // 4) / 4)
    assert times == [1, 4, 7]


def test_a_message_is_given_up_after_max_deliver_with_an_advisory(bench: Bench) -> None:
    listener = events(bench)
    bench.create(ack_wait=SECOND, max_deliver=2, filter_subject="s.a")
    listener.take()
    bench.pull(1)
    bench.rig.wait(1.1)
    assert again(bench.pull(1)) == [(1, 2)]
    bench.rig.wait(1.1)
    ((subject, body),) = advisories(listener)
    assert subject == "ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"
    assert body == {
        "type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "S", "consumer": "c", "stream_seq": 1,
        "deliveries": 2,
    }  # fmt: skip
    assert again(bench.pull(1)) == [(2, 1)]
    bench.rig.wait(5)
    assert bench.info()["num_redelivered"] >= 1
    assert (1, 3) not in again(bench.pull(5, no_wait=True))


def test_one_delivery_only(bench: Bench) -> None:
    listener = events(bench)
    bench.create(ack_wait=SECOND, max_deliver=1)
    listener.take()
    bench.pull(1)
    bench.rig.wait(1.1)
    assert [subject for subject, _ in advisories(listener)] == ["ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"]
    assert bench.info()["num_redelivered"] == 0
    assert floor(bench) == (1, 1)


def test_a_nak_redelivers_the_message_at_once(bench: Bench) -> None:
    listener = events(bench)
    bench.create()
    listener.take()
    (message,) = bench.pull()
    bench.ack(message, b"-NAK")
    assert again(bench.pull()) == [(1, 2)]
    ((subject, body),) = advisories(listener)
    assert subject == "ADVISORY.CONSUMER.MSG_NAKED.S.c"
    assert body == {
        "type": "io.nats.jetstream.advisory.v1.nak", "stream": "S", "consumer": "c", "consumer_seq": 1,
        "stream_seq": 1, "deliveries": 1,
    }  # fmt: skip


@pytest.mark.parametrize("delay", [b'{"delay": 2000000000}', b"2s", b"1.5s500ms"])
def test_a_nak_may_ask_for_a_delay(bench: Bench, delay: bytes) -> None:
    bench.create()
    (message,) = bench.pull()
    bench.ack(message, b"-NAK " + delay)
    bench.ask_for(9)
    assert seqs(bench.client.messages()) == [2, 3, 4, 5]
    bench.rig.wait(1.95)
    assert bench.client.messages() == []
    bench.rig.wait(0.1)
    assert again(bench.client.messages()) == [(1, 2)]


def test_a_malformed_nak_delay_is_ignored(bench: Bench) -> None:
    bench.create()
    (message,) = bench.pull()
    bench.ack(message, b"-NAK soon")
    assert again(bench.pull()) == [(1, 2)]


def test_a_nak_delay_also_holds_with_backoff(bench: Bench) -> None:
    bench.create(backoff=[SECOND, 30 * SECOND])
    bench.pull()
    bench.rig.wait(1.1)
    (message,) = bench.pull()
    bench.ack(message, b"-NAK 2s")
    bench.rig.wait(2.1)
    assert again(bench.pull()) == [(1, 3)]


def test_work_in_progress_postpones_the_redelivery(bench: Bench) -> None:
    bench.create(ack_wait=SECOND)
    (message,) = bench.pull()
    for _ in range(3):
        bench.rig.wait(0.8)
        bench.ack(message, b"+WPI")
    assert seqs(bench.pull()) == [2]
    bench.rig.wait(1.1)
    assert (1, 2) in again(bench.pull(2))


@pytest.mark.parametrize("options", [{"ack_wait": SECOND}, {"backoff": [SECOND, 2 * SECOND], "max_deliver": 5}])
def test_work_in_progress_on_an_overdue_message_only_postpones_its_redelivery(
    bench: Bench, options: dict[str, Any]
) -> None:
    bench.create(max_ack_pending=1, **options)
    (message,) = bench.pull()
    bench.rig.wait(1.5)  # overdue, and no pull waits: it is in the queue, and no timer runs
    bench.ack(message, b"+WPI")
    assert bench.pull() == []
    bench.rig.wait(1.1)
    assert again(bench.client.messages()) == [(1, 2)]
    bench.ack(message)
    assert seqs(bench.pull()) == [2]


def test_a_term_ends_a_message_with_its_reason(bench: Bench) -> None:
    listener = events(bench)
    bench.create(ack_wait=SECOND)
    listener.take()
    (message,) = bench.pull()
    assert len(bench.ack(message, b"+TERM no good", sync=True)) == 1
    bench.rig.wait(3)
    assert bench.info()["num_ack_pending"] == 0
    ((subject, body),) = advisories(listener)
    assert subject == "ADVISORY.CONSUMER.MSG_TERMINATED.S.c"
    assert body == {
        "type": "io.nats.jetstream.advisory.v1.terminated", "stream": "S", "consumer": "c", "consumer_seq": 1,
        "stream_seq": 1, "deliveries": 1, "reason": "no good",
    }  # fmt: skip


def test_a_deleted_pending_message_needs_no_ack(bench: Bench) -> None:
    listener = events(bench)
    bench.create()
    listener.take()
    bench.pull(2)
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    assert bench.info()["num_ack_pending"] == 1
    assert floor(bench) == (1, 1)
    ((_, body),) = advisories(listener)
    assert body["reason"] == "Unacknowledged message was deleted"


def test_a_purge_settles_what_is_pending(bench: Bench) -> None:
    bench.create(ack_wait=SECOND)
    bench.pull(3)
    bench.client.api("STREAM.PURGE.S")
    info = bench.info()
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    bench.rig.wait(3)
    bench.fill("s.a")
    assert again(bench.pull()) == [(6, 1)]


def test_an_ack_is_sampled(bench: Bench) -> None:
    listener = events(bench)
    bench.create(sample_freq="100%")
    listener.take()
    (message,) = bench.pull()
    bench.rig.wait(0.5)
    bench.ack(message)
    ((subject, body),) = advisories(listener)
    assert subject == "METRIC.CONSUMER.ACK.S.c"
    assert body == {
        "type": "io.nats.jetstream.metric.v1.consumer_ack", "stream": "S", "consumer": "c", "consumer_seq": 1,
        "stream_seq": 1, "ack_time": SECOND // 2, "deliveries": 1,
    }  # fmt: skip


def test_creation_deletion_and_pauses_send_advisories(bench: Bench) -> None:
    listener = events(bench)
    bench.create()
    bench.client.api("CONSUMER.PAUSE.S.c", {"pause_until": "2030-01-01T00:00:00Z"})
    bench.client.api("CONSUMER.PAUSE.S.c", {})
    bench.client.api("CONSUMER.DELETE.S.c")
    assert [(subject, body.get("action", body.get("paused"))) for subject, body in advisories(listener)] == [
        ("ADVISORY.CONSUMER.CREATED.S.c", "create"),
        ("ADVISORY.CONSUMER.PAUSE.S.c", True),
        ("ADVISORY.CONSUMER.PAUSE.S.c", False),
        ("ADVISORY.CONSUMER.DELETED.S.c", "delete"),
    ]


def test_an_ack_below_max_ack_pending_releases_the_next_message(bench: Bench) -> None:
    bench.create(max_ack_pending=2)
    bench.ask_for(5)
    first, second = bench.client.messages()
    bench.ack(second)
    assert seqs(bench.client.messages()) == [3]
    bench.ack(first, b"+TERM")
    assert seqs(bench.client.messages()) == [4]


def test_a_redelivery_ignores_max_ack_pending(bench: Bench) -> None:
    bench.create(max_ack_pending=2, ack_wait=SECOND)
    bench.pull(2)
    bench.ask_for(2)
    assert bench.client.messages() == []
    bench.rig.wait(1.1)
    assert again(bench.client.messages()) == [(1, 2), (2, 2)]


def test_delivery_state_stays_bounded_behind_an_unacked_message() -> None:
    bench = Bench(Rig())
    bench.create()
    bench.fill(*["s.a"] * 4000)
    bench.pull(1)
    for _ in range(39):
        for message in bench.pull(100):
            bench.client.send(pub(message.reply, b"+ACK"), settle=False)
    state = bench.rig.engine.streams["S"].consumers.items["c"].state
    assert (len(state.pending), state.floor_seq) == (1, 0)
    assert len(state._order) < 1300
    bench.rig.wait(31)
    (again,) = bench.pull(1)
    assert ack_of(again)[2:4] == (2, 1)
    bench.ack(again, sync=True)
    assert bench.info()["ack_floor"]["stream_seq"] == 3901


@pytest.mark.parametrize(
    "delay",
    [
        b'{"delay":9223372036854775807}',
        b'{"delay":-9223372036854775808}',
        b'{"delay":99999999999999999999999999}',
        b"2562047h",
        b"99999999999h",
        b"9" * 400 + b"h",
    ],
)
@pytest.mark.parametrize("ack_wait", [SECOND, 2**63 - 1])
def test_a_nak_with_any_delay_can_be_stored(delay: bytes, ack_wait: int) -> None:
    """Delivery state is part of a group: a value that does not fit its record would stop all commits."""
    bench = Bench(Rig())
    bench.create(ack_wait=ack_wait)
    bench.fill("s.a")
    bench.ack(bench.pull()[0], b"-NAK " + delay)
    bench.rig.wait(0.1)
    assert bench.client.publish("s.b")["seq"] == 2
    assert bench.info()["num_ack_pending"] == 1


def test_messages_with_a_tiny_ack_wait_are_redelivered_once_a_millisecond() -> None:
    bench = Bench(Rig())
    bench.client.send(b"SUB to.me 9\r\n")
    bench.create(ack_wait=1, deliver_subject="to.me")
    bench.fill("s.a")
    bench.client.take()
    bench.rig.wait(0.05)
    assert 40 <= len(bench.client.messages()) <= 50

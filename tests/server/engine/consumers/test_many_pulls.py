"""Very many pull requests on one consumer: what each of them costs does not depend on how many wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.server.engine.consumers import pull, requests
from slipstream.server.engine.core.routing import LISTENERS_PER_UNIT, AccountRouter
from slipstream.server.engine.jobs import RECEIVE_UNITS
from slipstream.wire import Msg, pub
from tests.growth import cpu, grows_less
from tests.server.engine.consumers.kit import MILLISECOND, SECOND, Bench
from tests.server.support import Rig, status

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.c"


class Lookups:
    """How often the router was asked whether an inbox has a subscriber."""

    count = 0


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> type[Lookups]:
    ask = AccountRouter.interest

    def counted(self: AccountRouter, subject: str) -> tuple[bool, bool]:
        Lookups.count += 1
        return ask(self, subject)

    monkeypatch.setattr(AccountRouter, "interest", counted)
    Lookups.count = 0
    return Lookups


def bench(**config: Any) -> Bench:
    made = Bench(Rig(max_pending_bytes=1 << 30))
    assert "error" not in made.create(**config)
    return made


def pulls(one: Bench, count: int, *, inbox: str = "", **body: Any) -> None:
    """Send pulls, all in one piece."""
    client = one.client
    data = []
    for _ in range(count):
        client._asked += 1
        payload = msgspec.json.encode({"batch": 1, "expires": 60 * SECOND} | body)
        data.append(pub(NEXT, payload, f"{inbox or client.inbox}{client._asked}"))
    client.send(b"".join(data))


def codes(messages: list[Msg]) -> list[int]:
    return [status(message)[0] for message in messages]


def test_a_pull_that_finds_the_queue_full_does_not_look_through_it(lookups: type[Lookups]) -> None:
    one = bench()
    pulls(one, 512)
    one.client.take()
    before = lookups.count
    pulls(one, 500)
    assert codes(one.client.messages()) == [409] * 500
    assert lookups.count - before <= 512  # once through, not once for each


def test_info_does_not_look_through_the_pulls_that_wait(lookups: type[Lookups]) -> None:
    one = bench(max_waiting=10_000)
    pulls(one, 4000)
    one.info()
    before = lookups.count
    assert one.info()["num_waiting"] == 4000
    assert lookups.count - before <= 1  # for an audit of the request
    other = one.rig.client()
    other.send(b"SUB x 1\r\nUNSUB 1\r\n")  # some inbox may have lost its subscriber
    assert one.info()["num_waiting"] == 4000
    assert lookups.count - before <= pull.VISITS + 2  # for the audits of two requests


def test_pulls_whose_inbox_is_gone_are_found_a_part_at_a_time() -> None:
    one = bench(max_waiting=3000)
    one.client.send(b"SUB gone.* g\r\n")
    pulls(one, 2500, inbox="gone.")
    pulls(one, 10)
    one.client.send(b"UNSUB g\r\n")
    counts = [one.info()["num_waiting"] for _ in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 10
    one.fill("s.a")
    assert one.info()["num_waiting"] == 9


def test_a_full_queue_of_pulls_whose_inbox_is_gone_takes_new_ones() -> None:
    one = bench()
    one.client.send(b"SUB gone.* g\r\n")
    pulls(one, 512, inbox="gone.")
    one.client.send(b"UNSUB g\r\n")
    one.client.take()
    pulls(one, 1)
    assert one.client.messages() == []
    one.fill("s.a")
    assert one.info()["num_waiting"] == 0


@pytest.mark.parametrize("apart", [0, MILLISECOND])
def test_expiring_pulls_cost_the_same_each_however_many_wait(apart: int) -> None:
    def expire(count: int) -> float:
        one = bench(max_waiting=10_000)
        for at in range(count // 50):
            pulls(one, 50, expires=SECOND + at * 50 * apart)
        one.client.take()
        cost = cpu(lambda: one.rig.wait(10))
        assert codes(one.client.messages()) == [408] * count
        return cost

    assert grows_less(expire, 500, 2000, times=8)


def test_very_many_pulls_that_expire_together_do_so_over_several_ticks() -> None:
    one = bench(max_waiting=10_000)
    pulls(one, 3000, expires=SECOND)
    one.client.take()
    one.rig.now += SECOND
    one.rig.engine.tick(one.rig.now)
    one.rig.flush()
    assert len(one.client.messages()) == pull.VISITS
    one.rig.wait(1)
    assert codes(one.client.messages()) == [408] * (3000 - pull.VISITS)


def test_a_message_for_one_of_many_pulls_costs_the_same(lookups: type[Lookups]) -> None:
    one = bench(max_waiting=10_000)
    pulls(one, 3000)
    before = lookups.count
    one.fill("s.a", "s.b")
    assert lookups.count - before <= 4
    assert one.info()["num_waiting"] == 2998


def test_deleting_a_consumer_answers_its_pulls_in_slices() -> None:
    one = bench(max_waiting=10_000)
    pulls(one, 3000)
    one.client.take()
    one.client.ask("$JS.API.CONSUMER.DELETE.S.c", settle=False)
    one.rig.flush()
    first = codes(one.client.messages())
    assert first == [409] * pull.VISITS
    one.rig.settle()
    assert codes(one.client.messages()).count(409) == 3000 - pull.VISITS


# Heartbeats.


def test_heartbeats_are_not_sent_more_often_than_every_ten_milliseconds() -> None:
    one = bench()
    pulls(one, 1, idle_heartbeat=1)
    one.client.take()
    one.rig.wait(1)
    assert codes(one.client.messages()) == [100] * 100


def test_heartbeats_that_a_client_may_ask_for_come_in_time() -> None:
    one = bench()
    pulls(one, 1, idle_heartbeat=50 * MILLISECOND)
    one.client.take()
    one.rig.wait(1)
    assert codes(one.client.messages()) == [100] * 20


def test_pulls_of_a_consumer_share_ten_thousand_heartbeats_a_second() -> None:
    one = bench(max_waiting=10_000)
    pulls(one, 1000, idle_heartbeat=1)
    one.rig.wait(0.1)  # the first one comes as it was asked for
    one.client.take()
    one.rig.wait(1)
    assert len(one.client.messages()) <= 10_000 * 1.2
    assert requests.HEARTBEAT_SHARE * 10_000 == SECOND


def test_a_heartbeat_is_put_off_by_a_message() -> None:
    one = bench()
    pulls(one, 1, batch=10, idle_heartbeat=100 * MILLISECOND)
    one.client.take()
    one.rig.wait(0.09)
    one.fill("s.a")
    one.client.take()
    one.rig.wait(0.09)
    assert one.client.messages() == []
    one.rig.wait(0.02)
    assert codes(one.client.messages()) == [100]


def test_pulls_of_a_client_that_left_are_passed_over_in_slices(lookups: type[Lookups]) -> None:
    one = bench(max_waiting=10_000)
    rig, gone = one.rig, one.rig.client()
    body = msgspec.json.encode({"batch": 1, "expires": 60 * SECOND})
    gone.send(b"".join(pub(NEXT, body, f"{gone.inbox}{n}") for n in range(5 * pull.VISITS)))
    pulls(one, 1)
    rig.engine.disconnect(gone.cid)
    one.client.take()
    one.client.send(pub("s.x", b"m"), settle=False)
    rig.commit()
    turns, found = 0, list[Msg]()
    while not found:
        before = lookups.count
        rig.turn()
        assert lookups.count - before <= 3 * pull.VISITS  # a chunk, and what else looks at a part of them
        found = one.client.messages()
        turns += 1
        assert turns < 50
    assert [message.payload for message in found] == [b"m"]
    assert turns >= 4


def test_search_among_very_many_pulls_that_cannot_have_a_message_ends() -> None:
    one = bench(max_waiting=10_000, priority_policy="overflow", priority_groups=["g"])
    rig, count = one.rig, 3 * pull.VISITS
    pulls(one, count, group="g", min_pending=1000)
    one.client.take()
    one.client.send(pub("s.x", b"m"), settle=False)
    rig.commit()
    for _ in range(10):  # a part of them in each turn
        rig.turn()
    assert not rig.engine.step(rig.now)  # idle: none of them can have it
    assert not one.client.messages()
    pulls(one, 1, group="g")
    assert [message.payload for message in one.client.messages()] == [b"m"]


def test_subscriptions_that_very_many_consumers_look_at_are_in_slices() -> None:
    rig = Rig()
    client, reader = rig.client(), rig.client()
    client.create("S")
    count = 400
    for n in range(count):
        config = {"name": f"c{n}", "durable_name": f"c{n}", "deliver_subject": "w"}
        client.api(f"CONSUMER.CREATE.S.c{n}", {"stream_name": "S", "config": config})
    inserts = rig.engine.account().router.inserts
    reader.send(b"".join(b"SUB w %d\r\nUNSUB %d\r\n" % (n, n) for n in range(100)), settle=False)
    made = rig.engine.account().router.inserts - inserts
    assert made <= RECEIVE_UNITS * LISTENERS_PER_UNIT / count + 1
    rig.settle()
    assert rig.engine.account().router.inserts - inserts == 100

"""Priority groups: overflow, pinned clients, priorities."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.server.engine.consumers import requests
from slipstream.wire import pub
from tests.server.engine.consumers.kit import SECOND, Bench, headers, seqs, status, statuses
from tests.server.support import Rig


@pytest.fixture
def bench() -> Bench:
    return Bench(Rig())


def test_a_group_must_be_named_and_known(bench: Bench) -> None:
    bench.create(priority_policy="overflow", priority_groups=["g"])
    assert statuses(bench.pull()) == [(400, "Bad Request - Priority Group missing")]
    assert statuses(bench.pull(group="h")) == [(400, "Bad Request - Invalid Priority Group")]
    assert statuses(bench.pull(group="g", id="x")) == [(400, "Bad Request - Not a Pinned Client Priority consumer")]
    assert statuses(bench.pull(group="g", priority=10)) == [(400, "Bad Request - Priority must be between 0 and 9")]
    assert bench.info()["priority_groups"] == [{"group": "g", "pinned_ts": "0001-01-01T00:00:00Z"}]


def test_without_a_policy_there_is_no_overflow(bench: Bench) -> None:
    bench.create()
    assert statuses(bench.pull(min_pending=5)) == [(400, "Bad Request - Not a Overflow Priority consumer")]


def test_overflow_serves_a_request_only_from_its_threshold_on(bench: Bench) -> None:
    bench.create(priority_policy="overflow", priority_groups=["g"])
    rest = bench.rig.client()
    bench.ask_for(10, client=rest, group="g", min_pending=3)
    bench.fill("s.a", "s.a")
    assert rest.messages() == []
    bench.fill("s.a")
    assert seqs(rest.messages()) == [1]
    assert seqs(bench.pull(1, group="g")) == [2]


def test_overflow_by_pending_acks(bench: Bench) -> None:
    bench.create(priority_policy="overflow", priority_groups=["g"])
    rest = bench.rig.client()
    bench.fill(*["s.a"] * 5)
    bench.ask_for(10, client=rest, group="g", min_ack_pending=2)
    assert rest.messages() == []
    assert seqs(bench.pull(2, group="g")) == [1, 2]
    assert seqs(rest.messages()) == [3, 4, 5]


def test_a_pinned_client_gets_everything_until_it_is_unpinned(bench: Bench) -> None:
    bench.create(priority_policy="pinned_client", priority_groups=["g"], priority_timeout=10 * SECOND)
    listener = bench.rig.client()
    listener.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.> 1\r\n")
    first, second = bench.rig.client(), bench.rig.client()
    bench.ask_for(2, client=first, group="g")
    bench.ask_for(9, client=second, group="g")
    bench.fill(*["s.a"] * 4)
    messages = first.messages()
    assert seqs(messages) == [1, 2]
    pin = headers(messages[0])["Nats-Pin-Id"]
    assert second.messages() == []
    assert bench.info()["priority_groups"][0]["pinned_client_id"] == pin
    assert seqs(bench.pull(1, client=first, group="g", id=pin)) == [3]
    assert statuses(bench.pull(1, client=first, group="g", id="wrong")) == [(423, "Nats-Pin-Id mismatch")]
    assert "error" not in bench.client.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    assert seqs(second.messages()) == [4]
    events = [msgspec.json.decode(message.payload) for message in listener.messages()]
    assert [event["type"].rpartition(".")[2] for event in events] == [
        "consumer_group_pinned", "consumer_group_unpinned", "consumer_group_pinned",
    ]  # fmt: skip
    assert (events[1]["reason"], events[0]["pinned_id"], events[0]["group"]) == ("admin", pin, "g")


def test_a_pinned_client_that_is_silent_loses_its_pin(bench: Bench) -> None:
    bench.create(priority_policy="pinned_client", priority_groups=["g"], priority_timeout=2 * SECOND)
    first, second = bench.rig.client(), bench.rig.client()
    bench.ask_for(1, client=first, group="g")
    bench.ask_for(1, client=second, group="g")
    bench.fill("s.a", "s.a")
    (message,) = first.messages()
    bench.rig.wait(2.1)
    assert seqs(second.messages()) == [2]
    bench.fill("s.a")
    (end,) = bench.pull(1, client=first, group="g", id=headers(message)["Nats-Pin-Id"])
    assert status(end) == (423, "Nats-Pin-Id mismatch")


def test_lower_priorities_come_first(bench: Bench) -> None:
    bench.create(priority_policy="prioritized", priority_groups=["g"])
    late, early = bench.rig.client(), bench.rig.client()
    bench.ask_for(2, client=late, group="g", priority=5)
    bench.ask_for(2, client=early, group="g", priority=1)
    bench.fill(*["s.a"] * 3)
    assert (seqs(early.messages()), seqs(late.messages())) == ([1, 2], [3])


def test_many_requests_are_queued_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def priority_of(request: requests.Request) -> int:
        nonlocal looks
        looks += 1
        return request.body.priority

    monkeypatch.setattr(requests, "_priority_of", priority_of)
    queue = requests.RequestQueue()
    queue.prioritized = True
    for n in range(2000):
        queue.add(requests.Request(f"r{n}", requests.PullBody(batch=1, group="g", priority=n % 7), grouped=True, now=0))
    assert [request.body.priority for request in queue] == sorted(n % 7 for n in range(2000))
    assert 0 < looks < 2000 * 15


def test_request_with_a_lower_number_goes_first_after_others_stood_back() -> None:
    queue = requests.RequestQueue()
    queue.prioritized = True
    for n, priority in enumerate((1, 1, 4, 4, 8)):
        body = requests.PullBody(batch=1, group="g", priority=priority)
        queue.add(requests.Request(f"{n}", body, grouped=True, now=0))
    queue.cycle()
    queue.cycle()  # the two with priority 1
    queue.end(queue.front())
    queue.add(requests.Request("5", requests.PullBody(batch=1, group="g", priority=3), grouped=True, now=0))
    assert [request.reply for request in queue] == ["0", "1", "5", "3", "4"]
    assert queue.front().reply == "0"


@pytest.mark.parametrize(
    ("body", "err_code"), [({}, 10025), ({"group": "x y"}, 10162), ({"group": "h"}, 10160)], ids=str
)
def test_a_wrong_unpin_is_rejected(bench: Bench, body: dict[str, str], err_code: int) -> None:
    bench.create(priority_policy="pinned_client", priority_groups=["g"])
    assert bench.client.api("CONSUMER.UNPIN.S.c", body)["error"]["err_code"] == err_code


def test_a_request_without_a_group_pins_no_client(bench: Bench) -> None:
    bench.create(priority_policy="pinned_client", priority_groups=["g"])
    bench.create("plain")
    bench.fill("s.a", "s.b")
    bench.client.take()
    for name in ("c", "plain"):
        bench.client.send(pub(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b"", "_INBOX.c1.x"))
        (message,) = bench.client.messages()
        assert (message.payload, message.header) == (b"x", b"")
    assert "pinned_client_id" not in bench.info()["priority_groups"][0]

"""What both drivers do on a real server: publish, subscribe, request, flush, close; and that they are twins."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from slipstream.client._async import client as aio
from slipstream.client._sync import client as blocking
from slipstream.errors import (
    ConnectionClosedError,
    NoRespondersError,
    RequestTimeoutError,
    SlowConsumerError,
    UsageError,
)
from slipstream.wire import Headers, Msg
from tests.client.support import Driver, eventually


class Replies:
    """A sink that collects."""

    def __init__(self, wanted: int = 1) -> None:
        self.msgs: list[Msg] = []
        self.error: Exception | None = None
        self._wanted = wanted

    def deliver(self, msg: Msg) -> bool:
        self.msgs.append(msg)
        return len(self.msgs) == self._wanted

    def fail(self, error: Exception) -> None:
        self.error = error


def test_a_message_arrives_as_it_was_sent(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("as.it.*")
        nc.publish("as.it.was", b"\x00\xff", reply="back", headers={"A": ["1", "2"], "b": "3"})
        message = sub.next()
        assert (message.subject, message.reply, message.data) == ("as.it.was", "back", b"\x00\xff")
        assert message.headers.items() == [("A", "1"), ("A", "2"), ("b", "3")]
        assert message.status is None
        nc.publish("as.it.is", bytearray(b"bytes-like"), headers=Headers())
        assert sub.next().data == b"bytes-like"


def test_large_payloads_arrive_whole(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("large")
        payload = bytes(range(256)) * 2048
        nc.publish("large", payload)
        nc.publish("large", payload, headers={"A": "1"}, reply="r")
        assert sub.next().data == payload
        second = sub.next()
        assert (second.data, second.reply, second.headers["A"]) == (payload, "r", "1")


def test_what_the_server_would_refuse_is_refused_before_it_is_sent(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        with pytest.raises(UsageError, match=r"at most 1048576 bytes .*got 1048577"):
            nc.publish("large", b"x" * (nc.max_payload + 1))
        for subject in ("", "a b", "a..b", ".a", "a.*", ">", "a\r\nPUB b 0", "x" * 5000):
            with pytest.raises(UsageError, match="subject"):
                nc.publish(subject)
        with pytest.raises(UsageError, match="payload must be bytes, not str"):
            nc.publish("a", "text")
        with pytest.raises(UsageError, match="subject filter must be"):
            nc.subscribe("a.>.b")
        with pytest.raises(UsageError, match="header"):
            nc.publish("a", headers={"A": "1\r\nB: 2"})
        with pytest.raises(UsageError, match="a subject must be at most 4056 bytes long, got 5000"):
            nc.subscribe("x" * 5000)
        with pytest.raises(UsageError, match=r"with its queue group must be .* got 6000"):
            nc.subscribe("x" * 3000, queue="y" * 3000)
        for payload in (b"", b"x" * 100_000):
            with pytest.raises(UsageError, match=r"a subject and its reply subject must be .* got 6000"):
                nc.publish("\u00e9" * 1500, payload, reply="y" * 3000)
        nc.flush()
        assert nc.stats.out_msgs == 0


def test_the_longest_names_are_taken_by_the_server(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("x" * 4055 + "*")
        whole = nc.subscribe("y" * 2028, queue="q" * 2028)
        nc.flush()
        nc.publish("y" * 2028, b"1", reply="z" * 2028, headers={"A": "1"})
        assert whole.next().data == b"1"
        room = 4056 - len(nc.new_inbox()) - 10
        with pytest.raises(NoRespondersError):
            nc.request("w" * (room - 30), b"x" * 20_000)
        nc.flush()
        assert nc.stats.reconnects == 0
        assert not sub.pending


def test_iteration_ends_after_the_last_message_of_an_auto_unsubscribe(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("auto")
        nc.publish("auto", b"0")
        assert sub.next().data == b"0"
        sub.unsubscribe(3)
        for i in range(1, 6):
            nc.publish("auto", b"%d" % i)
        assert [message.data for message in sub] == [b"1", b"2"]
        with pytest.raises(UsageError, match="ended after 3 messages"):
            sub.next()


def test_next_chunk_gives_everything_that_is_there(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("chunk")
        for i in range(1000):
            nc.publish("chunk", b"%d" % i)
        seen: list[bytes] = []
        while len(seen) < 1000:
            chunk = sub.next_chunk()
            assert chunk
            seen += [message.data for message in chunk]
        assert seen == [b"%d" % i for i in range(1000)]
        assert sub.pending == 0
        with pytest.raises(RequestTimeoutError, match=r"^timed out after 0\.01 s waiting for a message on 'chunk'$"):
            sub.next_chunk(timeout=0.01)


def test_a_subscription_ends_with_its_context(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        with nc.subscribe("context") as sub:
            nc.publish("context", b"1")
            assert sub.next().data == b"1"
        nc.publish("context", b"2")
        nc.flush()
        assert sub.pending == 0


def test_a_queue_group_shares_the_messages(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        subs = [nc.subscribe("shared", queue="q") for _ in range(3)]
        for _ in range(30):
            nc.publish("shared")
        nc.flush()
        assert sum(sub.pending for sub in subs) == 30


def test_echo_can_be_switched_off(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url, echo=False) as nc:
        sub = nc.subscribe("echo")
        nc.publish("echo")
        nc.flush()
        assert sub.pending == 0


def test_an_overflow_is_an_error_at_the_place_of_the_loss(driver: Driver, nats_url: str) -> None:
    events: list[Any] = []
    with driver.connect(nats_url, on_event=events.append) as nc:
        sub = nc.subscribe("overflow", max_pending_msgs=2)
        for i in range(5):
            nc.publish("overflow", b"%d" % i)
        nc.flush()
        assert [sub.next().data, sub.next().data] == [b"0", b"1"]
        with pytest.raises(SlowConsumerError, match="3 message"):
            sub.next()
        nc.publish("overflow", b"later")
        assert sub.next().data == b"later"
    assert [event.kind for event in events] == ["error", "closed"]


def test_a_request_is_answered(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc, driver.connect(nats_url) as service:
        asked = service.subscribe("service")
        service.flush()
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(nc.request("service", b"?", headers={"N": "1"})))
        thread.start()
        question = asked.next()
        assert (question.data, question.headers["N"]) == (b"?", "1")
        question.respond(b"!", headers={"N": "2"})
        thread.join(5)
        assert (answers[0].data, answers[0].headers["N"]) == (b"!", "2")
        service.publish("service", b"no reply")
        with pytest.raises(UsageError, match="no reply subject"):
            asked.next().respond(b"!")


def test_a_request_without_responders_fails_at_once(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc, pytest.raises(NoRespondersError, match=r"'nobody\.here'"):
        nc.request("nobody.here", timeout=20)


def test_an_unanswered_request_times_out(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("silence")
        with pytest.raises(RequestTimeoutError, match=r"0\.05 s waiting for a reply on 'silence'$"):
            nc.request("silence", timeout=0.05)
        with pytest.raises(TimeoutError):
            nc.request("silence", timeout=0.01)
        sub.next().respond(b"too late")
        nc.flush()
        assert nc._session.requests.sinks == {}


def test_callbacks_get_every_message_in_order_and_may_fail(driver: Driver, nats_url: str) -> None:
    events: list[Any] = []
    seen: list[bytes] = []

    def callback(message: Any) -> None:
        seen.append(message.data)
        if message.data == b"3":
            raise RuntimeError("three")

    with driver.connect(nats_url, on_event=events.append) as nc:
        sub = nc.subscribe("callback", callback=callback)
        for i in range(100):
            nc.publish("callback", b"%d" % i)
        eventually(lambda: len(seen) == 100)
        assert seen == [b"%d" % i for i in range(100)]
        assert [str(event.error) for event in events] == ["three"]
        sub.unsubscribe()
        nc.publish("callback", b"after")
        nc.flush()
        assert len(seen) == 100


def test_a_callback_that_fails_is_logged(driver: Driver, nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def callback(_: Any) -> None:
        raise RuntimeError("three")

    with driver.connect(nats_url) as nc:
        nc.subscribe("callback.log", callback=callback)
        nc.publish("callback.log")
        eventually(lambda: "three" in caplog.text)
    assert "the callback of the subscription of 'callback.log' failed" in caplog.text


def test_start_hands_every_reply_to_the_sink_until_it_is_satisfied(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        asked = nc.subscribe("many")
        sink, cancelled = Replies(wanted=3), Replies()
        nc.start("many", b"", sink)
        token = nc.start("many", b"", cancelled)
        nc.cancel(token)
        for question in (asked.next(), asked.next()):
            for i in range(5):
                nc.publish(question.reply, b"%d" % i)
        nc.wait(lambda: len(sink.msgs) == 3, timeout=5, what="three replies")
        nc.flush()
        assert [msg.payload for msg in sink.msgs] == [b"0", b"1", b"2"]
        assert cancelled.msgs == []
        nobody = Replies()
        nc.start("nobody.here", b"", nobody, header=Headers({"A": "1"}).encode())
        nc.wait(lambda: bool(nobody.msgs), timeout=5, what="a status")
        assert nobody.msgs[0].header.startswith(b"NATS/1.0 503")
        with pytest.raises(RequestTimeoutError, match=r"^timed out after 0\.01 s waiting for the impossible$"):
            nc.wait(lambda: False, timeout=0.01, what="the impossible")
        nc.ready()


def test_statistics_are_counted(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url, name="figures") as nc:
        sub = nc.subscribe("figures")
        nc.publish("figures", b"12345")
        sub.next()
        stats = nc.stats
        assert (stats.in_msgs, stats.out_msgs, stats.reconnects) == (1, 1, 0)
        assert stats.in_bytes > 100 < stats.out_bytes
        assert nc.is_connected
        assert not nc.is_closed
        assert nc.server_info.version >= "2."
        assert nc.last_error is None
        assert nc.new_inbox().startswith("_INBOX.")
        assert nc.new_inbox() != nc.new_inbox()
        assert nc.now() <= nc.now()


def test_what_was_published_before_close_arrives(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("last.words")
        nc.flush()
        with driver.connect(nats_url) as other:
            other.subscribe("last.words")  # its own copies are unread when it closes
            for _ in range(2000):
                other.publish("last.words", b"x" * 100)
        for _ in range(2000):
            sub.next()


def test_a_closed_client_says_so(driver: Driver, nats_url: str) -> None:
    events: list[Any] = []
    nc = driver.connect(nats_url, on_event=events.append)
    sub = nc.subscribe("closed")
    nc.publish("closed", b"kept")
    nc.flush()
    sink = Replies()
    nc.subscribe("pending")
    nc.start("pending", b"", sink)
    nc.close()
    nc.close()
    assert [message.data for message in sub] == [b"kept"]
    assert isinstance(sink.error, ConnectionClosedError)
    assert [event.kind for event in events] == ["closed"]
    assert nc.is_closed
    calls: list[Callable[[], object]] = [
        lambda: nc.publish("a"),
        lambda: nc.request("a"),
        nc.flush,
        lambda: nc.subscribe("a"),
        lambda: nc.wait(lambda: False, timeout=1, what="x"),
        lambda: nc.sleep(1),
    ]
    for call in calls:
        with pytest.raises(ConnectionClosedError, match=r"^the client was closed$"):
            call()


def test_close_ends_what_others_wait_for(driver: Driver, nats_url: str) -> None:
    nc = driver.connect(nats_url)
    sub = nc.subscribe("wait")
    ended: list[object] = []

    def iterate() -> None:
        ended.append(list(sub))

    def request() -> None:
        with pytest.raises(ConnectionClosedError):
            nc.request("wait")
        ended.append(ConnectionClosedError)

    threads = [threading.Thread(target=iterate), threading.Thread(target=request)]
    for thread in threads:
        thread.start()
    eventually(lambda: nc.stats.out_msgs == 1)
    nc.close()
    for thread in threads:
        thread.join(5)
    assert len(ended) == 2


def test_sleep_waits_while_messages_arrive(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("sleep")
        nc.publish("sleep", b"arrived")
        for _ in range(200):  # the first one does, unless the machine is busy
            began = nc.now()
            nc.sleep(0.05)
            assert nc.now() - began >= 0.049
            if sub.pending:
                break
        assert sub.pending == 1


def test_close_ends_a_sleep(driver: Driver, nats_url: str) -> None:
    nc = driver.connect(nats_url)
    ended: list[type] = []

    def sleep() -> None:
        with pytest.raises(ConnectionClosedError, match=r"^the client was closed$"):
            nc.sleep(60)
        ended.append(ConnectionClosedError)

    thread = threading.Thread(target=sleep)
    thread.start()
    nc.flush()
    nc.close()
    thread.join(5)
    assert ended == [ConnectionClosedError]


TWINS = [(aio.Client, blocking.Client), (aio.Subscription, blocking.Subscription), (aio.Message, blocking.Message)]
AWAITED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}


def public(kind: type) -> dict[str, Any]:
    names = (name for name in dir(kind) if not name.startswith("_") or name in AWAITED or name in AWAITED.values())
    return {AWAITED.get(name, name): inspect.getattr_static(kind, name) for name in names}


def parameters(member: Any) -> list[tuple[str, Any, Any]]:
    function = member.__func__ if isinstance(member, classmethod) else member
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_the_drivers_are_twins(one: type, other: type) -> None:
    here, there = public(one), public(other)
    assert here.keys() == there.keys()
    for name, member in here.items():
        if isinstance(member, property):
            assert isinstance(there[name], property)
        else:
            assert parameters(member) == parameters(there[name]), name


def test_only_what_may_wait_is_awaited() -> None:
    plain = {name for name, member in public(aio.Client).items() if inspect.isfunction(member)} - {
        name for name, member in public(aio.Client).items() if inspect.iscoroutinefunction(inspect.unwrap(member))
    }
    for_layers_above = {
        "start",
        "start_bulk",
        "start_many",
        "start_one",
        "expect",
        "publish_many",
        "cancel",
        "answer",
        "report",
    }
    for_layers_above |= {"callback_failed", "is_own_end", "mark", "spawn", "leave_server", "run_here", "shared"}
    assert plain == {"request_many", "new_inbox", "now"} | for_layers_above

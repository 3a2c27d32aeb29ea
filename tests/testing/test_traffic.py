"""What a test sees of a server: recorded and stored messages, counts of consumers; and what it may begin with."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.errors import NoRespondersError, RequestTimeoutError, UsageError
from slipstream.server import Server
from slipstream.testing import TestAccount, TestServer


def test_messages_are_recorded_while_the_block_runs(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "orders.>"})
    with connect_blocking(server.url) as client:
        client.publish("orders.0", b"before")
        client.flush()
        with server.recorded("orders.>") as messages:
            client.jetstream().publish("orders.1", b'{"n": 1}', headers={"A": "1"})
            client.publish("other", b"")
            client.publish("orders.2", b"two", reply="answers")
            found = messages.wait(2)
            assert messages.subjects == ["orders.1", "orders.2"]
            assert messages.data == [b'{"n": 1}', b"two"]
            assert found[0].json() == {"n": 1}
            assert found[0].headers["A"] == "1"
            assert (found[1].reply, found[1].text()) == ("answers", "two")
            assert [message.subject for message in messages[1:]] == ["orders.2"]
            assert repr(messages) == "<Recording of 'orders.>', 2 messages>"
            messages.clear()
            assert len(messages) == 0
        client.publish("orders.3", b"after")
        client.flush()
        assert len(messages) == 0


def test_a_recorder_is_no_subscriber(slipstream_server: TestServer) -> None:
    with connect_blocking(slipstream_server.url) as client, slipstream_server.recorded() as messages:
        with pytest.raises(NoRespondersError):
            client.request("nothing.here", b"")
        assert "nothing.here" in messages.subjects


def test_a_recording_shows_what_arrived_in_spite_of_faults(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client, server.recorded("m.*") as messages:
        server.drop("m.1", direction="to_server")
        server.duplicate("m.2", direction="to_server")
        for n in (1, 2, 3):
            client.publish(f"m.{n}", b"")
        client.flush()
        assert messages.subjects == ["m.2", "m.2", "m.3"]


def test_a_wait_says_what_is_missing(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"}, {"s.1": b"", "s.2": b""})
    with pytest.raises(AssertionError, match=r"2 of 3 messages on 's\.\*' were stored within 0.05 s: s\.1, s\.2"):
        server.wait_for("s.*", 3, timeout=0.05)
    missing = pytest.raises(AssertionError, match=r"0 of 1 messages on 't\.>' were published within 0 s")
    with server.recorded("t.>") as messages, missing:
        messages.wait(timeout=0)
    with pytest.raises(UsageError, match=r"a\.\.b"), server.recorded("a..b"):
        pass
    with pytest.raises(UsageError, match=r"a\.\.b"):
        server.stored("a..b")


def test_a_wait_ends_when_another_thread_publishes(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"})
    waiting = threading.Event()

    def publish() -> None:
        waiting.wait(10)
        server.seed(messages={"s.1": b"", "s.2": b""})

    thread = threading.Thread(target=publish)
    thread.start()
    waiting.set()
    assert [message.subject for message in server.wait_for("s.>", 2)] == ["s.1", "s.2"]
    thread.join(10)


async def test_waits_in_async_tests_do_not_block_the_program_under_test(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"})
    async with connect(server.url) as client:

        async def program() -> None:
            await asyncio.sleep(0.01)
            await client.jetstream().publish("s.1", b"")
            await client.publish("core", b"")

        with server.recorded("core") as messages:
            task = asyncio.create_task(program())
            assert [message.seq for message in await server.wait_for_async("s.>")] == [1]
            assert len(await messages.wait_async()) == 1
            await task
        with pytest.raises(AssertionError, match="1 of 2 messages"):
            await server.wait_for_async("s.>", 2, timeout=0.01)
        consumer = await client.jetstream().stream("S").create_consumer("w")
        with pytest.raises(AssertionError, match=r"consumer 'w' of 'S' was not done within 0.01 s: .*pending=1"):
            await server.wait_until_done_async("S", "w", timeout=0.01)
        for message in await consumer.fetch(1):
            await message.ack()
        assert (await server.wait_until_done_async("S", "w")).acked == 1
        with pytest.raises(UsageError, match=r"wait_for\(\) would block the running event loop"):
            server.wait_for("s.>")
        with pytest.raises(UsageError, match=r"wait\(\) would block the running event loop"):
            messages.wait()
        with pytest.raises(UsageError, match=r"use `await wait_until_done_async\(\)`"):
            server.wait_until_done("S", "w")


def test_answers_of_consumers_are_counted_by_message(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"}, {f"s.{n}": b"" for n in range(5)})
    with connect_blocking(server.url) as client:
        consumer = client.jetstream().stream("S").create_consumer("w")
        first, second, third, fourth = consumer.fetch(4)
        first.ack_sync()
        second.nak()
        third.term()
        fourth.in_progress()
        fourth.in_progress()
        client.flush()
        counts = server.consumer("S", "w")
        assert (counts.acked, counts.naked, counts.termed, counts.in_progress) == (1, 1, 1, 1)
        assert (counts.pending, counts.is_done) == (1, False)
        for message in (fourth, *consumer.fetch(2)):  # the second is redelivered
            message.ack()
        assert server.wait_until_done("S", "w").acked == 4


def test_seeds_take_what_people_write(slipstream_server: TestServer) -> None:
    server = slipstream_server
    config = StreamConfig("A", subjects=["a.>"], max_msgs=10)
    server.seed([config], [("a.1", [1, 2]), ("a.1", None), ("a.2", "text"), ("a.3", bytearray(b"bytes"))])
    server.seed({"B": ["b.1", "b.2"]}, {"b.1": [{"n": 1}, "x"], "b.2": 7}, {"kv": {"list": [1], "text": "t"}})
    assert [message.data for message in server.stored("a.>")] == [b"[1,2]", b"null", b"text", b"bytes"]
    assert [message.data for message in server.stored("b.*")] == [b'{"n":1}', b"x", b"7"]
    assert {message.subject: message.data for message in server.stored("$KV.>")} == {
        "$KV.kv.list": b"[1]", "$KV.kv.text": b"t",
    }  # fmt: skip
    with pytest.raises(UsageError, match="value must be bytes, text or JSON"):
        server.seed(messages={"a.1": {1, 2}})
    with pytest.raises(UsageError, match="StreamConfigs, got 'A'"):
        server.seed(["A"])  # type: ignore[list-item]


LINES = """
# a comment
{"stream": "ORDERS", "subjects": ["orders.>"], "max_age": 3600}
{"subject": "orders.1", "data": {"amount": 7}, "headers": {"Region": "eu"}}
{"subject": "orders.2", "data": "plain", "time": "2026-01-01T00:00:00Z", "sequence": 4}
// another
{"subject": "orders.3", "data_base64": "/w=="}
{"bucket": "settings", "key": "theme", "value": "dark"}
"""


def test_a_file_of_json_lines_is_loaded(slipstream_server: TestServer, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(LINES, "utf-8")
    assert slipstream_server.load(path) == 5
    first, *rest = slipstream_server.stored("orders.>")
    assert (json.loads(first.data), first.headers["Region"]) == ({"amount": 7}, "eu")
    assert [message.data for message in rest] == [b"plain", b"\xff"]
    assert slipstream_server.stored("$KV.settings.>")[0].data == b"dark"


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b"])
def test_line_breaks_of_unicode_end_no_line(slipstream_isolated_server: TestAccount, tmp_path: Path, text: str) -> None:
    path = tmp_path / "lines.jsonl"
    line = json.dumps({"subject": "s.1", "data": text}, ensure_ascii=False)  # as `slipstream pipeline record` writes it
    path.write_bytes(f'{{"stream": "S", "subjects": ["s.>"]}}\r\n{line}\r\n'.encode())
    assert slipstream_isolated_server.load(path) == 2
    assert slipstream_isolated_server.stored()[0].data.decode() == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "a line must be a JSON object"),
        ("[1]", "a line must be a JSON object, got '[1]'"),
        ('{"data": 1}', "a line must have a subject, a bucket or a stream, got data"),
        ('{"subject": "s.1", "dta": 1}', "unknown field 'dta'"),
        ('{"subject": "s.1", "data": 1, "data_base64": ""}', "data and data_base64 are mutually exclusive"),
        ('{"subject": "s.1", "data_base64": "?"}', "data_base64 must be base64, got '?'"),
        ('{"subject": "s.1", "data_base64": "é"}', "data_base64 must be base64, got 'é'"),
        ('{"subject": "s.1", "data": "\udcff"}', "a line must be UTF-8"),
        ("[" * 100_000, "a line must be a JSON object"),
        ('{"stream": "X", "subject_list": []}', "subject_list"),
        ('{"bucket": "kv", "value": 1}', "key"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    slipstream_isolated_server: TestAccount, tmp_path: Path, line: str, text: str
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"stream": "S", "subjects": ["s.>"]}}\n{line}\n', "utf-8", errors="surrogateescape")
    with pytest.raises(UsageError) as caught:
        slipstream_isolated_server.load(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert text in str(caught.value)


def test_an_isolated_account_shares_nothing_but_the_server(slipstream_session_server: TestServer) -> None:
    shared = slipstream_session_server
    with shared.isolated() as one, shared.isolated() as other:
        for account in (one, other):
            account.seed({"ISOLATED": "iso.>"}, {"iso.1": account.url})
            assert [message.data.decode() for message in account.stored()] == [account.url]
        with connect_blocking(one.url, name="same") as here, connect_blocking(other.url, name="same") as there:
            heard = there.subscribe("core")
            there.flush()
            with one.recorded("core") as messages:
                one.drop("core", direction="to_server", count=1)
                there.publish("core", b"there")
                assert heard.next(timeout=5).data == b"there"
                here.publish("core", b"dropped")
                here.publish("core", b"here")
                assert [message.data for message in messages.wait()] == [b"here"]
            with pytest.raises(RequestTimeoutError):
                heard.next(timeout=0.05)
            assert one.cut("same") == 1
            other.reset()
            assert (len(one.stored()), other.stored()) == (1, [])
            assert there.is_connected
        plain = [message for message in shared.stored() if message.stream == "ISOLATED"]
        assert plain == []
    refused = pytest.raises(UsageError, match="needs a server with users and a no_auth_user")
    with TestServer(server=Server(faults=True)) as bare, refused, bare.isolated():
        pass


def test_threads_have_accounts_of_one_server_at_the_same_time(slipstream_session_server: TestServer) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                with slipstream_session_server.isolated() as account:
                    account.seed({"S": "s.>"}, {"s.1": b""})
                    assert len(account.stored()) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_every_nth_message_is_hit_and_replies_are_lost_on_their_own(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"})
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        server.lose_replies("s.1", skip=1, every=2, count=2)
        lost = []
        for n in range(6):
            try:
                js.publish("s.1", b"%d" % n, timeout=0.2, retries=0)
            except RequestTimeoutError:
                lost.append(n)
        assert lost == [1, 3]
        assert len(server.stored()) == 6  # nothing but the acks was lost
        assert js.publish("s.2", b"", timeout=5).seq == 7
        server.clear()
        server.drop("s.3", direction="to_server", every=3, count=100)
        for n in range(6):
            client.publish("s.3", b"%d" % n)
        client.flush()
        assert [message.data for message in server.stored("s.3")] == [b"1", b"2", b"4", b"5"]


def test_a_connection_is_cut_in_place_of_a_message(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"})
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        server.cut_at("s.1", skip=1)
        assert js.publish("s.1", b"", msg_id="1").seq == 1
        assert js.publish("s.1", b"", msg_id="2", timeout=10).seq == 2  # sent again on the next connection
        assert client.stats.reconnects == 1


def test_every_replica_is_held_without_a_name(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed(
        [
            StreamConfig(name, subjects=[f"{name}.>"], num_replicas=count)
            for name, count in zip("ABC", (1, 3, 2), strict=True)
        ]
    )
    with server.held():
        server.seed(messages={"A.1": b"", "B.1": b"", "C.1": b""})
        assert [[replica.last_seq for replica in server.replicas(name)] for name in "ABC"] == [[1], [1, 0, 0], [1, 0]]
    assert [[replica.last_seq for replica in server.replicas(name)] for name in "ABC"] == [[1], [1, 1, 1], [1, 1]]

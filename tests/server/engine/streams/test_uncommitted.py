"""Commands that follow each other within one group: each is judged by what those before it did, committed or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import pub
from tests.server.support import Client, Rig


@pytest.fixture(params=["memory", "lmdb"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    if request.param == "memory":
        yield Rig().client()
    else:
        store = LmdbStore(tmp_path, map_size=1 << 26)
        yield Rig(store=store).client()
        store.close()


def at_once(client: Client, *commands: tuple[str, bytes | dict[str, Any]], header: bytes = b"") -> list[dict[str, Any]]:
    """Send all of them in one write; their answers. What begins with STREAM or CONSUMER is for the API."""
    client.take()
    data, places = b"", {}
    for n, (subject, body) in enumerate(commands):
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        is_api = subject.startswith(("STREAM", "CONSUMER"))
        reply = f"{client.inbox}at-once-{n}"
        places[reply] = n
        data += pub(f"$JS.API.{subject}" if is_api else subject, payload, reply, b"" if is_api else header)
    client.send(data)
    answers = {places[message.subject]: msgspec.json.decode(message.payload) for message in client.messages()}
    return [answers[n] for n in range(len(commands))]


def messages_of(client: Client, stream: str) -> int:
    return int(client.api(f"STREAM.INFO.{stream}")["state"]["messages"])


def consumer(client: Client, name: str, subject: str) -> None:
    config = {"durable_name": name, "filter_subject": subject, "ack_policy": "explicit"}
    made = client.api(f"CONSUMER.CREATE.I.{name}.{subject}", {"stream_name": "I", "config": config, "action": ""})
    assert "error" not in made


@pytest.mark.parametrize("before", [0, 3])
def test_messages_without_interest_are_removed_with_their_last_consumer(client: Client, before: int) -> None:
    client.create("I", retention="interest")
    consumer(client, "a", "i.a")
    consumer(client, "b", "i.b")
    for _ in range(before):
        client.publish("i.b")
    publishes = [("i.b", b"x"), ("i.a", b"x"), ("i.b", b"x")]
    at_once(client, *publishes, ("CONSUMER.DELETE.I.b", b""))
    assert messages_of(client, "I") == 1
    consumer(client, "c", "i.c")
    config = {"durable_name": "c", "filter_subject": "i.d", "ack_policy": "explicit"}
    narrowed = (f"CONSUMER.CREATE.I.c.{config['filter_subject']}", {"stream_name": "I", "config": config})
    *_, changed = at_once(client, ("i.c", b"x"), ("i.c", b"x"), ("i.a", b"x"), narrowed)
    assert "error" not in changed
    assert messages_of(client, "I") == 2


def test_a_message_may_replace_an_uncommitted_one(client: Client) -> None:
    client.create("B", discard="new", max_msgs_per_subject=1, max_bytes=400)
    for n in range(3):
        client.publish(f"b.{n}", b"x" * 80)
    answers = at_once(client, *[("b.0", b"y" * 80)] * 4)
    assert [answer.get("seq") for answer in answers] == [4, 5, 6, 7]
    assert messages_of(client, "B") == 3


def test_a_reduced_limit_per_subject_applies_to_uncommitted_messages(client: Client) -> None:
    client.create("T")
    client.publish("t.x")
    smaller = {"name": "T", "subjects": ["t.>"], "allow_direct": True, "storage": "memory", "max_msgs_per_subject": 2}
    at_once(client, *[("t.x", b"x")] * 5, *[("t.new", b"x")] * 3, ("STREAM.UPDATE.T", smaller))
    assert messages_of(client, "T") == 4
    info = client.api("STREAM.INFO.T", {"subjects_filter": ">"})
    assert info["state"]["subjects"] == {"t.x": 2, "t.new": 2}


def test_a_counter_adds_to_an_uncommitted_total(client: Client) -> None:
    client.create("C", allow_msg_counter=True)
    increment = b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n"
    commands: list[tuple[str, Any]] = [("c.x", b""), ("c.x", b""), ("STREAM.MSG.DELETE.C", {"seq": 2}), ("c.x", b"")]
    answers = at_once(client, *commands, header=increment)
    assert [answer.get("val") for answer in answers] == ["1", "2", None, "2"]

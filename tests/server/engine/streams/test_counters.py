"""Counters in virtual time: totals over uncommitted increments, lost groups, sources and damaged values."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.errors import ApiError
from slipstream.server.engine.streams import counters
from slipstream.server.engine.streams.counters import Counters, Total, parse_value
from slipstream.server.store.memory.store import MemoryStore
from tests.server.support import Client, Rig, headers


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.create("S", allow_msg_counter=True)
    return client


def test_increments_in_one_group_build_on_each_other(client: Client) -> None:
    frames = b""
    for n in range(3):
        block = b"NATS/1.0\r\nNats-Incr: 5\r\n\r\n"
        frames += b"HPUB s.1 %b%d %d %d\r\n%b\r\n" % (client.inbox.encode(), 50 + n, len(block), len(block), block)
    client.take()
    client.send(frames)
    assert [msgspec.json.decode(answer.payload)["val"] for answer in client.messages()] == ["5", "10", "15"]
    (message,) = client.direct("S", {"last_by_subj": "s.1"})
    assert message.payload == b'{"val":"15"}'
    assert headers(message)["Nats-Incr"] == "5"


def test_a_lost_group_takes_its_increments_back(client: Client) -> None:
    assert client.publish("s.1", b"", Nats_Incr="1")["val"] == "1"
    block = b"NATS/1.0\r\nNats-Incr: 5\r\n\r\n"
    client.send(b"HPUB s.1 %d %d\r\n%b\r\n" % (len(block), len(block), block), settle=False)
    (journal,) = client.rig.engine.journals
    client.rig.engine.failed(journal, OSError("full"), client.rig.now)
    assert client.publish("s.1", b"", Nats_Incr="1")["val"] == "2"


def test_a_purged_counter_starts_from_zero(client: Client) -> None:
    client.publish("s.1", b"", Nats_Incr="7")
    client.api("STREAM.PURGE.S")
    assert client.publish("s.1", b"", Nats_Incr="1")["val"] == "1"


def test_counters_survive_a_restart(client: Client) -> None:
    client.publish("s.1", b"", Nats_Incr="7")
    rig = Rig(store=client.rig.store)
    assert rig.client().publish("s.1", b"", Nats_Incr="1")["val"] == "8"


def test_few_totals_are_remembered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_REMEMBERED", 5)
    for n in range(30):
        client.publish(f"s.{n}", b"", Nats_Incr="1")
    assert len(client.rig.engine.streams["S"]._counters._totals) <= 6
    assert client.publish("s.0", b"", Nats_Incr="1")["val"] == "2"


@pytest.mark.parametrize("payload", [b"", b"{}x", b'{"val":"x"}', b'{"val":5}'])
def test_a_value_that_is_none_is_broken(payload: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_value(payload)
    assert caught.value.err_code == 10172


def test_totals_of_sources_are_kept_apart_and_carried_on() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    totals = Counters(log)
    total, amount = totals.add_sourced(totals.current("a"), "ORIGIN", "x", 7)
    assert (total, amount) == (Total(0, 0, {"ORIGIN": {"x": "7"}}), 7)
    total, header, payload = totals.add(total, amount, b"")
    assert payload == b'{"val":"7"}'
    assert header == b'NATS/1.0\r\nNats-Counter-Sources: {"ORIGIN":{"x":"7"}}\r\n\r\n'
    log.append(1, "a", header, payload)
    group = store.seal()
    store.begin(group)
    store.commit(group)
    store.finish(group)
    again, amount = totals.add_sourced(totals.current("a"), "ORIGIN", "x", 9)
    assert (again.sources, amount) == ({"ORIGIN": {"x": "9"}}, 2)


def test_damaged_sources_are_broken() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    log.append(1, "a", b"NATS/1.0\r\nNats-Counter-Sources: {\r\n\r\n", b'{"val":"1"}')
    with pytest.raises(ApiError, match="broken"):
        Counters(log).current("a")  # not committed: nothing to read
    group = store.seal()
    store.begin(group)
    store.commit(group)
    store.finish(group)
    with pytest.raises(ApiError, match="broken"):
        Counters(log).current("a")

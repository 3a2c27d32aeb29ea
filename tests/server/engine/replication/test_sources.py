"""Sources within the server: several, filtered, mapped; where each message is from; nothing twice, nothing left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.server.engine.ports import Record
from slipstream.server.engine.replication.ingest import HELD, Ingest
from slipstream.server.engine.replication.source import SourceIngest, with_origin
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Headers
from tests.server.support import SECOND, START, Client, Rig


@pytest.fixture
def client() -> Client:
    """A client of an engine with two streams A and B, with Direct Get."""
    client = Rig().client()
    client.create("A")
    client.create("B")
    return client


def gather(client: Client, *sources: dict[str, Any], name: str = "ALL", **more: Any) -> dict[str, Any]:
    return client.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", "sources": list(sources)} | more)


def contents(client: Client, name: str = "ALL") -> list[Record]:
    return client.rig.engine.streams[name].log.scan("", 0, limit=100_000)


def origins(client: Client, name: str = "ALL") -> list[str]:
    """Without the upstream's identity, which is the last word."""
    found = [Headers.parse(record.header)["Nats-Stream-Source"] for record in contents(client, name)]
    assert all(len(origin.rpartition(" ")[2]) == 8 for origin in found)
    return [origin.rpartition(" ")[0] for origin in found]


def ingests(client: Client, name: str = "ALL") -> list[Ingest]:
    return [ingest for ingest in client.rig.engine.streams[name].ingests if isinstance(ingest, Ingest)]


def test_messages_of_several_streams_come_together_with_their_origin(client: Client) -> None:
    gather(client, {"name": "A"}, {"name": "B", "filter_subject": "b.yes"})
    for n in range(3):
        client.publish("a.1", b"a%d" % n)
        client.publish("b.yes", b"b%d" % n)
        client.publish("b.no", b"-")
    assert [record.payload for record in contents(client)] == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert [record.seq for record in contents(client)] == [1, 2, 3, 4, 5, 6]
    assert origins(client)[:4] == ["A 1 > > a.1", "B 1 b.yes > b.yes", "A 2 > > a.1", "B 3 b.yes > b.yes"]
    info = client.api("STREAM.INFO.ALL")
    assert info["sources"] == [
        {"name": "A", "lag": 0, "active": 0, "seq": 3},
        {"name": "B", "lag": 0, "active": 0, "filter_subject": "b.yes", "seq": 6},
    ]
    assert "subjects" not in info["config"]


def test_a_stream_with_sources_takes_publishes_too(client: Client) -> None:
    gather(client, {"name": "A"}, subjects=["own.>"])
    client.publish("a.1", b"theirs")
    assert client.publish("own.1", b"ours")["seq"] == 2
    assert [record.subject for record in contents(client)] == ["a.1", "own.1"]


def test_subjects_are_mapped_and_the_original_is_named(client: Client) -> None:
    transforms = [{"src": "a.1", "dest": "x.one"}, {"src": "a.*.z", "dest": "x.{{wildcard(1)}}"}]
    gather(client, {"name": "A", "subject_transforms": transforms})
    for subject in ("a.1", "a.2", "a.7.z"):
        client.publish(subject)
    assert [record.subject for record in contents(client)] == ["x.one", "x.7"]
    assert origins(client) == [
        "A 1 a.1\fa.*.z x.one\fx.{{wildcard(1)}} a.1",
        "A 3 a.1\fa.*.z x.one\fx.{{wildcard(1)}} a.7.z",
    ]


def test_headers_meant_for_the_upstream_are_removed() -> None:
    block = (
        b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Expected-Last-Sequence: 4\r\nX: y\r\n"
        b"Nats-Stream-Source: OLD 1 > > s\r\nNats-Batch-Id: b\r\n\r\n"
    )
    assert (
        with_origin(block, "A 1 > > s")
        == b"NATS/1.0\r\nNats-Msg-Id: 1\r\nX: y\r\nNats-Stream-Source: A 1 > > s\r\n\r\n"
    )
    assert with_origin(b"", "A 1 > > s") == b"NATS/1.0\r\nNats-Stream-Source: A 1 > > s\r\n\r\n"
    assert with_origin(b"junk", "A 1 > > s") == b"NATS/1.0\r\nNats-Stream-Source: A 1 > > s\r\n\r\n"


def test_a_source_counts_as_interest_in_the_subjects_of_its_filter(client: Client) -> None:
    client.create("I", retention="interest")
    client.publish("i.1", b"nobody's")
    gather(client, {"name": "I", "filter_subject": "i.1"})
    for subject in ("i.1", "i.2", "i.1"):
        client.publish(subject, b"wanted")
    assert [record.subject for record in contents(client)] == ["i.1", "i.1"]
    assert [record.seq for record in contents(client, "I")] == [2, 4]
    client.api("CONSUMER.CREATE.I.c", {"stream_name": "I", "config": {"durable_name": "c", "ack_policy": "explicit"}})
    client.publish("i.2", b"for the consumer")
    client.api("CONSUMER.DELETE.I.c")
    assert [record.seq for record in contents(client, "I")] == [2, 4]
    client.api("STREAM.DELETE.ALL")
    client.publish("i.1", b"nobody's")
    assert [record.seq for record in contents(client, "I")] == [2, 4]


def test_duplicates_by_message_id_are_left_out_where_a_window_is_asked_for(client: Client) -> None:
    gather(client, {"name": "A"}, {"name": "B"}, name="PLAIN")
    gather(client, {"name": "A"}, {"name": "B"}, duplicate_window=60 * SECOND)
    client.publish("a.1", b"first", Nats_Msg_Id="x")
    client.publish("b.1", b"again", Nats_Msg_Id="x")
    client.publish("b.1", b"other", Nats_Msg_Id="y")
    assert [record.payload for record in contents(client)] == [b"first", b"other"]
    assert [record.payload for record in contents(client, "PLAIN")] == [b"first", b"again", b"other"]


def test_a_chain_of_sources_names_the_nearest_origin(client: Client) -> None:
    gather(client, {"name": "A"})
    gather(client, {"name": "ALL"}, name="CHAIN")
    client.publish("a.1", b"1", Nats_Expected_Last_Sequence="0")
    assert origins(client, "CHAIN") == ["ALL 1 > > a.1"]


def test_sources_begin_at_their_start_sequence_or_time(client: Client) -> None:
    for n in range(4):
        client.rig.wait(1)
        client.publish("a.1", b"%d" % n)
    time = client.api("STREAM.INFO.A")["state"]["last_ts"]
    gather(client, {"name": "A", "opt_start_seq": 3}, name="SEQ")
    gather(client, {"name": "A", "opt_start_time": time}, name="TIME")
    assert [record.payload for record in contents(client, "SEQ")] == [b"2", b"3"]
    assert [record.payload for record in contents(client, "TIME")] == [b"3"]


def test_a_full_stream_resumes_its_sources_when_there_is_space(client: Client) -> None:
    gather(client, {"name": "A"}, max_msgs=3, discard="new")
    for n in range(6):
        client.publish("a.1", b"%d" % n)
    assert [record.payload for record in contents(client)] == [b"0", b"1", b"2"]
    info = client.api("STREAM.INFO.ALL")["sources"][0]
    assert (info["lag"], info["error"]["err_code"]) == (3, 10077)
    client.api("STREAM.PURGE.ALL", {"keep": 1})
    assert [record.payload for record in contents(client)] == [b"2", b"3", b"4"]
    client.api("STREAM.PURGE.ALL")
    assert [record.payload for record in contents(client)] == [b"5"]
    assert "error" not in client.api("STREAM.INFO.ALL")["sources"][0]


def test_sources_can_be_added_and_taken_away_and_go_on_where_they_were(client: Client) -> None:
    gather(client, {"name": "A"})
    client.publish("a.1", b"a1")
    base = {"name": "ALL", "storage": "memory"}
    client.api("STREAM.UPDATE.ALL", base | {"sources": [{"name": "B"}]})
    client.publish("a.1", b"a2")
    client.publish("b.1", b"b1")
    client.api("STREAM.UPDATE.ALL", base | {"sources": [{"name": "A"}, {"name": "B"}]})
    client.rig.settle()
    assert [record.payload for record in contents(client)] == [b"a1", b"b1", b"a2"]


def test_sources_resume_even_if_the_sourced_messages_are_gone(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    client = Rig(store=store).client()
    client.create("A", storage="file")
    gather(client, {"name": "A", "filter_subject": "a.1"}, storage="file")
    for n in range(1500):
        client.publish(f"a.{n % 2}", b"%d" % n)
    (ingest,) = ingests(client)
    ingest.pause(HELD)
    client.publish("a.1", b"later")
    client.api("STREAM.PURGE.ALL")
    store.close()
    store = LmdbStore(tmp_path)
    client = Rig(store=store, now=START + SECOND).client()
    client.rig.settle()
    assert [(record.seq, record.payload) for record in contents(client)] == [(751, b"later")]
    store.close()


def test_a_recreated_upstream_is_read_from_its_beginning(client: Client) -> None:
    gather(client, {"name": "A"})
    for n in range(5):
        client.publish("a.1", b"old %d" % n)
    client.api("STREAM.DELETE.A")
    client.rig.wait(1)
    client.create("A")
    client.publish("a.1", b"new")
    assert [record.payload for record in contents(client)][-2:] == [b"old 4", b"new"]


def test_a_lost_group_is_taken_in_again_and_once(client: Client) -> None:
    gather(client, {"name": "A"})
    rig = client.rig
    client.publish("a.1", b"1")
    client.send(b"PUB a.1 1\r\n2\r\n", settle=False)
    rig.commit()
    rig.engine.step(rig.now)
    (journal,) = rig.engine.journals
    assert journal.store.pending
    rig.engine.failed(journal, OSError("no room"), rig.now)
    client.publish("a.1", b"3")
    assert [record.payload for record in contents(client)] == [b"1", b"2", b"3"]


def test_an_upstream_whose_deletion_is_lost_is_not_taken_in_again(client: Client) -> None:
    gather(client, {"name": "A"})
    for n in range(3):
        client.publish("a.1", b"%d" % n)
    upstream = client.rig.engine.streams["A"]
    (ingest,) = client.rig.engine.streams["ALL"].ingests
    assert isinstance(ingest, SourceIngest)
    # Deleted and recreated, and both lost with a group of a store that is not the one of the stream with the source.
    ingest.meet(upstream.created + 1, upstream.config)
    ingest.meet(upstream.created, upstream.config)
    client.publish("a.1", b"3")
    assert [record.payload for record in contents(client)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("sources", "err_code"),
    [
        ([{"name": "A"}, {"name": "A"}], 10140),
        ([{"name": "a.b"}], 10141),
        ([{"name": "A", "filter_subject": "x", "subject_transforms": [{"src": "y", "dest": "z"}]}], 10144),
        ([{"name": "A", "subject_transforms": [{"src": "y.", "dest": "z"}]}], 10145),
        ([{"name": "A", "subject_transforms": [{"src": "y", "dest": "{{wildcard(1)}}"}]}], 10146),
        ([{"name": "A", "subject_transforms": [{"src": "y", "dest": "1"}, {"src": ">", "dest": "2.>"}]}], 10147),
        ([{"name": "ALL"}], 10052),
        ([{"name": "SIZED"}], 10046),
    ],
)
def test_bad_sources_are_refused(client: Client, sources: list[dict[str, Any]], err_code: int) -> None:
    client.create("SIZED", max_msg_size=100)
    assert gather(client, *sources, max_msg_size=50)["error"]["err_code"] == err_code


def test_a_circle_of_sources_is_refused(client: Client) -> None:
    gather(client, {"name": "A"})
    base = {"name": "A", "subjects": ["a.>"], "storage": "memory", "allow_direct": True}
    answer = client.api("STREAM.UPDATE.A", base | {"sources": [{"name": "ALL"}]})
    assert answer["error"] == {"code": 500, "err_code": 10052, "description": "detected cycle"}


def test_an_upstream_recreated_at_the_same_time_is_recognised(client: Client) -> None:
    client.create("UP", subjects=["up.>"])
    client.create("Q", subjects=[], sources=[{"name": "UP"}])
    for n in range(3):
        client.publish("up.x", b"old%d" % n)
    client.api("STREAM.DELETE.UP")
    client.create("UP", subjects=["up.>"])
    for n in range(2):
        client.publish("up.x", b"new%d" % n)
    found = [message.payload for message in client.direct("Q", {"seq": 1, "batch": 10})][:-1]
    assert found == [b"old0", b"old1", b"old2", b"new0", b"new1"]

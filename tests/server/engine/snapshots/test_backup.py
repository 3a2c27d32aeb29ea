"""Snapshots and restores in virtual time: exact, in bounded pieces, all or nothing, and what ends them early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.api.snapshot.archive import MAGIC as ARCHIVE
from slipstream.api.snapshot.archive import ArchiveReader, Entry, encode_entry
from slipstream.api.snapshot.s2 import S2Reader, S2Writer
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Msg, pub
from tests.server.support import SECOND, Client, Rig, sequences, status

DELIVER = b"SUB deliver 40\r\n"


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.send(DELIVER)
    return client


def fill(client: Client, **config: Any) -> dict[str, Any]:
    answer = client.create("S", max_msgs_per_subject=50, **config)
    for n in range(120):
        client.publish(f"s.{n % 3}", b"payload %d" % n * (n % 9), **({"Nats-Msg-Id": f"m{n}"} if n % 4 == 0 else {}))
        client.rig.now += 1000
    for seq in (1, 17, 18, 120):
        client.api("STREAM.MSG.DELETE.S", {"seq": seq})
    return answer


def seen(client: Client) -> list[Msg]:
    """The chunks that came along with the answer to the last question."""
    assert isinstance(client, Recorder)
    return [message for message in client.seen if message.subject == "deliver"]


def snapshot(client: Client, **request: Any) -> tuple[dict[str, Any], list[Msg]]:
    """The answer to the request, and every chunk, each acknowledged."""
    client.take()
    answer = client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver"} | request)
    chunks = seen(client)
    while chunks[-1].payload:
        client.take()
        client.send(b"".join(b"PUB %b 0\r\n\r\n" % chunk.reply.encode() for chunk in chunks if chunk.reply))
        more = [message for message in client.messages() if message.subject == "deliver"]
        chunks = [msgspec.structs.replace(chunk, reply="") for chunk in chunks] + more
        assert more
    return answer, chunks


class Recorder(Client):
    """A client that keeps what its questions brought along."""

    seen: list[Msg]

    def messages(self) -> list[Msg]:
        found = super().messages()
        self.seen = found
        return found


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.support.Client", Recorder)


def restore(client: Client, answer: dict[str, Any], data: bytes, *, size: int = 1000) -> dict[str, Any]:
    begun = client.api("STREAM.RESTORE.S", {"config": answer["config"], "state": answer["state"]})
    assert "error" not in begun
    for at in range(0, len(data), size):
        (taken,) = client.ask(begun["deliver_subject"], data[at : at + size])
        if taken.payload:
            return msgspec.json.decode(taken.payload)  # type: ignore[no-any-return]
    (last,) = client.ask(begun["deliver_subject"], b"")
    return msgspec.json.decode(last.payload)  # type: ignore[no-any-return]


def everything(client: Client) -> list[tuple[bytes, bytes]]:
    return [(message.header, message.payload) for message in client.direct("S", {"seq": 1, "batch": 1000})]


@pytest.mark.parametrize("chunk_size", [0, 1024])
def test_a_restored_stream_equals_the_saved_one(client: Client, chunk_size: int) -> None:
    fill(client)
    before, state = everything(client), client.api("STREAM.INFO.S")["state"]
    answer, chunks = snapshot(client, chunk_size=chunk_size)
    assert answer["state"] == state
    client.api("STREAM.DELETE.S")
    restored = restore(client, answer, b"".join(chunk.payload for chunk in chunks))
    assert restored["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    del restored["state"]["last_ts"], state["last_ts"]  # that of message 120, which is gone
    assert restored["state"] == state
    assert restored["config"]["metadata"]["_nats.ver"] == "2.15.1"
    assert everything(client) == before
    assert client.publish("s.1")["seq"] == 121
    assert client.publish("s.1", Nats_Msg_Id="m100")["duplicate"]


def test_the_end_of_a_snapshot_has_a_status_if_chunks_were_to_be_acknowledged(client: Client) -> None:
    fill(client)
    _, chunks = snapshot(client, chunk_size=1024)
    assert all(len(chunk.payload) == 1024 for chunk in chunks[:-2])
    assert status(chunks[-1]) == (204, "")
    _, chunks = snapshot(client)
    assert [chunk.reply for chunk in chunks] == ["", ""]
    assert chunks[-1].header == b""


def test_no_more_is_sent_than_was_asked_for(client: Client) -> None:
    fill(client)
    client.take()
    client.send(
        b'PUB $JS.API.STREAM.SNAPSHOT.S 69\r\n{"deliver_subject":"deliver","chunk_size":1024,"window_size":3000}   \r\n'
    )
    first = client.messages()
    assert len(first) == 2
    client.rig.wait(4)
    assert client.messages() == []
    client.send(b"PUB %b 0\r\n\r\n" % first[0].reply.encode())
    assert len(client.messages()) == 1
    client.rig.wait(6)
    (end,) = client.messages()
    assert status(end) == (408, "No Flow Response")
    client.send(b"PUB %b 0\r\n\r\n" % first[1].reply.encode())
    assert client.messages() == []


def test_a_receiver_that_is_not_there_is_waited_for_a_moment() -> None:
    client = Rig().client()
    fill(client)
    told = b"SUB $JS.EVENT.ADVISORY.STREAM.*.S 41\r\n"
    client.send(told)
    client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver"})
    client.take()
    client.rig.wait(3)
    (ended,) = client.messages()
    assert ended.subject == "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S"
    assert msgspec.json.decode(ended.payload)["error"] == "no interest"
    client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver"})
    client.send(DELIVER)
    assert any(message.subject == "deliver" for message in client.messages())


def test_a_stream_that_is_deleted_ends_its_snapshot(client: Client) -> None:
    fill(client)
    client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 1024})
    client.take()
    client.send(b"PUB $JS.API.STREAM.DELETE.S 0\r\n\r\n")
    (end,) = client.messages()
    assert status(end) == (500, "the stream was deleted")


def test_messages_published_during_a_snapshot_are_not_in_it(client: Client) -> None:
    fill(client)
    client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 1024})
    chunks = seen(client)
    client.publish("s.new")
    while chunks[-1].payload:
        client.take()
        client.send(b"PUB %b 0\r\n\r\n" % chunks[-1].reply.encode())
        chunks += client.messages()
    entries = ArchiveReader().feed(S2Reader().feed(b"".join(chunk.payload for chunk in chunks)))
    assert entries[0].name == "state.json"
    assert entries[-2].seq == 119
    assert entries[-1] == Entry("")


@pytest.mark.parametrize(
    ("body", "err_code"),
    [
        (b"", 10003),
        (b'{"deliver_subject":"a.*"}', 10015),
        (b'{"deliver":1}', 10025),
        (b'{"deliver_subject":""}', 10015),
    ],
)
def test_a_bad_request_for_a_snapshot_is_refused(client: Client, body: bytes, err_code: int) -> None:
    client.create("S")
    assert client.api("STREAM.SNAPSHOT.S", body)["error"]["err_code"] == err_code
    assert client.api("STREAM.SNAPSHOT.NO", {"deliver_subject": "d"})["error"]["err_code"] == 10059


def archive(*entries: Entry) -> bytes:
    return S2Writer().frames(ARCHIVE + b"".join(encode_entry(entry) for entry in entries))


def state(**fields: int) -> Entry:
    return Entry("state.json", 1, payload=msgspec.json.encode({"first_seq": 1, "last_seq": 3} | fields))


MESSAGE = Entry("s.1", SECOND, 2, b"", b"x")
END = Entry("")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x01\x04\x00\x00rubbish", "does not begin with the identifier"),
        (archive(MESSAGE), "expected state.json first"),
        (archive(Entry("state.json", payload=b"{")), "error in state.json"),
        (archive(state(first_seq=9)), "sequences that cannot be"),
        (archive(state(), MESSAGE, MESSAGE, END), "out of order"),
        (archive(state(), Entry("s.1", 1), END), "expected message sequence"),
        (archive(state(consumer_count=1), MESSAGE, END), "expected consumer, found 's.1'"),
        (archive(state(), MESSAGE._replace(payload=b"x" * 300), END), "exceeds maximum message size"),
        (archive(state(), MESSAGE), "backup was truncated"),
        (archive(state(), MESSAGE, END)[:-1], "backup was truncated"),
        (archive(state(), MESSAGE, END, MESSAGE), "has data after its end"),
    ],
)
def test_a_bad_snapshot_leaves_nothing_behind(client: Client, data: bytes, text: str) -> None:
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "max_msg_size": 200}
    answer = restore(client, {"config": config, "state": {}}, data)
    assert answer["error"]["err_code"] == 10062
    assert text in answer["error"]["description"]
    assert client.api("STREAM.NAMES")["streams"] is None
    assert list(client.rig.store.streams()) == []
    assert "error" not in client.create("S")


def test_gaps_ends_and_lifetimes_come_back(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_msg_ttl": True, "allow_direct": True}
    over = Entry("s.1", SECOND, 5, b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n", b"x")
    kept = Entry("s.2", client.rig.now, 8, b"NATS/1.0\r\nNats-TTL: 30\r\n\r\n", b"x")
    answer = restore(client, {"config": config, "state": {}}, archive(state(first_seq=4, last_seq=11), over, kept, END))
    assert answer["state"]["messages"] == 1
    assert (answer["state"]["first_seq"], answer["state"]["last_seq"]) == (8, 11)
    assert client.publish("s.1")["seq"] == 12
    client.rig.wait(31)
    assert sequences(client.direct("S", {"seq": 1, "batch": 10})) == [12]


def test_a_restored_empty_stream_keeps_its_sequence(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    restore(client, {"config": config, "state": {}}, archive(state(first_seq=6, last_seq=5), END))
    assert client.publish("s.1")["seq"] == 6


def test_a_restore_that_stalls_is_cleared(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    begun = client.api("STREAM.RESTORE.S", {"config": config})
    client.ask(begun["deliver_subject"], archive(state(), MESSAGE))
    assert client.api("STREAM.RESTORE.S", {"config": config})["error"]["err_code"] == 10130
    assert client.create("S")["error"]["err_code"] == 10058
    client.rig.wait(6)
    assert client.ask(begun["deliver_subject"], b"")[0].header.startswith(b"NATS/1.0 503")
    assert list(client.rig.store.streams()) == []
    assert "error" not in client.create("S")


def test_a_chunk_without_a_reply_ends_the_restore(client: Client) -> None:
    begun = client.api("STREAM.RESTORE.S", {"config": {"name": "S", "storage": "memory"}})
    client.send(b"PUB %b 1\r\nx\r\n" % begun["deliver_subject"].encode())
    assert "error" not in client.create("S")


@pytest.mark.parametrize(
    ("body", "err_code"),
    [
        ({}, 10003),
        ({"config": {"name": "T"}}, 10056),
        ({"config": {"subjects": ["a..b"]}}, 10052),
        ({"config": {"subjects": ["taken.x"]}}, 10065),
        ({"nonsense": 1}, 10025),
    ],
)
def test_a_bad_request_for_a_restore_is_refused(client: Client, body: dict[str, Any], err_code: int) -> None:
    client.create("TAKEN")
    assert client.api("STREAM.RESTORE.S", body)["error"]["err_code"] == err_code
    assert client.api("STREAM.RESTORE.TAKEN", {"config": {"name": "TAKEN"}})["error"]["err_code"] == 10130


def test_a_crash_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 26, tuning=Tuning(segment=64))
    client = Rig(store=store).client()
    begun = client.api("STREAM.RESTORE.S", {"config": {"name": "S", "subjects": ["s.>"]}})
    client.ask(begun["deliver_subject"], archive(state(), MESSAGE))
    assert [name for name, _ in store.streams()] == ["S"]
    store.close()
    again = LmdbStore(tmp_path, map_size=1 << 26)
    client = Rig(store=again).client()
    assert client.api("STREAM.NAMES")["streams"] is None
    assert "error" not in client.create("S", storage="file")
    assert client.publish("s.1")["seq"] == 1
    again.close()


@pytest.mark.parametrize("how", ["created", "updated"])
def test_a_restore_fails_if_another_stream_has_its_subjects_by_then(client: Client, how: str) -> None:
    if how == "updated":
        client.create("T", subjects=["t"])
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    begun = client.api("STREAM.RESTORE.S", {"config": config})
    if how == "updated":
        updated = {"name": "T", "subjects": ["t", "s.1"], "storage": "memory"}
        assert "error" not in client.api("STREAM.UPDATE.T", updated)
    else:
        assert "error" not in client.create("T", subjects=["s.1"])
    client.ask(begun["deliver_subject"], archive(state(), MESSAGE, END))
    (last,) = client.ask(begun["deliver_subject"], b"")
    assert msgspec.json.decode(last.payload)["error"]["err_code"] == 10065
    assert client.api("STREAM.NAMES")["streams"] == ["T"]
    assert [name for name, _ in client.rig.store.streams()] == ["T"]
    assert client.publish("s.1")["stream"] == "T"


def test_a_restore_fails_if_the_account_has_as_many_streams_as_it_may_by_then() -> None:
    client = Rig(limits={DEFAULT_ACCOUNT: AccountLimits(max_streams=1)}).client()
    begun = client.api("STREAM.RESTORE.S", {"config": {"name": "S", "subjects": ["s.>"], "storage": "memory"}})
    assert "error" not in client.create("T", subjects=["t"])
    client.ask(begun["deliver_subject"], archive(state(), MESSAGE, END))
    (last,) = client.ask(begun["deliver_subject"], b"")
    assert msgspec.json.decode(last.payload)["error"]["err_code"] == 10027
    assert client.api("STREAM.NAMES")["streams"] == ["T"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_store_that_fails_in_the_middle_ends_the_restore(client: Client, committed: bool) -> None:
    begun = client.api("STREAM.RESTORE.S", {"config": {"name": "S", "storage": "memory"}})
    data = archive(state(), MESSAGE)
    client.send(
        b"PUB %b %b1 %d\r\n%b\r\n" % (begun["deliver_subject"].encode(), client.inbox.encode(), len(data), data),
        settle=committed,
    )
    (journal,) = client.rig.engine.journals
    client.rig.engine.failed(journal, OSError("full"), client.rig.now)
    client.rig.settle()
    assert list(client.rig.store.streams()) == []
    assert "error" not in client.create("S")


def send_at_once(client: Client, subject: str, data: bytes) -> None:
    """The whole snapshot and its end in one write, whose chunks nobody waits for."""
    chunks = [data[at : at + 1000] for at in range(0, len(data), 1000)] + [b""]
    frames = [pub(subject, chunk, f"{client.inbox}chunk{n}") for n, chunk in enumerate(chunks)]
    client.send(b"".join(frames), settle=False)


def test_a_restore_without_flow_control_loses_nothing(client: Client) -> None:
    fill(client, duplicate_window=120 * SECOND)
    config = {"durable_name": "dur", "ack_policy": "explicit"}
    client.api("CONSUMER.CREATE.S.dur", {"stream_name": "S", "config": config})
    client.send(b"SUB got 41\r\n" + pub("$JS.API.CONSUMER.MSG.NEXT.S.dur", b"3", "got"))
    answer, chunks = snapshot(client)
    client.api("STREAM.DELETE.S")
    begun = client.api("STREAM.RESTORE.S", {"config": answer["config"], "state": answer["state"]})
    send_at_once(client, begun["deliver_subject"], b"".join(chunk.payload for chunk in chunks))
    client.rig.settle()
    last = client.messages()[-1]
    assert msgspec.json.decode(last.payload)["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert client.api("CONSUMER.INFO.S.dur")["num_ack_pending"] == 3
    assert client.publish("s.1", Nats_Msg_Id="m116")["duplicate"]


def test_a_store_that_fails_at_the_end_ends_the_restore_with_an_answer(client: Client) -> None:
    begun = client.api("STREAM.RESTORE.S", {"config": {"name": "S", "storage": "memory"}})
    client.take()
    send_at_once(client, begun["deliver_subject"], archive(state(), MESSAGE, END))
    (journal,) = client.rig.engine.journals
    client.rig.engine.failed(journal, OSError("full"), client.rig.now)
    client.rig.settle()
    answers = {message.subject.removeprefix(client.inbox): message.payload for message in client.messages()}
    assert b"restore failed: full" in answers["chunk0"]
    assert b"the store failed" in answers["chunk1"]
    assert list(client.rig.store.streams()) == []
    assert "error" not in client.create("S")


def test_a_restore_whose_group_is_lost_leaves_the_stream_whose_deletion_is_lost_with_it(client: Client) -> None:
    client.create("S")
    client.publish("s.1", b"kept")
    (journal,) = client.rig.engine.journals
    body = b'{"config":{"name":"S","storage":"memory"}}'
    client.send(pub("$JS.API.STREAM.DELETE.S", b"", f"{client.inbox}deleted"), settle=False)
    client.send(pub("$JS.API.STREAM.RESTORE.S", body, f"{client.inbox}begun"), settle=False)
    begun = msgspec.json.decode(journal.answers[-1][3])  # clients see it later, once the deletion is durable
    client.send(pub(begun["deliver_subject"], archive(state(), MESSAGE), f"{client.inbox}chunk"), settle=False)
    client.rig.engine.failed(journal, OSError("full"), client.rig.now)
    client.rig.settle()
    assert client.direct("S", {"seq": 1})[0].payload == b"kept"

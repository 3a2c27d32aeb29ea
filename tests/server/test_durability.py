"""Nothing is told before it is durable: acks, API answers and reads, and what happens when a group is lost."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import StoreError
from slipstream.server.engine.engine import Engine
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Headers
from tests.server.support import Client, Rig, make_settings, sequences


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.create("S")
    return client


def answers(client: Client) -> list[bytes]:
    client.rig.flush()
    return [message.payload for message in client.messages()]


def fail(rig: Rig, error: Exception) -> None:
    (journal,) = rig.engine.journals
    rig.engine.failed(journal, error, rig.now)


def test_no_ack_leaves_before_the_commit(client: Client) -> None:
    rig = client.rig
    client.ask("s.1", b"one", settle=False)
    client.ask("s.1", b"two", Headers({"Nats-Msg-Id": "a"}), settle=False)
    rig.engine.step(rig.now)
    assert answers(client) == []
    (journal,) = rig.engine.journals
    batch = journal.seal()
    assert batch.group is not None
    client.ask("s.1", b"three", settle=False)
    rig.store.begin(batch.group)
    assert rig.store.write_some(batch.group)
    rig.store.commit(batch.group)
    assert answers(client) == []
    rig.engine.committed(batch, rig.now)
    assert answers(client) == [b'{"stream":"S","seq":1}', b'{"stream":"S","seq":2}']
    rig.commit()
    assert answers(client) == [b'{"stream":"S","seq":3}']


def test_duplicates_and_rejections_wait_for_the_changes_they_depend_on(client: Client) -> None:
    rig = client.rig
    header = Headers({"Nats-Msg-Id": "a"})
    client.ask("s.1", b"one", header, settle=False)
    client.ask("s.1", b"one", header, settle=False)
    client.ask("s.1", b"two", Headers({"Nats-Expected-Last-Sequence": "0"}), settle=False)
    assert answers(client) == []
    rig.commit()
    first, second, third = answers(client)
    assert first == b'{"stream":"S","seq":1}'
    assert b'"duplicate": true' in second
    assert b"wrong last sequence: 1" in third


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("STREAM.CREATE.T", {"name": "T", "storage": "memory"}),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>", "x"], "storage": "memory", "allow_direct": True}),
        ("STREAM.DELETE.S", {}),
        ("STREAM.PURGE.S", {}),
        ("STREAM.MSG.DELETE.S", {"seq": 1}),
    ],
)
def test_no_change_is_reported_before_the_commit(client: Client, subject: str, body: dict[str, object]) -> None:
    client.publish("s.1")
    assert client.ask(f"$JS.API.{subject}", body, settle=False) == []
    assert answers(client) == []
    client.rig.commit()
    (answer,) = answers(client)
    assert "error" not in msgspec.json.decode(answer)


def test_rejections_of_the_api_wait_for_the_changes_they_depend_on(client: Client) -> None:
    client.publish("s.1")
    client.ask("$JS.API.STREAM.MSG.DELETE.S", {"seq": 1}, settle=False)
    client.ask("$JS.API.STREAM.MSG.DELETE.S", {"seq": 1}, settle=False)  # it is gone, but that could be taken back
    assert answers(client) == []
    client.rig.commit()
    first, second = map(msgspec.json.decode, answers(client))
    assert first["success"]
    assert second["error"]["err_code"] == 10043


def test_info_about_a_stream_that_is_deleted_before_the_answer_says_so(client: Client) -> None:
    client.publish("s.1")
    client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    client.ask("$JS.API.STREAM.INFO.S", settle=False)
    client.ask("$JS.API.STREAM.DELETE.S", settle=False)
    client.rig.commit()
    info, deleted = map(msgspec.json.decode, answers(client))
    assert info["error"]["err_code"] == 10059
    assert deleted["success"]


def test_reports_wait_while_the_catalog_has_changes_under_way(client: Client) -> None:
    client.ask("$JS.API.STREAM.CREATE.T", {"name": "T", "storage": "memory"}, settle=False)
    client.ask("$JS.API.STREAM.NAMES", settle=False)
    assert answers(client) == []
    client.rig.commit()
    created, named = answers(client)
    assert b"did_create" in created
    assert b'["S","T"]' in named
    client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    client.ask("$JS.API.STREAM.NAMES", settle=False)  # messages under way do not hold it up
    assert len(answers(client)) == 1


def test_reads_see_only_what_is_committed(client: Client) -> None:
    client.publish("s.1", b"old")
    client.send(b"PUB s.1 3\r\nnew\r\n", settle=False)
    for subject, body in (
        ("$JS.API.DIRECT.GET.S", {"last_by_subj": "s.1"}),
        ("$JS.API.DIRECT.GET.S.s.1", b""),
    ):
        client.ask(subject, body, settle=False)
        assert answers(client) == [b"old"]
    client.ask("$JS.API.STREAM.INFO.S", settle=False)
    assert answers(client) == []  # it waits, so that it knows what was published before it
    client.rig.commit()
    (info,) = answers(client)
    assert msgspec.json.decode(info)["state"]["last_seq"] == 2
    assert [m.payload for m in client.direct("S", {"last_by_subj": "s.1"})] == [b"new"]


def test_a_lost_group_answers_all_its_publishers_with_errors_and_leaves_no_trace(client: Client) -> None:
    rig = client.rig
    assert client.publish("s.1", b"kept", Nats_Msg_Id="kept")["seq"] == 1
    client.ask("s.1", b"lost", Headers({"Nats-Msg-Id": "lost"}), settle=False)
    client.ask("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["t"]}, settle=False)
    (journal,) = rig.engine.journals
    journal.seal()
    client.ask("t", b"lost too", settle=False)
    client.ask("$JS.API.STREAM.PURGE.S", settle=False)
    fail(rig, StoreError("no space left on the disk"))
    lost = [msgspec.json.decode(answer) for answer in answers(client)]
    reason = {"code": 503, "err_code": 10077, "description": "no space left on the disk"}
    assert [answer["error"] for answer in lost] == [reason] * 4
    assert lost[0] == {"error": reason, "stream": "S", "seq": 0}
    assert lost[1]["type"].endswith("stream_create_response")
    assert client.api("STREAM.NAMES")["streams"] == ["S"]
    assert sequences(client.direct("S", {"seq": 1, "batch": 9})) == [1]
    (nobody,) = client.ask("t", b"x")
    assert nobody.header.startswith(b"NATS/1.0 503")
    # The server goes on: the lost id is new again, the kept one is not.
    assert client.publish("s.1", b"again", Nats_Msg_Id="lost") == {"stream": "S", "seq": 2}
    assert client.publish("s.1", b"again", Nats_Msg_Id="kept") == {"stream": "S", "seq": 1, "duplicate": True}


def test_a_lost_delete_or_update_brings_the_stream_back(client: Client) -> None:
    client.publish("s.1", b"kept")
    update = {"name": "S", "subjects": ["other"], "storage": "memory"}
    client.ask("$JS.API.STREAM.UPDATE.S", update, settle=False)
    client.ask("$JS.API.STREAM.DELETE.S", settle=False)
    fail(client.rig, StoreError("broken"))
    assert len(answers(client)) == 2
    assert client.api("STREAM.INFO.S")["config"]["subjects"] == ["s.>"]
    assert [m.payload for m in client.direct("S", {"seq": 1})] == [b"kept"]
    assert client.publish("s.1")["seq"] == 2


def two_stores() -> Client:
    """A client of a server whose file and memory streams are in stores of their own."""
    rig = Rig()
    rig.engine = Engine(make_settings(), file=MemoryStore(), memory=MemoryStore(), rng=random.Random(1), now=rig.now)
    return rig.client()


@pytest.mark.parametrize("name", ["S", "OTHER"])
def test_a_lost_delete_does_not_bring_back_a_stream_that_was_replaced_meanwhile(name: str) -> None:
    client = two_stores()
    client.create("S", storage="file")
    client.ask("$JS.API.STREAM.DELETE.S", settle=False)
    file, memory = client.rig.engine.journals
    batch = file.seal()
    config = {"name": name, "subjects": ["s.>"], "storage": "memory"}
    client.ask(f"$JS.API.STREAM.CREATE.{name}", config, settle=False)
    client.rig.engine.committed(memory.seal(), client.rig.now)
    assert batch.group is not None
    client.rig.engine.failed(file, StoreError("broken"), client.rig.now)
    assert len(answers(client)) == 2
    client.rig.settle()
    assert client.api("STREAM.NAMES")["streams"] == [name]
    assert client.publish("s.1") == {"stream": name, "seq": 1}
    assert list(file.store.streams()) == []


def test_a_read_that_waits_survives_a_lost_group(client: Client) -> None:
    client.ask("$JS.API.DIRECT.GET.S", {"seq": 1, "min_last_seq": 1})
    client.send(b"PUB s.1 4\r\nlost\r\n", settle=False)
    fail(client.rig, StoreError("broken"))
    assert answers(client) == []
    client.send(b"PUB s.1 4\r\nkept\r\n")
    assert answers(client) == [b"kept"]


def test_each_store_holds_back_only_its_own_answers() -> None:
    """File and memory streams commit on their own; a slow disk does not delay a memory stream."""
    client = two_stores()
    rig = client.rig
    client.create("F", storage="file")
    client.create("M", storage="memory")
    file, memory = rig.engine.journals
    client.take()
    client.ask("f.1", b"x", settle=False)
    client.ask("m.1", b"x", settle=False)
    batch = memory.seal()
    rig.engine.committed(batch, rig.now)
    assert answers(client) == [b'{"stream":"M","seq":1}']
    rig.engine.committed(file.seal(), rig.now)
    assert answers(client) == [b'{"stream":"F","seq":1}']


COMMANDS = st.one_of(
    st.builds(
        lambda subject, msg_id, seq: (
            "publish",
            f"s.{subject}",
            {k: str(v) for k, v in (("Nats-Msg-Id", msg_id), ("Nats-Expected-Last-Sequence", seq)) if v is not None},
        ),
        st.integers(1, 3),
        st.one_of(st.none(), st.sampled_from("abc")),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    st.builds(lambda body: ("direct", "", body), st.sampled_from([
        {"seq": 1, "batch": 3}, {"last_by_subj": "s.1"}, {"multi_last": ["s.*"]}, {"seq": 2, "min_last_seq": 4}
    ])),
    st.builds(lambda n: ("purge", "", {"keep": n}), st.integers(0, 3)),
    st.builds(lambda n: ("delete", "", {"seq": n}), st.integers(1, 6)),
    st.builds(lambda n: ("wait", "", n), st.sampled_from([0.1, 0.5, 3.0])),
    st.just(("commit", "", {})),
    st.just(("work", "", {})),
)  # fmt: skip


def play(commands: list[tuple[str, str, object]]) -> tuple[list[bytes], dict[str, object]]:
    """The bytes that the clients of a fresh engine see for a log of commands, and the state at its end."""
    rig = Rig(seed=7)
    clients = [rig.client(), rig.client()]
    clients[0].create("S", max_msgs_per_subject=2, max_age=5_000_000_000, duplicate_window=1_000_000_000)
    for client in clients:
        client.send(b"SUB s.* workers w\r\n")
    for name, subject, argument in commands:
        client = clients[0]
        if name == "publish":
            assert isinstance(argument, dict)
            client.ask(subject, b"payload", Headers(argument), settle=False)
        elif name == "wait":
            assert isinstance(argument, float)
            rig.wait(argument)
        elif name == "commit":
            rig.settle()
        elif name == "work":
            rig.engine.step(rig.now)
        else:
            api = {"direct": "DIRECT.GET.S", "purge": "STREAM.PURGE.S", "delete": "STREAM.MSG.DELETE.S"}[name]
            assert isinstance(argument, dict)
            clients[1].ask(f"$JS.API.{api}", argument, settle=False)
    rig.settle()
    return [client.raw for client in clients], clients[0].api("STREAM.INFO.S", {"deleted_details": True})


@settings(max_examples=60, deadline=None)
@given(st.lists(COMMANDS, max_size=25))
def test_replaying_a_log_of_commands_gives_the_same_output_and_state(commands: list[tuple[str, str, object]]) -> None:
    assert play(commands) == play(commands)


def test_deferred_state_that_fails_to_save_does_not_stop_the_others(client: Client) -> None:
    saved: list[str] = []

    class DeferredState:
        def __init__(self, name: str) -> None:
            self.name = name

        def save(self) -> None:
            if self.name == "bad":
                raise RuntimeError("a number that does not fit")
            saved.append(self.name)

    journal = client.rig.engine.journals[0]
    journal.unsaved |= {DeferredState(name): None for name in ("first", "bad", "last")}
    with pytest.raises(RuntimeError, match="does not fit"):
        client.publish("s.1")
    client.rig.settle()
    assert saved == ["first", "last"]
    assert client.publish("s.1")["seq"] == 2


def test_a_durable_publish_is_acknowledged_even_if_a_follower_fails(client: Client) -> None:
    class LogFollower:
        def committed(self, now: int) -> None:
            raise RuntimeError(f"at {now}")

    journal = client.rig.engine.journals[0]
    follower = LogFollower()
    journal.followers[follower] = None
    with pytest.raises(RuntimeError):
        client.ask("s.1", b"x")
    del journal.followers[follower]
    assert answers(client) == [b'{"stream":"S","seq":1}']
    assert client.publish("s.1")["seq"] == 2

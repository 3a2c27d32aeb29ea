"""Accounts: subjects, streams, the API and stored data of one are not there for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.server import Permissions, User
from slipstream.server.engine.ports import Store
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from tests.server.support import Client, Rig, status

ONE, TWO = User(name="one", password="pw", account="ONE"), User(name="two", password="pw", account="TWO")
ALSO = User(name="also", password="pw", account="ONE", permissions=Permissions(publish_deny=("secret",)))
HOME = User(name="home", password="pw")
EVERYONE = (ONE, TWO, ALSO, HOME)


def login(rig: Rig, name: str) -> Client:
    return rig.client(
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"user":"%b","pass":"pw"}\r\n'
        % name.encode()
    )


def test_subjects_are_an_accounts_own() -> None:
    rig = Rig(users=EVERYONE)
    one, two, also, home = (login(rig, name) for name in ("one", "two", "also", "home"))
    for client in (one, two, also, home):
        client.send(b"SUB > 9\r\n")
    one.send(b"PUB a.b 3\r\none\r\n")
    assert [m.payload for m in one.messages()] == [m.payload for m in also.messages()] == [b"one"]
    assert two.messages() == home.messages() == []
    home.send(b"PUB a.b 4\r\nhome\r\n")
    assert [m.payload for m in home.messages()] == [b"home"]
    assert one.messages() == two.messages() == also.messages() == []


def test_a_service_of_another_account_is_no_responder() -> None:
    rig = Rig(users=EVERYONE)
    one, two = login(rig, "one"), login(rig, "two")
    two.send(b"SUB service 5\r\nSUB service group 6\r\n")
    (answer,) = one.ask("service")
    assert status(answer)[0] == 503
    assert two.messages() == []


def test_the_same_stream_name_is_another_stream_in_each_account() -> None:
    rig = Rig(users=EVERYONE)
    one, two, home = (login(rig, name) for name in ("one", "two", "home"))
    clients = {b"one": one, b"two": two, b"home": home}
    for client in clients.values():
        assert "error" not in client.create("S", subjects=["same.>"])
    for text, client in clients.items():
        for n in range(1, 4):  # the second and third by the shortcut past the router
            assert client.publish("same.x", text) == {"stream": "S", "seq": n}
    for text, client in clients.items():
        (found,) = client.direct("S", {"last_by_subj": "same.x"})
        assert found.payload == text
        assert client.api("STREAM.INFO.S")["state"]["messages"] == 3
    one.api("STREAM.DELETE.S")
    assert one.api("STREAM.NAMES")["streams"] is None
    assert one.api("INFO")["streams"] == 0
    assert two.api("STREAM.NAMES")["streams"] == home.api("STREAM.NAMES")["streams"] == ["S"]
    (gone,) = one.direct("S", {"seq": 1})
    assert status(gone)[0] == 503
    (there,) = two.direct("S", {"seq": 1})
    assert there.payload == b"two"


def test_acks_of_one_group_go_to_their_own_accounts_though_the_inboxes_are_named_alike() -> None:
    rig = Rig(users=EVERYONE)
    one, two = login(rig, "one"), login(rig, "two")
    for client in (one, two):
        client.create("S", subjects=["same"])
        client.send(b"SUB _INBOX.x.* 7\r\n")
        client.take()
    for client in (one, two, one):
        client.send(b"PUB same _INBOX.x.1 1\r\nx\r\n", settle=False)
    rig.settle()
    assert [m.payload for m in one.messages()] == [b'{"stream":"S","seq":1}', b'{"stream":"S","seq":2}']
    assert [m.payload for m in two.messages()] == [b'{"stream":"S","seq":1}']


def test_a_lost_group_is_rolled_back_and_answered_with_errors_in_each_account() -> None:
    rig = Rig(users=EVERYONE)
    one, two = login(rig, "one"), login(rig, "two")
    for client in (one, two):
        client.create("S")
    for client in (one, two):
        client.take()
        client.send(b"PUB s.x %b 1\r\nx\r\n" % f"{client.inbox}1".encode(), settle=False)
    (journal,) = rig.engine.journals
    rig.engine.failed(journal, OSError("disk full"), rig.now)
    rig.settle()
    for client in (one, two):
        (answer,) = client.messages()
        assert b"disk full" in answer.payload
        assert client.publish("s.x") == {"stream": "S", "seq": 1}


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_restart_keeps_every_accounts_streams_and_those_of_accounts_without_users(kind: str, tmp_path: Path) -> None:
    memory = MemoryStore()

    def start(users: tuple[User, ...]) -> tuple[Rig, Store]:
        store = LmdbStore(tmp_path) if kind == "lmdb" else memory
        return Rig(users=users, store=store), store

    def stop(store: Store) -> None:
        if kind == "lmdb":
            store.close()

    # Data from a server that knew no accounts is the default account's.
    rig, store = start(())
    rig.client().create("S", storage="file")
    assert rig.client().publish("s.x", b"before")["seq"] == 1
    stop(store)

    rig, store = start(EVERYONE)
    (found,) = login(rig, "home").direct("S", {"seq": 1})
    assert found.payload == b"before"
    for name in ("one", "two"):
        client = login(rig, name)
        assert client.api("STREAM.NAMES")["streams"] is None
        client.create("S", storage="file")
        client.publish("s.x", name.encode())
    login(rig, "one").api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 7, "allow_direct": True})
    stop(store)

    rig, store = start((ONE, HOME))
    assert login(rig, "one").api("STREAM.INFO.S")["config"]["max_msgs"] == 7
    assert login(rig, "home").api("STREAM.NAMES")["streams"] == ["S"]
    assert login(rig, "one").api("STREAM.DELETE.S")["success"]
    stop(store)

    rig, store = start(EVERYONE)
    assert login(rig, "one").api("STREAM.NAMES")["streams"] is None
    (found,) = login(rig, "two").direct("S", {"seq": 1})
    assert found.payload == b"two"
    (found,) = login(rig, "home").direct("S", {"seq": 1})
    assert found.payload == b"before"
    stop(store)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\tb"])
def test_a_bad_name_of_an_account_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="account name must be printable"):
        User(name="a", password="b", account=name)

"""A page that is damaged while the server runs: what is on it is refused, everything else is served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from slipstream.errors import StoreError
from slipstream.server.store.lmdb.records import MESSAGE_KEY
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.support import Client, Rig, sequences

PAGE = 4096
COUNT = 600


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(tmp_path, map_size=1 << 26)
    yield store
    store.close()


@pytest.fixture
def client(store: LmdbStore, tmp_path: Path) -> Client:
    """Of a server with two streams, A and B; a page of A is zero since a moment ago."""
    client = Rig(store=store).client()
    for name in "AB":
        client.create(name, subjects=[f"{name.lower()}.>"], allow_direct=True)
    for n in range(COUNT):
        client.publish(f"a.{n % 20}", b"%05d" % n + b"x" * 100)
    client.publish("b.1", b"sound")
    for stream in "AB":  # every block adds up; LMDB would end the process where it reads past such a page
        client.direct(stream, {"seq": 1, "batch": COUNT})
    path = tmp_path / "data.mdb"
    at = path.read_bytes().rindex(b"00300x") // PAGE * PAGE
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), bytes(PAGE), at)
    return client


def get(client: Client, stream: str, seq: int) -> str:
    answer = client.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
    description: str = answer.get("error", {}).get("description", "found")
    return description


def test_one_unreadable_page_refuses_no_other_message(client: Client, store: LmdbStore) -> None:
    assert "cannot be read" in get(client, "A", 301)
    for _ in range(2):
        assert [get(client, "A", 1), get(client, "A", COUNT), get(client, "B", 1)] == ["found"] * 3
        assert "cannot be read" in get(client, "A", 300)
    assert {stream for stream, _ in store.damaged()} == {"A"}
    assert client.publish("b.1")["seq"] == 2
    assert get(client, "B", 2) == "found"


def test_walk_of_an_earlier_moment_is_ended_and_not_taken_for_damage(client: Client, store: LmdbStore) -> None:
    """A pin cannot be had again when a group was committed since; only a read of the present can."""
    env = store._env
    pin = env.pin()
    assert client.publish("b.1")["seq"] == 2
    with pytest.raises(lmdb.CorruptedError):
        pin.read.get(MESSAGE_KEY.pack(1, 301))
    with pytest.raises(lmdb.BadTxnError) as caught:
        pin.read.get(MESSAGE_KEY.pack(1, 1))
    assert type(env.unreadable("A", 1, caught.value)) is StoreError
    assert get(client, "B", 2) == "found"
    assert not store.damaged()
    pin.release()


@pytest.mark.parametrize("remove", ["limit", "delete", "purge"])
def test_damaged_message_that_claims_too_large_a_checksum_can_be_removed(tmp_path: Path, remove: str) -> None:
    """It is taken out of the sum of its block, which must neither fail nor leave the block in doubt."""
    store = LmdbStore(tmp_path, map_size=1 << 26, tuning=Tuning(segment=64))
    client = Rig(store=store).client()
    client.create("S", subjects=["s.>"], allow_direct=True, max_msgs_per_subject=1)
    for n in range(1, 17):  # four to a block
        client.publish(f"s.{n}", b"payload %02d" % n)
    for n in (2, 3):  # the first is the only one of its block then
        client.api("STREAM.MSG.DELETE.S", {"seq": n})
    client.direct("S", {"seq": 1, "batch": 100})
    path = tmp_path / "data.mdb"
    data = path.read_bytes()
    at = data.find(b"payload 01")
    with open(path, "r+b") as file:
        while at >= 0:  # older versions of the page have it too
            os.pwrite(file.fileno(), b"\xff" * 4, at + len("payload 01"))
            at = data.find(b"payload 01", at + 1)
    assert "checksum" in get(client, "S", 1)
    if remove == "limit":
        assert client.publish("s.1", b"again")["seq"] == 17
    elif remove == "delete":
        assert client.api("STREAM.MSG.DELETE.S", {"seq": 1})["success"]
    else:
        assert client.api("STREAM.PURGE.S", {"seq": 4})["purged"] == 1
    left = [*range(4, 17), *((17,) if remove == "limit" else ())]
    store.close()
    store = LmdbStore(tmp_path, map_size=1 << 26, tuning=Tuning(segment=64))
    client = Rig(store=store).client()
    assert sequences(client.direct("S", {"seq": 1, "batch": 100})) == left
    assert get(client, "S", 1) == "no message found"
    assert not [*store.damaged(), *store.losses()]
    store.close()

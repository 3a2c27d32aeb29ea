"""A message that fails its checksum: consumers stop in front of it, until it is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.server.store.lmdb.records import MESSAGE_KEY
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.engine.consumers.kit import SECOND, Bench, seqs, statuses
from tests.server.support import Rig


def damage(store: LmdbStore, seq: int) -> None:
    """Flip a bit of a stored message, behind the store's back."""
    env = store._env
    with env.handle.begin(write=True, db=env.messages) as transaction:
        key = MESSAGE_KEY.pack(1, seq)
        value = transaction.get(key)
        assert value is not None
        transaction.put(key, value[:-6] + bytes([value[-6] ^ 1]) + value[-5:])
    env.renew()


@pytest.mark.parametrize(
    ("config", "before", "between", "after"),
    [
        ({}, [1, 2, 3], [5, 6], [8]),
        ({"filter_subject": "s.a"}, [1, 3, 5], [], []),
        ({"filter_subject": "s.*"}, [1, 2, 3], [5, 6], [8]),
        ({"filter_subjects": ["s.a", "s.b"]}, [1, 2, 3], [5, 6], [8]),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}, [1, 2, 3], [5, 6], [8]),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, [], [], [8]),
        ({"deliver_policy": "last", "filter_subject": "s.a"}, [], [], []),
    ],
    ids=str,
)
def test_a_consumer_stops_in_front_of_a_damaged_message_until_it_is_removed(
    tmp_path: Path, config: dict[str, Any], before: list[int], between: list[int], after: list[int]
) -> None:
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a", "s.b", "s.a", "s.b", "s.a", "s.b", "s.a", "s.b")
    for seq in (4, 7):
        damage(store, seq)
    bench.create(**config)
    answers = bench.pull(20, no_wait=True)
    assert seqs(answers) == before
    assert statuses(answers) == [(500, "Message Corrupt")]
    assert bench.info()["num_pending"] > 0
    assert statuses(bench.pull(20, no_wait=True)) == [(500, "Message Corrupt")]  # it does not move by itself
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 4})
    assert seqs(bench.pull(20, no_wait=True)) == between
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 7})
    assert seqs(bench.pull(20, no_wait=True)) == after
    assert bench.info()["num_pending"] == 0
    bench.fill("s.a")
    assert seqs(bench.pull(20, no_wait=True)) == [9]
    store.close()


def test_a_waiting_pull_is_told_of_the_damage_at_its_end_and_goes_on_when_it_is_removed(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a", "s.b", "s.a")
    damage(store, 2)
    bench.create()
    assert seqs(bench.pull(1)) == [1]
    bench.ask_for(5, expires=SECOND)
    assert not bench.client.messages()
    bench.rig.wait(1.1)
    assert statuses(bench.client.messages()) == [(500, "Message Corrupt")]
    bench.ask_for(1, expires=10 * SECOND)
    assert bench.client.api("STREAM.MSG.DELETE.S", {"seq": 2})["success"]
    bench.rig.settle()
    assert bench.info()["num_ack_pending"] == 2
    store.close()


def test_a_message_damaged_after_its_delivery_stays_pending_and_is_not_redelivered(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a", "s.b")
    bench.create(ack_wait=SECOND)
    assert seqs(bench.pull(2)) == [1, 2]
    damage(store, 1)
    bench.rig.wait(1.5)
    assert seqs(bench.pull(5, no_wait=True)) == [2]
    assert bench.info()["num_ack_pending"] == 2
    bench.client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    assert bench.info()["num_ack_pending"] == 1
    store.close()


def test_filters_that_share_subjects_stop_in_front_of_a_damaged_message(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    bench = Bench(Rig(store=store), storage="file")
    bench.fill("s.a.c", "s.b.c", "s.x.y", "s.b.d")
    for seq in (2, 3):
        damage(store, seq)
    assert "error" not in bench.create(filter_subjects=["s.*.c", "s.b.*"])
    assert seqs(bench.pull(20, no_wait=True)) == [1]
    for seq in (2, 3):
        bench.client.api("STREAM.MSG.DELETE.S", {"seq": seq})
    assert seqs(bench.pull(20, no_wait=True)) == [4]
    assert bench.info()["num_pending"] == 0
    bench.fill("s.b.c")
    assert seqs(bench.pull(20, no_wait=True)) == [5]
    store.close()

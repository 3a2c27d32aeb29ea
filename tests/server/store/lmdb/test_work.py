"""Work that cannot be foreseen: messages are compared with the sum of their block when one of it is looked at first. A
block costs as much as a hundred messages, so what looks at one message of each of many blocks is done in slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.jobs import RECEIVE_UNITS, STEP_UNITS
from slipstream.server.engine.ports import MOST_UNFORESEEN
from slipstream.server.store.lmdb import proof
from slipstream.server.store.lmdb.expiry import MOST_UNPROVED
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Msg, pub
from tests.server.support import Client, Rig

COUNT, SUBJECTS = 40_000, 400  # messages; those of a subject are spread over all blocks


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """No block was looked at yet."""
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file", allow_direct=True, allow_rollup_hdrs=True)
    for start in range(0, COUNT, 2000):
        client.send(b"".join(pub(f"s.{n % SUBJECTS}", b"x") for n in range(start, start + 2000)))
    count = proof.count

    def counted(*args: Any) -> None:
        counts.append(args[2])
        count(*args)

    monkeypatch.setattr(proof, "count", counted)
    counts.clear()
    yield rig
    store.close()


counts: list[int] = []  # blocks that were compared
PER_BLOCK = 1024 // proof.SUMMED_PER_UNIT
IN_A_TURN = (STEP_UNITS + RECEIVE_UNITS + 2 * MOST_UNFORESEEN) // PER_BLOCK + 2


def in_slices(rig: Rig, client: Client, answers: int) -> list[Msg]:
    """What a client is sent, by turns of which none looks at too many blocks."""
    found: list[Msg] = []
    for _ in range(200):
        assert len(counts) <= IN_A_TURN
        counts.clear()
        found += client.messages()
        if len(found) >= answers:
            return found
        rig.turn()
    raise AssertionError(f"{len(found)} answers")


def test_reads_of_messages_in_many_blocks_are_in_slices(rig: Rig) -> None:
    client = rig.client()
    seqs = range(1, COUNT, 1024)
    gets = [pub("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq, f"{client.inbox}{seq}") for seq in seqs]
    client.send(b"".join(gets), settle=False)
    assert len(in_slices(rig, client, len(gets))) == len(gets)


def test_batch_of_a_subject_in_many_blocks_is_in_slices(rig: Rig) -> None:
    client = rig.client()
    body = b'{"seq":1,"batch":200,"next_by_subj":"s.7"}'
    client.send(pub("$JS.API.DIRECT.GET.S", body, f"{client.inbox}b"), settle=False)
    assert len(in_slices(rig, client, COUNT // SUBJECTS + 1)) == COUNT // SUBJECTS + 1


def test_deliveries_of_a_subject_in_many_blocks_are_in_slices(rig: Rig) -> None:
    client = rig.client()
    config = {"name": "d", "ack_policy": "none", "filter_subject": "s.7", "mem_storage": True}
    body = msgspec.json.encode({"stream_name": "S", "config": config})
    client.send(pub("$JS.API.CONSUMER.CREATE.S.d", body, f"{client.inbox}c"), settle=False)
    in_slices(rig, client, 1)
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":100}', f"{client.inbox}n"), settle=False)
    assert len(in_slices(rig, client, 100)) == 100


def test_purge_and_rollup_of_subjects_in_many_blocks_are_in_slices(rig: Rig) -> None:
    client = rig.client()
    rollup = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
    client.send(pub("s.7", b"new", f"{client.inbox}r", rollup), settle=False)
    (answer,) = in_slices(rig, client, 1)
    assert msgspec.json.decode(answer.payload)["seq"] == COUNT + 1
    assert rig.engine.streams["S"].log.committed.messages == COUNT + 1 - COUNT // SUBJECTS


def test_times_to_live_that_end_at_once_in_many_blocks_are_in_slices(rig: Rig) -> None:
    client = rig.client()
    client.create("T", subjects=["t.>"], storage="file", allow_msg_ttl=True)
    for start in range(0, COUNT, 2000):
        lines = (b"NATS/1.0\r\nNats-TTL: 9s\r\n\r\n" if n % 400 == 7 else b"" for n in range(start, start + 2000))
        client.send(b"".join(pub(f"t.{at}", b"x", header=line) for at, line in enumerate(lines)))
    log = rig.engine.streams["T"].log
    counts.clear()
    rig.now += 10_000_000_000
    rig.engine.tick(rig.now)
    for _ in range(200):
        assert len(counts) <= MOST_UNPROVED + 1
        counts.clear()
        if log.committed.messages == COUNT - COUNT // 400:
            return
        rig.turn()
    raise AssertionError(f"{log.committed.messages} messages are left")

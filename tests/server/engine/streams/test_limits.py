"""A smaller limit per subject on a large stream: in slices, over restarts, and at once on a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.server.engine.streams import subject_limits
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.support import Client, Rig

TINY = Tuning(segment=64, slice=50, page=7)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_limits, "SLICE", 10)


def fill(client: Client, subjects: int) -> None:
    client.create("S", storage="file")
    for n in range(3 * subjects):
        client.send(b"PUB s.%d 1\r\nx\r\n" % (n % subjects), settle=False)
    client.rig.settle()


def limit(client: Client, most: int, *, settle: bool = True) -> None:
    config = b'{"name":"S","subjects":["s.>"],"allow_direct":true,"max_msgs_per_subject":%d}' % most
    client.send(b"PUB $JS.API.STREAM.UPDATE.S %d\r\n%b\r\n" % (len(config), config), settle=settle)


def counts(client: Client) -> set[int]:
    subjects: dict[str, Any] = client.api("STREAM.INFO.S", {"subjects_filter": ">"})["state"]["subjects"]
    return set(subjects.values())


def test_a_small_stream_fits_when_the_update_is_answered() -> None:
    client = Rig().client()
    fill(client, 9)
    limit(client, 1)
    assert counts(client) == {1}
    assert b'"thin":true' not in dict(client.rig.store.streams())["S"]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_large_one_is_done_in_slices(tmp_path: Path, kind: str) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 27, tuning=TINY) if kind == "lmdb" else None
    client = Rig(store=store).client()
    fill(client, 105)
    limit(client, 2, settle=False)
    assert client.rig.engine.streams["S"].log.state.messages == 315 - 10
    assert b'"thin":true' in dict(client.rig.store.streams())["S"]
    client.rig.settle()
    assert counts(client) == {2}
    assert b'"thin":true' not in dict(client.rig.store.streams())["S"]
    client.rig.store.close()


def test_a_group_that_is_full_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_limits, "MAX_PENDING", 5)
    client = Rig().client()
    fill(client, 50)
    limit(client, 1, settle=False)
    before = client.rig.engine.streams["S"].log.state.messages
    assert not client.rig.engine.step(client.rig.now)
    assert client.rig.engine.streams["S"].log.state.messages == before
    client.rig.settle()
    assert counts(client) == {1}


def test_a_limit_changed_during_the_trim_applies() -> None:
    client = Rig().client()
    fill(client, 50)
    limit(client, 2, settle=False)
    limit(client, 1)
    assert counts(client) == {1}


def test_a_stream_can_be_deleted_during_the_trim() -> None:
    client = Rig().client()
    fill(client, 50)
    limit(client, 1, settle=False)
    assert client.api("STREAM.DELETE.S")["success"]


def test_a_restart_resumes_the_trim(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 27, tuning=TINY)
    rig = Rig(store=store)
    client = rig.client()
    fill(client, 105)
    limit(client, 1, settle=False)
    rig.commit()
    store.close()
    again = LmdbStore(tmp_path, map_size=1 << 27)
    client = Rig(store=again).client()
    assert counts(client) == {1}
    again.close()

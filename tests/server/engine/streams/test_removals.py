"""Purges by filter of very many messages: what readers see in the middle, and what is left after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.jobs import STEP_UNITS
from slipstream.server.engine.ports import Store
from slipstream.server.engine.streams.removals import SLICE, UNITS
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import pub
from tests.server.support import Client, Rig

SUBJECTS, EACH = 900, 3


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """An engine with a stream S: each of `s.a.<n>` has three messages, `s.b.<n>` one, `s.c` 1,500."""
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 28) if request.param == "lmdb" else MemoryStore()
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file")
    for _ in range(EACH):
        client.send(b"".join(pub(f"s.a.{n}", b"x") for n in range(SUBJECTS)))
    client.send(b"".join(pub(f"s.b.{n}", b"x") for n in range(300)))
    client.send(b"".join(pub("s.c", b"x") for _ in range(1500)))
    yield rig
    rig.store.close()


def held(rig: Rig) -> Counter[str]:
    """How many messages each subject has, as readers see it."""
    log = rig.engine.streams["S"].log
    found: Counter[str] = Counter()
    at = 0
    while records := log.scan("", at, limit=1000):
        found.update(record.subject for record in records)
        at = records[-1].seq + 1
    assert found == dict(log.subjects(">"))
    assert found.total() == log.committed.messages
    return found


def begin(client: Client, name: str, **request: Any) -> None:
    """Ask for a purge, without a turn of the server."""
    client.take()
    body = msgspec.json.encode(request)
    client.send(pub("$JS.API.STREAM.PURGE.S", body, f"{client.inbox}{name}"), settle=False)


def to_the_middle(rig: Rig, *, left: int) -> None:
    """Turns, until so many messages are left at most."""
    for _ in range(1000):
        rig.turn()
        if rig.engine.streams["S"].log.committed.messages <= left:
            return
    raise AssertionError("the purge does not go on")


@pytest.mark.parametrize(
    ("request_", "gone"),
    [
        ({"filter": "s.a.*"}, 2700),
        ({"filter": "s.*.*"}, 3000),
        ({"filter": "s.c"}, 1500),
        ({"filter": "s.a.>", "seq": 901}, 900),
        ({"filter": "s.a.>", "keep": 100}, 2600),
        ({"filter": "s.c", "keep": 600}, 900),
        ({"filter": "s.*.*", "keep": 5000}, 0),
        ({"filter": "s.*.none"}, 0),
    ],
    ids=str,
)
def test_purge_in_slices_removes_what_one_piece_would(rig: Rig, request_: dict[str, Any], gone: int) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    before = [(record.seq, record.subject) for record in log.scan("", 0, limit=10_000)]
    begin(client, "p", **request_)
    work = []
    while not (found := client.answers()):
        work.append(rig.turn())
        assert len(work) < 1000
    assert found["p"]["purged"] == gone
    # A turn ends with the slice that used up its budget, which may be one subject's.
    assert max(work) <= STEP_UNITS + UNITS * SLICE + 1
    rig.settle()
    after = [(record.seq, record.subject) for record in log.scan("", 0, limit=10_000)]
    left = set(after)
    removed = [each for each in before if each not in left]
    assert len(removed) == gone == len(before) - len(after)
    pattern = request_["filter"].replace(".*", "").replace(".>", "")
    assert all(subject.startswith(pattern) for _, subject in removed)
    if "seq" in request_:
        assert all(seq < request_["seq"] for seq, _ in removed)
    if "keep" in request_ and gone:
        kept = [seq for seq, subject in after if subject.startswith(pattern)]
        assert len(kept) == request_["keep"]
        assert min(kept) > max(seq for seq, _ in removed)
    assert not rig.engine.jobs.step()


def test_reader_in_the_middle_sees_all_messages_of_a_subject_or_none(rig: Rig) -> None:
    client = rig.client()
    begin(client, "p", filter="s.a.>")
    seen = set()
    while not (found := client.answers()):
        rig.turn()
        counts = held(rig)
        assert {counts[f"s.a.{n}"] for n in range(SUBJECTS)} <= {0, EACH}
        assert counts["s.c"] == 1500
        seen.add(counts.total())
    assert len(seen) > 3
    assert found["p"]["purged"] == SUBJECTS * EACH


def test_large_subject_loses_its_oldest_messages_first(rig: Rig) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    every = [record.seq for record in log.scan("s.c", 0, limit=2000)]
    begin(client, "p", filter="s.c")
    sizes = set()
    while not client.answers():
        rig.turn()
        left = [record.seq for record in log.scan("s.c", 0, limit=2000)]
        assert left == every[len(every) - len(left) :]
        sizes.add(len(left))
    assert len(sizes) > 2


def test_messages_published_after_the_request_stay(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    client.send(b"".join(pub("s.a.1", b"before") for _ in range(2)), settle=False)  # not committed yet
    begin(client, "p", filter="s.a.>")
    client.send(pub("s.a.1", b"after"), settle=False)
    to_the_middle(rig, left=4000)
    other.send(pub("s.a.2", b"later") + pub("s.a.899", b"later"), settle=False)
    rig.settle()
    assert client.answers()["p"]["purged"] == SUBJECTS * EACH + 2
    counts = held(rig)
    assert {subject: count for subject, count in counts.items() if subject.startswith("s.a")} == {
        "s.a.1": 1,
        "s.a.2": 1,
        "s.a.899": 1,
    }


def test_purge_goes_on_when_the_client_leaves(rig: Rig) -> None:
    client = rig.client()
    begin(client, "p", filter="s.a.>")
    to_the_middle(rig, left=4000)
    rig.engine.disconnect(client.cid)
    rig.settle()
    assert held(rig).total() == 1800


def test_two_purges_at_once_remove_each_message_once(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    begin(client, "p", filter="s.a.>")
    begin(other, "q", filter="s.*.*")
    to_the_middle(rig, left=4000)
    rig.settle()
    assert client.answers()["p"]["purged"] + other.answers()["q"]["purged"] == 3000
    assert held(rig) == {"s.c": 1500}


def test_purge_of_everything_in_the_middle_of_one_by_filter(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    begin(client, "p", filter="s.a.>")
    to_the_middle(rig, left=4000)
    left = rig.engine.streams["S"].log.state.messages
    assert other.api("STREAM.PURGE.S")["purged"] == left
    rig.settle()
    assert held(rig).total() == 0
    assert client.answers()["p"]["purged"] == 4500 - left


def test_deletion_of_the_stream_ends_its_purge(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    begin(client, "p", filter="s.a.>")
    to_the_middle(rig, left=4000)
    other.send(pub("$JS.API.STREAM.DELETE.S", b""), settle=False)
    body = msgspec.json.encode({"name": "S", "subjects": ["s.>"], "storage": "file"})
    other.send(pub("$JS.API.STREAM.CREATE.S", body), settle=False)
    other.send(b"".join(pub(f"s.a.{n}", b"new") for n in range(700)), settle=False)
    rig.settle()
    assert client.answers()["p"]["error"]["err_code"] == 10059
    assert held(rig).total() == 700


def test_stream_deleted_before_its_purge_began_is_not_found(rig: Rig) -> None:
    client = rig.client()
    client.send(pub("s.d", b"x"), settle=False)  # the purge waits for it
    begin(client, "p", filter="s.a.>")
    client.send(pub("$JS.API.STREAM.DELETE.S", b""), settle=False)
    rig.settle()
    assert client.answers()["p"]["error"]["err_code"] == 10059


def test_lost_group_in_the_middle_is_purged_again_and_counted_once(rig: Rig) -> None:
    client = rig.client()
    begin(client, "p", filter="s.a.>")
    to_the_middle(rig, left=4000)
    for _ in range(3):
        rig.engine.step(rig.now)
        (journal,) = rig.engine.journals
        if journal.ready:
            journal.seal()
        rig.engine.step(rig.now)  # the next group has removals as well
        rig.engine.failed(journal, OSError("no space left on device"), rig.now)
        rig.turn()
    rig.settle()
    assert client.answers()["p"]["purged"] == SUBJECTS * EACH
    assert held(rig).total() == 1800


def test_group_that_is_lost_with_the_first_removals(rig: Rig) -> None:
    client = rig.client()
    begin(client, "p", filter="s.a.>", keep=2)
    (journal,) = rig.engine.journals
    while rig.engine.streams["S"].log.state.messages == 4500:
        rig.engine.step(rig.now)
    journal.seal()
    rig.engine.failed(journal, OSError("no space left on device"), rig.now)
    assert held(rig).total() == 4500
    rig.settle()
    assert client.answers()["p"]["purged"] == SUBJECTS * EACH - 2
    assert held(rig).total() == 1802


@pytest.mark.parametrize("keep", [0, 5])
def test_purge_that_a_crash_interrupted_is_completed_by_the_next_start(tmp_path: Path, keep: int) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file")
    client.send(b"".join(pub(f"s.a.{n % 700}", b"x") for n in range(2100)))
    client.send(pub("s.b", b"x"))
    begin(client, "p", filter="s.a.*", keep=keep)
    to_the_middle(rig, left=1800)
    assert not client.answers()
    before = held(rig).total()
    assert 1 + keep < before < 2101
    store.close()

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    rig.client().send(pub("s.a.1", b"after the restart"), settle=False)
    rig.settle()
    assert held(rig).total() == 1 + keep + 1
    store.close()

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    assert not rig.engine.jobs.step()  # nothing is left to do
    assert held(rig).total() == 1 + keep + 1
    store.close()


def test_consumer_beside_a_purge_in_slices_counts_right(rig: Rig) -> None:
    client = rig.client()
    config = {"durable_name": "d", "filter_subject": "s.a.>", "ack_policy": "explicit"}
    client.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": {**config, "name": "d"}, "action": "create"})
    assert client.api("CONSUMER.INFO.S.d")["num_pending"] == SUBJECTS * EACH
    begin(client, "p", filter="s.a.>")
    while not client.answers():
        rig.turn()
        left = sum(count for subject, count in held(rig).items() if subject.startswith("s.a."))
        assert rig.engine.streams["S"].consumers.items["d"].left == left
    client.publish("s.a.1")
    assert client.api("CONSUMER.INFO.S.d")["num_pending"] == 1


def lose_the_open_group(rig: Rig) -> None:
    (journal,) = rig.engine.journals
    journal.seal()
    rig.engine.failed(journal, OSError("no space left on device"), rig.now)


def test_messages_with_the_sequences_of_a_lost_group_are_not_purged(rig: Rig) -> None:
    client = rig.client()
    client.send(b"".join(pub("s.a.1", b"lost") for _ in range(10)), settle=False)
    begin(client, "p", filter="s.a.>")  # it waits for the group of those messages
    lose_the_open_group(rig)
    client.send(b"".join(pub("s.a.2", b"published after the request") for _ in range(10)))
    assert client.answers()["p"]["purged"] == SUBJECTS * EACH
    assert {subject: count for subject, count in held(rig).items() if subject.startswith("s.a.")} == {"s.a.2": 10}


@pytest.mark.parametrize("lost", [1, 2])
def test_mirror_that_was_purged_is_no_whole_copy_after_lost_groups(rig: Rig, lost: int) -> None:
    client = rig.client()
    client.create("M", subjects=[], mirror={"name": "S"}, storage="file")
    mirror = rig.engine.streams["M"]
    assert mirror.fidelity is not None
    assert mirror.fidelity.is_whole
    assert mirror.log.committed.messages == 4500
    client.send(pub("$JS.API.STREAM.PURGE.M", b'{"filter":"s.a.>"}', f"{client.inbox}p"), settle=False)
    lose_the_open_group(rig)  # the purge waits for it
    if lost == 2:
        for _ in range(100):
            rig.engine.step(rig.now)
        assert mirror.log.state.messages < 4500
        lose_the_open_group(rig)  # with the first messages that it removed
    rig.settle()
    assert client.answers()["p"]["purged"] == SUBJECTS * EACH
    assert mirror.log.committed.messages == 1800
    assert not mirror.fidelity.is_whole


def test_consumer_passes_over_what_a_resumed_purge_removed(tmp_path: Path) -> None:
    positions = []
    for is_restarted in (False, True):
        path = tmp_path / str(is_restarted)
        store = LmdbStore(path, map_size=1 << 28)
        rig = Rig(store=store)
        client = rig.client()
        client.create("S", storage="file")
        client.send(b"".join(pub(f"s.a.{n % 900}", b"x") for n in range(2700)))
        config = {"name": "d", "durable_name": "d", "filter_subject": "s.a.>", "ack_policy": "explicit"}
        client.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config, "action": "create"})
        begin(client, "p", filter="s.a.*")
        to_the_middle(rig, left=2300)
        if is_restarted:
            store.close()
            store = LmdbStore(path, map_size=1 << 28)
            rig = Rig(store=store)
        rig.settle()
        rig.client().publish("s.a.1")
        info = rig.client().api("CONSUMER.INFO.S.d")
        positions.append((info["num_pending"], info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]))
        store.close()
    assert positions[0] == positions[1]
    assert positions[0][1] == 2700

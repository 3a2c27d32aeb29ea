"""The scrubber: finds damage that no reader has met, reports nothing else, and survives whatever happens meanwhile."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from slipstream.server.store.lmdb.pages import PageFile
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import pub
from tests.server.store.lmdb import trials
from tests.server.support import Rig

PAGE = 4096


def scrub(store: LmdbStore) -> int:
    """A whole round; returns the number of slices."""
    for slices in range(1, 100_000):
        assert store.scrubber.begin()
        store.scrubber.read()
        if store.scrubber.finish()[1]:
            return slices
    raise AssertionError("the round does not end")


def reported(store: LmdbStore) -> list[Any]:
    return [*store.damaged(), *store.losses(), *store.faults()]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> trials.Base:
    return trials.build(tmp_path_factory.mktemp("scrub") / "base")


def copied(base: trials.Base, folder: Path) -> Path:
    folder.mkdir()
    (folder / "data.mdb").write_bytes(base.newer)
    return folder


def test_a_sound_store_is_read_to_its_end_in_slices_and_nothing_is_reported(base: trials.Base, tmp_path: Path) -> None:
    store = LmdbStore(copied(base, tmp_path / "s"), map_size=1 << 28, tuning=trials.TUNING)
    assert scrub(store) > 5
    assert scrub(store) > 5
    assert not reported(store)
    assert store.scrubber.rounds == 2
    store.close()


def test_changes_between_slices_are_no_damage(base: trials.Base, tmp_path: Path) -> None:
    store = LmdbStore(copied(base, tmp_path / "s"), map_size=1 << 28, tuning=trials.TUNING)
    rig = Rig(store=store, users=trials.USERS, now=1_700_000_100_000_000_000)
    one, two = trials.login(rig, "one"), trials.login(rig, "two")
    chance = random.Random(5)
    for turn in range(200):
        assert store.scrubber.begin()
        store.scrubber.read()
        if turn % 3:  # while the thread reads
            one.send(b"".join(pub(f"log.{chance.randrange(100)}", b"x" * chance.randrange(9000)) for _ in range(9)))
        store.scrubber.finish()
        if turn % 7 == 0:
            one.api("STREAM.MSG.DELETE.LOG", {"seq": chance.randrange(1, 2500)})
            one.api("STREAM.PURGE.KV_B", {"filter": f"$KV.B.k{turn}"})
        if turn == 90:
            two.api("STREAM.PURGE.LOG", {"seq": 500})
            one.api("STREAM.PURGE.WQ")
        if turn == 120:
            one.api("STREAM.DELETE.LOG")
            one.create("LOG", storage="file", subjects=["log.*"])
        one.take()
    assert not reported(store)
    assert store.scrubber.rounds > 1
    store.close()


def find_and_compare(folder: Path, kind: str, seed: int, base: trials.Base) -> tuple[str, str]:
    """Damage the file below an open store, scrub it, and read everything: what a reader would meet was reported."""
    store = LmdbStore(folder, map_size=1 << 28, tuning=trials.TUNING)
    data, what = trials.damage(base, kind, random.Random(seed))
    with open(folder / "data.mdb", "r+b") as file:
        file.write(data)
    scrub(store)
    before = [str(entry) for entry in reported(store)]
    bad: list[str] = []
    with PageFile(folder / "data.mdb") as pages:
        is_fatal = any(damage.fatal and damage.table != "free list" for damage in pages.check())
    if is_fatal:
        return ("FOUND" if before else "MISSED"), what
    for name, messages in base.truth.items():
        log = store.log(name)
        try:
            bad += [f"{name} {said}" for said in trials.read_log(log, messages)]
        except trials.Finding as exc:
            bad.append(str(exc))  # sums of tables are compared at the start of a server only
    if bad and not before:
        return "MISSED", f"{what}: {bad[:5]}"
    return ("FOUND" if before else "UNHARMED"), f"{what}: {before[:3]}"


def live_trials(base: trials.Base, folder: Path, count: int, first: int) -> dict[str, list[str]]:
    """Verdicts with their details, of damages to the pages (not the meta pages, not the size) of an open store."""
    kinds = ("bit", "bits", "zero", "junk", "swap", "stale", "moved")
    verdicts: dict[str, list[str]] = {}
    for n in range(count):
        kind = kinds[n % len(kinds)]
        work = copied(base, folder / f"{n}")
        verdict, detail = trials.in_child(find_and_compare, work, kind, first + n, base)
        verdicts.setdefault(verdict, []).append(f"{kind} {first + n}: {detail}")
    return verdicts


def test_what_a_reader_would_meet_is_found_before(base: trials.Base, tmp_path: Path) -> None:
    verdicts = live_trials(base, tmp_path, 28, 500)
    assert set(verdicts) <= {"FOUND", "UNHARMED"}, verdicts
    assert len(verdicts["FOUND"]) > 8


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_what_a_reader_would_meet_is_found_before_in_many_trials(base: trials.Base, tmp_path: Path) -> None:
    verdicts = live_trials(base, tmp_path, 400, 10_000)
    print({verdict: len(details) for verdict, details in verdicts.items()})
    assert set(verdicts) <= {"FOUND", "UNHARMED"}, verdicts


def test_damage_of_a_stream_that_is_deleted_is_forgotten(base: trials.Base, tmp_path: Path) -> None:
    folder = copied(base, tmp_path / "s")
    at = base.newer.index(b"log 100 ")
    with open(folder / "data.mdb", "r+b") as file:
        while at >= 0:  # older versions of the page have it too
            os.pwrite(file.fileno(), b"LOG", at)
            at = base.newer.find(b"log 100 ", at + 1)
    store = LmdbStore(folder, map_size=1 << 28, tuning=trials.TUNING)
    rig = Rig(store=store, users=trials.USERS, now=1_700_000_100_000_000_000)
    one = trials.login(rig, "one")
    scrub(store)
    found = store.damaged()
    assert {stream for stream, _ in found} == {"LOG"}
    one.api("STREAM.MSG.DELETE.LOG", {"seq": found[0][1]})
    scrub(store)
    assert store.damaged() == found[1:]
    one.api("STREAM.PURGE.LOG", {"seq": found[-1][1]})
    assert store.damaged() == found[-1:]
    one.api("STREAM.DELETE.LOG")
    assert not store.damaged()
    assert rig.engine.health().problems == ()
    store.close()

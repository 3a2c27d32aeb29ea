"""`slipstream server check`, `salvage` and `compact`: what they say of stores, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.server.process.command import main
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.store.lmdb import trials


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> trials.Base:
    return trials.build(tmp_path_factory.mktemp("store") / "base")


def damaged(base: trials.Base, path: Path) -> Path:
    """A copy without one leaf of messages."""
    path.mkdir()
    data = bytearray(base.newer)
    needle = (1).to_bytes(4, "big") + (700).to_bytes(8, "big")  # the key of a message of LOG
    places = [at // trials.PAGE for at in range(len(data)) if data.startswith(needle, at)]
    for page in places:
        data[page * trials.PAGE : (page + 1) * trials.PAGE] = bytes(trials.PAGE)
    (path / "data.mdb").write_bytes(data)
    return path


def test_a_sound_store_is_sound_and_is_copied_as_a_whole(
    base: trials.Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(base.path)]) == 0
    assert "is sound: 3571 messages in 5 streams" in capsys.readouterr().out
    assert main(["salvage", str(base.path), str(tmp_path / "new")]) == 0
    assert trials.in_child(trials.read_everything, tmp_path / "new", base.truth) == ("UNHARMED", "")


def test_losses_are_listed_and_the_rest_is_copied(
    base: trials.Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged(base, tmp_path / "copy")
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert "lost: stream 'LOG'" in said
    assert "is damaged; `slipstream server salvage" in said
    assert main(["salvage", str(path), str(tmp_path / "new")]) == 1
    verdict, detail = trials.in_child(trials.recover, path, tmp_path / "again", base)
    assert verdict == "COPIED"
    lost, share = detail.split()
    assert 0 < int(lost) < 100
    assert float(share) > 0.99


def test_a_store_in_use_a_missing_one_and_a_full_target_are_errors(
    base: trials.Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LmdbStore(tmp_path / "used")
    assert main(["check", str(tmp_path / "used")]) == 2
    assert "in use by process" in capsys.readouterr().err
    store.close()
    assert main(["check", str(tmp_path / "none")]) == 2
    assert main(["salvage", str(base.path), str(tmp_path / "used")]) == 2
    assert "must be empty" in capsys.readouterr().err
    assert main(["check"]) == 2
    assert main(["salvage", "--help"]) == 0


def test_a_store_is_compacted_with_the_purged_messages_that_are_still_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    store = LmdbStore(path)
    log = store.create("S", b"")
    for n in range(6_000):
        log.append(n, f"s.{n % 7}", b"", b"x" * 200)
    commit_open_group(store)
    log.purge(below=5_900)
    commit_open_group(store)
    assert store.backlog
    store.close()
    size = (path / "data.mdb").stat().st_size
    assert main(["compact", str(path)]) == 0
    assert f"{path} is compacted: " in capsys.readouterr().out
    assert (path / "data.mdb").stat().st_size < size / 10
    assert main(["check", str(path)]) == 0
    assert "is sound: 101 messages in 1 stream" in capsys.readouterr().out
    again = LmdbStore(path)
    assert [each.seq for each in again.log("S").scan("s.1", 0, limit=3)] == [5903, 5910, 5917]
    again.close()


def test_a_store_in_use_a_missing_one_and_a_damaged_one_are_not_compacted(
    base: trials.Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LmdbStore(tmp_path / "used")
    assert main(["compact", str(tmp_path / "used")]) == 2
    assert "in use by process" in capsys.readouterr().err
    store.close()
    assert main(["compact", str(tmp_path / "none")]) == 2
    assert "there is no store in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    path = damaged(base, tmp_path / "copy")
    data = (path / "data.mdb").read_bytes()
    assert main(["compact", str(path)]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert (path / "data.mdb").read_bytes() == data
    assert main(["compact"]) == 2

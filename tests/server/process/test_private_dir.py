"""The default directory of file streams: of the user alone, or refused."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.server.process.private_dir import default_root, make_private


def test_the_default_directory_is_in_the_state_directory_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_root() == tmp_path / "state" / "slipstream"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to be ignored, by its specification
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local" / "state" / "slipstream"
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setattr(tempfile, "tempdir", "/t")
    assert default_root() == Path(f"/t/slipstream-{os.geteuid()}")


def test_a_private_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    make_private(path)


def test_a_directory_that_others_made_or_may_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="must be a directory, not a link"):
        make_private(tmp_path / "link")
    (tmp_path / "real").chmod(0o770)
    with pytest.raises(UsageError, match="must not be writable by others, got mode 770"):
        make_private(tmp_path / "real")
    (tmp_path / "real").chmod(0o700)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="could not create storage directory"):
        make_private(tmp_path / "file")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(UsageError, match=rf"must belong to the user of the server \(uid {uid + 1}\), got uid {uid}"):
        make_private(tmp_path / "real")

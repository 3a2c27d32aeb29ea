"""Contexts: no secret is shown, and a file that others may read or change is reported."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from slipstream import Context, Contexts


def test_no_repr_of_a_context_shows_a_secret() -> None:
    context = Context(name="c", url="nats://u:URLSECRET@h,TOKEN@i", user="u", password="PASS", token="TOK", creds="f")
    assert repr(context) == "Context(name='c', url='nats://***@h,***@i', user='u', creds='f')"
    assert "SECRET" not in repr(Context(name="c", user="SECRET"))  # a user without a password is a token
    assert str(context) == repr(context)


@pytest.mark.parametrize(("mode", "word"), [(0o640, "read"), (0o604, "read"), (0o620, "written"), (0o666, "written")])
def test_a_context_file_that_is_open_to_others_is_reported(
    mode: int, word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contexts = Contexts(tmp_path / "nats")
    path = contexts.save(Context(name="c", url="nats://h", password="PASS", user="u"))
    with caplog.at_level(logging.WARNING):
        contexts.load("c")
        assert caplog.text == ""
        path.chmod(mode)
        assert contexts.load("c").password == "PASS"
    assert f"can be {word} by others (mode {mode:03o}); run chmod 600 on it" in caplog.text
    assert "PASS" not in caplog.text


def test_the_folders_of_contexts_are_private(tmp_path: Path) -> None:
    path = Contexts(tmp_path / "config" / "nats").save(Context(name="c", url="nats://h"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

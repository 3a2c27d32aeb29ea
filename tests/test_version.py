"""One place has the version; the packaging and the client's CONNECT read it there."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from slipstream.client.options import ClientOptions
from slipstream.client.session import Session
from slipstream.version import VERSION

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version", "readme"]
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert re.search(r'^VERSION = "(.+)"$', source.read_text("utf-8"), re.M).group(1) == VERSION  # type: ignore[union-attr]


def test_the_installed_package_has_it() -> None:
    assert importlib.metadata.version("slipstream-jetstream") == VERSION


def test_the_client_says_it() -> None:
    session = Session(ClientOptions("one"), nonce="N")
    session.dial(0)
    session.opened()
    session.received(b"INFO {}\r\n", 0)
    assert b'"version":"%b"' % VERSION.encode() in session.outgoing.take()

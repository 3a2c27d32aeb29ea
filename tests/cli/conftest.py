"""A command line with a home of its own, on either server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli


@pytest.fixture
def cli(any_server: str, tmp_path: Path) -> Cli:
    return Cli(any_server, tmp_path)


@pytest.fixture
def our_cli(our_url: str, tmp_path: Path) -> Cli:
    return Cli(our_url, tmp_path)

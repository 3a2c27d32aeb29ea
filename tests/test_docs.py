"""Every code block of the README and of docs/ runs, as a reader would run it.

Python blocks run alone, in a fresh interpreter, those with tests in pytest. Of console blocks the lines that begin with
`$` run in one shell, in an empty directory, with a server that `NATS_URL` names; lines without are what a reader should
see, or `make` targets. The blocks of docs/spark.md build on each other: tests/spark/test_docs.py runs them.
"""

from __future__ import annotations

import os
import pydoc
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import NamedTuple

import pytest
from ruamel.yaml import YAML

import slipstream
import slipstream.kv
import slipstream.objects
import slipstream.server
import slipstream.spark
import slipstream.testing
from slipstream.server.server import Server

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {"mermaid", "python", "console", "text", "toml", "json", "yaml", ""}
TIMEOUT = 240
# Without plugins that no example uses: to load them takes as long as a test.
UNUSED = ("cacheprovider", "hypothesispytest", "xdist", "cov", "timeout")
PYTEST = ("-m", "pytest", "-q", "-p", "slipstream.testing.plugin", *(f"-pno:{name}" for name in UNUSED))


class Block(NamedTuple):
    page: str
    number: int
    kind: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks_of(page: Path) -> list[Block]:
    """Its blocks; those in tabs are indented."""
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^\1```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, number, kind.strip(), dedent(code)) for number, (_, kind, code) in enumerate(found, 1)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.kind == "python" and block.page != "docs/spark.md"]
CONSOLE = [block for block in BLOCKS if block.kind == "console"]


def run(command: list[str], where: Path, **env: str) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=where, env=clean | paths | env
    )  # fmt: skip


def test_the_readme_has_an_example_for_each_part() -> None:
    assert len([block for block in PYTHON if block.page == "README.md"]) >= 4


def test_every_public_name_is_in_the_reference_and_every_entry_there_exists() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    entries = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    documented = {id(pydoc.locate(entry)) for entry in entries}
    assert id(None) not in documented, [entry for entry in entries if pydoc.locate(entry) is None]
    packages = (
        slipstream,
        slipstream.kv,
        slipstream.objects,
        slipstream.server,
        slipstream.testing,
        slipstream.spark,
    )
    names = [(package, name) for package in packages for name in package.__all__]
    values = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package, name in names
        if not name.startswith(("Blocking", "__"))
        and name != "connect"
        and not name.endswith("_blocking")
        and not isinstance(getattr(package, name), ModuleType)
    }
    missing = [
        name for name, value in values.items() if id(value) not in documented and value.__module__ not in entries
    ]
    assert not missing


def test_every_page_is_in_the_contents_of_the_site() -> None:
    contents = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:")[1]))
    assert contents == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}


def test_no_block_is_of_a_kind_that_is_not_run() -> None:
    assert {block.kind for block in BLOCKS} <= KINDS


def test_blocks_of_data_can_be_read() -> None:
    for block in BLOCKS:
        if block.kind == "yaml":
            assert YAML(typ="safe").load(block.code), block
        elif block.kind == "toml":
            assert tomllib.loads(block.code), block


def program(block: Block) -> object:
    """A program as a parameter. One that starts Spark belongs to the tests of Spark, where few JVMs run at a time."""
    return pytest.param(block, marks=[pytest.mark.spark] if "pyspark" in block.code else [], id=str(block))


@pytest.mark.timeout(TIMEOUT + 30)  # of the program, which says what it printed; this one is for the test itself
@pytest.mark.parametrize("block", [program(block) for block in PYTHON])
def test_the_program_runs_and_prints(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "test_example.py"
    script.write_text(block.code, "utf-8")
    is_test = re.search(r"^(?:async )?def test_", block.code, re.MULTILINE)
    done = run([sys.executable, *(PYTEST if is_test else ()), str(script)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.timeout(TIMEOUT + 30)
@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_the_commands_run(block: Block, tmp_path: Path) -> None:
    commands = [line[2:] for line in block.code.splitlines() if line.startswith("$ ")]
    targets = re.findall(r"^make (\w+)", block.code, re.MULTILINE)
    assert commands or targets, "nothing to run in it"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
    if commands:
        with Server() as server:
            done = run(["bash", "-euc", "\n".join(commands)], tmp_path, NATS_URL=server.url, HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr

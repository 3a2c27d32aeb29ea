"""A client needs msgspec alone; a feature whose package is missing names its extra before it does anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipstream.cli.exit_codes import USAGE
from slipstream.cli.main import main
from slipstream.errors import MissingExtraError
from slipstream.extras import DISTRIBUTION, check_extra, needed_by
from slipstream.server import Server
from slipstream.server.engine.auth.users import User
from slipstream.server.process import recovery
from slipstream.wire.nkeys import KeyPair, Kind
from tools.floor import floors

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("bcrypt", "cryptography", "lmdb", "pandas", "pyarrow", "pyspark", "rich", "uvloop")
BCRYPT = "$2a$04$" + "a" * 53

# Found before anything else, and finds none of them.
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The package of the parameter, and all that was imported of it, are not installed."""
    package: str = request.param
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith((f"{package}.", "slipstream.server.store.lmdb"))]:
        monkeypatch.delitem(sys.modules, name)


def test_first_program_of_the_readme_runs_without_any_optional_package(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    path = tmp_path / "program.py"
    path.write_text(BLOCKER + program[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a lamp" in done.stdout


@pytest.mark.parametrize("without", ["lmdb"], indirect=True)
@pytest.mark.usefixtures("without")
def test_data_directory_without_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with (
        pytest.raises(MissingExtraError, match=r"data directory needs the package 'lmdb': pip install '.*\[server\]'"),
        Server(data_dir=path),
    ):
        pass
    with pytest.raises(MissingExtraError, match="server check needs"):
        recovery.main("check", [str(path)])


@pytest.mark.parametrize(
    ("without", "user"),
    [
        ("bcrypt", User(name="ada", password=BCRYPT)),
        ("cryptography", User(nkey="UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4")),
    ],
    indirect=["without"],
)
@pytest.mark.usefixtures("without")
def test_users_whose_login_needs_a_missing_package_are_rejected_at_the_start(user: User) -> None:
    with pytest.raises(MissingExtraError, match=re.escape(f"pip install '{DISTRIBUTION}[server]'")):
        Server(users=[user])


@pytest.mark.parametrize("without", ["cryptography"], indirect=True)
@pytest.mark.usefixtures("without")
def test_key_pair_without_cryptography() -> None:
    with pytest.raises(MissingExtraError, match=r"an nkey needs the package 'cryptography': pip install '.*\[nkeys\]'"):
        KeyPair(Kind.USER, bytes(32))


@pytest.mark.parametrize("without", ["rich"], indirect=True)
@pytest.mark.usefixtures("without")
def test_command_without_rich_ends_before_it_connects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-s", "nats://127.0.0.1:1", "stream", "add", "ORDERS"]) == USAGE
    said = f"slipstream: error: the command line needs the package 'rich': pip install '{DISTRIBUTION}[cli]'\n"
    assert capsys.readouterr().err == said


def test_extra_that_is_there_is_no_error() -> None:
    check_extra("msgspec", "a client", "none")
    with needed_by("a client", "none"):
        import msgspec  # noqa: F401


def test_extras_named_in_errors_exist_and_every_requirement_has_a_floor() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'(?:needed_by|check_extra)\((?:[^()]*, )?f?"[^"]*", "(\w+)"\)', text))
    assert named >= {"server", "nkeys", "encryption", "cli"}
    assert named <= set(extras)
    assert [pin for pin in floors(["all"]) if pin.startswith("msgspec==")]
    with pytest.raises(SystemExit, match="extra must be one of"):
        floors(["none"])

"""What is published: the wheel and its metadata, the image, the compose file and the workflow.

Images cannot be built here. Their files are checked by linters, and the commands in them are run as they stand, with
addresses of this machine.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slipstream import StreamConfig, connect_blocking
from tests.cluster import wait_until_replicable
from tests.ports import free_port
from tests.servers import real_binary

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
WAIT = 60.0


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_client_alone_runs_the_first_program_of_the_readme(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the wheel and msgspec, and not even pip."""
    import msgspec

    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    shutil.copytree(Path(msgspec.__file__).parent, site / "msgspec")
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "program.py").write_text(program[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-W", "error", "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "a lamp" in done.stdout


def test_a_client_needs_msgspec_alone(metadata: Message) -> None:
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert [re.split(r"[<>= ]", each)[0] for each in needed] == ["msgspec"]
    wanted = {"server", "nkeys", "encryption", "cli", "console", "otel", "arrow", "spark", "all"}
    assert wanted <= set(metadata.get_all("Provides-Extra", []))


def test_links_of_the_description_are_absolute(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 5
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    # What they lead to exists in this tree.
    base = "https://github.com/slipstream-jetstream/slipstream/blob/main/"
    paths = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_project_has_addresses_and_all_versions_of_python(metadata: Message) -> None:
    urls = dict(each.split(", ", 1) for each in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert versions_of(metadata) == ["3.11", "3.12", "3.13", "3.14"]


def versions_of(metadata: Message) -> list[str]:
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in metadata.get_all("Classifier", [])
    ]
    return [each[1] for each in found if each]


def test_the_readme_says_first_how_to_install() -> None:
    readme = (ROOT / "README.md").read_text()
    first = re.search(r"```\w*\n(.*?)\n", readme)
    assert first is not None
    assert first[1].startswith("pip install 'slipstream-jetstream[all]'")


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "Dockerfile"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/test.yml"),
    ],
    ids=["Dockerfile", "compose", "workflow"],
)
def test_linters_find_nothing(command: tuple[str, ...]) -> None:
    done = subprocess.run([SCRIPTS / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(ROOT / name)
    return found


def test_the_workflow_runs_the_tests_on_each_version(metadata: Message) -> None:
    job = loaded(".github/workflows/test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == versions_of(metadata)
    assert "make PYTHON=python test" in [step.get("run") for step in job["steps"]]


def test_the_image_has_what_it_copies() -> None:
    text = (ROOT / "Dockerfile").read_text()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+)", text, re.M) for name in line.split()[:-1]}
    assert copied == kept
    assert [name for name in copied if not (ROOT / name).exists()] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"slipstream-jetstream\[(\w+)\]", text)) <= set(extras)


# The commands of compose.yaml


class Services:
    """The services of compose.yaml as processes of this machine, each with ports of its own."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._services = loaded("compose.yaml")["services"]
        self._folder = folder
        wanted = [(name, port) for name in names for port in (4222, 6222, 8222)]
        self.ports = {each: free_port() for each in wanted}

    def words(self, name: str) -> list[str]:
        """The command of a service, with what the container would be given replaced."""
        data = self._folder / name
        data.mkdir(exist_ok=True)
        return [self._local(name, str(word), data) for word in self._services[name]["command"]]

    def _local(self, name: str, word: str, data: Path) -> str:
        def address(found: re.Match[str]) -> str:
            owner = name if found[1] == "0.0.0.0" else found[1]
            return f"127.0.0.1:{self.ports[owner, int(found[2])]}"

        if word == "/data":
            return str(data)
        if word == "0.0.0.0":
            return "127.0.0.1"
        if word.isdigit() and (name, int(word)) in self.ports:
            return str(self.ports[name, int(word)])
        return re.sub(r"(0\.0\.0\.0|nats-\d):(\d+)", address, word)

    @contextmanager
    def running(self, program: list[str], words: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen([*program, *words], text=True, cwd=self._folder, **options) as process:
            try:
                yield process
            finally:
                process.kill()


SLIPSTREAM = [sys.executable, "-m", "slipstream"]


def check(*words: str) -> int:
    return subprocess.run([*SLIPSTREAM, *words], capture_output=True, timeout=WAIT, check=False).returncode


def until_ok(*words: str) -> None:
    deadline = time.monotonic() + WAIT
    while check(*words):
        assert time.monotonic() < deadline, words


def test_the_server_of_the_compose_file_is_healthy(tmp_path: Path) -> None:
    services = Services(tmp_path, ("server",))
    text = (ROOT / "Dockerfile").read_text()
    probe = re.search(r"HEALTHCHECK .*?CMD \[(.*?)\]", text, re.DOTALL)
    assert probe is not None
    words = [word.strip().strip('"') for word in probe[1].split(",")]
    assert words[0] == "slipstream"
    port = services.ports["server", 4222]
    with services.running(SLIPSTREAM, services.words("server"), stderr=subprocess.DEVNULL):
        until_ok(*(word.replace("4222", str(port)) for word in words[1:]))
        assert list((tmp_path / "server").iterdir()), "streams are stored in the volume"
    default = re.findall(r"^CMD \[(.*?)\]", text, re.M)[0]
    assert [word.strip().strip('"') for word in default.split(",")] == loaded("compose.yaml")["services"]["server"][
        "command"
    ]


def test_the_cluster_of_the_compose_file_has_three_servers_and_a_console(tmp_path: Path) -> None:
    names = ("nats-1", "nats-2", "nats-3")
    services = Services(tmp_path, names)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(services.running([real_binary()], services.words(name), stderr=subprocess.DEVNULL))
        url = ",".join(f"nats://127.0.0.1:{services.ports[name, 4222]}" for name in names)
        until_ok("-s", url, "server", "check", "jetstream")
        with connect_blocking(url, timeout=10) as client:
            wait_until_replicable(client.jetstream())
            made = StreamConfig("ORDERS", subjects=["orders"], num_replicas=3)
            client.jetstream().create_stream(made, timeout=30)
            assert client.server_info.cluster == "nats"
        until_ok("-s", url, "server", "check", "stream", "ORDERS", "--replicas", "3")
        words = services.words("console")
        words[words.index("--port") + 1] = "0"
        words[words.index("-s") + 1] = url
        console = stack.enter_context(services.running(SLIPSTREAM, words, stdout=subprocess.PIPE))
        assert console.stdout is not None
        assert console.stdout.readline().startswith("http://127.0.0.1:")

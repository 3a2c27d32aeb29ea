"""Completion: what is offered at each place of a command line, and Tab in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream import StreamConfig, connect_blocking
from slipstream.cli.completion import FILES
from tests.cli.support import WAIT, Cli


def offered(cli: Cli, *words: str) -> list[str]:
    """What may replace the last word."""
    done = cli.run("__complete", "zsh", *words)
    assert (done.code, done.err) == (0, "")
    return [line.partition("\t")[0] for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("strea", ["stream"]),
        ("ctx", ["ctx"]),
        ("stream re", ["report", "restore"]),
        ("stream cr", ["create"]),
        ("stream add S --retention ", ["limits", "interest", "workqueue"]),
        ("stream add S --retention=w", ["--retention=workqueue"]),
        ("stream add S --max-msgs-", ["--max-msgs-per-subject"]),
        ("consumer add S w --ack ex", ["explicit"]),
        ("stream report --sort s", ["size"]),
        ("bench kv --storage m", ["memory"]),
        ("completion z", ["zsh"]),
        ("-s nats://127.0.0.1:1 stream info ", []),
        ("stream add ", []),
        ("xyzzy ", []),
        ("stream info S T", []),
        ("server che", ["check"]),
        ("server check conn", ["connection"]),
        ("kv get BUCKET key --consistency la", ["latest"]),
        ("stream ls --json --al", ["--all"]),
        ("get S -- --la", []),
    ],
)
def test_commands_options_and_their_values_are_offered(our_cli: Cli, words: str, found: list[str]) -> None:
    assert offered(our_cli, *words.split(" ")) == found


def test_options_are_offered_with_their_help(our_cli: Cli) -> None:
    assert our_cli.run("__complete", "zsh", "top", "--inter").out == (
        "--interval\ttime between updates (default: 2s)\n"
    )


@pytest.mark.parametrize("words", ["stream restore ", "stream backup S ", "object put B ", "--creds ", "kv keyring x"])
def test_files_are_left_to_the_shell(our_cli: Cli, words: str) -> None:
    assert our_cli.run("__complete", "zsh", *words.split(" ")).code == FILES


def test_names_are_offered(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("consumer", "add", fresh, "worker")
    cli.ok("consumer", "add", fresh, "writer")
    cli.ok("pub", "-J", f"{fresh}.eu", "x")
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "ui.theme", "dark")
    cli.ok("kv", "put", fresh, "ui.size", "3")
    cli.ok("object", "add", f"{fresh}-files")
    cli.ok("object", "put", f"{fresh}-files", "--name", "today.txt", stdin=b"x")
    cli.ok("context", "add", f"{fresh}-here", "-s", cli.env["NATS_URL"])
    for words, found in (
        (("stream", "info", fresh[:-2]), [fresh]),
        (("stream", "add", "COPY", "--mirror", fresh[:-2]), [fresh]),
        (("sub", "--stream", fresh[:-2]), [fresh]),
        (("consumer", "info", fresh, ""), ["worker", "writer"]),
        (("consumer", "info", fresh, "wo"), ["worker"]),
        (("server", "check", "consumer", fresh, "wr"), ["writer"]),
        (("stream", "get", fresh, "-S", ""), [f"{fresh}.eu"]),
        (("kv", "get", fresh[:-2]), [fresh]),
        (("kv", "get", fresh, "ui."), ["ui.size", "ui.theme"]),
        (("kv", "edit", fresh, "ui.t"), ["ui.theme"]),
        (("object", "info", fresh), [f"{fresh}-files"]),
        (("object", "get", f"{fresh}-files", "to"), ["today.txt"]),
        (("context", "select", fresh), [f"{fresh}-here"]),
        (("--context", fresh), [f"{fresh}-here"]),
    ):
        assert [word for word in offered(cli, *words) if fresh in word or len(found) != 1 or word in found] == found, (
            words
        )
    by_context = cli.run("__complete", "zsh", "--context", f"{fresh}-here", "kv", "get", fresh, "ui.s", NATS_URL="")
    assert by_context.out == "ui.size\n"


def test_codecs_apply_to_the_keys_that_are_offered(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("kv", "add", fresh)
    our_cli.ok("kv", "put", fresh, "/eu/ada", "1", "--codec", "path")
    assert offered(our_cli, "kv", "get", "--codec", "path", fresh, "/e") == ["/eu/ada"]


def test_no_server_means_no_names_and_no_error(our_cli: Cli) -> None:
    done = our_cli.run("__complete", "zsh", "stream", "info", "", NATS_URL="nats://127.0.0.1:9")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert our_cli.run("__complete", "zsh", "--context", "nope", "stream", "info", "").out == ""
    assert our_cli.run("__complete").code == 0


def test_names_cannot_be_read_as_commands_by_a_shell(our_cli: Cli, fresh: str) -> None:
    name = f"{fresh}$(touch${{IFS}}pwned);`id`'"
    with connect_blocking(our_cli.env["NATS_URL"]) as client:
        client.jetstream().create_stream(StreamConfig(name, subjects=[fresh]))
    line = our_cli.run("__complete", "bash", f"slipstream stream info {fresh}").out.strip()
    done = subprocess.run(["bash", "-c", f"printf %s {line}"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == name


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("slipstream strea", "stream\n"),
        ("slipstream stream add S --retention=wo", "workqueue\n"),  # `=` begins a word for readline
        ("slipstream -s nats://127.0.0.1:9 stream ed", "edit\n"),
        ("slipstream pub 'a b' x --send-on new", "newline\n"),
        ("slipstream pub 'unclosed", ""),
    ],
)
def test_bash_gets_what_replaces_its_own_word(our_cli: Cli, line: str, found: str) -> None:
    assert our_cli.run("__complete", "bash", line).out == found


class Terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self._main, other = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=other, stdout=other, stderr=other, env=env, cwd=folder
        )
        os.close(other)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + WAIT
        while text not in self.shown.replace("\r", "").replace("\n", ""):
            left = deadline - time.monotonic()
            assert left > 0, self.shown
            if select.select([self._main], [], [], left)[0]:
                try:
                    self.shown += os.read(self._main, 65536).decode(errors="replace")
                except OSError:  # the shell has ended
                    pytest.fail(self.shown)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=WAIT)
        os.close(self._main)


SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOAD = {
    "bash": 'eval "$(slipstream completion bash)"',
    "zsh": 'eval "$(slipstream completion zsh)"',
    "fish": "slipstream completion fish | source",
}


@contextmanager
def started(shell: str, cli: Cli, folder: Path) -> Iterator[Terminal]:
    program = folder / "slipstream"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slipstream "$@"\n')
    program.chmod(0o755)
    env = cli.env | {"PATH": f"{folder}:{os.environ['PATH']}", "PS1": "ready$ ", "COLUMNS": "200", "TERM": "dumb"}
    terminal = Terminal(SHELLS[shell], env, folder)
    try:
        terminal.type(f"{LOAD[shell]}; echo loa''ded\n")
        terminal.wait_for("loaded")
        yield terminal
    finally:
        terminal.close()


needs = {
    shell: pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell}: apt-get install {shell}")
    for shell in SHELLS
}


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs[shell]) for shell in SHELLS])
def test_tab_completes_in_a_real_shell(shell: str, cli: Cli, fresh: str, tmp_path: Path) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("consumer", "add", fresh, "worker-of-a-test")
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "ui.theme", "dark")
    (tmp_path / "some-backup-folder").mkdir()
    with started(shell, cli, tmp_path) as terminal:
        for typed, whole in (
            ("slipstream consumer info ", ""),
            (f"{fresh[:-1]}\t", fresh),  # a stream
            ("work\t", "worker-of-a-test"),  # its consumer
            ("--tim\t", "--timeout"),
        ):
            terminal.type(typed)
            if whole:
                terminal.wait_for(whole)
        terminal.type("3s --json; echo don''e\n")
        terminal.wait_for("done")
        assert '"name":"worker-of-a-test"' in terminal.shown, terminal.shown
        terminal.type(f"slipstream kv get {fresh} ui.\t")
        terminal.wait_for("ui.theme")
        terminal.type(" --raw; echo fetc''hed\n")
        terminal.wait_for("fetched")
        assert "dark" in terminal.shown
        terminal.type("slipstream stream restore some-b\t")
        terminal.wait_for("some-backup-folder")

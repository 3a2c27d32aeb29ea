"""The server as a command: flags in Go's way, configuration files, log lines, signals, files about the process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.server import User
from slipstream.server.options import ServerOptions
from slipstream.server.process import command, flags
from slipstream.server.process.options import ProcessOptions
from tests.ports import free_port
from tests.servers import real_binary

OURS = [sys.executable, "-m", "slipstream", "server"]


def options(*argv: str) -> ProcessOptions:
    return flags.apply(flags.parse(argv), ProcessOptions())


@pytest.mark.parametrize(
    "argv", [["-p", "-1"], ["--port", "-1"], ["--port=-1"], ["-port=-1"], ["-p=-1"], ["-port", "-1"]]
)
def test_a_flag_may_be_written_in_every_form_of_go(argv: list[str]) -> None:
    assert options(*argv).server.port == -1


def test_flags_override_options() -> None:
    found = options(
        "-a", "::1", "-n", "s1", "-m", "8222", "-js", "-sd", "/data", "-DV", "-l", "/log", "-P", "/pid", "-T=false"
    )
    server = found.server
    assert (server.host, server.port, server.name, server.http_port) == ("::1", 4222, "s1", 8222)
    assert (server.jetstream, server.data_dir, server.trace) == (True, "/data", True)
    assert (found.debug, found.log_file, found.pid_file, found.log_time) == (True, "/log", "/pid", False)
    assert options().server.host == "127.0.0.1"
    assert not options().server.jetstream
    assert not options("-sd", "/data", "-js=false").server.jetstream
    assert options("--user", "u", "--pass", "p").server.every_user() == (User(name="u", password="p"),)
    assert options("--auth", "t").server.every_user() == (User(token="t"),)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "'--nope' is not a flag of this server"),
        (["server"], "'server' is not a flag"),
        (["-p"], "-p needs a value"),
        (["-p", "many"], "--port must be -1 to 65535, got 'many'"),
        (["-js=perhaps"], "-js must be true or false, got 'perhaps'"),
        (["--routes", "x"], "--routes is not supported: this server is a single process"),
        (["--tls"], "TLS needs --tlscert and --tlskey"),
        (["--tlsverify", "--tlscert", "a", "--tlskey", "b"], "--tlsverify needs --tlscacert"),
        (["--user", "u"], "user 'u' has no password"),
        (["--user", "u", "--pass", "p", "--auth", "t"], "--auth and --user are mutually exclusive"),
        (["-n", "a b"], "server name must not contain white space, got 'a b'"),
    ],
)
def test_a_bad_flag_is_rejected_by_name(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options(*argv)


class Process:
    """A server as a process, its log read as it comes."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(60), self.lines  # a guard against hanging, not a promise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if "Server is ready" in line:
                self._ready.set()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def port(self) -> int:
        found = re.search(r"Listening for client connections on \S+:(\d+)", self.log)
        assert found, self.log
        return int(found[1])

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def running(*argv: str, command: list[str] = OURS) -> Iterator[Process]:
    process = Process([*command, *argv])
    try:
        yield process
    finally:
        process.close()


def greeting(port: int) -> dict[str, object]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rb") as file:
        found: dict[str, object] = json.loads(file.readline()[5:])
        return found


@pytest.mark.parametrize("command", [OURS, [real_binary()]], ids=["ours", "real"])
def test_equal_ports_for_clients_and_monitoring_are_an_error(command: list[str], tmp_path: Path) -> None:
    port, ports = str(free_port()), tmp_path / "ports"
    ports.mkdir()
    argv = ["-a", "127.0.0.1", "-p", port, "-m", port, "-js=false", "-P", str(tmp_path / "pid")]
    done = subprocess.run(
        [*command, *argv, "--ports_file_dir", str(ports)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "[FTL]" in done.stderr
    assert "address already in use" in done.stderr.lower()
    assert "Server is ready" not in done.stderr
    assert list(ports.iterdir()) == []
    if command == OURS:
        assert not (tmp_path / "pid").exists()  # it is written once the server listens


LINE = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(INF|WRN|DBG|TRC)\] .+")


@pytest.mark.parametrize("command", [OURS, [real_binary()]], ids=["ours", "real"])
def test_the_log_has_the_lines_that_scripts_wait_for(command: list[str]) -> None:
    with running("-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-n", "n1", "-js=false", command=command) as server:
        assert greeting(server.port)["server_name"] == "n1"
        assert "jetstream" not in greeting(server.port) or not greeting(server.port)["jetstream"]
        found = re.search(r"Starting http monitor on (\S+)", server.log)
        assert found
        with urllib.request.urlopen(f"http://{found[1]}/varz", timeout=10) as answer:
            assert json.load(answer)["server_name"] == "n1"
        assert server.end() in (0, 1)  # nats-server's own is 1
    assert all(LINE.fullmatch(line) for line in server.lines), server.log


def test_the_command_has_jetstream_and_says_where_it_stores_and_what_to_do_next(tmp_path: Path) -> None:
    with running("-p", "-1") as server:
        assert greeting(server.port)["jetstream"] is True
        assert "JetStream store: memory (-sd DIR stores streams there)" in server.log
        assert server.end() == 0
    assert f"Connect with: slipstream -s nats://127.0.0.1:{server.port} stream ls" in server.log
    with running("-p", "-1", "-sd", str(tmp_path / "data")) as stored:
        assert f"JetStream store: {tmp_path / 'data'}" in stored.log
    config = tmp_path / "core.conf"
    config.write_text("port: -1")  # as with nats-server, a file has what it says
    for argv in (("-p", "-1", "-js=false"), ("-c", str(config))):
        with running(*argv) as core:
            assert not greeting(core.port).get("jetstream")
            assert "JetStream: off (-js enables it, -sd DIR stores streams there)" in core.log
            assert core.end() == 0
        assert "Connect with" not in core.log


@pytest.mark.parametrize("command", [[*OURS, "--compat", "nats-server"], [real_binary()]], ids=["ours", "real"])
def test_a_compatible_command_has_jetstream_only_if_it_is_asked_for(command: list[str], tmp_path: Path) -> None:
    store = ("-sd", str(tmp_path / "data"))
    for argv, is_on in (((), False), (store, False), (("-js", *store), True)):
        with running("-a", "127.0.0.1", "-p", "-1", *argv, command=command) as server:
            assert bool(greeting(server.port).get("jetstream")) is is_on
            assert server.end() in (0, 1)  # nats-server's own is 1


@pytest.mark.parametrize(
    ("argv", "folder"),
    [
        (["-p", "4222"], "jetstream"),
        (["-p", "4222", "-js"], "jetstream"),
        (["-p", "5222", "-js"], "jetstream"),
        (["-p", "5222"], "jetstream-5222"),  # beside the one on 4222
        (["-p", "-1"], None),
        (["-p", "-1", "-js"], "jetstream"),
        (["-js=false"], None),
    ],
    ids=["4222", "4222-js", "5222-js", "5222", "free", "free-js", "core"],
)
def test_servers_side_by_side_do_not_share_a_default_directory(
    argv: list[str], folder: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used: list[ServerOptions] = []
    monkeypatch.setattr(command, "_run", lambda options, *_: used.append(options.server))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert command.main(argv) == 0
    assert [each.data_dir for each in used] == [None if folder is None else tmp_path / "slipstream" / folder]
    if folder is not None:
        assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "slipstream").glob("**")] == [0o700, 0o700]


def test_pid_and_ports_files_are_written_and_removed(tmp_path: Path) -> None:
    pid, log, data = tmp_path / "pid", tmp_path / "log", tmp_path / "data"
    config = tmp_path / "s.conf"
    config.write_text(f"port: -1\nserver_name: c1\njetstream {{store_dir: '{data}'}}\nports_file_dir: '{tmp_path}'")
    with running("-c", str(config), "-P", str(pid)) as server:
        info = greeting(server.port)
        assert (info["jetstream"], info["server_name"]) == (True, "c1")
        assert pid.read_text() == str(server.process.pid)
        (ports,) = tmp_path.glob("*.ports")
        assert json.loads(ports.read_text())["nats"] == [f"nats://127.0.0.1:{server.port}"]
        assert (data / "data.mdb").exists() or any(data.iterdir())
        assert server.end(signal.SIGINT) == 0
    assert not pid.exists()
    assert not ports.exists()
    assert not log.exists()


def test_the_log_goes_to_a_file_and_traces_hide_secrets(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [
        *OURS,
        "-p",
        "-1",
        "-DV",
        "-l",
        str(log),
        "--user",
        "joe",
        "--pass",
        "s3cret",
        "--ports_file_dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(command)
    try:
        for _ in range(6000):
            if log.exists() and "Server is ready" in log.read_text():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        port = int(re.findall(r"connections on \S+:(\d+)", log.read_text())[0])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rb") as file:
            file.readline()
            sock.sendall(
                b'CONNECT {"verbose":false,"user":"joe","pass":"s3cret"}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n'
            )
            while file.readline() != b"PONG\r\n":
                pass
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    text = log.read_text()
    assert "s3cret" not in text
    for part in (
        "<<- [SUB a 1]",
        "<<- [PUB a 2] [b'hi']",
        "->> [MSG a 1 2] [b'hi']",
        "->> [PONG]",
        "Client connection created",
    ):
        assert part in text, text


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OURS, *argv], capture_output=True, text=True, timeout=30, check=False)


def test_a_configuration_is_tested_without_a_server(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("port: 4222")
    bad.write_text("port: 4222\nprot: 1")
    found = run("-t", "-c", str(good))
    assert found.returncode == 0
    assert found.stderr == f"slipstream: configuration file {good} is valid\n"
    found = run("-c", str(bad), "-t")
    assert found.returncode != 0
    assert f"{bad}:2:1: unknown field 'prot'" in found.stderr
    assert found.stderr.count("\n") == 1


def test_help_version_and_errors_are_short(tmp_path: Path) -> None:
    assert "--store_dir" in run("--help").stdout
    assert run("-v").stdout.startswith("slipstream: v")
    wrong = run("--nope")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    traced = subprocess.run(
        [*OURS[:-1], "--debug", "server", "--nope"], capture_output=True, text=True, timeout=30, check=False
    )
    assert "Traceback" in traced.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_port = taken.getsockname()[1]
        busy = run("-p", str(taken_port), "-T=false", "-js=false")
    assert busy.returncode == 1
    address = f"127.0.0.1:{taken_port}"
    assert busy.stderr.splitlines()[-1].endswith(
        f"[FTL] cannot listen on {address}: Address already in use (is a server running on that port?)"
    )
    (tmp_path / "file").touch()
    occupied = run("-p", "-1", "-js", "-sd", str(tmp_path / "file"))
    assert (occupied.returncode, "could not create storage directory" in occupied.stderr) == (1, True)
    (tmp_path / "bad.conf").write_text('port: "x" "y"')
    assert "1:11: Parse error" in run("-c", str(tmp_path / "bad.conf")).stderr
    assert "Traceback" not in busy.stderr
    if os.geteuid():  # root may write anywhere
        assert run("-js", "-sd", "/proc/nope").returncode == 1
    assert run("-l", str(tmp_path / "no" / "log")).returncode != 0

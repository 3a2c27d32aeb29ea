"""A command line as nats-server takes it becomes options: Go's way of writing flags, on top of a configuration file.

A flag begins with one dash or two; its value follows as the next word or behind an equals sign; a truth value stands
alone or is written behind an equals sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.server.engine.auth.users import User
from slipstream.server.loop.upstream import Upstream, named
from slipstream.server.options import TlsOptions
from slipstream.server.process.conf.load import ProcessOptions

HELP = """Usage: slipstream server [flags]

Server:
  -a, --addr, --net HOST       address to listen on (default 127.0.0.1; 0.0.0.0 for all)
  -p, --port PORT              port for clients (default 4222; -1 takes a free one)
  -n, --name, --server_name N  name of the server (default: its id)
  -m, --http_port PORT         port for the monitoring endpoints (-1 takes a free one)
  -c, --config FILE            configuration file, in nats-server's format; flags override it
  -t                           test the configuration and exit
  -P, --pid FILE               write the process id there
      --ports_file_dir DIR     write the ports there, into slipstream_<pid>.ports

JetStream:
  -js, --jetstream             have JetStream
  -sd, --store_dir DIR         keep streams there (and have JetStream)
      --upstream NAME=URL,...  where mirrors and sources of other domains are read from

Logging, to stderr unless told otherwise:
  -l, --log FILE               write the log there
  -T, --logtime[=false]        times in the log (default true)
  -D, --debug                  more of what happens
  -V, --trace                  the protocol
  -DV                          both

Who may come in:
      --user NAME --pass PW    one user; the password may be a bcrypt hash
      --auth TOKEN             a token

TLS:
      --tls                    speak TLS
      --tlscert FILE --tlskey FILE
      --tlsverify --tlscacert FILE   clients must show a certificate of that CA

For tests:
      --faults                 take orders of tests on $SLIPSTREAM.FAULTS.<order>
      --virtual-time           a clock that only orders move

  -h, --help                   this text
  -v, --version                the version
"""

_SPELLINGS = {
    "addr": ("a", "addr", "net", "host"),
    "port": ("p", "port"),
    "name": ("n", "name", "server_name"),
    "http_port": ("m", "http_port"),
    "config": ("c", "config"),
    "test": ("t",),
    "pid": ("P", "pid"),
    "ports_file_dir": ("ports_file_dir",),
    "jetstream": ("js", "jetstream"),
    "store_dir": ("sd", "store_dir", "data-dir", "data_dir"),
    "upstream": ("upstream", "upstreams"),
    "log": ("l", "log"),
    "logtime": ("T", "logtime"),
    "debug": ("D", "debug"),
    "trace": ("V", "trace", "VV"),
    "both": ("DV", "DVV"),
    "user": ("user",),
    "pass": ("pass", "password"),
    "auth": ("auth", "token"),
    "tls": ("tls",),
    "tlscert": ("tlscert",),
    "tlskey": ("tlskey",),
    "tlsverify": ("tlsverify",),
    "tlscacert": ("tlscacert",),
    "faults": ("faults",),
    "virtual_time": ("virtual-time", "virtual_time"),
    "help": ("h", "help"),
    "version": ("v", "version"),
}
_NAMES = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}
_TRUTHS = frozenset(("test", "jetstream", "logtime", "debug", "trace", "both", "tls", "tlsverify", "help", "version",
     "faults", "virtual_time")
)  # fmt: skip
_OTHERS = {
    **dict.fromkeys(
        ("routes", "cluster", "cluster_name", "cluster_listen", "cluster_advertise", "no_advertise", "client_advertise",
         "connect_retries"), "this server is one process and joins no other",
    ),
    **dict.fromkeys(("ms", "https_port"), "monitoring is by HTTP only"),
    **dict.fromkeys(("s", "syslog", "r", "remote_syslog"), "log to stderr or to a file"),
    **dict.fromkeys(("sl", "signal"), "use kill: TERM stops it, USR2 is for lame duck mode"),
    "profile": "there is no profiler",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that were given."""

    values: dict[str, str]

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def is_on(self, name: str) -> bool:
        return self.values.get(name) == "true"

    def number(self, name: str, low: int, high: int) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            found = int(value)
        except ValueError:
            found = low - 1
        if not low <= found <= high:
            raise UsageError(f"--{name} is {value!r}, {low} to {high} is allowed")
        return found


class _Flag(NamedTuple):
    name: str
    written: str
    value: str | None


def parse(argv: Sequence[str]) -> Flags:
    """The flags of a command line; a UsageError names the first word that is none."""
    values: dict[str, str] = {}
    words = list(argv)
    while words:
        flag = _flag(words.pop(0))
        value = flag.value
        if flag.name in _TRUTHS:
            if value is not None and value.lower() not in ("true", "false", "1", "0", "t", "f"):
                raise UsageError(f"{flag.written} is {value!r}, true or false is allowed")
            value = "true" if value is None or value.lower() in ("true", "1", "t") else "false"
        elif value is None:
            if not words:
                raise UsageError(f"{flag.written} needs a value")
            value = words.pop(0)
        values[flag.name] = value
    return Flags(values)


def _flag(word: str) -> _Flag:
    body = word[2:] if word.startswith("--") else word[1:]
    spelling, equals, value = body.partition("=")
    if not word.startswith("-") or not spelling:
        raise UsageError(f"{word!r} is no flag; --help lists them")
    if spelling in _OTHERS:
        raise UsageError(f"{word.partition('=')[0]} is not supported: {_OTHERS[spelling]}")
    if spelling not in _NAMES:
        raise UsageError(f"{word.partition('=')[0]!r} is no flag of this server; --help lists them")
    return _Flag(_NAMES[spelling], word.partition("=")[0], value if equals else None)


def apply(flags: Flags, options: ProcessOptions) -> ProcessOptions:
    """The options with what the flags say put over them."""
    server = options.server
    port, http_port = flags.number("port", -1, 65535), flags.number("http_port", -1, 65535)
    server = replace(
        server,
        host=flags.text("addr") or server.host,
        port=server.port if port is None else port,
        name=flags.text("name") or server.name,
        http_port=server.http_port if http_port is None else http_port or None,
        jetstream=flags.is_on("jetstream")
        or (flags.text("store_dir") is not None and flags.text("jetstream") is None)
        or (server.jetstream and flags.text("jetstream") is None),
        store_dir=flags.text("store_dir") or server.store_dir,
        upstreams=_upstreams(flags.text("upstream")) or server.upstreams,
        tls=_tls(flags, server.tls),
        users=_users(flags) or server.users,
        trace=server.trace or flags.is_on("trace") or flags.is_on("both"),
        faults=flags.is_on("faults"),
        virtual_time=flags.is_on("virtual_time"),
    )
    return replace(
        options,
        server=server,
        debug=options.debug or flags.is_on("debug") or flags.is_on("both"),
        trace=server.trace,
        log_time=options.log_time if flags.text("logtime") is None else flags.is_on("logtime"),
        log_file=flags.text("log") or options.log_file,
        pid_file=flags.text("pid") or options.pid_file,
        ports_file_dir=flags.text("ports_file_dir") or options.ports_file_dir,
    )


def _upstreams(text: str | None) -> dict[str, Upstream]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, _, url = part.partition("=")
        if not name or not url:
            raise UsageError(f"bad upstream {part!r}: NAME=URL is allowed, as in hub=nats://hub.example:4222")
        found[name] = url
    return named(found)


def _users(flags: Flags) -> tuple[User, ...]:
    name, password, token = flags.text("user") or "", flags.text("pass") or "", flags.text("auth") or ""
    if token and (name or password):
        raise UsageError("--auth is for a token: --user and --pass are another way to come in")
    if name or password:
        return (User(name=name, password=password),)
    return (User(token=token),) if token else ()


def _tls(flags: Flags, tls: TlsOptions | None) -> TlsOptions | None:
    names = ("tls", "tlsverify", "tlscert", "tlskey", "tlscacert")
    if not any(flags.text(name) for name in names):
        return tls
    tls = tls or TlsOptions()
    tls = replace(
        tls,
        cert=flags.text("tlscert") or tls.cert,
        key=flags.text("tlskey") or tls.key,
        ca=flags.text("tlscacert") or tls.ca,
        verify=flags.is_on("tlsverify") or tls.verify,
    )
    if not tls.cert or not tls.key:
        raise UsageError("TLS needs --tlscert and --tlskey")
    if tls.verify and not tls.ca:
        raise UsageError("--tlsverify needs --tlscacert: whose certificates are clients to show?")
    return tls

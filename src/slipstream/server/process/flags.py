"""Command line of `slipstream server`, in nats-server's form: Go's flags, which override the configuration file.

A flag begins with one dash or two; its value is the next word, or follows an equals sign. A boolean flag stands alone
or has `=true` or `=false`. Flags of options come from their declarations (`slipstream.server.options`), and `--help` is
printed from them; this module declares the flags that are no options, and applies those with a rule of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from slipstream.errors import UsageError
from slipstream.server.options import COMMAND_DEFAULTS, Option, ServerOptions, options_of
from slipstream.server.process.conf.tree import plain
from slipstream.server.process.options import ProcessOptions
from slipstream.wire.redaction import redacted

WIDTH, COLUMN = 80, 29  # of the help; where its second column begins


class Flag(NamedTuple):
    """A flag of the command line."""

    name: str  # of the option, if there is one
    spellings: tuple[str, ...]
    doc: str
    group: str
    is_switch: bool  # takes no value
    value: str = ""


def _on_off(name: str, spellings: str, doc: str, group: str = "Server") -> Flag:
    return Flag(name, tuple(spellings.split()), doc, group, True)


def _of(option: Option) -> Flag:
    doc = f"{option.doc}{_default(option)}"
    return Flag(option.name, option.flags, doc, option.group, option.kind is bool, option.value)


def _default(option: Option) -> str:
    default = getattr(COMMAND_DEFAULTS, option.name, option.default)
    if not default or not isinstance(default, int | float | str):
        return ""
    return f" (default: {'true' if default is True else default})"


FLAGS = (
    Flag("config", ("c", "config"), "configuration file, in nats-server's format", "Server", False, "FILE"),
    _on_off("test", "t", "test the configuration and exit"),
    *(_of(option) for declaring in (ServerOptions, ProcessOptions) for option in options_of(declaring) if option.flags),
    _on_off("debug_and_trace", "DV DVV", "-D and -V", "Logging"),
    _on_off("require_tls", "tls", "require TLS; needs --tlscert and --tlskey", "TLS"),
    Flag(
        "signal",
        ("sl", "signal"),
        "signal a server and exit: ldm, stop, quit, term, reopen or reload",
        "Other",
        False,
        "NAME=PID",
    ),
    _on_off("console", "console", "also serve the web console, and print its address", "Console"),
    Flag("console_port", ("console_port",), "port of the console (default: a free one)", "Console", False, "PORT"),
    _on_off("console_write", "console_write", "allow changes in the console", "Console"),
    _on_off("help", "h help", "show this text and exit", "Other"),
    _on_off("version", "v version", "show the version and exit", "Other"),
)
_BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}
_UNSUPPORTED = {
    **dict.fromkeys(
        ("routes", "cluster", "cluster_name", "cluster_listen", "cluster_advertise", "no_advertise", "client_advertise",
         "connect_retries"), "this server is a single process and joins no cluster",
    ),
    **dict.fromkeys(("ms", "https_port"), "monitoring is plain HTTP only"),
    **dict.fromkeys(("s", "syslog", "r", "remote_syslog"), "log to stderr or to a file"),
    "profile": "there is no profiler",
}  # fmt: skip
_TRUE, _FALSE = ("true", "1", "t"), ("false", "0", "f")


# Reading the words.


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a command line, by name."""

    values: dict[str, str]

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def is_on(self, name: str) -> bool:
        return self.values.get(name) == "true"

    def is_set(self, name: str) -> bool:
        return name in self.values


def parse(argv: Sequence[str]) -> Flags:
    """The flags of a command line; a UsageError names the first word that is not a flag."""
    values: dict[str, str] = {}
    words = list(argv)
    while words:
        flag, written, value = _split(words.pop(0))
        if flag.is_switch:
            if value is not None and value.lower() not in (*_TRUE, *_FALSE):
                raise UsageError(f"{written} must be true or false, got {value!r}")
            value = "true" if value is None or value.lower() in _TRUE else "false"
        elif value is None:
            if not words:
                raise UsageError(f"{written} needs a value")
            value = words.pop(0)
        values[flag.name] = value
    return Flags(values)


def _split(word: str) -> tuple[Flag, str, str | None]:
    """A word as its flag, the flag as written, and the value after an equals sign."""
    written, equals, value = word.partition("=")
    spelling = written[2:] if written.startswith("--") else written[1:]
    if not word.startswith("-") or not spelling:
        raise UsageError(f"{word!r} is not a flag; see --help")
    if spelling in _UNSUPPORTED:
        raise UsageError(f"{written} is not supported: {_UNSUPPORTED[spelling]}")
    if spelling not in _BY_SPELLING:
        raise UsageError(f"{written!r} is not a flag of this server; see --help")
    return _BY_SPELLING[spelling], written, value if equals else None


# Applying them.


def apply(flags: Flags, options: ProcessOptions) -> ProcessOptions:
    """The options of a configuration file, overridden by flags."""
    server = options.server
    debug_and_trace = flags.is_on("debug_and_trace")
    changes = _values(flags, ServerOptions)
    changes |= _users(flags) | _tls(flags, server)
    if changes.get("http_port") == 0:  # off, as in the configuration file
        changes["http_port"] = None
    is_compat = changes.get("compat", server.compat) != ""
    if flags.is_set("jetstream") or (
        flags.is_set("data_dir") and not is_compat
    ):  # a directory for streams means JetStream
        changes["jetstream"] = flags.is_on("jetstream") or not flags.is_set("jetstream")
    if flags.text("upstreams"):
        changes["upstreams"] = _upstreams(flags.values["upstreams"])
    if debug_and_trace:
        changes["trace"] = True
    around = _values(flags, ProcessOptions)
    if flags.is_set("log_time"):
        around["log_time"] = flags.is_on("log_time")
    if debug_and_trace:
        around["debug"] = True
    return replace(options, server=replace(server, **changes), **around)


def _values(flags: Flags, declaring: type) -> dict[str, Any]:
    """The values of the plain options among the flags. A switch turns an option on; `=false` leaves what it was."""
    found: dict[str, Any] = {}
    for option in options_of(declaring):
        text = flags.text(option.name) if option.flags else None
        if not text or option.kind is object:
            continue
        if option.kind is bool:
            if text == "true":
                found[option.name] = True
        elif option.kind is int:
            found[option.name] = _port(option, text) if option.value == "PORT" else _size(option, text)
        else:
            found[option.name] = text
    return found


def _port(option: Option, text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = -2
    if not -1 <= found <= 65535:
        raise UsageError(f"--{option.flags[-1]} must be -1 to 65535, got {text!r}")
    return found


def _size(option: Option, text: str) -> int:
    """A number of bytes, as configuration files have it: `64MB`; -1 where that means no limit."""
    found = plain(text)
    if type(found) is not int or found < (option.low or 0):
        raise UsageError(f"--{option.flags[-1]} must be a number of bytes such as 256MB, got {text!r}")
    return found


def _upstreams(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, url = part.partition("=")
        if not name or not url:
            raise UsageError(f"--upstream must be NAME=URL, as in hub=nats://hub.example:4222, got {redacted(part)!r}")
        found[name] = url
    return found


def _users(flags: Flags) -> dict[str, Any]:
    """A user or token of the command line replaces the users of the file."""
    if not any(flags.text(name) for name in ("user", "password", "token")):
        return {}
    if flags.text("token") and (flags.text("user") or flags.text("password")):
        raise UsageError("--auth and --user are mutually exclusive")
    return {"users": ()}


def _tls(flags: Flags, server: ServerOptions) -> dict[str, Any]:
    names = ("tls_cert", "tls_key", "tls_ca", "tls_verify", "require_tls")
    if not any(flags.text(name) for name in names):
        return {}
    if not (flags.text("tls_cert") or server.tls_cert) or not (flags.text("tls_key") or server.tls_key):
        raise UsageError("TLS needs --tlscert and --tlskey")
    if (flags.is_on("tls_verify") or server.tls_verify) and not (flags.text("tls_ca") or server.tls_ca):
        raise UsageError("--tlsverify needs --tlscacert, the authorities that sign client certificates")
    return {}


# The help.


def help_text() -> str:
    """What `--help` prints, in 80 columns."""
    groups = dict.fromkeys(flag.group for flag in FLAGS)
    lines = ["Usage: slipstream server [flags]"]
    for group in groups:
        lines += ["", f"{group}:"]
        for flag in FLAGS:
            if flag.group == group:
                lines += _help_of(flag)
    return "\n".join(lines) + "\n"


def _help_of(flag: Flag) -> Iterator[str]:
    dashed = [f"-{s}" if len(s) < 3 or s.isupper() else f"--{s}" for s in flag.spellings]
    left = f"  {', '.join(dashed)} {flag.value}".rstrip()
    right = textwrap.wrap(flag.doc, WIDTH - COLUMN)
    if len(left) + 2 > COLUMN:
        yield left
        left = ""
    for line in right:
        yield f"{left:{COLUMN}}{line}"
        left = ""

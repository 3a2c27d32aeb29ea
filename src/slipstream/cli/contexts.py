"""`slipstream context …`: named connection settings, shared with the `nats` tool."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from slipstream import Context, Contexts
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.exit_codes import FAILED
from slipstream.errors import Error, UsageError

_OPTIONS = {
    "server": "url", "user": "user", "password": "password", "token": "token", "creds": "creds", "nkey": "nkey",
    "tlscert": "cert", "tlskey": "key", "tlsca": "ca", "tlsfirst": "tls_first", "inbox_prefix": "inbox_prefix",
    "js_domain": "jetstream_domain", "js_api_prefix": "jetstream_api_prefix", "description": "description",
}  # fmt: skip
_SECRET = ("password", "token")
_USER_INFO = re.compile(r"^((?:\w+://)?).*@")


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("context", "named connection settings", aliases=("ctx",))
    group.add("ls", _list, "list contexts", aliases=("list",))
    saving = group.add(
        "add",
        _save,
        "create or change a context from the connection options",
        aliases=("save", "edit"),
        examples="  slipstream context add prod -s tls://nats.example.com --creds ~/prod.creds",
    )
    _name(saving)
    saving.add_argument("--description", default=None, help="description")
    saving.add_argument("--select", action="store_true", help="select it as well")
    for name, run, text in (
        ("select", _select, "use a context when none is named"),
        ("info", _info, "show a context, without secrets"),
        ("validate", _validate, "check a context, or all of them; with --connect, log in with it"),
        ("rm", _delete, "remove a context"),
    ):
        parser = group.add(name, run, text, aliases=("show",) if name == "info" else ())
        _name(parser, optional=name in ("info", "validate"))
        if name == "rm":
            parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
        if name == "validate":
            parser.add_argument("--connect", action="store_true", help="connect to the servers of each context")
    copying = group.add("copy", _copy, "create a context with the settings of another one", aliases=("cp",))
    _name(copying)
    copying.add_argument("new_name", metavar="NEW", help="name of the new context")
    copying.add_argument("-f", "--force", action="store_true", help="replace an existing context")
    group.add("previous", _previous, "select the context that was selected before", aliases=("prev",))


def _name(parser: Parser, *, optional: bool = False) -> None:
    parser.add_argument("name", nargs="?" if optional else None, default="", metavar="CONTEXT")


def _list(shell: Shell) -> None:
    contexts = Contexts()
    selected = contexts.selected
    found = [contexts.load(name) for name in contexts.names()]
    if shell.out.is_json:
        shell.out.json([{"name": one.name, "selected": one.name == selected, "url": _servers(one)} for one in found])
        return
    rows = [("*" if each.name == selected else "", each.name, _servers(each), each.description) for each in found]
    shell.out.table(("", "Name", "Servers", "Description"), rows)


def _servers(context: Context) -> str:
    """The URLs of a context without user info, which may be a password."""
    return ",".join(_USER_INFO.sub(r"\1", each.strip()) for each in context.url.split(","))


def _save(shell: Shell) -> None:
    contexts, options = Contexts(), shell.options
    known = contexts.load(options.name) if options.name in contexts.names() else Context(name=options.name)
    settings = {field: getattr(options, option, None) for option, field in _OPTIONS.items()}
    path = contexts.save(replace(known, **{field: value for field, value in settings.items() if value is not None}))
    shell.out.note(f"saved {path}")
    if options.select:
        contexts.select(options.name)


def _select(shell: Shell) -> None:
    Contexts().select(shell.options.name)
    shell.out.note(f"selected {shell.options.name}")


def _info(shell: Shell) -> None:
    context = Contexts().load(shell.options.name)
    facts = {field: getattr(context, field) for field in dict.fromkeys(_OPTIONS.values())} | {"url": _servers(context)}
    shown = {name: "(set)" if name in _SECRET and value else value for name, value in facts.items()}
    if shell.out.is_json:
        shell.out.json({"name": context.name, **shown})
    else:
        shell.out.facts(f"Context {context.name}", [(name, value or None) for name, value in shown.items()])


def _copy(shell: Shell) -> None:
    contexts, options = Contexts(), shell.options
    if options.new_name in contexts.names() and not options.force:
        raise UsageError(f"context {options.new_name!r} already exists; pass --force to replace it")
    shell.out.note(f"saved {contexts.save(replace(contexts.load(options.name), name=options.new_name))}")


def _previous(shell: Shell) -> None:
    contexts = Contexts()
    if not contexts.previous:
        raise UsageError("no context was selected before")
    name = contexts.previous
    contexts.select(name)
    shell.out.note(f"selected {name}")


def _validate(shell: Shell) -> int:
    names = [shell.options.name] if shell.options.name else Contexts().names()
    found = {name: _mistake(shell, name) for name in names}
    if shell.out.is_json:
        shell.out.json([{"name": name, "valid": not mistake, "error": mistake} for name, mistake in found.items()])
    else:
        rows = [(name, "invalid" if mistake else "valid", mistake) for name, mistake in found.items()]
        shell.out.table(("Name", "State", "Error"), rows, empty="no contexts")
    return FAILED if any(found.values()) else 0


def _mistake(shell: Shell, name: str) -> str:
    """Why a context cannot be used; empty if it can."""
    try:
        arguments = Contexts().load(name).arguments()
        for option, value in arguments.items():
            if isinstance(value, Path) and not os.access(value, os.R_OK):
                return f"{option}: the file {value} cannot be read"
        if shell.options.connect:
            from slipstream import connect_blocking

            connect_blocking(**{**arguments, "timeout": shell.timeout}).close()
    except (Error, OSError) as error:
        return str(error)
    return ""


def _delete(shell: Shell) -> None:
    name = shell.options.name
    if name == Contexts().selected and not shell.options.force:
        raise UsageError(f"context {name!r} is selected; select another one first, or pass --force")
    shell.confirm(f"Remove the context {name}?")
    Contexts().delete(name)
    shell.out.note(f"removed {name}")

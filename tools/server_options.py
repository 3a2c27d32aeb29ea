"""Write the table of server options into docs/reference/server.md, from their declarations.

`python tools/server_options.py` rewrites the table, with `--check` it only says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slipstream.server.options import COMMAND_DEFAULTS, Option, ServerOptions, WebSocketOptions, options_of
from slipstream.server.process.options import ProcessOptions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "server.md"
BEGIN, END = "<!-- options: written by tools/server_options.py -->\n", "<!-- end of options -->\n"


def table() -> str:
    """All options, with a heading for each group."""
    server, process = options_of(ServerOptions), options_of(ProcessOptions)
    shared = {option.name for option in server}
    websocket = [option._replace(block="websocket") for option in options_of(WebSocketOptions)]
    parts = [_group(group, [o for o in server if o.group == group]) for group in _groups(server)]
    parts.append(_group("`WebSocketOptions`", [option for option in websocket if option.name not in shared]))
    parts += [_group(f"{group} (command only)", [o for o in process if o.group == group]) for group in _groups(process)]
    return "\n".join(parts)


def _groups(options: tuple[Option, ...]) -> list[str]:
    return list(dict.fromkeys(option.group for option in options))


def _group(title: str, options: list[Option]) -> str:
    lines = [f"### {title}\n", "| Name | Configuration file | Flags | Default | Meaning |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(option))} |" for option in options]
    return "\n".join(lines) + "\n"


def _cells(option: Option) -> tuple[str, ...]:
    prefix = f"{option.block}." if option.block else ""
    keys = ", ".join(f"`{prefix}{key}`" for key in option.keys)
    flags = ", ".join(f"`{'-' if len(flag) < 3 or flag.isupper() else '--'}{flag}`" for flag in option.flags)
    default = _show(option.default)
    command = getattr(COMMAND_DEFAULTS, option.name, option.default)
    if command != option.default:
        default = f"{default}; command: {_show(command)}"
    return f"`{option.name}`", keys, flags, default, option.doc.replace("|", "\\|").replace("<", "\\<")


def _show(default: object) -> str:
    if default is None or default == "" or default == () or default == {}:
        return ""
    return f"`{default!r}`" if not isinstance(default, float) else f"`{default:g}`"


def page(text: str) -> str:
    """The page with the table of today."""
    head, _, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} has no markers for the table")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main() -> int:
    text = PAGE.read_text("utf-8")
    new = page(text)
    if new == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE} is not up to date: run tools/server_options.py")
        return 1
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

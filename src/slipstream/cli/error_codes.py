"""`slipstream errors …`: the error codes of the JetStream API, and what they mean here."""

from __future__ import annotations

from typing import Any

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.exit_codes import NOT_FOUND
from slipstream.errors import ErrorCode


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("errors", "look up error codes of the JetStream API", aliases=("error",))
    example = int(ErrorCode.STREAM_NOT_FOUND)
    parser = group.add("lookup", _lookup, "explain an error code", examples=f"  slipstream errors lookup {example}")
    parser.add_argument("code", type=values.count, metavar="CODE", help=f"the err_code of an error, such as {example}")
    parser = group.add("ls", _list, "list error codes", aliases=("list",))
    parser.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="only codes whose description contains this text"
    )


def _fields(code: ErrorCode) -> dict[str, Any]:
    return {
        "err_code": int(code),
        "code": code.status,
        "name": code.name,
        "description": code.description,
        "exception": type(code.error(code.description)).__name__,
    }


def _lookup(shell: Shell) -> int | None:
    wanted = shell.options.code
    found = [_fields(code) for code in ErrorCode if code == wanted]
    if not found:
        shell.out.note(f"no error of the JetStream API that is known here has the code {wanted}")
        return NOT_FOUND
    if shell.out.is_json:
        shell.out.json(found[0])
        return None
    fields = found[0]
    shell.out.facts(f"Error {fields['err_code']}", [
        ("Description", fields["description"]), ("Status", fields["code"]), ("Name", fields["name"]),
        ("Raised as", f"slipstream.{fields['exception']}"),
    ])  # fmt: skip
    return None


def _list(shell: Shell) -> None:
    wanted = shell.options.text.lower()
    found = [_fields(code) for code in sorted(ErrorCode)]
    found = [each for each in found if wanted in f"{each['name']} {each['description']} {each['exception']}".lower()]
    if shell.out.is_json:
        shell.out.json(found)
        return
    rows = [(each["err_code"], each["code"], each["description"], each["exception"]) for each in found]
    shell.out.table(("Code#", "Status#", "Description", "Exception"), rows, empty="no errors")

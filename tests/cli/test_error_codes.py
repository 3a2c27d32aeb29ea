"""`errors lookup` and `ls`."""

from __future__ import annotations

from slipstream.errors import ErrorCode
from tests.cli.support import Cli
from tests.cli.test_output import ESCAPE


def test_a_code_is_explained(our_cli: Cli) -> None:
    found = our_cli.ok("errors", "lookup", "10059", "--json").json
    assert found == {"err_code": 10059, "code": 404, "name": "STREAM_NOT_FOUND", "description": "stream not found",
                     "exception": "StreamNotFoundError"}  # fmt: skip
    assert "slipstream.StreamNotFoundError" in our_cli.ok("error", "lookup", "10059").out
    unknown = our_cli.run("errors", "lookup", "99999")
    assert (unknown.code, unknown.out, unknown.err.count("\n")) == (3, "", 1)
    assert our_cli.run("errors", "lookup", "x").code == 2


def test_codes_are_listed_and_searched(our_cli: Cli) -> None:
    assert len(our_cli.ok("errors", "ls", "--json").json) == len(ErrorCode)
    assert 10058 in {each["err_code"] for each in our_cli.ok("errors", "ls", "name already", "--json").json}
    assert our_cli.ok("errors", "ls", "no such text").err == "no errors\n"
    our_cli.env["COLUMNS"] = "80"
    _, shown = our_cli.in_terminal("errors", "ls", "sequence")
    assert max(map(len, ESCAPE.sub("", shown).replace("\r", "").splitlines())) <= 80

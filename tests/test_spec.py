"""tools/spec.py and tests/spec_plugin.py: marks and outcomes in, proven rows out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spec_plugin import merge, sides_of
from tools import spec
from tools.spec import Result, SpecError, decode_results, encode_results, judge, parse_requirements, report

TABLE = """\
# Title

| id | on | statement |
|---|---|---|
| DG-01 | E C N | A stream has `allow_direct`. |
| DG-02 | E | † The server turns it on. |
| SP-01 | S | Spark reads. |
"""
SIDES = {"E": frozenset("E"), "C": frozenset("C"), "EC": frozenset("EC"), "CN": frozenset("CN"), "S": frozenset("S")}


def result(outcome: str, **rows: str) -> Result:
    return Result(outcome, {row_id.replace("_", "-"): SIDES[sides] for row_id, sides in rows.items()})


def spec_ids(path: Path) -> Iterator[tuple[int, str]]:
    """The string arguments of every `mark.spec(...)` in a file."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if ".spec(" in text else ():  # to parse all tests takes seconds
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: spec ids are written out"
                yield node.lineno, str(argument.value)


def test_every_id_used_in_tests_is_a_row_of_the_requirements() -> None:
    rows = parse_requirements((spec.ROOT / spec.REQUIREMENTS).read_text("utf-8"))
    used = [(path, line, row_id) for path in (spec.ROOT / "tests").rglob("*.py") for line, row_id in spec_ids(path)]
    assert [f"{path}:{line}: {row_id}" for path, line, row_id in used if row_id not in rows] == []


def test_ids_are_found_where_tests_use_them(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("@pytest.mark.spec('XX-99', 'DG-01', on='E')\ndef test_a(): ...\n", "utf-8")
    assert [row_id for _, row_id in spec_ids(path)] == ["XX-99", "DG-01"]


def test_the_requirements_have_all_rows_of_all_families() -> None:
    rows = parse_requirements((spec.ROOT / spec.REQUIREMENTS).read_text("utf-8"))
    families = {"DG": (25, 1), "PS": (13, 4), "RW": (19, 2), "KV": (56, 0), "SW": (25, 0), "SP": (10, 0)}
    assert list(rows) == [
        f"{family}-{n:02}"
        for family, (count, own) in families.items()
        for n in (*range(1, count + 1), *range(50, 50 + own))  # our own rows begin at 50
    ]
    assert rows["RW-19"].sides == {"C", "N"}


def test_a_row_is_its_id_sides_and_statement() -> None:
    rows = parse_requirements(TABLE)
    assert list(rows) == ["DG-01", "DG-02", "SP-01"]
    assert rows["DG-01"].sides == {"E", "C", "N"}
    assert rows["DG-02"].statement == "† The server turns it on."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("| DG-01 | E X | a |", "bad sides"),
        ("| DG-01 |  | a |", "bad sides"),
        ("| DG-01 | E | a |\n| DG-01 | E | b |", "line 2: DG-01 is there twice"),
        ("| DG-01 | E |", "not a row"),
        ("| DG-1 | E | a |", "not a row"),
        ("| DG-01 | E |  |", "says nothing"),
    ],
)
def test_a_broken_table_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_requirements(text)


def test_a_row_is_proven_when_every_side_it_names_has_a_pass() -> None:
    rows = parse_requirements(TABLE)
    results = {
        "tests/conformance/t.py::a[ours]": result("passed", DG_01="EC"),
        "tests/conformance/t.py::a[real]": result("passed", DG_01="CN"),
        "tests/server/t.py::b": result("skipped", DG_02="E"),
    }
    first, second, third = judge(rows, results)
    assert first.done
    assert second.missing == {"E"}
    assert third.missing == {"S"}
    del results["tests/conformance/t.py::a[real]"]
    assert judge(rows, results)[0].missing == {"N"}


def test_a_pass_on_a_side_the_row_does_not_name_proves_nothing() -> None:
    verdict = judge(parse_requirements(TABLE), {"t": result("passed", DG_02="CN")})[1]
    assert verdict.proven == set()
    assert verdict.missing == {"E"}


def test_a_failing_test_takes_no_proof_away_and_is_listed() -> None:
    verdicts = judge(parse_requirements(TABLE), {"a": result("passed", DG_02="E"), "b": result("failed", DG_02="E")})
    assert verdicts[1].done
    assert verdicts[1].failing == ("b",)
    assert "failing: b (DG-02)" in report(verdicts).splitlines()


@pytest.mark.parametrize("outcome", ["failed", "skipped", "xfailed"])
def test_only_a_pass_proves(outcome: str) -> None:
    assert not judge(parse_requirements(TABLE), {"a": result(outcome, DG_02="E")})[1].done


def test_results_for_an_unknown_row_are_an_error() -> None:
    with pytest.raises(SpecError, match="XX-01"):
        judge(parse_requirements(TABLE), {"a": result("passed", XX_01="E")})


def test_the_report_ends_with_the_count() -> None:
    verdicts = judge(parse_requirements(TABLE), {"a": result("passed", DG_01="EC", DG_02="E")})
    assert report(verdicts).splitlines()[2:] == [
        "DG-01   E C N    E C      N",
        "DG-02   E        E",
        "SP-01   S        -        S",
        "spec: 1 of 3 rows proven",
    ]
    assert [line[:5] for line in report(verdicts, only_missing=True).splitlines()[2:]] == ["DG-01", "SP-01", "spec:"]


def test_the_page_has_each_row_with_the_tests_that_passed() -> None:
    results = {
        "tests/conformance/t.py::a[ours]": result("passed", DG_01="EC"),
        "tests/conformance/t.py::a[real]": result("passed", DG_01="CN"),
        "tests/server/t.py::b": result("failed", DG_02="E"),
    }
    text = spec.page(judge(parse_requirements(TABLE), results))
    assert "1 of 3 rows" in text
    assert "| DG-01 | E C N | none | A stream has `allow_direct`. | `conformance/t.py::a` |" in text.splitlines()
    assert "| DG-02 | E | E | † The server turns it on. | none |" in text.splitlines()
    assert text.index("## DG") < text.index("## SP") < text.index("| SP-01")


def test_results_survive_their_file() -> None:
    results = {"b": result("passed", DG_01="EC"), "a": result("failed", SP_01="S")}
    assert decode_results(encode_results(results)) == results
    assert decode_results("") == {}
    with pytest.raises(SpecError, match="damaged"):
        decode_results('{"tests": {"a": {"outcome": "passed"}}}')


def test_the_command_prints_the_table_and_fails_on_a_broken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / spec.REQUIREMENTS
    path.parent.mkdir()
    path.write_text(TABLE, "utf-8")
    (tmp_path / spec.RESULTS).write_text(encode_results({"a": result("passed", SP_01="S")}), "utf-8")
    assert spec.main(["--missing"], root=tmp_path) == 0
    out = capsys.readouterr().out
    assert out.endswith("spec: 1 of 3 rows proven\n")
    assert "SP-01" not in out
    path.write_text("nothing", "utf-8")
    assert spec.main([], root=tmp_path) == 1
    assert "no rows" in capsys.readouterr().err


def test_the_page_is_written_only_after_all_tests_were_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / spec.REQUIREMENTS).parent.mkdir()
    (tmp_path / spec.REQUIREMENTS).write_text(TABLE, "utf-8")
    page = tmp_path / "proofs.md"
    page.write_text("what it was", "utf-8")
    results = {"a": result("passed", SP_01="S"), "b": result("failed", DG_02="E"), "c": result("passed", DG_01="EC")}
    (tmp_path / spec.RESULTS).write_text(encode_results(results), "utf-8")
    assert spec.main(["--write", str(page)], root=tmp_path) == 0
    assert page.read_text("utf-8") == "what it was"
    assert capsys.readouterr().err == f"{page} stays as it is: for 1 rows, tests were not run\n"
    results["d"] = result("passed", DG_01="CN")
    (tmp_path / spec.RESULTS).write_text(encode_results(results), "utf-8")
    assert spec.main(["--write", str(page)], root=tmp_path) == 0
    assert "2 of 3 rows" in page.read_text("utf-8")
    assert "| DG-02 | E | E |" in page.read_text("utf-8")  # its test failed: that is said


def test_the_page_of_the_documentation_is_of_a_whole_run() -> None:
    rows = parse_requirements((spec.ROOT / spec.REQUIREMENTS).read_text("utf-8"))
    head = (spec.ROOT / "docs" / "proofs.md").read_text("utf-8").partition("##")[0]
    assert f"{len(rows)} of {len(rows)} rows" in " ".join(head.split())


@pytest.mark.parametrize(
    ("nodeid", "on", "servers", "sides"),
    [
        ("tests/server/engine/test_a.py::t", None, (), "E"),
        ("tests/kv/test_a.py::t", None, (), "C"),
        ("tests/spark/test_a.py::t[x]", None, (), "S"),
        ("tests/conformance/test_a.py::t[ours]", None, ("ours",), "E C"),
        ("tests/conformance/test_a.py::t[real-3]", None, ("real", "3"), "C N"),
        ("tests/conformance/test_a.py::t[real]", "E C", ("real",), "C"),  # the real server says nothing about ours
        ("tests/kv/test_a.py::t", "E C", (), "E C"),
        ("tests/test_a.py::t", "S", (), "S"),
    ],
)
def test_sides_follow_the_place_unless_the_mark_names_them(
    nodeid: str, on: str | None, servers: tuple[str, ...], sides: str
) -> None:
    assert sides_of(nodeid, on, servers) == spec.parse_sides(sides)


@pytest.mark.parametrize(
    ("nodeid", "on"),
    [("tests/test_a.py::t", None), ("tests/conformance/test_a.py::t", None), ("tests/kv/test_a.py::t", "Q")],
)
def test_a_mark_without_a_side_is_an_error(nodeid: str, on: str | None) -> None:
    with pytest.raises(SpecError):
        sides_of(nodeid, on)


def test_a_merge_drops_only_what_a_whole_file_no_longer_has() -> None:
    passed = result("passed", DG_01="E")
    old = {"a.py::gone": passed, "a.py::kept": passed, "a.py::ran": passed, "b.py::other": passed}
    new = {"a.py::ran": result("failed", DG_01="E")}
    merged = merge(old, new, marked={"a.py::kept", "a.py::ran"}, files={"a.py"})
    assert merged == {"a.py::kept": passed, "b.py::other": passed} | new


SUITE = """
import pytest

@pytest.fixture(params=["ours", "real"])
def any_server(request):
    return request.param

@pytest.mark.spec("DG-01")
def test_both(any_server): ...

@pytest.mark.spec("DG-02", on="E")
def test_bad(any_server): assert any_server == "real"

@pytest.mark.spec("DG-02", on="E")
@pytest.mark.xfail
def test_expected_to_fail(any_server): assert False

def test_plain(): ...
"""


class Project:
    """A small project in a temporary directory, whose tests run with the plugin."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeini("[pytest]\nmarkers =\n    spec: rows")
        self.write("docs/requirements.md", TABLE)

    def write(self, name: str, text: str) -> None:
        path = self._pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def run(self, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest_inprocess(
            "-p", "tests.spec_plugin", "-p", "no:asyncio", "--import-mode=importlib", *arguments
        )

    def outcomes(self) -> dict[str, str]:
        text = (self._pytester.path / spec.RESULTS).read_text("utf-8")
        return {test.split("::")[1]: result.outcome for test, result in decode_results(text).items()}

    def verdicts(self) -> list[str]:
        text = (self._pytester.path / spec.RESULTS).read_text("utf-8")
        return ["".join(sorted(verdict.proven)) for verdict in judge(parse_requirements(TABLE), decode_results(text))]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    # A file rewritten within a second, at the same length, would be taken for the old one.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Project(pytester)


def test_a_run_records_the_marked_tests_by_side(project: Project) -> None:
    project.write("tests/conformance/test_a.py", SUITE)
    project.run()
    assert project.outcomes() == {
        "test_both[ours]": "passed",
        "test_both[real]": "passed",
        "test_bad[ours]": "failed",  # [real] stands for no side that the mark names, so it is not recorded
        "test_expected_to_fail[ours]": "xfailed",
    }
    assert project.verdicts() == ["CEN", "", ""]


def test_a_run_in_several_processes_records_the_same(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(spec.ROOT))
    project.write("tests/conformance/test_a.py", SUITE)
    project.run("-p", "xdist", "-n", "2")
    assert project.outcomes() == {
        "test_both[ours]": "passed",
        "test_both[real]": "passed",
        "test_bad[ours]": "failed",
        "test_expected_to_fail[ours]": "xfailed",
    }


MARKED = 'import pytest\npytestmark = pytest.mark.spec("DG-02")\n'


def test_a_later_run_replaces_what_ran_and_keeps_what_did_not(project: Project) -> None:
    project.write("tests/server/test_a.py", MARKED + "def test_a(): ...\ndef test_c(): ...\n")
    project.write("tests/spark/test_b.py", 'import pytest\n@pytest.mark.spec("SP-01")\ndef test_b(): ...\n')
    project.run()
    assert project.verdicts() == ["", "E", "S"]
    project.write("tests/server/test_a.py", MARKED + "def test_a(): assert 0\ndef test_c(): assert 0\n")
    project.run("tests/server/test_a.py::test_a")  # says nothing about the rest of the file
    assert project.outcomes() == {"test_a": "failed", "test_b": "passed", "test_c": "passed"}
    project.run("-k", "test_c")  # deselected tests still exist
    assert project.outcomes() == {"test_a": "failed", "test_b": "passed", "test_c": "failed"}
    project.write("tests/server/test_a.py", "def test_c(): ...\n")  # one test gone, one without its mark
    project.run("tests/server")
    assert project.outcomes() == {"test_b": "passed"}


def test_a_run_of_last_failures_drops_nothing(project: Project) -> None:
    project.write("tests/server/test_a.py", MARKED + "def test_a(): assert 0\ndef test_c(): ...\n")
    project.run()
    project.run("--last-failed")
    assert project.outcomes() == {"test_a": "failed", "test_c": "passed"}


def test_a_failing_teardown_is_a_failure(project: Project) -> None:
    fixture = "@pytest.fixture\ndef f():\n    yield\n    assert 0\n"
    project.write("tests/server/test_a.py", MARKED + fixture + "def test_a(f): ...\ndef test_b(f): pytest.skip()\n")
    project.run()
    assert project.outcomes() == {"test_a": "failed", "test_b": "failed"}


def test_an_unknown_row_in_a_mark_stops_the_run(project: Project) -> None:
    project.write("tests/server/test_a.py", 'import pytest\n@pytest.mark.spec("DG-77")\ndef test_a(): ...\n')
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*unknown rows DG-77*test_a*"])

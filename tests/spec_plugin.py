"""`spec` marks and outcomes of a test run become .spec-results.json, which `make spec` sets against the requirements.

Results outlive a run: a test that ran replaces its own last outcome, a test that was not run keeps it, and a test that
its file no longer has (or that lost its mark) is dropped.

Of a run in several processes each one writes what it ran, one after the other; the process that only hands out the
tests has nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from fcntl import LOCK_EX, flock
from pathlib import Path, PurePosixPath

import pytest

from tools.spec import (
    REQUIREMENTS,
    RESULTS,
    Result,
    SpecError,
    decode_results,
    encode_results,
    parse_requirements,
    parse_sides,
    read_optional,
    unknown_ids,
)

LOCK = ".spec-results.lock"
SIDES_BY_FOLDER = {
    "server": "E",
    **dict.fromkeys(("client", "jetstream", "kv", "objects", "wire", "api", "facade"), "C"),
    "spark": "S",
}
SIDES_BY_SERVER = {"ours": "E C", "real": "C N"}


def sides_of(nodeid: str, on: str | None, servers: Iterable[str] = ()) -> frozenset[str]:
    """The sides a mark stands for: `on` if given, else what the place of the test says.

    `servers` are the parameter ids of a conformance test. There `on` can only narrow what the server at hand can show:
    a pass on the real server says nothing about the embedded one.
    """
    parts = PurePosixPath(nodeid.split("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else ""
    if folder == "conformance":
        shown = [SIDES_BY_SERVER[server] for server in servers if server in SIDES_BY_SERVER]
        if len(shown) != 1:
            raise SpecError(f"{nodeid}: a conformance test with a spec mark takes `any_server` (ours or real)")
        return parse_sides(shown[0]) & parse_sides(on) if on is not None else parse_sides(shown[0])
    if on is None and folder not in SIDES_BY_FOLDER:
        raise SpecError(f"{nodeid}: the place of the test names no side; say on=... in the spec mark")
    return parse_sides(SIDES_BY_FOLDER[folder] if on is None else on)


def rows_of(item: pytest.Item) -> dict[str, frozenset[str]]:
    """Row id to sides, over all spec marks of a test (its own, its class's and its module's)."""
    rows: dict[str, frozenset[str]] = {}
    callspec = getattr(item, "callspec", None)
    servers = callspec.id.split("-") if callspec is not None and "any_server" in callspec.params else ()
    for mark in item.iter_markers("spec"):
        if not mark.args or set(mark.kwargs) - {"on"}:
            raise SpecError(f'{item.nodeid}: a spec mark is spec("XX-00", ..., on="E C"), with at least one id')
        sides = sides_of(item.nodeid, mark.kwargs.get("on"), servers)
        for row_id in mark.args:
            rows[row_id] = rows.get(row_id, frozenset()) | sides
    return {row_id: sides for row_id, sides in rows.items() if sides}


def merge(old: dict[str, Result], new: dict[str, Result], *, marked: set[str], files: set[str]) -> dict[str, Result]:
    """Old results and new ones; from `files`, which were collected whole, only tests in `marked` stay."""
    kept = {test: result for test, result in old.items() if test in marked or test.split("::")[0] not in files}
    return kept | new


def outcome_of(report: pytest.TestReport) -> str:
    """An expected failure, or a pass that was not expected, proves nothing."""
    return "xfailed" if hasattr(report, "wasxfail") else report.outcome


class Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._root: Path = config.rootpath
        # A run of last failures sees only a part of each file: nothing can be said to be gone.
        self._whole = not config.getoption("lf", False)
        self._rows: dict[str, dict[str, frozenset[str]]] = {}
        self._files: set[str] = set()
        self._outcomes: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A file of which single tests were named on the command line is not reported here.
        if report.passed and report.nodeid.endswith(".py"):
            self._files.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)  # before -m and -k take tests away: those still exist
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        try:
            for item in items:
                if rows := rows_of(item):
                    self._rows[item.nodeid] = rows
            if not self._rows:
                return
            known = parse_requirements((self._root / REQUIREMENTS).read_text("utf-8"))
            if unknown := unknown_ids((row_id for rows in self._rows.values() for row_id in rows), known):
                users = [test for test, rows in self._rows.items() if rows.keys() & set(unknown)]
                raise SpecError(f"spec marks name unknown rows {', '.join(unknown)}: {', '.join(users)}")
        except SpecError as exc:
            raise pytest.UsageError(str(exc)) from exc

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self._rows:
            return
        # Three phases: a pass is a pass of all of them.
        if self._outcomes.get(report.nodeid, "passed") == "passed" or report.failed:
            self._outcomes[report.nodeid] = outcome_of(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        path = self._root / RESULTS
        with (self._root / LOCK).open("w") as lock:
            flock(lock, LOCK_EX)
            self._write(path)

    def _write(self, path: Path) -> None:
        new = {test: Result(outcome, self._rows[test]) for test, outcome in self._outcomes.items()}
        try:
            old = decode_results(read_optional(path))
        except SpecError:  # from an older layout: the tests that ran are the truth
            old = {}
        gone = {file for test in old if not (self._root / (file := test.split("::")[0])).exists()}
        files = (self._files if self._whole else set()) | gone
        results = merge(old, new, marked=set(self._rows), files=files)
        if results != old:
            path.write_text(encode_results(results), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.getoption("numprocesses", None):
        return
    config.pluginmanager.register(Recorder(config), "slipstream-spec")

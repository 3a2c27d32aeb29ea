"""docs/requirements.md and the last test results become a table, and a page, of what is proven on which side.

A row counts as proven only if every side it names has a passed test: a skipped, failed or never run test proves
nothing. The results are written by tests/spec_plugin.py while the tests run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path("docs", "requirements.md")
RESULTS = Path(".spec-results.json")
SIDES = "ECNS"  # the order in which sides are printed

PAGE_HEAD = """\
# The proofs

Made by `make spec` out of [the requirements](requirements.md) and the last results of the tests: {done} of {count} rows
are proven. Each row has the sides that it needs (E embedded server, C client, N client on a real nats-server, S Spark),
those for which no test has passed, and the tests below `tests/` that passed."""

_ROW = re.compile(r"\|\s*([A-Z]{2}-\d{2})\s*\|([^|]*)\|(.*)\|\s*")
_LOOKS_LIKE_ROW = re.compile(r"\|\s*[A-Z]+-\d+\s*\|")


class SpecError(Exception):
    """The table, a mark or the results file cannot be read as what they should be."""


class Row(NamedTuple):
    id: str
    sides: frozenset[str]
    statement: str


class Result(NamedTuple):
    """What one test said when it last ran: its outcome, and the sides it stands for by row id."""

    outcome: str
    rows: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    row: Row
    proven: frozenset[str]
    failing: tuple[str, ...]
    proofs: tuple[str, ...] = ()  # the tests that passed and stand for a side of the row

    @property
    def missing(self) -> frozenset[str]:
        return self.row.sides - self.proven

    @property
    def done(self) -> bool:
        return not self.missing

    @property
    def not_run(self) -> bool:
        """Whether a proof may be missing only because its test did not run here: none failed."""
        return not self.done and not self.failing


def parse_sides(text: str) -> frozenset[str]:
    """`"E C"` as a set; anything but the four letters, or nothing at all, is an error."""
    sides = frozenset(text.split())
    if not sides or not sides <= set(SIDES):
        raise SpecError(f"bad sides {text!r}, expected some of {' '.join(SIDES)} with spaces between")
    return sides


def parse_requirements(text: str) -> dict[str, Row]:
    """Every table row that begins with an id, in the order of the document."""
    rows: dict[str, Row] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _LOOKS_LIKE_ROW.match(line):
            continue
        if not (match := _ROW.fullmatch(line)):
            raise SpecError(f"line {number}: not a row of `| XX-00 | sides | statement |`: {line[:60]!r}")
        row = Row(match[1], parse_sides(match[2]), match[3].strip())
        if row.id in rows:
            raise SpecError(f"line {number}: {row.id} is there twice")
        if not row.statement:
            raise SpecError(f"line {number}: {row.id} says nothing")
        rows[row.id] = row
    if not rows:
        raise SpecError("no rows found")
    return rows


def decode_results(text: str) -> dict[str, Result]:
    """The results file by test id; an empty text is a file that does not exist yet."""
    if not text:
        return {}
    try:
        tests: dict[str, Any] = json.loads(text)["tests"]
        return {
            test: Result(entry["outcome"], {row_id: parse_sides(sides) for row_id, sides in entry["rows"].items()})
            for test, entry in tests.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise SpecError(f"{RESULTS} is damaged ({exc!r}); remove it and run the tests again") from exc


def encode_results(results: Mapping[str, Result]) -> str:
    """The text that `decode_results` reads, sorted so that equal results give equal files."""
    tests = {
        test: {
            "outcome": result.outcome,
            "rows": {row_id: show(sides) for row_id, sides in sorted(result.rows.items())},
        }
        for test, result in sorted(results.items())
    }
    return json.dumps({"tests": tests}, indent=1) + "\n"


def unknown_ids(ids: Iterable[str], rows: Mapping[str, Row]) -> list[str]:
    return sorted(set(ids) - rows.keys())


def judge(rows: Mapping[str, Row], results: Mapping[str, Result]) -> list[Verdict]:
    """One verdict per row. A failing test takes no proof away that another one gives."""
    if unknown := unknown_ids((row_id for result in results.values() for row_id in result.rows), rows):
        raise SpecError(f"results name rows that {REQUIREMENTS} does not have: {', '.join(unknown)}")
    proven: dict[str, set[str]] = {row_id: set() for row_id in rows}
    failing: dict[str, list[str]] = {row_id: [] for row_id in rows}
    proofs: dict[str, list[str]] = {row_id: [] for row_id in rows}
    for test, result in sorted(results.items()):
        for row_id, sides in result.rows.items():
            if result.outcome == "passed" and (shown := sides & rows[row_id].sides):
                proven[row_id] |= shown
                proofs[row_id].append(test)
            elif result.outcome == "failed":
                failing[row_id].append(test)
    return [
        Verdict(row, frozenset(proven[row_id]), tuple(failing[row_id]), tuple(proofs[row_id]))
        for row_id, row in rows.items()
    ]


def show(sides: Iterable[str]) -> str:
    return " ".join(sorted(sides, key=SIDES.index))


def report(verdicts: Sequence[Verdict], *, only_missing: bool = False) -> str:
    """The table, the failing tests, and the count as the last line."""
    lines = ["row     needed   proven   missing", "------  -------  -------  -------"]
    for verdict in verdicts:
        if only_missing and verdict.done:
            continue
        cells = (show(verdict.row.sides), show(verdict.proven) or "-", show(verdict.missing))
        lines.append(f"{verdict.row.id:6}  {cells[0]:7}  {cells[1]:7}  {cells[2]}".rstrip())
    failing = {test: None for verdict in verdicts for test in verdict.failing}
    for test in failing:
        ids = ", ".join(verdict.row.id for verdict in verdicts if test in verdict.failing)
        lines.append(f"failing: {test} ({ids})")
    done = sum(verdict.done for verdict in verdicts)
    lines.append(f"spec: {done} of {len(verdicts)} rows proven")
    return "\n".join(lines)


def page(verdicts: Sequence[Verdict]) -> str:
    """The page of the documentation: each row with the tests that prove it, by family."""
    done = sum(verdict.done for verdict in verdicts)
    lines = [PAGE_HEAD.format(done=done, count=len(verdicts))]
    family = ""
    for verdict in verdicts:
        row = verdict.row
        if row.id[:2] != family:
            family = row.id[:2]
            lines += ["", f"## {family}", "", "| row | needed | missing | statement | tests |", "|---|---|---|---|---|"]
        names = dict.fromkeys(test.partition("[")[0] for test in verdict.proofs)  # parameters are left out
        tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in names) or "none"
        missing = show(verdict.missing) or "none"
        lines.append(f"| {row.id} | {show(row.sides)} | {missing} | {row.statement} | {tests} |")
    return "\n".join(lines) + "\n"


def read_optional(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    options = argparse.ArgumentParser(description="Print which requirement rows the last test results prove.")
    options.add_argument("--missing", action="store_true", help="print only the rows that are not proven")
    options.add_argument(
        "--write", type=Path, metavar="FILE", help="write the rows with their tests as a page, if all of them were run"
    )
    chosen = options.parse_args(argv)
    try:
        rows = parse_requirements((root / REQUIREMENTS).read_text("utf-8"))
        verdicts = judge(rows, decode_results(read_optional(root / RESULTS)))
    except SpecError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    print(report(verdicts, only_missing=chosen.missing))
    if chosen.write is not None:
        if missing := sum(verdict.not_run for verdict in verdicts):
            print(f"{chosen.write} stays as it is: for {missing} rows, tests were not run", file=sys.stderr)
        else:
            chosen.write.write_text(page(verdicts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure how much of the package's types is complete, by `pyright --verifytypes`: `make check-types`.

A type is complete if every type checker sees the same one without inferring anything. Types of other packages that are
incomplete themselves (pyspark, pyarrow, polars) do not count (`--ignoreexternal`).

python tools/type_completeness.py PYRIGHT_DIRECTORY
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GOAL = 0.99
SHOWN = 30


def measure(pyright: Path, packages: Path) -> dict[str, Any]:
    """The report on the package that is installed beside the interpreter `packages`/python."""
    # pyright looks for the interpreter on PATH; in the directory of the project it would take `src` for it.
    environ = {**os.environ, "PATH": f"{packages}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = ["node", str(pyright / "index.js"), "--verifytypes", "slipstream", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, cwd=pyright, env=environ, capture_output=True, text=True, timeout=600, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"pyright failed with exit code {done.returncode}: {done.stderr or done.stdout}") from None
    problems = [each["message"] for each in report["generalDiagnostics"] if each["severity"] == "error"]
    if problems or not report["typeCompleteness"]["modules"]:
        raise SystemExit(f"pyright did not find the package: {'; '.join(problems)}")
    return report


def incomplete(report: dict[str, Any]) -> list[str]:
    """A line for each symbol that is not complete by itself, rather than by one that it uses."""
    found = []
    for symbol in report["typeCompleteness"]["symbols"]:
        if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
            continue
        for diagnostic in symbol["diagnostics"]:
            text = diagnostic["message"].splitlines()[0]
            if "partially unknown" not in text and "docstring" not in text and "default value" not in text:
                found.append(f"{symbol['name']}: {text}")
                break
    return found


def main(pyright: Path) -> int:
    """Print the score; 1 if it is below the goal."""
    report = measure(pyright, Path(sys.executable).parent)
    score, counts = report["typeCompleteness"]["completenessScore"], report["typeCompleteness"]["exportedSymbolCounts"]
    missing = incomplete(report)
    for line in missing[:SHOWN]:
        print(line)
    if len(missing) > SHOWN:
        print(f"... and {len(missing) - SHOWN} more")
    print(f"complete types: {score:.1%} of {sum(counts.values())} public symbols")
    if score < GOAL:
        print(f"error: at least {GOAL:.0%} must be complete", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/type_completeness.py PYRIGHT_DIRECTORY")
    sys.exit(main(Path(sys.argv[1]).resolve()))

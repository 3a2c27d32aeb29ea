"""Every benchmark, in both forms: `python -m benchmarks [SECTION …]`, with the sections of `SECTIONS`.

Each section runs in a process of its own for each form and round, pure and compiled in turn, beside its peers; the
tables show medians. The ratio, and whether it reaches the target, are those of the compiled form, or of the pure one
where there is no C compiler. `pipelines` is the latency of pipelines, in seconds; `forms` is CPU per operation, and the
only section with the C client. Only ratios count; the rates themselves differ from machine to machine. The run ends
with 1 only if a benchmark itself failed.

`--write` keeps the rates in `rates.json` and the results of `forms` in `forms.json`; the tables of docs/benchmarks.md
are made from these files.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import forms
from benchmarks.report import Compared, Row, compared, markdown, text

RATES = ("wire", "core", "jetstream", "workers", "reads", "kv", "server", "spark")
SECTIONS = (*RATES, "pipelines", "forms")
SHOWN = RATES[1:]  # in the documentation
LONGEST = 1200  # seconds for a section

RESULTS = Path(__file__).with_name("rates.json")
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare with the peers, in both forms.")
    parser.add_argument("section", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=1, help="the medians of so many (default: 1; forms: 3)")
    parser.add_argument("--write", action="store_true", help="keep the results, and put them into docs/benchmarks.md")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.section if name not in SECTIONS]:
        parser.error(f"section must be one of {', '.join(SECTIONS)}, got {unknown[0]!r}")
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {given.rounds}")
    print(f"{forms.machine()}, {time.strftime('%Y-%m-%d')}", flush=True)
    sections = given.section or list(SECTIONS)
    environments = forms.environments()
    if "compiled" not in environments:
        print("the pure form only: there is no C compiler", flush=True)
    failed = 0
    found: dict[str, list[Compared]] = {}
    for name in sections:
        begin = time.monotonic()
        try:
            if name == "forms":
                print(f"\n{cpu(write=given.write)}", flush=True)
                continue
            if name == "pipelines":
                print(f"\n{importlib.import_module('benchmarks.pipelines').run()}", flush=True)
                continue
            found[name] = measured(name, environments, given.rounds)
        except Exception:  # the other sections are still worth having
            failed += 1
            print(f"\n{name}: failed", flush=True)
            traceback.print_exc()
            continue
        print(f"\n{name} ({time.monotonic() - begin:.0f} s)\n{text(found[name])}", flush=True)
    if given.write:
        write(found, given.rounds)
    return 1 if failed else 0


def measured(name: str, environments: Mapping[str, Mapping[str, str]], rounds: int) -> list[Compared]:
    """The medians of one section."""
    runs: dict[str, list[list[Row]]] = {form: [] for form in environments}
    for _ in range(rounds):
        for form, environment in environments.items():
            runs[form].append(run(name, environment))
    return compared(runs)


def run(name: str, environment: Mapping[str, str]) -> list[Row]:
    """The rows of a section, in a process of its own. A failure is shown, and it is repeated once."""
    command = [sys.executable, "-m", "benchmarks", "--rows", name]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=False, timeout=LONGEST)
    if done.returncode:
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True, timeout=LONGEST)
    found: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(name: str) -> None:
    """Print the rows of one section, measured in the form of this process."""
    print(json.dumps(importlib.import_module(f"benchmarks.{name}").run()))


def cpu(*, write: bool) -> str:
    """The tables of `benchmarks.forms`; where there is no C compiler, a line that says so."""
    if "compiled" not in forms.environments():
        return "forms: left out, there is no C compiler"
    results = forms.run(list(forms.PEERS), forms.ROUNDS)
    if write:
        forms.write(results, forms.ROUNDS)
    return "\n\n".join(forms.tables(results))


# The documentation.


def page(kept: Mapping[str, Any]) -> str:
    """The part of docs/benchmarks.md that is made from `rates.json`."""
    shown = [Compared(*one) for name in SHOWN for one in kept["results"].get(name, [])]
    return "\n\n".join((BEGIN, kept["conditions"], markdown(shown), END))


def write(found: Mapping[str, list[Compared]], rounds: int) -> None:
    """Keep the rates, and put them into the documentation."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"results": {}, "rounds": {}}
    known, counts = kept["results"], kept["rounds"]
    for name, those in found.items():
        counts[name] = rounds
        known[name] = [
            one._replace(
                peer=one.peer and _rounded(one.peer), ours={form: _rounded(rate) for form, rate in one.ours.items()}
            )
            for one in those
        ]
    most = max(counts.values())
    fewer = ", ".join(f"{name}: {count}" for name, count in counts.items() if count < most)
    conditions = (
        f"`make bench` on {forms.machine()}, {time.strftime('%Y-%m-%d')}, load average {os.getloadavg()[1]:.0f};\n"
        f"per second, medians of {most} {'rounds' if most > 1 else 'round'}{f' ({fewer})' if fewer else ''}, 128-byte "
        "messages. The ratio is that of the compiled form."
    )
    kept = {"conditions": conditions, "rounds": counts, "results": known}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    kept = json.loads(RESULTS.read_text("utf-8"))
    forms.PAGE.write_text(forms.rewritten(forms.PAGE.read_text("utf-8"), page(kept), BEGIN, END), "utf-8")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rows"]:
        rows(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))

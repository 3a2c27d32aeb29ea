"""Every benchmark, one table: `python -m benchmarks [SECTION …]`, with the sections of `SECTIONS`.

`pipelines` is the latency of pipelines, in seconds. `forms` is CPU per operation of the pure and the compiled form,
nats-server, nats-py and the C client, where they are there. Only ratios count; the rates themselves differ from machine
to machine. A ratio below its target is marked, and the run ends with 1 only if a benchmark itself failed.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
import traceback

from benchmarks.report import Row, table

SECTIONS = ("wire", "core", "jetstream", "workers", "reads", "kv", "server", "spark", "pipelines", "forms")


def main(sections: list[str]) -> int:
    """Run the sections named, all of them if none is."""
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        print(f"unknown section {unknown[0]!r}: {', '.join(SECTIONS)} are there", file=sys.stderr)
        return 2
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    failed = 0
    for name in sections or SECTIONS:
        begin = time.monotonic()
        try:
            if name == "forms":
                print(f"\n{forms()}", flush=True)
                continue
            module = importlib.import_module(f"benchmarks.{name}")
            if name == "pipelines":
                print(f"\n{module.run()}", flush=True)
                continue
            rows: list[Row] = module.run()
        except Exception:  # the other sections are still worth having
            failed += 1
            print(f"\n{name}: failed", flush=True)
            traceback.print_exc()
            continue
        print(f"\n{name} ({time.monotonic() - begin:.0f} s)\n{table(rows)}", flush=True)
    return 1 if failed else 0


def forms() -> str:
    """The tables of `benchmarks.forms`; where there is no C compiler, a line that says so."""
    from benchmarks import forms as work
    from tools import native

    try:
        native.compiler()
    except native.NoCompilerError as error:
        return f"forms: left out, {error}"
    results = work.run(list(work.PEERS), work.ROUNDS)
    return "\n\n".join(work.tables(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run seeds: `python -m tests.server.simulation 17` replays one, `… 0 1000` runs a range, `--shrink` simplifies."""

from __future__ import annotations

import argparse
import sys
import time

from tests.server.simulation.runs import run, simplest
from tests.server.simulation.world import HISTORY


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("end", type=int, nargs="?", help="run the seeds up to here, and list those that fail")
    parser.add_argument("--shrink", action="store_true", help="look for a simpler run that fails in the same way")
    parser.add_argument("--no-consumers", dest="consumers", action="store_false", help="without consumers")
    parser.add_argument("--history", type=int, default=HISTORY, help=f"how many of the last steps to print ({HISTORY})")
    args = parser.parse_args()
    if args.end is None:
        outcome = run(args.seed, consumers=args.consumers, history=args.history)
        if outcome.violation is not None and args.shrink:
            outcome = simplest(outcome, consumers=args.consumers, history=args.history)
        print(outcome.report())
        return outcome.violation is not None
    failed = crashes = failures = executed = 0
    begun = time.process_time()
    for seed in range(args.seed, args.end):
        outcome = run(seed, consumers=args.consumers)
        crashes, failures, executed = (
            crashes + outcome.crashes,
            failures + outcome.failures,
            executed + outcome.executed,
        )
        if outcome.violation is not None:
            failed += 1
            print(f"{seed}: {outcome.violation}"[:300], flush=True)
    count = args.end - args.seed
    spent = time.process_time() - begun
    print(
        f"{count} seeds, {failed} failed; {executed} requests, {crashes} crashes, {failures} lost groups;"
        f" {spent / count * 1000:.1f} ms of CPU each"
    )
    return failed > 0


sys.exit(main())

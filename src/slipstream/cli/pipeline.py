"""`slipstream pipeline …`: pipelines on Spark. What they take is in `slipstream.spark.pipelines`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.cli.common import Commands, Shell

NAME = "pipeline"


def add(commands: Commands) -> None:
    """Declare the command, for the list of them: `main` hands its arguments over as they are."""
    commands.add(NAME, _show_options, "run, check and watch a pipeline: one file of sources, SQL and outputs, on Spark")


def run(arguments: list[str]) -> int:
    """Run a command of pipelines; returns the exit code."""
    try:
        from slipstream.spark.pipelines import main
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "pyarrow", "pandas"):
            raise
        print("slipstream: error: pipelines need Spark: pip install 'slipstream-jetstream[spark]'", file=sys.stderr)
        return 2
    return main(arguments)


def _show_options(_: Shell) -> None:
    run(["--help"])

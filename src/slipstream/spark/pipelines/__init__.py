"""Pipelines: one TOML file of sources, SQL steps and outputs, run on Spark.

`slipstream pipeline run FILE` (or `python -m slipstream.spark.pipelines run FILE`) runs one; docs/spark.md has the keys
of the file. A program can `load` a file and run it with `runner.Runner`;
`pipeline_cases` has its test cases, for pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.spark.pipelines.model import Pipeline, PipelineError
from slipstream.spark.pipelines.reader import load, parse

if TYPE_CHECKING:
    from slipstream.spark.pipelines.workbench.cases import PipelineCase, pipeline_cases

__all__ = ["Pipeline", "PipelineCase", "PipelineError", "load", "parse", "pipeline_cases"]


def __getattr__(name: str) -> object:
    """Load test cases on first use: they need pyarrow."""
    if name in ("PipelineCase", "pipeline_cases"):
        from slipstream.spark.pipelines.workbench import cases

        return getattr(cases, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

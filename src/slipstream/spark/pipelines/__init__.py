"""Pipelines: one TOML file of sources, SQL steps and outputs, run on Spark.

`slipstream pipeline run FILE` (or `python -m slipstream.spark.pipelines run FILE`) runs one; docs/spark.md has the keys
of the file. A program can `load` a file and run it with `runner.Runner`.
"""

from slipstream.spark.pipelines.model import Pipeline, PipelineError
from slipstream.spark.pipelines.reader import load, parse

__all__ = ["Pipeline", "PipelineError", "load", "parse"]

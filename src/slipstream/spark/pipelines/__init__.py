"""One TOML file becomes a pipeline: streams and buckets in, SQL, Key-Value views, streams and tables out.

`python -m slipstream.spark.pipelines run FILE`, or `main([...])` from a program. docs/spark.md has the file's words.
"""

from slipstream.spark.pipelines.cli import main
from slipstream.spark.pipelines.model import Pipeline, PipelineError, parse

__all__ = ["Pipeline", "PipelineError", "main", "parse"]

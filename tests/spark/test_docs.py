"""Every block of docs/spark.md does what it says, and every pipeline file in the documentation is a valid one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from slipstream import Server
from slipstream.spark.pipelines import parse

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


def blocks(language: str, page: Path = DOCS) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def test_the_code_runs(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    with Server(data_dir=tmp_path) as server:
        for block in blocks("python"):
            code = block.replace("nats://127.0.0.1:4222", server.url)
            exec(compile(code, str(DOCS), "exec"), names)  # the blocks build on each other, as a reader does
        names["client"].close()
    assert names["spark"] is spark  # getOrCreate


def test_the_pipelines_are_valid() -> None:
    files = [block for page in DOCS.parent.rglob("*.md") for block in blocks("toml", page)]
    assert len(files) >= 2
    for file in files:
        assert parse(file).outputs

"""The example of `spark-submit`, run by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, BucketConfig, StreamConfig

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_job_of_the_example_runs_by_spark_submit(js: BlockingJetStream, any_server: str, fresh: str) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    counts = js.create_key_value(BucketConfig(bucket=fresh))
    for n in range(30):
        js.publish(f"{fresh}.{n % 3}", b"x")
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--master", "local[2]", "--conf", "spark.ui.enabled=false", "examples/submit_job.py"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, any_server, fresh, fresh],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert {key: counts.get(key).value for key in counts.keys()} == {f"{fresh}.{n}": b"10" for n in range(3)}  # noqa: SIM118

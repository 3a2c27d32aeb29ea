"""A Spark cluster: executors in processes of their own, and speculative tasks beside slow ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking
from tests.cluster import Cluster
from tests.spark import test_kills as kills

ROOT = Path(__file__).resolve().parent.parent.parent


def prepare(js: BlockingJetStream, name: str) -> None:
    """A stream with numbers, and where a job writes."""
    for stream in (name, f"{name}_out"):
        js.create_stream(StreamConfig(name=stream, subjects=(f"{stream}.>",), allow_direct=True))
    js.create_key_value(BucketConfig(bucket=name))
    with js.publisher() as publisher:
        for n in range(4_000):
            publisher.publish(f"{name}.{n % 4}", str(n).encode())


def check(js: BlockingJetStream, name: str) -> None:
    found = sorted(int(message.data) for message in js.stream(f"{name}_out").read())
    assert found == list(range(4_000))
    kv = js.key_value(name)
    assert {key: kv.get(key).value for key in kv.keys()} == {f"{name}.{n}": b"1000" for n in range(4)}  # noqa: SIM118


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_separate_executors_read_and_write_every_row_once(
    our_url: str, real_url: str, fresh: str, tmp_path: Path
) -> None:
    """On both servers, with one Spark cluster: its three JVMs take longer to start than the job to run."""
    with connect_blocking(our_url) as ours, connect_blocking(real_url) as real:
        both = ours.jetstream(), real.jetstream()
        for js in both:
            prepare(js, fresh)
        command = [sys.executable, "-m", "tests.spark.cluster_job", fresh, str(tmp_path), our_url, real_url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert done.stdout.count("rows 4000 executors 2") == 2
        for js in both:
            check(js, fresh)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.spec("SP-09")
def test_a_pipeline_on_a_nats_cluster_and_a_spark_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """The same file as on an embedded server; only the addresses on the command line differ."""
    archive = f'"spark.executor.extraJavaOptions" = "{os.environ["SPARK_SUBMIT_OPTS"]}"'  # as the driver has it
    (tmp_path / "kills.toml").write_text(kills.FILE.replace("conf = {", f"conf = {{ {archive},"))
    with connect_blocking(cluster.urls) as client:
        js = client.jetstream()
        config = StreamConfig(name="NUMBERS", subjects=("numbers.>",), num_replicas=3, allow_direct=True)
        js.create_stream(config)
        cluster.wait_for_direct("NUMBERS")
        kills.publish(js, range(900))
        addresses = ["--servers", ",".join(cluster.urls), "--master", "local-cluster[2,1,1024]"]
        command = [sys.executable, "-m", "slipstream.spark.pipelines", "run", "kills.toml", "--once", *addresses]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        kills.check(js, tmp_path, 900)
        for name in ("NUMBERS", "COPIES"):
            js.stream(name).delete()

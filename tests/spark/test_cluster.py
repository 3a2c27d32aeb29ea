"""A Spark cluster: executors in processes of their own, and speculative tasks beside slow ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking
from tests.cluster import Cluster
from tests.spark import test_kills as kills

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_separate_executors_read_and_write_every_row_once(
    js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
) -> None:
    for name in (fresh, f"{fresh}_out"):
        js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), allow_direct=True))
    js.create_key_value(BucketConfig(bucket=fresh))
    with js.publisher() as publisher:
        for n in range(4_000):
            publisher.publish(f"{fresh}.{n % 4}", str(n).encode())
    command = [sys.executable, "-m", "tests.spark.cluster_job", any_server, fresh, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "rows 4000 executors 2" in done.stdout
    found = sorted(int(message.data) for message in js.stream(f"{fresh}_out").read())
    assert found == list(range(4_000))
    kv = js.key_value(fresh)
    assert {key: kv.get(key).value for key in kv.keys()} == {f"{fresh}.{n}": b"1000" for n in range(4)}  # noqa: SIM118


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.spec("SP-09")
def test_a_pipeline_on_a_nats_cluster_and_a_spark_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """The same file as on an embedded server; only the addresses on the command line differ."""
    (tmp_path / "kills.toml").write_text(kills.FILE)
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

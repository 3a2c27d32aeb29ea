"""A Spark cluster: executors in processes of their own, and speculative tasks beside slow ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, BucketConfig, StreamConfig

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

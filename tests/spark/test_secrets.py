"""Secrets of a Spark job: in no plan, log, event log, UI page, table or checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream import BucketConfig, Context, StreamConfig, connect_blocking
from slipstream.errors import CredentialsError, UsageError
from slipstream.spark.link import read_context
from tests.servers import real_server

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hush-7c1f9d2e-hush"


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.spec("SP-10")
@pytest.mark.parametrize("way", ["env", "context"])
def test_a_secret_is_nowhere(way: str, tmp_path: Path) -> None:
    with real_server(config=f"authorization {{ token: {SECRET} }}") as url:
        with connect_blocking(url, token=SECRET) as client:
            js = client.jetstream()
            js.create_stream(StreamConfig(name="IN", subjects=("in.>",), allow_direct=True))
            js.create_stream(StreamConfig(name="OUT", subjects=("out.>",), allow_direct=True))
            js.create_key_value(BucketConfig(bucket="view"))
            for n in range(20):
                js.publish(f"in.{n % 3}", str(n).encode())
        contexts = tmp_path / "config" / "nats" / "context"
        contexts.mkdir(parents=True)
        (contexts / "prod.json").write_text(json.dumps({"url": url, "token": SECRET}))
        job = tmp_path / "job"
        job.mkdir()
        environ = {**os.environ, "SECRET": SECRET, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        command = [sys.executable, "-m", "tests.spark.secret_job", url, str(job), way]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        with connect_blocking(url, token=SECRET) as client:
            assert client.jetstream().stream("OUT").info().state.messages == 20
    assert done.stdout.count("refused") == 5
    assert "page environment/" in done.stdout
    assert SECRET not in done.stdout
    assert SECRET not in done.stderr
    files = [path for path in job.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files)
    assert any("checkpoint" in path.parts for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


class TestContexts:
    def context(self, folder: Path, text: str) -> Context:
        file = folder / "nats" / "context" / "prod.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return read_context("prod", {"XDG_CONFIG_HOME": str(folder)})

    def test_are_those_of_the_nats_command(self, tmp_path: Path) -> None:
        found = self.context(tmp_path, '{"url": "nats://a:4222,nats://b", "creds": "/me.creds", "description": "x"}')
        assert found.arguments() == {"servers": ["nats://a:4222", "nats://b"], "credentials": Path("/me.creds")}

    def test_one_that_cannot_be_used_is_named_without_its_content(self, tmp_path: Path) -> None:
        for text in (f"{SECRET} {{", "[]"):
            with pytest.raises(CredentialsError, match="context file") as caught:
                self.context(tmp_path, text)
            assert SECRET not in str(caught.value)
        with pytest.raises(UsageError, match="no context 'other'; known: prod"):
            read_context("other", {"XDG_CONFIG_HOME": str(tmp_path)})
        with pytest.raises(UsageError, match="a file name without '/'"):
            read_context("../x", {"XDG_CONFIG_HOME": str(tmp_path)})

"""Secrets of a Spark job: in no plan, log, event log, UI page, table or checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream import BucketConfig, Context, StreamConfig, connect_blocking
from slipstream.errors import CredentialsError, UsageError
from slipstream.spark.connect import read_context
from tests.servers import real_server

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hush-7c1f9d2e-hush"
OTHER = "hush-51b00aa4-hush"


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.spec("SP-10")
def test_a_secret_is_nowhere(tmp_path: Path) -> None:
    """One server's comes from the environment, the other's from a context, whose own login counts more than that."""
    with token_server(SECRET) as url, token_server(OTHER) as other:
        contexts = tmp_path / "config" / "nats" / "context"
        contexts.mkdir(parents=True)
        (contexts / "prod.json").write_text(json.dumps({"url": other, "token": OTHER}))
        job = tmp_path / "job"
        job.mkdir()
        secrets = {"SECRET": SECRET, "NATS_TOKEN": SECRET, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        command = [sys.executable, "-m", "tests.spark.secret_job", url, str(job)]
        environ = {**os.environ, **secrets}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        for server, secret in ((url, SECRET), (other, OTHER)):
            with connect_blocking(server, token=secret) as client:
                assert client.jetstream().stream("OUT").info().state.messages == 20
    assert done.stdout.count("refused") == 5
    assert "page environment/" in done.stdout
    files = [path for path in job.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files)
    assert any("checkpoint" in path.parts for path in files)
    for secret in (SECRET, OTHER):
        assert secret not in done.stdout
        assert secret not in done.stderr
        assert [path for path in files if secret.encode() in path.read_bytes()] == []


@contextmanager
def token_server(secret: str) -> Iterator[str]:
    """A real server with a secret, and something to read and write there."""
    with real_server(config=f"authorization {{ token: {secret} }}") as url:
        with connect_blocking(url, token=secret) as client:
            js = client.jetstream()
            js.create_stream(StreamConfig(name="IN", subjects=("in.>",), allow_direct=True))
            js.create_stream(StreamConfig(name="OUT", subjects=("out.>",), allow_direct=True))
            js.create_key_value(BucketConfig(bucket="view"))
            for n in range(20):
                js.publish(f"in.{n % 3}", str(n).encode())
        yield url


class TestContexts:
    def context(self, folder: Path, text: str) -> Context:
        file = folder / "nats" / "context" / "prod.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return read_context("prod", {"XDG_CONFIG_HOME": str(folder)})

    def test_contexts_of_the_nats_command_are_read(self, tmp_path: Path) -> None:
        found = self.context(tmp_path, '{"url": "nats://a:4222,nats://b", "creds": "/me.creds", "description": "x"}')
        assert found.arguments() == {"servers": ["nats://a:4222", "nats://b"], "credentials": Path("/me.creds")}

    def test_invalid_context_is_named_without_its_content(self, tmp_path: Path) -> None:
        for text in (f"{SECRET} {{", "[]"):
            with pytest.raises(CredentialsError, match="context file") as caught:
                self.context(tmp_path, text)
            assert SECRET not in str(caught.value)
        with pytest.raises(UsageError, match="no context 'other'; known: prod"):
            read_context("other", {"XDG_CONFIG_HOME": str(tmp_path)})
        with pytest.raises(UsageError, match="a file name without '/'"):
            read_context("../x", {"XDG_CONFIG_HOME": str(tmp_path)})

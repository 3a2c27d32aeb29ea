"""The SQLite bucket: durable when a write returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slipstream.kv._sync.key_value import open_local_key_value

WRITER = """
import sys
from slipstream import BucketConfig
from slipstream.kv._sync.key_value import open_local_key_value
kv = open_local_key_value(sys.argv[1], BucketConfig(bucket="b", history=64))
for n in range(10**6):
    print(kv.put(f"k{n % 100}", b"%d" % n), flush=True)
"""


def test_acknowledged_entries_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(300)]
    process.kill()
    rest = process.stdout.read().splitlines()
    process.wait(timeout=20)
    process.stdout.close()
    last = int(rest[-1]) if rest and rest[-1].isdigit() else acknowledged[-1]
    kv = open_local_key_value(str(path))
    assert kv.status().last_revision >= acknowledged[-1]
    for revision in (*acknowledged, last):
        assert kv.get(f"k{(revision - 1) % 100}", revision=revision).value == b"%d" % (revision - 1)
    kv.close()

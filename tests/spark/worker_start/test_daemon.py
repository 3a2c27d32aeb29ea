"""The daemon of Spark's workers: what it imports must start no thread, since it forks."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os, sys
import slipstream.spark.worker_start.daemon
loaded = sorted({"pyarrow", "pandas", "numpy"}.intersection(sys.modules))
print(json.dumps([len(os.listdir("/proc/self/task")), loaded]))
"""


def test_import_starts_no_thread() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(run.stdout) == [1, []]

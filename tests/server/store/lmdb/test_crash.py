"""A process that dies leaves all that it acknowledged, a clean prefix of the rest, and indexes that agree."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from slipstream.server.engine.ports import StreamLog, record_size
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore

TUNING = Tuning(segment=64, slice=50, dirty=40, journal=200, cache=10, probe=16, page=7)

WRITER = """
import random, sys
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.lmdb.segments import Tuning
from tests.server.store.lmdb.test_crash import TUNING, content
store = LmdbStore(sys.argv[1], tuning=TUNING)
pick = random.Random(int(sys.argv[2]))
names = [name for name, _ in store.streams()]
plain, churn = [store.log(name) if name in names else store.create(name, b"") for name in ("PLAIN", "CHURN")]
while True:
    for _ in range(pick.randrange(1, 80)):
        seq = plain.state.last_seq + 1
        plain.append(seq, *content(seq))
        subject = f"k.{pick.randrange(150)}"
        churn.append(seq, subject, b"", b"v" * pick.randrange(50))
        if churn.count_of(subject) > 3:
            churn.remove(churn.first_seq_of(subject))
    if pick.random() < 0.1:
        churn.purge(below=churn.state.last_seq - pick.randrange(400))
    if pick.random() < 0.05:
        churn.purge(pattern=f"k.{pick.randrange(150)}", keep=1)
    if pick.random() < 0.02:
        churn.purge()
    commit_open_group(store)
    print(plain.committed.last_seq, churn.committed.last_seq, flush=True)
"""


def content(seq: int) -> tuple[str, bytes, bytes]:
    """What message `seq` of the plain stream is."""
    return f"p.{seq * 7919 % 97}", b"h" * (seq % 3), b"%d" % (seq * seq)


def agrees_with_itself(log: StreamLog) -> None:
    """Compare every index with the messages."""
    state = log.committed
    records = log.scan("", 0, limit=1_000_000)
    assert len(records) == state.messages
    assert sum(record_size(record.subject, record.header, record.payload) for record in records) == state.bytes
    by_subject = defaultdict(list)
    for record in records:
        by_subject[record.subject].append(record.seq)
    if records:
        assert (records[0].seq, records[0].time) == (state.first_seq, state.first_time)
        assert records[-1].seq <= state.last_seq
    assert dict(log.subjects("")) == {subject: len(seqs) for subject, seqs in by_subject.items()}
    middle = (state.first_seq + state.last_seq) // 2
    for subject, seqs in by_subject.items():
        assert [record.seq for record in log.scan(subject, 0, limit=1_000_000)] == seqs
        assert (log.first_seq_of(subject), log.last_seq_of(subject), log.count_of(subject)) == (
            seqs[0],
            seqs[-1],
            len(seqs),
        )
        assert log.count(subject, middle) == sum(1 for seq in seqs if seq >= middle)
    assert log.count("*.*", middle) == log.count("", middle) == sum(1 for record in records if record.seq >= middle)
    assert log.multi_last(["*.*"]) == sorted(seqs[-1] for seqs in by_subject.values())


@pytest.mark.timeout(300)  # five processes begin, and sync some hundred times
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_loses_no_acknowledged_message(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    root = Path(__file__).resolve().parents[4]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    pick = random.Random(seed)
    for round_ in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(seed * 100 + round_)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            try:
                assert writer.stdout is not None
                acknowledged = [b""]
                for _ in range(pick.randrange(1, 60)):
                    acknowledged.append(writer.stdout.readline())
                for _ in range(pick.randrange(2_000)):  # some point within the next group
                    pass
            finally:
                writer.send_signal(signal.SIGKILL)
            acknowledged += writer.stdout.readlines()
        plain_last, churn_last = map(int, [line for line in acknowledged if line.endswith(b"\n")][-1].split())
        store = LmdbStore(path, tuning=TUNING)
        plain, churn = store.log("PLAIN"), store.log("CHURN")
        assert plain.committed.last_seq >= plain_last
        assert churn.committed.last_seq >= churn_last
        assert plain.committed.first_seq == 1
        for record in plain.scan("", 1, limit=1_000_000):
            assert (record.subject, record.header, record.payload) == content(record.seq)
        agrees_with_itself(plain)
        agrees_with_itself(churn)
        store.close()

"""The history of a lock: programs that contend for it write when `check()` passed, and a checker goes over all of it.

Times are CLOCK_MONOTONIC, which all processes of the machine share.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO


class Pass(NamedTuple):
    """`check()` returned a token, at some moment between two times. Token 0: it raised."""

    name: str
    token: int
    before: float
    after: float


class Tenure(NamedTuple):
    """All passes with one token: whose it was, when the first had passed, when the last had not begun."""

    name: str
    token: int
    first: float
    last: float


class Recorder:
    """One program's side: each pass is a line, which is written whole."""

    def __init__(self, file: TextIO, name: str) -> None:
        self._file = file
        self._name = name

    def record(self, token: int, before: float) -> None:
        self._file.write(f"{self._name} {token} {before!r} {time.monotonic()!r}\n")
        self._file.flush()


def read_passes(path: Path) -> list[Pass]:
    """What a program has written so far; a line that is being written is left out."""
    text = path.read_text() if path.exists() else ""
    rows = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
    return [Pass(name, int(token), float(before), float(after)) for name, token, before, after in rows]


def tenures_of(passes: Sequence[Pass]) -> list[Tenure]:
    """The tenures in the order of their tokens. A token that two programs had is an error."""
    found: dict[int, Tenure] = {}
    for each in passes:
        if each.token:
            known = found.get(each.token, Tenure(each.name, each.token, each.after, each.before))
            assert known.name == each.name, f"token {each.token} was that of {known.name} and of {each.name}"
            found[each.token] = known._replace(first=min(known.first, each.after), last=max(known.last, each.before))
    return [found[token] for token in sorted(found)]


def check_history(passes: Sequence[Pass]) -> list[Tenure]:
    """Raise AssertionError if `check()` passed in two programs at once, or a later holder had a lower token."""
    tenures = tenures_of(passes)
    for index, later in enumerate(tenures):
        for earlier in tenures[:index]:
            assert earlier.last <= later.first, f"{earlier} still passed after {later} had passed"
    return tenures


class Contender:
    """A process that contends for a lock."""

    def __init__(self, module: str, name: str, folder: Path, url: str, bucket: str, hold: float) -> None:
        self.name = name
        self.history = folder / f"{name}.history"
        command = [sys.executable, "-m", module, url, bucket, name, str(self.history), str(hold)]
        self._process = subprocess.Popen(command)

    def stall(self) -> None:
        """Stop it between two instructions; it does not notice."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on where it was stopped."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait(timeout=20)


class Group:
    """Several contenders and what they wrote."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self.by_name = {each.name: each for each in contenders}

    def passes(self) -> list[Pass]:
        return [each for contender in self.by_name.values() for each in read_passes(contender.history)]

    @property
    def tenures(self) -> list[Tenure]:
        return tenures_of(self.passes())

    def has_more_than(self, tenures: int) -> bool:
        return len(self.tenures) > tenures

    def has_lost(self, tenure: Tenure) -> bool:
        """Whether that holder found out, and never passed with the token again."""
        own = read_passes(self.by_name[tenure.name].history)
        at = max(index for index, each in enumerate(own) if each.token == tenure.token)
        return any(each.token == 0 for each in own[at:])


@contextmanager
def contenders(module: str, names: str, folder: Path, url: str, bucket: str, *, hold: float = 0) -> Iterator[Group]:
    """Processes that contend for the lock "job" of a bucket; each holds it for `hold` seconds (0: until it is lost)."""
    started: list[Contender] = []
    try:
        started += [Contender(module, name, folder, url, bucket, hold) for name in names]
        yield Group(started)
    finally:
        for each in started:
            each.end()

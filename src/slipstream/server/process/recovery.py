"""Commands for the store of a stopped server: `slipstream server check DIR`, `salvage DIR NEW` and `compact DIR`.

The first lists what is lost, the second copies the rest to a new directory. Exit codes: 0, the store is sound (or
everything was copied); 1, it is damaged, and what is lost was listed (the rest was copied); 2, nothing could be checked
or copied. The third replaces the file by a copy without free space, and exits with 2 if it could not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.errors import Error
from slipstream.extras import needed_by

USAGE = {
    "check": "usage: slipstream server check DIR",
    "salvage": "usage: slipstream server salvage DIR NEW",
    "compact": "usage: slipstream server compact DIR",
}
SOUND, DAMAGED, FAILED = 0, 1, 2
_MOST = 1000  # lines of one kind


def main(name: str, arguments: Sequence[str]) -> int:
    """Check a store, copy what is sound in it, or compact it; returns the exit code."""
    if list(arguments) in (["-h"], ["--help"]):
        print(f"{USAGE[name]}\n\n{__doc__}", end="")
        return SOUND
    if len(arguments) != (2 if name == "salvage" else 1) or any(argument.startswith("-") for argument in arguments):
        print(USAGE[name], file=sys.stderr)
        return FAILED
    if name == "compact":
        return _compact(Path(arguments[0]))
    with needed_by(f"server {name}", "server"):
        from slipstream.server.store.lmdb.salvage import Survey, salvage  # only here: it loads LMDB

    path = Path(arguments[0])
    try:
        survey = Survey(path) if name == "check" else salvage(path, Path(arguments[1]), print)
    except (Error, OSError) as exc:
        print(f"slipstream: {exc}", file=sys.stderr)
        return FAILED
    for what in (survey.problems, [f"lost: {loss}" for loss in survey.losses]):
        for line in what[:_MOST]:
            print(line)
        if len(what) > _MOST:
            print(f"... and {len(what) - _MOST} more")
    if survey.is_sound:
        streams = "1 stream" if len(survey.streams) == 1 else f"{len(survey.streams)} streams"
        print(f"{path} is sound: {survey.messages} messages in {streams}")
        return SOUND
    if name == "check":
        print(f"{path} is damaged; `slipstream server salvage {path} NEW` copies the intact data to a new directory")
    else:
        print(f"the intact data of {path} is in {arguments[1]}; start the server there")
    return DAMAGED


def _compact(path: Path) -> int:
    with needed_by("server compact", "server"):
        from slipstream.server.store.lmdb.store import compact_directory  # only here: it loads LMDB

    try:
        before, after = compact_directory(path)
    except (Error, OSError) as exc:
        print(f"slipstream: {exc}", file=sys.stderr)
        return FAILED
    print(f"{path} is compacted: {after} bytes, were {before}")
    return SOUND

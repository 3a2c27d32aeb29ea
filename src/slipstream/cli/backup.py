"""`slipstream stream backup` and `restore`: snapshots of a stream in a directory, in the layout of the `nats` tool.

The directory holds `backup.json` (configuration and state) and `stream.tar.s2` (the snapshot, as the server sent it).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from slipstream.cli.common import Commands, Shell
from slipstream.cli.output import Meter
from slipstream.cli.values import show_size
from slipstream.errors import UsageError

DATA, DESCRIPTION = "stream.tar.s2", "backup.json"
CHUNK = 128 * 1024


def add(group: Commands) -> None:
    """Declare the commands, below `stream`."""
    parser = group.add(
        "backup",
        _backup,
        "write a snapshot of a stream to a directory",
        examples="  slipstream stream backup ORDERS /backups/orders\n  slipstream stream restore /backups/orders",
    )
    parser.add_argument("name", metavar="STREAM")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--no-consumers", action="store_true", help="without consumers")
    parser = group.add("restore", _restore, "create a stream from such a directory")
    parser.add_argument("directory", type=Path)


def _backup(shell: Shell) -> None:
    options = shell.options
    target: Path = options.directory
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} must be a new or empty directory")
    target.mkdir(parents=True, exist_ok=True)
    with shell.connect() as client:
        snapshot = shell.jetstream(client).snapshot(options.name, consumers=not options.no_consumers)
        written = 0
        with shell.out.progress(options.name, None) as meter, (target / DATA).open("wb") as file:
            for chunk in snapshot:
                file.write(chunk)
                written += len(chunk)
                _update(meter, written)
            file.flush()
            os.fsync(file.fileno())
    body = {"config": snapshot.config, "state": snapshot.state}
    (target / DESCRIPTION).write_text(
        json.dumps(body, indent=2) + "\n"
    )  # written last: without it the directory is not a backup
    shell.out.note(f"wrote {snapshot.state.get('messages', 0):,} messages, {show_size(written)}, to {target}")


def _restore(shell: Shell) -> None:
    source: Path = shell.options.directory
    try:
        body: dict[str, Any] = json.loads((source / DESCRIPTION).read_text())
        config, state = body["config"], body["state"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{source} is not a backup of a stream: {exc}") from exc
    with shell.connect() as client, (source / DATA).open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        with shell.out.progress(str(config.get("name")), total) as meter:
            info = shell.jetstream(client).restore(config, state, _chunks(file, meter))
    shell.out.note(f"restored {info.config.name} with {info.state.messages:,} messages")


def _chunks(file: BinaryIO, meter: Meter | None) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        _update(meter, file.tell())
        yield chunk


def _update(meter: Meter | None, done: int) -> None:
    if meter is not None:
        meter(done)

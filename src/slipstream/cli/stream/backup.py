"""`slipstream stream backup` and `restore`: snapshots of a stream in a directory, in the layout of the `nats` tool.

The directory holds `backup.json` (configuration and state) and `stream.tar.s2` (the snapshot, as the server sent it).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from slipstream import BlockingJetStream
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
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--no-consumers", action="store_true", help="do not back up consumers")
    parser = group.add("restore", _restore, "restore a stream from a backup directory")
    parser.add_argument("directory", type=Path, metavar="DIR")


def _backup(shell: Shell) -> None:
    options = shell.options
    target = empty_directory(options.directory)
    with shell.connect() as client:
        write_backup(shell, shell.jetstream(client), options.name, target, consumers=not options.no_consumers)


def empty_directory(target: Path) -> Path:
    """A directory that is new or empty; made if it is not there."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} must be a new or empty directory")
    target.mkdir(parents=True, exist_ok=True)
    return target


def write_backup(shell: Shell, js: BlockingJetStream, name: str, target: Path, *, consumers: bool) -> int:
    """Write a snapshot of a stream to an empty directory; returns its size."""
    snapshot = js.snapshot(name, consumers=consumers)
    written = 0
    with shell.out.progress(name, None) as meter, (target / DATA).open("wb") as file:
        for chunk in snapshot:
            file.write(chunk)
            written += len(chunk)
            _update(meter, written)
        file.flush()
        os.fsync(file.fileno())
    body = {"config": snapshot.config, "state": snapshot.state}
    # Written last: without it the directory is not a backup.
    (target / DESCRIPTION).write_text(json.dumps(body, indent=2) + "\n")
    shell.out.note(f"wrote {snapshot.state.get('messages', 0):,} messages, {show_size(written)}, to {target}")
    return written


def _restore(shell: Shell) -> None:
    source: Path = shell.options.directory
    read_description(source)  # before there is a connection
    with shell.connect() as client:
        restore_backup(shell, shell.jetstream(client), source)


def read_description(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and state of the stream in a backup."""
    try:
        body: dict[str, Any] = json.loads((source / DESCRIPTION).read_text())
        config, state = body["config"], body["state"]
        return dict(config, name=str(config["name"])), state
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{source} is not a backup of a stream: {exc}") from exc


def restore_backup(shell: Shell, js: BlockingJetStream, source: Path) -> None:
    """Create a stream from a backup."""
    config, state = read_description(source)
    with (source / DATA).open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        with shell.out.progress(config["name"], total) as meter:
            info = js.restore(config, state, _chunks(file, meter))
    shell.out.note(f"restored {info.config.name} with {info.state.messages:,} messages")


def _chunks(file: BinaryIO, meter: Meter | None) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        _update(meter, file.tell())
        yield chunk


def _update(meter: Meter | None, done: int) -> None:
    if meter is not None:
        meter(done)

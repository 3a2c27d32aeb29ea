"""`slipstream account …`: usage of the account, and backups of all its streams.

A backup of an account is a directory with a backup of each stream in a directory of its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipstream.cli.common import Commands, Shell
from slipstream.cli.exit_codes import FAILED
from slipstream.cli.stream.backup import empty_directory, read_description, restore_backup, write_backup
from slipstream.cli.values import show_limit, show_size
from slipstream.errors import Error, UsageError


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("account", "show the account; back up and restore all its streams", run=_info)
    group.add("info", _info, "show the JetStream usage and limits of the account")
    parser = group.add(
        "backup",
        _backup,
        "write snapshots of all streams, including those of buckets, to a directory",
        examples="  slipstream account backup /backups/monday\n  slipstream account restore /backups/monday",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory, new or empty")
    parser.add_argument("--no-consumers", action="store_true", help="do not back up consumers")
    parser = group.add("restore", _restore, "restore all streams from a backup directory")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--skip-existing", action="store_true", help="skip streams that already exist")


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        info = shell.jetstream(client).account_info()
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    limits = info.limits
    shell.out.facts("JetStream of this account", [
        ("Domain", info.domain or None), ("Memory", f"{show_size(info.memory)} of {show_size(limits.max_memory)}"),
        ("Storage", f"{show_size(info.storage)} of {show_size(limits.max_storage)}"),
        ("Streams", f"{info.streams:,} of {show_limit(limits.max_streams)}"),
        ("Consumers", f"{info.consumers:,} of {show_limit(limits.max_consumers)}"),
        ("API requests", f"{info.api.total:,}, {info.api.errors:,} failed"),
    ])  # fmt: skip


def _backup(shell: Shell) -> int | None:
    options = shell.options
    target = empty_directory(options.directory)
    failed: list[str] = []
    with shell.connect() as client:
        js = shell.jetstream(client)
        names = sorted(js.stream_names())
        for name in names:
            folder = target / name
            if folder.parent != target:  # a server that answers with such a name must not choose where we write
                raise UsageError(f"a stream is called {name!r}, which is not the name of a directory")
            folder.mkdir()
            try:
                write_backup(shell, js, name, folder, consumers=not options.no_consumers)
            except Error as error:  # one that is deleted meanwhile, or cannot be read, must not keep the others back
                failed.append(name)
                shell.out.note(f"{name}: {error}")
    return _summary(shell, "backed up", names, failed)


def _restore(shell: Shell) -> int | None:
    source: Path = shell.options.directory
    if not source.is_dir():
        raise UsageError(f"{source} must be a directory that account backup wrote")
    found = sorted(path for path in source.iterdir() if path.is_dir())
    names = {path: read_description(path)[0]["name"] for path in found}  # before anything is restored
    if not found:
        raise UsageError(f"{source} has no backups of streams")
    failed: list[str] = []
    with shell.connect() as client:
        js = shell.jetstream(client)
        existing = sorted(set(js.stream_names()) & set(names.values()))
        if existing and not shell.options.skip_existing:
            raise UsageError(f"these streams already exist: {', '.join(existing)}; pass --skip-existing to skip them")
        wanted = [path for path in found if names[path] not in existing]
        for path in wanted:
            try:
                restore_backup(shell, js, path)
            except (Error, OSError) as error:
                failed.append(names[path])
                shell.out.note(f"{names[path]}: {error}")
    return _summary(shell, "restored", [names[path] for path in wanted], failed)


def _summary(shell: Shell, done: str, names: Sequence[str], failed: Sequence[str]) -> int | None:
    fine = [name for name in names if name not in failed]
    if shell.out.is_json:
        shell.out.json({"streams": fine, "failed": list(failed)})
    else:
        end = f", {len(failed)} failed: {', '.join(failed)}" if failed else ""
        shell.out.note(f"{done} {len(fine)} {'stream' if len(fine) == 1 else 'streams'}{end}")
    return FAILED if failed else None

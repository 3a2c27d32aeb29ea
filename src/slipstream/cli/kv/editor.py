"""The value of a key in the user's editor: `slipstream kv edit BUCKET KEY`.

It is stored only if it was changed, and only if the key has still the revision that was edited. What was typed is never
lost: where it cannot be stored, the file is kept and named.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from slipstream.cli.common import Shell
from slipstream.cli.kv.entries import stored_bytes
from slipstream.cli.kv.opening import opened, structured_codec
from slipstream.errors import Error, KeyNotFoundError, UsageError


def edit_value(shell: Shell) -> None:
    """Let the user edit a value, and store it."""
    key = shell.options.key
    with opened(shell) as kv:
        try:
            entry = kv.get(key)
            old, revision = _shown(entry.value), entry.revision
        except KeyNotFoundError:
            old, revision = b"", 0
        folder = Path(tempfile.mkdtemp(prefix="slipstream-"))  # readable by its owner only
        file = folder / ("value.json" if structured_codec(shell.options) else "value.txt")
        file.write_bytes(old)
        try:
            _run_editor(file)
            new = file.read_bytes()
            if new == old:
                shell.out.note("not changed")
            else:
                value = _typed(shell, new)
                stored = kv.update(key, value, last=revision) if revision else kv.create(key, value)
                shell.out.note(f"stored as revision {stored}")
        except (Error, OSError) as error:
            if file.exists() and file.read_bytes() != old:
                raise UsageError(f"{error}; your text is in {file}") from error
            _remove(folder, file)
            raise
        _remove(folder, file)


def _remove(folder: Path, file: Path) -> None:
    file.unlink(missing_ok=True)
    for left in folder.iterdir():  # backups of editors
        left.unlink()
    folder.rmdir()


def _shown(value: Any) -> bytes:
    """A value as it is edited; JSON in lines."""
    return value if isinstance(value, bytes) else json.dumps(json.loads(stored_bytes(value)), indent=2).encode() + b"\n"


def _typed(shell: Shell, data: bytes) -> Any:
    if not structured_codec(shell.options):
        return data
    try:
        return json.loads(data)
    except ValueError as error:
        raise UsageError(f"value must be JSON for the codec {structured_codec(shell.options)}: {error}") from error


def _run_editor(file: Path) -> None:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(command), str(file)], check=False).returncode
    except (OSError, ValueError) as error:
        raise UsageError(f"editor {command!r} could not be started (VISUAL or EDITOR): {error}") from error
    if code:
        raise UsageError(f"editor {command!r} exited with {code}: nothing was stored")

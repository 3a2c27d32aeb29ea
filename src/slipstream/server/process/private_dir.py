"""Directories that only their owner may use: the default directory of file streams.

A directory that another user made beforehand, or a link in its place, would let that user read the streams, or choose
which files the server writes to: it is refused.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from slipstream.errors import UsageError


def default_root() -> Path:
    """Where file streams are kept if nothing is configured: the user's state directory, or where there is no home, a
    directory of the user in that for temporary files."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state, "slipstream")
    home = os.path.expanduser("~")
    if os.path.isabs(home) and home != "/" and os.access(home, os.W_OK):
        return Path(home, ".local", "state", "slipstream")
    return Path(tempfile.gettempdir(), f"slipstream-{os.geteuid()}")


def make_private(path: Path) -> None:
    """Make a directory for its owner alone; raises a UsageError if it is there and belongs, or is open, to others."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as exc:
        raise UsageError(f"could not create storage directory {str(path)!r}: {exc}") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"storage directory {str(path)!r} must be a directory, not a link; choose another with -sd DIR"
        )
    if found.st_uid != os.geteuid():
        raise UsageError(
            f"storage directory {str(path)!r} must belong to the user of the server (uid {os.geteuid()}), "
            f"got uid {found.st_uid}; choose another with -sd DIR"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise UsageError(f"storage directory {str(path)!r} must not be writable by others, got mode {mode:03o}")

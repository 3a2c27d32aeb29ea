"""Contexts: named connection settings of the `nats` command line tool, as arguments of `connect`.

The file format is that tool's: `nats/context/<name>.json` below the configuration directory, the selected name in
`nats/context.txt`. Unknown fields are kept when a file is saved again. An error names the file and the
field, never a secret.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from slipstream.client.options import ClientOptions
from slipstream.errors import CredentialsError, UsageError
from slipstream.wire.redaction import redacted

log: logging.Logger = logging.getLogger("slipstream.client")

_NAME = re.compile(r"[^/\\:\0.][^/\\:\0]*")
_UNSUPPORTED = {"nsc": "an nsc:// reference", "socks_proxy": "a SOCKS proxy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One named set of connection settings. Attributes are the file's fields; an empty one is not set."""

    name: str
    description: str = ""
    url: str = ""
    user: str = ""  # a token, if there is no password
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    inbox_prefix: str = ""
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:  # secrets are not shown, nor those of the URL
        shown = {"name": self.name, "url": redacted(self.url)}
        for each in fields(self):
            value = getattr(self, each.name)
            if value and each.repr and each.name not in shown and (each.name != "user" or self.password):
                shown[each.name] = value
        return f"Context({', '.join(f'{name}={value!r}' for name, value in shown.items() if value)})"

    def arguments(self) -> dict[str, Any]:
        """The arguments of `connect`: `connect(**context.arguments())`."""
        for name, what in _UNSUPPORTED.items():
            if self.unknown.get(name):
                raise UsageError(f"context {self.name!r} has {name}: {what} is not supported")
        found: dict[str, Any] = {}
        for option, setting in ClientOptions.settings().items():
            if value := getattr(self, setting.context) if setting.context else "":
                found[option] = _path(value) if setting.is_file else value
        if self.url:
            found["servers"] = [url.strip() for url in self.url.split(",")]
        return ClientOptions.with_one_login(found)

    def to_json(self) -> bytes:
        """The file's contents."""
        known = {name: getattr(self, name) for name in _FIELDS}
        return msgspec.json.format(msgspec.json.encode({**self.unknown, **known}), indent=2)

    @classmethod
    def from_json(cls, name: str, data: bytes) -> Context:
        """A context, from the file's contents."""
        try:
            body = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError as exc:
            raise CredentialsError(f"the context file of {name!r} is not a JSON object: {exc}") from None
        known: dict[str, Any] = {}
        for each in _FIELDS:
            value = body.pop(each, None)
            if value is None:
                continue
            if not isinstance(value, bool if each == "tls_first" else str):
                raise UsageError(f"context {name!r}: {each} must be a string, not {type(value).__name__}")
            known[each] = value
        return cls(name=name, unknown=body, **known)


_FIELDS = tuple(each.name for each in fields(Context) if each.name not in ("name", "unknown"))


class Contexts:
    """The contexts of a user."""

    def __init__(self, directory: str | Path | None = None) -> None:
        """In `directory`; without it where the tool keeps them: $XDG_CONFIG_HOME/nats or ~/.config/nats."""
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats"
        self._directory = Path(directory) if directory is not None else home

    def __repr__(self) -> str:
        return f"<Contexts in {str(self._directory)!r}>"

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(path.stem for path in (self._directory / "context").glob("*.json"))

    @property
    def selected(self) -> str:
        """The name of the selected context; empty if there is none."""
        try:
            return (self._directory / "context.txt").read_text().strip()
        except FileNotFoundError:
            return ""

    @property
    def previous(self) -> str:
        """The name of the context that was selected before this one; empty if there is none."""
        try:
            return (self._directory / "previous-context.txt").read_text().strip()
        except FileNotFoundError:
            return ""

    def load(self, name: str = "") -> Context:
        """The context of that name, or the selected one. An absolute path of a file is possible, too."""
        name = name or self.selected
        if not name:
            raise UsageError("no context is selected; name one")
        path = Path(name) if name.endswith(".json") and Path(name).is_absolute() else self._file(name)
        try:
            with path.open("rb") as file:
                _warn_if_open_to_others(path, os.fstat(file.fileno()).st_mode)
                return Context.from_json(path.stem, file.read())
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise UsageError(f"no context {name!r}; known: {known}") from None
        except OSError as exc:
            raise CredentialsError(f"the context file of {name!r} cannot be read: {exc.strerror}") from exc

    def save(self, context: Context) -> Path:
        """Write a context, readable by its owner only: it may hold secrets."""
        path = self._file(context.name)
        for folder in (self._directory, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(context.to_json() + b"\n")
        written.replace(path)
        return path

    def delete(self, name: str) -> None:
        """Remove a context; if it is the selected one, none is selected afterwards."""
        self.load(name)
        self._file(name).unlink()
        if self.selected == name:
            (self._directory / "context.txt").unlink()

    def select(self, name: str) -> None:
        """Use this context by default."""
        self.load(name)
        before = self.selected
        (self._directory / "context.txt").write_text(name)
        if before and before != name:
            (self._directory / "previous-context.txt").write_text(before)

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(f"context name must be a file name without '/', '\\', ':' and a leading '.', got {name!r}")
        return self._directory / "context" / f"{name}.json"


def _warn_if_open_to_others(path: Path, mode: int) -> None:
    """It may hold secrets, and says to whom they are sent."""
    if mode & 0o066:
        what = "written" if mode & 0o022 else "read"
        log.warning(
            "context file %s can be %s by others (mode %03o); run chmod 600 on it", path, what, stat.S_IMODE(mode)
        )


def _path(text: str) -> Path:
    """As the tool reads it: with `~` and variables expanded."""
    return Path(os.path.expandvars(text)).expanduser()

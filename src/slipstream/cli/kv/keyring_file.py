"""Files of encryption keys: JSON that only their owner may read, so that no key is ever on a command line.

    {"keys": {"2026": "<32 bytes in base64>"}, "primary": "2026", "tokens": "2026"}

`primary` is the key that encrypts values, `tokens` the one that encrypts the tokens of keys, for the life of a bucket.
An error names the file and the key, never a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.kv.codecs import Keyring

KEY_SIZE = 32


@dataclass
class KeyringFile:
    """The contents of a file of keys."""

    path: Path
    keys: dict[str, bytes] = field(default_factory=dict, repr=False)
    primary: str = ""
    tokens: str = ""

    @classmethod
    def read(cls, path: str) -> KeyringFile:
        """The keys in a file."""
        try:
            found = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise UsageError(f"keyring {path} must be JSON, as `slipstream kv keyring` writes it: {error}") from None
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, dict) or not keys:
            raise UsageError(f'keyring {path} must have an object "keys" with at least one key')
        names = {each: _name(path, each, found.get(each, ""), keys) for each in ("primary", "tokens")}
        return cls(Path(path), {name: _key(path, name, text) for name, text in keys.items()}, **names)

    @property
    def is_private(self) -> bool:
        """Whether only its owner may read the file."""
        return not self.path.stat().st_mode & 0o077

    def keyring(self) -> Keyring:
        """The keys, for the encryption codec."""
        from slipstream.kv.codecs import Keyring  # loads a cipher, which other commands do not need

        return Keyring(self.keys, primary=self.primary, tokens=self.tokens)

    def add(self, name: str) -> None:
        """Add a new key of random bytes, and make it the primary one."""
        if name in self.keys:
            raise UsageError(f"keyring {self.path} already has a key {name!r}")
        self.keys[name] = secrets.token_bytes(KEY_SIZE)
        self.primary = name
        self.tokens = self.tokens or name

    def remove(self, name: str) -> None:
        """Remove a key that is not needed any more."""
        if name not in self.keys:
            raise UsageError(f"keyring {self.path} has no key {name!r}; it has {', '.join(self.keys)}")
        if name == self.tokens:
            raise UsageError(
                f"key {name!r} must stay in the keyring: it encrypts the names of keys, for the life of a bucket"
            )
        if name == self.primary:
            raise UsageError(f"key {name!r} must stay in the keyring: it is the primary one, which encrypts values")
        del self.keys[name]

    def write(self) -> None:
        """Replace the file at once; it is never there in part, or readable by others."""
        keys = {name: base64.b64encode(key).decode() for name, key in self.keys.items()}
        text = json.dumps({"keys": keys, "primary": self.primary, "tokens": self.tokens}, indent=2) + "\n"
        written = self.path.with_name(self.path.name + ".new")
        written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a key that is lost is all its values lost
        written.replace(self.path)


def _name(path: str, role: str, name: Any, keys: dict[str, Any]) -> str:
    """The name of the key with that role; it may be left out where there is one key only."""
    if not name and len(keys) == 1:
        return next(iter(keys))
    if not isinstance(name, str) or name not in keys:
        raise UsageError(f'keyring {path}: "{role}" must name one of its keys, {", ".join(keys)}; got {name!r}')
    return name


def _key(path: str, name: str, text: Any) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        key = b""
    if len(key) != KEY_SIZE:
        raise UsageError(f"keyring {path}: key {name!r} must be {KEY_SIZE} bytes in base64")
    return key

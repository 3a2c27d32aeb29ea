"""Files of encryption keys: JSON that only their owner may read, so that no key is ever on a command line.

    {"keys": {"2026": "<32 bytes in base64>"}, "primary": "2026", "tokens": ["2026"]}

`primary` encrypts values. `tokens` encrypt the names of keys, which are written with the first of them and looked
for under all. An error names the file and the key, never a secret.
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
    tokens: tuple[str, ...] = ()

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
        (primary,) = _names(path, "primary", [found.get("primary", "")], keys)
        tokens = found.get("tokens", "")
        tokens = _names(path, "tokens", tokens if isinstance(tokens, list) else [tokens], keys)
        return cls(Path(path), {name: _key(path, name, text) for name, text in keys.items()}, primary, tokens)

    @property
    def is_private(self) -> bool:
        """Whether only its owner may read the file."""
        return not self.path.stat().st_mode & 0o077

    def keyring(self) -> Keyring:
        """The keys, for the encryption codec."""
        from slipstream.kv.codecs import Keyring  # loads a cipher, which other commands do not need

        return Keyring(self.keys, primary=self.primary, tokens=self.tokens)

    def add(self, name: str) -> None:
        """Add a new key of random bytes. The first one is used at once; of a later one this is what can be read."""
        if name in self.keys:
            raise UsageError(f"keyring {self.path} already has a key {name!r}")
        self.keys[name] = secrets.token_bytes(KEY_SIZE)
        self.primary = self.primary or name
        self.tokens = (*self.tokens, name)

    def use(self, name: str) -> None:
        """Encrypt values and names of keys with a key from now on."""
        self._check(name)
        self.primary = name
        self.tokens = (name, *(each for each in self.tokens if each != name))

    def remove(self, name: str) -> None:
        """Remove a key that is not needed any more."""
        self._check(name)
        if name in (self.primary, self.tokens[0]):
            raise UsageError(f"key {name!r} must stay in the keyring, because it is in use; --use another one first")
        del self.keys[name]
        self.tokens = tuple(each for each in self.tokens if each != name)

    def _check(self, name: str) -> None:
        if name not in self.keys:
            raise UsageError(f"keyring {self.path} has no key {name!r}; it has {', '.join(self.keys)}")

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


def _names(path: str, role: str, names: list[Any], keys: dict[str, Any]) -> tuple[str, ...]:
    """The names of the keys with that role; they may be left out where there is one key only."""
    if names == [""] and len(keys) == 1:
        return tuple(keys)
    if not names or not all(isinstance(name, str) and name in keys for name in names):
        raise UsageError(f'keyring {path}: "{role}" must name keys that it has, {", ".join(keys)}; got {names!r}')
    return tuple(names)


def _key(path: str, name: str, text: Any) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        key = b""
    if len(key) != KEY_SIZE:
        raise UsageError(f"keyring {path}: key {name!r} must be {KEY_SIZE} bytes in base64")
    return key

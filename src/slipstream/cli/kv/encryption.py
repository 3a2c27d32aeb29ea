"""`slipstream kv keyring` and `reencrypt`: files of encryption keys, and values under a new key."""

from __future__ import annotations

from pathlib import Path

from slipstream.cli.common import Commands, Shell
from slipstream.cli.kv.keyring_file import KeyringFile
from slipstream.cli.kv.opening import add_bucket, codecs_of, opened_raw
from slipstream.errors import UsageError


def add(group: Commands) -> None:
    """Declare the commands."""
    keyring = group.add(
        "keyring",
        _keyring,
        "show a file of encryption keys, or change it",
        examples="""\
  slipstream kv keyring keys.json --add 2026      # makes the file, too
  slipstream kv put SECRETS door 4711 --keyring keys.json""",
    )
    keyring.add_argument("file", metavar="FILE")
    keyring.add_argument("--add", metavar="NAME", help="add a new random key, which encrypts values from now on")
    keyring.add_argument("--remove", metavar="NAME", help="remove a key that no value needs any more")
    add_bucket(
        group.add(
            "reencrypt",
            _reencrypt,
            "encrypt the values of a bucket with the newest key",
            examples="""\
  slipstream kv keyring keys.json --add 2027
  slipstream kv reencrypt SECRETS --keyring keys.json
  slipstream kv keyring keys.json --remove 2026   # once no history needs it""",
        )
    )


def _keyring(shell: Shell) -> None:
    options = shell.options
    path = Path(options.file)
    file = KeyringFile(path) if options.add and not path.exists() else KeyringFile.read(options.file)
    if options.add:
        file.add(options.add)
    if options.remove:
        file.remove(options.remove)
    if options.add or options.remove:
        file.write()
    roles = {"encrypts values": file.primary, "encrypts names of keys": file.tokens}
    rows = [(name, ", ".join(role for role, key in roles.items() if key == name)) for name in file.keys]
    if shell.out.is_json:
        shell.out.json({"keys": list(file.keys), "primary": file.primary, "tokens": file.tokens})
    else:
        shell.out.table(("Key", "Use"), rows)


def _reencrypt(shell: Shell) -> None:
    if not shell.options.keyring:
        raise UsageError("--keyring is required")
    from slipstream.kv._sync.rekey import reencrypt
    from slipstream.kv.codecs import Encrypted

    codec = codecs_of(shell)[0]
    if not isinstance(codec, Encrypted):
        raise UsageError("encryption must be the codec nearest to the bucket: leave --codec out")
    with opened_raw(shell) as kv:
        done = reencrypt(kv, codec)
    if shell.out.is_json:
        shell.out.json({"reencrypted": done})
    else:
        shell.out.note(f"encrypted {done:,} {'value' if done == 1 else 'values'} again")

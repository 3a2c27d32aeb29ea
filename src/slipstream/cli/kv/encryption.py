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
  slipstream kv keyring keys.json --add 2026   # makes the file, too
  slipstream kv put SECRETS door 4711 --keyring keys.json""",
    )
    keyring.add_argument("file", metavar="FILE")
    keyring.add_argument("--add", metavar="NAME", help="add a new random key; the first one is used at once")
    keyring.add_argument("--use", metavar="NAME", help="encrypt with this key from now on")
    keyring.add_argument("--remove", metavar="NAME", help="remove a key that is no longer needed")
    parser = add_bucket(
        group.add(
            "reencrypt",
            _reencrypt,
            "encrypt keys and values of a bucket with the key in use",
            examples="""\
  slipstream kv keyring keys.json --add 2027     # then give it to all programs
  slipstream kv keyring keys.json --use 2027     # and again
  slipstream kv reencrypt SECRETS --keyring keys.json
  slipstream kv keyring keys.json --remove 2026""",
        )
    )
    parser.add_argument("--drop-history", action="store_true", help="remove older values that need an old key")
    parser.add_argument("--renew-ttl", action="store_true", help="restart the TTL of the bucket for each value")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="record the change, so that older snapshots raise instead of omitting keys",
    )


def _keyring(shell: Shell) -> None:
    options = shell.options
    path = Path(options.file)
    file = KeyringFile(path) if options.add and not path.exists() else KeyringFile.read(options.file)
    if options.add:
        file.add(options.add)
    if options.use:
        file.use(options.use)
    if options.remove:
        file.remove(options.remove)
    if options.add or options.use or options.remove:
        file.write()
    if shell.out.is_json:
        shell.out.json({"keys": list(file.keys), "primary": file.primary, "tokens": file.tokens})
    else:
        shell.out.table(("Key", "Use"), [(name, _use(file, name)) for name in file.keys])


def _use(file: KeyringFile, name: str) -> str:
    encrypts = [what for what, key in (("values", file.primary), ("names of keys", file.tokens[0])) if key == name]
    return f"encrypts {' and '.join(encrypts)}" if encrypts else "decrypts"


def _reencrypt(shell: Shell) -> None:
    options = shell.options
    if not options.keyring:
        raise UsageError("--keyring is required")
    from slipstream.kv._sync.rekey import reencrypt
    from slipstream.kv.codecs import Encrypted

    codec = codecs_of(shell)[0]
    if not isinstance(codec, Encrypted):
        raise UsageError("encryption must be the codec nearest to the bucket: leave --codec out")
    with opened_raw(shell) as kv:
        done = reencrypt(
            kv, codec, drop_history=options.drop_history, renew_ttl=options.renew_ttl, recorded=options.recorded
        )
    if shell.out.is_json:
        shell.out.json({"reencrypted": done})
    else:
        shell.out.note(f"encrypted {done:,} {'key' if done == 1 else 'keys'} again")

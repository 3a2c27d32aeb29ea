"""Arguments that name a bucket and say how its keys and values are encoded; opening it as they say.

Codecs are named from the bucket outwards, as `with_codec` stacks them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream import BlockingKeyValue
from slipstream.cli import values
from slipstream.cli.common import BUCKET, Parser, Shell
from slipstream.cli.kv.keyring_file import KeyringFile
from slipstream.errors import UsageError
from slipstream.kv.codecs import (
    Base64Keys,
    Base64Values,
    Codec,
    Compressed,
    EscapedPathKeys,
    Json,
    MessagePack,
    PathKeys,
)

if TYPE_CHECKING:
    from slipstream.kv.codecs import Encrypted

_ENCRYPTED = "encrypted"
_CODECS: dict[str, type[Codec[Any]]] = {
    "base64-keys": Base64Keys,
    "base64-values": Base64Values,
    "compressed": Compressed,
    "escaped-path": EscapedPathKeys,
    "json": Json,
    "msgpack": MessagePack,
    "path": PathKeys,
}
_STRUCTURED = ("json", "msgpack")  # their values are not bytes
_KNOWN = ", ".join(sorted((*_CODECS, _ENCRYPTED)))


def add_bucket(parser: Parser) -> Parser:
    """Declare the name of a bucket, and the options that say where and how it is stored."""
    parser.add_argument("bucket", metavar="BUCKET")
    add_bucket_options(parser)
    return parser


def add_key(parser: Parser) -> Parser:
    """The same, and a key."""
    add_bucket(parser).add_argument("key", metavar="KEY")
    return parser


def add_bucket_options(parser: Parser) -> None:
    """Declare the options alone."""
    group = parser.add_argument_group(BUCKET)
    for option, metavar, text in (
        ("--stream", "NAME", "name of its stream (default: KV_<bucket>)"),
        ("--subject-prefix", "PREFIX", "prefix of its keys (default: as its stream says)"),
        ("--put-prefix", "PREFIX", "publish writes below this prefix instead"),
    ):
        group.add_argument(option, default="", metavar=metavar, help=text)
    group.add_argument(
        "--codec", type=codec_names, default=[], metavar="NAMES", help=f"codecs, from the bucket outwards: {_KNOWN}"
    )
    group.add_argument("--keyring", metavar="FILE", help="encrypt with the keys in this file (kv keyring creates one)")
    group.add_argument(
        "--encryption-context", default="", metavar="TEXT", help="context bound into every ciphertext (default: BUCKET)"
    )
    group.add_argument("--plain-keys", action="store_true", help="encrypt values only")
    group.add_argument(
        "--no-check-names",
        action="store_true",
        help="do not check the names in the bucket first (for users who may not list them)",
    )
    group.add_argument(
        "--consistency",
        choices=("own-writes", "any", "latest"),
        help="latest: as new as the leader; any: the fastest answer",
    )


def codec_names(text: str) -> list[str]:
    """Names of codecs, from the bucket outwards, checked."""
    names = values.names(text)
    for at, name in enumerate(names):
        if name != _ENCRYPTED and name not in _CODECS:
            raise argparse.ArgumentTypeError(f"must be among {_KNOWN}, got {name!r}")
        if name in _STRUCTURED and at != len(names) - 1:
            raise argparse.ArgumentTypeError(f"{name} must be the last one, because its values are not bytes")
    return names


def structured_codec(options: argparse.Namespace) -> str:
    """The codec through which values are something else than bytes; empty if there is none."""
    return options.codec[-1] if options.codec and options.codec[-1] in _STRUCTURED else ""


@contextmanager
def opened(shell: Shell) -> Iterator[BlockingKeyValue[Any]]:
    """The bucket that the options name, with their codecs."""
    codecs = codecs_of(shell)  # before there is a connection: a bad keyring needs none
    with opened_raw(shell) as kv:
        for codec in codecs:
            kv = kv.with_codec(codec)
        yield kv


@contextmanager
def opened_raw(shell: Shell) -> Iterator[BlockingKeyValue[Any]]:
    """The bucket that the options name, as it is stored."""
    options = shell.options
    with shell.connect() as client:
        yield shell.jetstream(client).key_value(
            options.bucket,
            stream=options.stream,
            subject_prefix=options.subject_prefix,
            put_prefix=options.put_prefix,
            consistency=options.consistency,
        )


def codecs_of(shell: Shell) -> list[Codec[Any]]:
    """The codecs that the options name, from the bucket outwards. Encryption is nearest to it unless --codec says."""
    options = shell.options
    names = list(options.codec)
    if options.keyring and _ENCRYPTED not in names:
        names.insert(0, _ENCRYPTED)
    if not options.keyring and (
        _ENCRYPTED in names or options.encryption_context or options.plain_keys or options.no_check_names
    ):
        raise UsageError("encryption requires --keyring, a file of keys; create one with slipstream kv keyring")
    return [_encryption(shell) if name == _ENCRYPTED else _CODECS[name]() for name in names]


def codecs_by_name(shell: Shell, bucket: str, names: list[str], keyring: str) -> list[Codec[Any]]:
    """The same for a bucket and a file of keys that are no options of the command."""
    if keyring and _ENCRYPTED not in names:
        names = [_ENCRYPTED, *names]
    if not keyring and _ENCRYPTED in names:
        raise UsageError(f"encryption of bucket {bucket!r} requires a keyring, a file of keys")
    return [_encrypted(shell, keyring, bucket) if name == _ENCRYPTED else _CODECS[name]() for name in names]


def _encryption(shell: Shell) -> Encrypted:
    options = shell.options
    context = options.encryption_context or options.bucket
    return _encrypted(
        shell, options.keyring, context, keys=not options.plain_keys, check_names=not options.no_check_names
    )


def _encrypted(shell: Shell, keyring: str, context: str, **settings: bool) -> Encrypted:
    from slipstream.kv.codecs import Encrypted  # loads a cipher, which other commands do not need

    file = KeyringFile.read(keyring)
    if not file.is_private:
        shell.out.note(f"warning: other users may read {file.path}; chmod 600 it")
    return Encrypted(file.keyring(), context=context, **settings)

"""`slipstream kv put`, `create`, `update`, `revert`, `del` and `purge`: writes of keys and ranges of keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.kv.entries import typed_value
from slipstream.cli.kv.opening import add_bucket, add_key, opened
from slipstream.errors import ApiError, ErrorCode, UsageError

_EXAMPLES = {
    "put": """\
  slipstream kv put SETTINGS theme dark
  slipstream kv put SETTINGS logo <logo.png
  slipstream kv put SESSIONS alice '{"id": 7}' --codec json --ttl 15m""",
    "create": "  slipstream kv create SETTINGS theme dark",
    "update": """\
  slipstream kv update SETTINGS theme light 17
  slipstream kv update SETTINGS logo 17 <logo.png""",
}


def add(group: Commands) -> None:
    """Declare the commands."""
    for name, run, text in (
        ("put", _put, "store a value; without one, from stdin"),
        ("create", _create, "store a value if the key has none"),
        ("update", _update, "store a value if the key has this revision"),
    ):
        parser = add_key(group.add(name, run, text, examples=_EXAMPLES[name]))
        parser.add_argument("value", nargs="?", metavar="VALUE", help="the value (default: stdin)")
        if name == "update":
            parser.add_argument("revision", type=values.whole, metavar="REVISION", help="the key's revision; 0: none")
        _add_ttl(parser, "time to live of this value (kv add --value-ttl)")
    revert = add_key(group.add("revert", _revert, "store an older value of a key again"))
    revert.add_argument("revision", type=values.count, metavar="REVISION")
    _add_ttl(revert, "time to live of this value (kv add --value-ttl)")
    deleting = group.add(
        "del",
        _delete,
        "delete keys but keep their history; without a key, the whole bucket",
        aliases=("rm",),
        examples="  slipstream kv del SETTINGS theme\n  slipstream kv del SETTINGS --filter 'ui.>'",
    )
    purging = group.add(
        "purge",
        _purge,
        "delete keys with their history",
        examples="  slipstream kv purge SETTINGS theme\n  slipstream kv purge SETTINGS --filter 'ui.>'",
    )
    for parser in (deleting, purging):
        add_bucket(parser).add_argument("key", nargs="?", default="", metavar="KEY")
        parser.add_argument("--filter", action="append", metavar="FILTER", help="keys that match; may be repeated")
        parser.add_argument(
            "--last", type=values.count, metavar="REVISION", help="only if this is the key's current revision"
        )
        parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    _add_ttl(purging, "time to live of the marker that is left (kv add --value-ttl)")


def _add_ttl(parser: Parser, text: str) -> None:
    parser.add_argument("--ttl", type=values.duration, default=None, metavar="DURATION", help=text)


@contextmanager
def _ttl_explained(shell: Shell) -> Iterator[None]:
    """Say how to allow a TTL per value, where the bucket does not allow it."""
    try:
        yield
    except ApiError as error:
        if error.err_code != ErrorCode.MESSAGE_TTL_DISABLED:
            raise
        bucket = shell.options.bucket
        raise UsageError(
            f"bucket {bucket} has no per-value TTLs; enable them with slipstream kv edit {bucket} --value-ttl"
        ) from error


def _stored(shell: Shell, revision: int) -> None:
    if shell.out.is_json:
        shell.out.json({"bucket": shell.options.bucket, "key": shell.options.key, "revision": revision})
    else:
        shell.out.note(f"stored as revision {revision}")


def _put(shell: Shell) -> None:
    with opened(shell) as kv, _ttl_explained(shell):
        _stored(shell, kv.put(shell.options.key, typed_value(shell), ttl=shell.options.ttl))


def _create(shell: Shell) -> None:
    with opened(shell) as kv, _ttl_explained(shell):
        _stored(shell, kv.create(shell.options.key, typed_value(shell), ttl=shell.options.ttl))


def _update(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv, _ttl_explained(shell):
        _stored(shell, kv.update(options.key, typed_value(shell), last=options.revision, ttl=options.ttl))


def _revert(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv, _ttl_explained(shell):
        newest = kv.get(options.key)
        old = kv.get(options.key, revision=options.revision)
        _stored(shell, kv.update(options.key, old.value, last=newest.revision, ttl=options.ttl))


def _target(shell: Shell) -> str:
    """What is to be deleted, in words; empty if the options name no key and no range."""
    options = shell.options
    if options.filter and (options.key or options.last is not None):
        raise UsageError("--filter deletes every matching key; it cannot be combined with a key or --last")
    if options.last is not None and not options.key:
        raise UsageError("--last requires a key")
    if options.filter:
        return f"the keys of {options.bucket} that match {' or '.join(options.filter)}"
    return f"the key {options.key}" if options.key else ""


def _delete(shell: Shell) -> None:
    options = shell.options
    what = _target(shell) or f"the bucket {options.bucket} and everything in it"
    shell.confirm(f"Delete {what}?")
    if not options.key and not options.filter:
        _destroy(shell)
        shell.out.note(f"deleted {what}")
        return
    with opened(shell) as kv:
        if options.filter:
            _removed(shell, "deleted", kv.delete_range(*options.filter))
        else:
            kv.delete(options.key, last=options.last)
            shell.out.note(f"deleted {what}")


def _destroy(shell: Shell) -> None:
    """Remove the bucket; one with the usual names also if its configuration is too odd to open it."""
    options = shell.options
    if options.stream:
        with opened(shell) as kv:
            kv.destroy()
    else:
        with shell.connect() as client:
            shell.jetstream(client).delete_key_value(options.bucket)


def _purge(shell: Shell) -> None:
    options = shell.options
    what = _target(shell)
    if not what:
        raise UsageError("a key or --filter is required; --filter '>' is every key of the bucket")
    if options.filter and options.ttl is not None:
        raise UsageError("--ttl requires a key: markers of a range have no TTL")
    shell.confirm(f"Delete {what} with all history?")
    with opened(shell) as kv, _ttl_explained(shell):
        if options.filter:
            _removed(shell, "purged", kv.purge_range(*options.filter))
        else:
            kv.purge(options.key, last=options.last, ttl=options.ttl)
            shell.out.note(f"purged {options.key}")


def _removed(shell: Shell, done: str, count: int) -> None:
    if shell.out.is_json:
        shell.out.json({done: count})
    else:
        shell.out.note(f"{done} {count:,} {'key' if count == 1 else 'keys'}")

"""`slipstream kv …`: buckets, their keys and values, watches, locks and elections."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from slipstream import BlockingKeyValue, BucketConfig, Entry
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell, body
from slipstream.cli.output import payload, readable
from slipstream.cli.values import show_duration, show_size, show_time
from slipstream.errors import RequestTimeoutError, StreamNotFoundError

STOP_TIMEOUT = 10.0  # seconds for a command to exit after SIGTERM

# Option -> (field of the configuration, parser of its value, help).
_FIELDS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "--description": ("description", str, "description"),
    "--history": ("history", values.count, "values kept per key, 1 to 64 (default: 1)"),
    "--ttl": ("ttl", values.duration, "time to live of values"),
    "--max-value-size": ("max_value_size", values.size, "maximum size of a value"),
    "--max-bucket-size": ("max_bytes", values.size, "maximum size of the bucket"),
    "--storage": ("storage", str, "file or memory"),
    "--replicas": ("replicas", values.count, "number of replicas"),
    "--marker-ttl": ("limit_marker_ttl", values.duration, "time to live of delete markers; enables --ttl of put"),
    "--mirror": ("mirror", str, "create it as a read replica of this bucket"),
    "--source": ("sources", lambda text: tuple(values.names(text)), "create it as an aggregate of these buckets"),
}


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("kv", "manage and use Key-Value buckets")
    making = _bucket(
        group.add(
            "add",
            _add,
            "create a bucket",
            aliases=("create-bucket", "new"),
            examples="  slipstream kv add SETTINGS --history 5 --ttl 24h",
        )
    )
    for option, (_, read, text) in _FIELDS.items():
        making.add_argument(option, type=read, default=None, metavar="VALUE", help=text)
    _add_writing(group)
    _add_reading(group)
    _add_coordination(group)


def _add_writing(group: Commands) -> None:
    for name, run, text in (
        ("put", _put, "store a value; without one, from stdin"),
        ("create", _create, "store a value if the key has none"),
        ("update", _update, "store a value if the key has this revision"),
    ):
        parser = _key(group.add(name, run, text, examples=f"  slipstream kv {name} SETTINGS theme dark"))
        parser.add_argument("value", nargs="?")
        if name == "update":
            parser.add_argument("revision", type=values.whole)
        else:
            parser.add_argument(
                "--ttl", type=values.duration, default=None, metavar="TIME", help="time to live of this value"
            )
    for name, run, text in (
        ("del", _delete, "delete a key but keep its history; without a key, the whole bucket"),
        ("purge", _purge, "delete a key and its history"),
    ):
        parser = _bucket(group.add(name, run, text, aliases=("rm",) if name == "del" else ()))
        parser.add_argument("key", nargs="?" if name == "del" else None, default="")
        parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    revert = _key(group.add("revert", _revert, "store an older value of a key again"))
    revert.add_argument("revision", type=values.count)
    compact = _bucket(group.add("compact", _compact, "remove delete markers"))
    compact.add_argument(
        "--older-than", type=values.duration, default=None, metavar="TIME", help="only older markers (default: 30m)"
    )
    compact.add_argument("-f", "--force", action="store_true", help="skip the confirmation")


def _add_reading(group: Commands) -> None:
    getting = _key(
        group.add(
            "get",
            _get,
            "print the value of a key",
            examples="  slipstream kv get SETTINGS theme --raw --min-last-revision 17",
        )
    )
    getting.add_argument("--revision", type=values.count, default=0, help="this revision instead of the last")
    getting.add_argument("--raw", action="store_true", help="print the value only")
    history = _key(group.add("history", _history, "show the history of a key"))
    listing = group.add("ls", _list, "list the keys of a bucket, or all buckets", aliases=("list",))
    listing.add_argument("bucket", nargs="?", default="", metavar="BUCKET")
    listing.add_argument(
        "--filter", action="append", default=None, metavar="FILTER", help="only keys that match; may be repeated"
    )
    listing.add_argument("-v", "--values", action="store_true", help="show values as well")
    for parser in (getting, history, listing):
        parser.add_argument(
            "--min-last-revision",
            type=values.whole,
            default=0,
            metavar="N",
            help="require a read at least as new as this revision",
        )
    watching = _bucket(group.add("watch", _watch, "print changes of a bucket as they happen"))
    watching.add_argument("filters", nargs="*", default=[], metavar="FILTER", help="only keys that match")
    watching.add_argument("--history", dest="include_history", action="store_true", help="start with the whole history")
    watching.add_argument("--new", dest="updates_only", action="store_true", help="only changes from now on")
    watching.add_argument("--count", type=values.count, metavar="N", help="exit after this number of changes")
    _bucket(group.add("info", _info, "show a bucket", aliases=("status",)))


def _add_coordination(group: Commands) -> None:
    for name, run, text in (
        ("lock", _lock, "hold a lock while a command runs"),
        ("elect", _elect, "run a command while elected leader"),
    ):
        parser = _key(
            group.add(
                name,
                run,
                text,
                examples=f"  slipstream kv {name} LOCKS nightly -- ./job.sh   # SLIPSTREAM_TOKEN is its fencing token",
            )
        )
        parser.add_argument(
            "--ttl",
            type=values.duration,
            default=None,
            metavar="TIME",
            help="lease duration: it expires so long after this process ends",
        )
        parser.add_argument("--wait", type=values.seconds, default=None, metavar="TIME", help="maximum wait")
        parser.add_argument("program", nargs="+", metavar="COMMAND", help="the command, after --")


def _bucket(parser: Parser) -> Parser:
    parser.add_argument("bucket", metavar="BUCKET")
    return parser


def _key(parser: Parser) -> Parser:
    _bucket(parser).add_argument("key", metavar="KEY")
    return parser


class _Opened(NamedTuple):
    client: Any
    kv: BlockingKeyValue[bytes]

    def __enter__(self) -> BlockingKeyValue[bytes]:
        return self.kv

    def __exit__(self, *_: object) -> None:
        self.client.close()


def _open(shell: Shell) -> _Opened:
    client = shell.connect()
    try:
        return _Opened(client, shell.jetstream(client).key_value(shell.options.bucket))
    except BaseException:
        client.close()
        raise


def _add(shell: Shell) -> None:
    options = shell.options
    settings = {field: getattr(options, option[2:].replace("-", "_")) for option, (field, _, _) in _FIELDS.items()}
    config = BucketConfig(
        bucket=options.bucket, **{field: value for field, value in settings.items() if value is not None}
    )
    with shell.connect() as client:
        shell.jetstream(client).create_key_value(config)
    shell.out.note(f"created bucket {options.bucket}")


def _stored(shell: Shell, revision: int) -> None:
    if shell.out.is_json:
        shell.out.json({"bucket": shell.options.bucket, "key": shell.options.key, "revision": revision})
    else:
        shell.out.note(f"stored as revision {revision}")


def _put(shell: Shell) -> None:
    with _open(shell) as kv:
        _stored(shell, kv.put(shell.options.key, body(shell.options.value), ttl=shell.options.ttl))


def _create(shell: Shell) -> None:
    with _open(shell) as kv:
        _stored(shell, kv.create(shell.options.key, body(shell.options.value), ttl=shell.options.ttl))


def _update(shell: Shell) -> None:
    with _open(shell) as kv:
        _stored(shell, kv.update(shell.options.key, body(shell.options.value), last=shell.options.revision))


def _delete(shell: Shell) -> None:
    options = shell.options
    what = f"the key {options.key}" if options.key else f"the bucket {options.bucket} and everything in it"
    shell.confirm(f"Delete {what}?")
    if options.key:
        with _open(shell) as kv:
            kv.delete(options.key)
    else:
        with shell.connect() as client:
            shell.jetstream(client).delete_key_value(options.bucket)
    shell.out.note(f"deleted {what}")


def _purge(shell: Shell) -> None:
    shell.confirm(f"Delete the key {shell.options.key} with its history?")
    with _open(shell) as kv:
        kv.purge(shell.options.key)
    shell.out.note(f"purged {shell.options.key}")


def _revert(shell: Shell) -> None:
    options = shell.options
    with _open(shell) as kv:
        newest = kv.get(options.key)
        old = kv.get(options.key, revision=options.revision)
        _stored(shell, kv.update(options.key, old.value, last=newest.revision))


def _compact(shell: Shell) -> None:
    shell.confirm(f"Remove the delete markers from {shell.options.bucket}?")
    older = shell.options.older_than
    with _open(shell) as kv:
        removed = kv.purge_deletes() if older is None else kv.purge_deletes(older_than=older)
    shell.out.note(f"removed {removed:,} markers")


def _fields(entry: Entry[bytes]) -> dict[str, object]:
    fields: dict[str, object] = {
        "bucket": entry.bucket, "key": entry.key, "revision": entry.revision, "created": entry.created,
        "operation": entry.operation.value,
    }  # fmt: skip
    return fields | payload(entry.value)


def _get(shell: Shell) -> None:
    options = shell.options
    with _open(shell) as kv:
        entry = kv.get(options.key, revision=options.revision, min_last_revision=options.min_last_revision)
    if options.raw:
        shell.out.data(entry.value)
    elif shell.out.is_json:
        shell.out.json(_fields(entry))
    else:
        shell.out.text(f"{entry.bucket} > {entry.key} revision {entry.revision} at {show_time(entry.created)}\n")
        shell.out.text(readable(entry.value))


def _history(shell: Shell) -> None:
    with _open(shell) as kv:
        entries = kv.history(shell.options.key, min_last_revision=shell.options.min_last_revision)
    if shell.out.is_json:
        shell.out.json([_fields(entry) for entry in entries])
        return
    rows = [
        (entry.revision, entry.operation.value, show_time(entry.created), len(entry.value), readable(entry.value)[:60])
        for entry in entries
    ]  # fmt: skip
    shell.out.table(("Revision#", "Operation", "Created", "Size#", "Value"), rows)


def _list(shell: Shell) -> None:
    options = shell.options
    if not options.bucket:
        _list_buckets(shell)
        return
    filters, fresh = options.filter or [], options.min_last_revision
    if not options.values:
        with _open(shell) as kv:
            keys = sorted(kv.keys(*filters, min_last_revision=fresh))
        if shell.out.is_json:
            shell.out.json(keys)
        else:
            for key in keys:
                shell.out.text(key)
        return
    with _open(shell) as kv:
        entries = [entry for _, entry in sorted(kv.get_range(*filters, min_last_revision=fresh).items())]
    if shell.out.is_json:
        shell.out.json([_fields(entry) for entry in entries])
    else:
        rows = [(entry.key, entry.revision, readable(entry.value)[:80]) for entry in entries]
        shell.out.table(("Key", "Revision#", "Value"), rows)


def _list_buckets(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        found = []
        for name in sorted(js.key_values()):  # by their streams: one with an odd configuration must not hide the others
            with contextlib.suppress(StreamNotFoundError):  # deleted meanwhile
                found.append((name, js.stream(f"KV_{name}").info().state))
    if shell.out.is_json:
        shell.out.json([{"bucket": name, "values": state.messages, "bytes": state.bytes} for name, state in found])
    else:
        rows = [(name, f"{state.messages:,}", show_size(state.bytes)) for name, state in found]
        shell.out.table(("Bucket", "Values#", "Size#"), rows)


def _info(shell: Shell) -> None:
    with _open(shell) as kv:
        status = kv.status()
    facts = {
        "bucket": status.bucket, "values": status.values, "history": status.history, "bytes": status.bytes,
        "ttl": status.ttl.total_seconds(), "backing_store": status.backing_store,
    }  # fmt: skip
    if shell.out.is_json:
        shell.out.json(facts)
    else:
        shell.out.facts(f"Bucket {status.bucket}", [
            ("Values", f"{status.values:,}"), ("History", status.history), ("Size", show_size(status.bytes)),
            ("TTL", show_duration(status.ttl) if status.ttl else "unlimited"), ("Backing store", status.backing_store),
        ])  # fmt: skip


def _watch(shell: Shell) -> None:
    options = shell.options
    with _open(shell) as kv, kv.watch(
        *options.filters, include_history=options.include_history, updates_only=options.updates_only
    ) as watch:  # fmt: skip
        shell.out.note(f"watching {options.bucket}")
        number = 0
        for entry in watch:
            if entry is None:
                continue
            if shell.out.is_json:
                shell.out.json(_fields(entry))
            else:
                value = "" if entry.is_deleted else f": {readable(entry.value)}"
                shell.out.text(
                    f"[{show_time(entry.created)}] {entry.operation.value} {entry.bucket} > {entry.key}{value}"
                )
            sys.stdout.flush()
            number += 1
            if number == options.count:
                return


class _Held(Protocol):
    def check(self) -> int: ...


def _lock(shell: Shell) -> None:
    options = shell.options
    with _open(shell) as kv:
        lock = kv.lock(options.key, **({"ttl": options.ttl} if options.ttl else {}))
        try:
            lock.acquire(timeout=options.wait)
        except RequestTimeoutError as exc:
            raise RequestTimeoutError(
                f"{options.key} is held by another process, and was not released in time"
            ) from exc
        try:
            _run(shell, lock, "the lock")
        finally:
            lock.release()


def _elect(shell: Shell) -> None:
    options = shell.options
    with _open(shell) as kv:
        name = f"{os.uname().nodename}-{os.getpid()}"
        election = kv.election(options.key, name=name, **({"ttl": options.ttl} if options.ttl else {}))
        shell.out.note(f"waiting to become the leader of {options.key}")
        election.campaign(timeout=options.wait)
        try:
            _run(shell, election, "the leadership")
        finally:
            election.resign()


def _run(shell: Shell, held: _Held, what: str) -> None:
    """Run the command while the lock or leadership is held; terminate it if that is lost."""
    token = held.check()
    shell.out.note(f"got {what}, token {token}")
    process = subprocess.Popen(shell.options.program, env=os.environ | {"SLIPSTREAM_TOKEN": str(token)})
    try:
        while process.poll() is None:
            held.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:  # it must not go on: another process may hold the lock by now
            process.kill()
            process.wait(timeout=STOP_TIMEOUT)
        raise
    if process.returncode:
        raise SystemExit(process.returncode)  # that of the command

"""`slipstream kv get`, `history`, `ls`, `snapshot` and `watch`: reads of keys, ranges and changes."""

from __future__ import annotations

import contextlib
import sys

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.kv.entries import entry_fields, show_entries, show_line, shown_value, stored_bytes
from slipstream.cli.kv.opening import add_bucket, add_bucket_options, add_key, opened
from slipstream.cli.values import show_size, show_time
from slipstream.errors import StreamNotFoundError


def add(group: Commands) -> None:
    """Declare the commands."""
    getting = add_key(
        group.add(
            "get",
            _get,
            "print the value of a key",
            examples="  slipstream kv get SETTINGS theme --raw --min-last-revision 17",
        )
    )
    getting.add_argument(
        "--revision", type=values.count, default=0, metavar="N", help="read this revision instead of the last"
    )
    getting.add_argument("--raw", action="store_true", help="print the value only")
    history = add_key(group.add("history", _history, "show the history of a key"))
    listing = group.add("ls", _list, "list the keys of a bucket, or all buckets", aliases=("list",))
    listing.add_argument("bucket", nargs="?", default="", metavar="BUCKET")
    add_bucket_options(listing)
    listing.add_argument("-v", "--values", action="store_true", help="show values as well")
    snapshot = add_bucket(
        group.add(
            "snapshot",
            _snapshot,
            "print the values of a range of keys as of one revision",
            examples="  slipstream kv snapshot SETTINGS --filter 'ui.>' --revision 17",
        )
    )
    snapshot.add_argument(
        "--revision", type=values.count, default=0, metavar="N", help="values as of this revision (default: now)"
    )
    watching = add_bucket(
        group.add(
            "watch",
            _watch,
            "print changes of a bucket as they happen",
            examples="  slipstream kv watch SETTINGS 'ui.>' --updates-only\n"
            "  slipstream kv watch SETTINGS --resume-from 18 --json",
        )
    )
    watching.add_argument("filters", nargs="*", default=[], metavar="FILTER", help="only keys that match")
    for parser in (listing, snapshot, watching):
        parser.add_argument(
            "--filter", action="append", default=[], metavar="FILTER", help="only keys that match; may be repeated"
        )
    begin = watching.add_mutually_exclusive_group()
    begin.add_argument("--history", dest="include_history", action="store_true", help="begin with all stored values")
    begin.add_argument("--updates-only", "--new", action="store_true", help="only changes from now on")
    begin.add_argument(
        "--resume-from",
        type=values.count,
        default=0,
        metavar="N",
        help="begin with the changes from revision N",
    )
    watching.add_argument("--ignore-deletes", action="store_true", help="leave deletes out")
    watching.add_argument("--meta-only", action="store_true", help="leave values out")
    watching.add_argument("--count", type=values.count, metavar="N", help="exit after this number of changes")
    for parser in (getting, history, listing, snapshot, watching):
        parser.add_argument(
            "--min-last-revision",
            type=values.whole,
            default=0,
            metavar="N",
            help="require a read at least as new as this revision",
        )


def _get(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        entry = kv.get(options.key, revision=options.revision, min_last_revision=options.min_last_revision)
    if options.raw:
        shell.out.data(stored_bytes(entry.value))
    elif shell.out.is_json:
        shell.out.json(entry_fields(entry))
    else:
        shell.out.text(f"{entry.bucket} > {entry.key} revision {entry.revision} at {show_time(entry.created)}\n")
        shell.out.text(shown_value(entry.value))


def _history(shell: Shell) -> None:
    with opened(shell) as kv:
        entries = kv.history(shell.options.key, min_last_revision=shell.options.min_last_revision)
    if shell.out.is_json:
        shell.out.json([entry_fields(entry) for entry in entries])
        return
    rows = [
        (entry.revision, entry.operation.value, show_time(entry.created), len(stored_bytes(entry.value)),
         shown_value(entry.value)[:60] if not entry.is_deleted else "")
        for entry in entries
    ]  # fmt: skip
    shell.out.table(("Revision#", "Operation", "Created", "Size#", "Value"), rows)


def _list(shell: Shell) -> None:
    options = shell.options
    if not options.bucket:
        _list_buckets(shell)
        return
    filters, fresh = options.filter, options.min_last_revision
    if options.values:
        with opened(shell) as kv:
            found = kv.get_range(*filters, min_last_revision=fresh)
        show_entries(shell, [entry for _, entry in sorted(found.items())])
        return
    with opened(shell) as kv:
        keys = sorted(kv.keys(*filters, min_last_revision=fresh))
    if shell.out.is_json:
        shell.out.json(keys)
    else:
        for key in keys:
            shell.out.text(key)
        if not keys:
            shell.out.note("no keys")


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
        shell.out.table(("Bucket", "Values#", "Size#"), rows, empty="no buckets")


def _snapshot(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        found = kv.snapshot(*options.filter, revision=options.revision, min_last_revision=options.min_last_revision)
    show_entries(shell, [entry for _, entry in sorted(found.items())])


def _watch(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv, kv.watch(
        *options.filters,
        *options.filter,
        include_history=options.include_history,
        ignore_deletes=options.ignore_deletes,
        meta_only=options.meta_only,
        updates_only=options.updates_only,
        resume_from=options.resume_from,
        min_last_revision=options.min_last_revision,
    ) as watch:  # fmt: skip
        shell.out.note(f"watching {options.bucket}")
        number = 0
        for entry in watch:
            if entry is None:
                continue
            show_line(shell, entry, has_value=not options.meta_only)
            sys.stdout.flush()
            number += 1
            if number == options.count:
                return

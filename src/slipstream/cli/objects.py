"""`slipstream object …`: object buckets, and their objects as files."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from slipstream import ObjectInfo, ObjectStoreConfig
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.values import show_duration, show_size, show_time
from slipstream.errors import UsageError


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("object", "manage and use object buckets", aliases=("obj",))
    making = _bucket(group.add("add", _add, "create a bucket", aliases=("create",)))
    making.add_argument("--description", default="", metavar="TEXT", help="description")
    making.add_argument("--ttl", type=values.duration, default=None, metavar="DURATION", help="time to live of objects")
    making.add_argument("--max-bytes", type=values.size, default=-1, metavar="SIZE", help="maximum size of the bucket")
    making.add_argument("--storage", default="file", choices=("file", "memory"), help="storage (default: file)")
    making.add_argument("--replicas", type=values.count, default=1, metavar="N", help="number of replicas")
    editing = _bucket(group.add(
        "edit",
        _edit,
        "change the named settings of a bucket",
        examples="  slipstream object edit PICTURES --max-bytes 10GB --ttl 720h",
    ))  # fmt: skip
    editing.add_argument("--description", metavar="TEXT", help="description")
    editing.add_argument("--ttl", type=values.duration, metavar="DURATION", help="time to live of objects")
    editing.add_argument("--max-bytes", type=values.size, metavar="SIZE", help="maximum size of the bucket")
    editing.add_argument("--replicas", type=values.count, metavar="N", help="number of replicas")
    putting = _bucket(
        group.add(
            "put",
            _put,
            "store a file",
            examples=(
                "  slipstream object put PICTURES cat.png\n  tar c . | slipstream object put BACKUPS --name today.tar"
            ),
        )
    )
    putting.add_argument("file", nargs="?", metavar="FILE", help="file to store (default, or '-': stdin)")
    putting.add_argument("--name", default="", metavar="OBJECT", help="name of the object (default: that of the file)")
    putting.add_argument("--description", default="", metavar="TEXT", help="description")
    putting.add_argument(
        "-H", "--header", type=values.header, action="append", metavar="NAME:VALUE", help="may be repeated"
    )
    getting = _bucket(group.add("get", _get, "write an object to a file"))
    getting.add_argument("name", metavar="OBJECT")
    getting.add_argument(
        "-O", "--output", default="", metavar="FILE", help="'-' is stdout (default: the name of the object)"
    )
    getting.add_argument("-f", "--force", action="store_true", help="overwrite an existing file")
    getting.add_argument(
        "--min-last-seq",
        type=values.whole,
        default=0,
        metavar="SEQ",
        help="require a read at least as new as this sequence",
    )
    listing = group.add("ls", _list, "list the objects of a bucket, or all buckets", aliases=("list",))
    listing.add_argument("bucket", nargs="?", default="", metavar="BUCKET")
    _bucket(group.add("watch", _watch, "print changes of a bucket as they happen"))
    info = _bucket(group.add("info", _info, "show a bucket or an object", aliases=("show",)))
    info.add_argument("name", nargs="?", default="", metavar="OBJECT")
    removing = _bucket(group.add("rm", _delete, "remove an object, or a whole bucket", aliases=("del",)))
    removing.add_argument("name", nargs="?", default="", metavar="OBJECT")
    sealing = _bucket(group.add("seal", _seal, "make a bucket permanently read-only"))
    for parser in (removing, sealing):
        parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")


def _bucket(parser: Parser) -> Parser:
    parser.add_argument("bucket", metavar="BUCKET")
    return parser


def _add(shell: Shell) -> None:
    options = shell.options
    config = ObjectStoreConfig(
        bucket=options.bucket, description=options.description, max_bytes=options.max_bytes, storage=options.storage,
        replicas=options.replicas, **({"ttl": options.ttl} if options.ttl is not None else {}),
    )  # fmt: skip
    with shell.connect() as client:
        shell.jetstream(client).create_object_store(config)
    shell.out.note(f"created bucket {options.bucket}")


_STREAM_FIELDS = {
    "description": "description", "ttl": "max_age", "max_bytes": "max_bytes", "replicas": "num_replicas",
}  # fmt: skip


def _edit(shell: Shell) -> None:
    options = shell.options
    changes = {field: getattr(options, option) for option, field in _STREAM_FIELDS.items()}
    with shell.connect() as client:
        js = shell.jetstream(client)
        now = js.object_store(options.bucket).status().stream_info.config
        config = now.replace(**{field: value for field, value in changes.items() if value is not None})
        if config == now:
            shell.out.note("nothing to change")
            return
        js.update_stream(config)
    shell.out.note(f"changed bucket {options.bucket}")


def _put(shell: Shell) -> None:
    options = shell.options
    piped = options.file in (None, "-")
    name = options.name or ("" if piped else Path(options.file).name)
    if not name:
        raise UsageError("an object from stdin needs --name")
    file = sys.stdin.buffer if piped else Path(options.file).open("rb")  # noqa: SIM115 -- closed below
    try:
        total = None if piped else os.fstat(file.fileno()).st_size
        with shell.connect() as client, shell.out.progress(name, total) as meter:
            info = shell.jetstream(client).object_store(options.bucket).put(
                name, file, description=options.description, headers=values.headers(options.header), progress=meter
            )  # fmt: skip
    finally:
        if not piped:
            file.close()
    _show(shell, info)


def _get(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        store = shell.jetstream(client).object_store(options.bucket)
        if options.output == "-":
            reader = store.get(options.name, min_last_seq=options.min_last_seq)
            for piece in reader:
                shell.out.data(piece)
            return
        # The name is untrusted: only its last part is used, so that no file is written elsewhere.
        target = Path(options.output or Path(options.name).name or "object")
        if target.exists() and not options.force:
            raise UsageError(f"{target} already exists; pass --force to overwrite it")
        info = store.info(options.name, min_last_seq=options.min_last_seq)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                with shell.out.progress(options.name, info.size) as meter:
                    store.get_into(options.name, file, min_last_seq=options.min_last_seq, progress=meter)
                file.close()
                Path(file.name).replace(target)  # atomically: the file is complete, or does not exist
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    shell.out.note(f"wrote {show_size(info.size)} to {target}")


def _list(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        if not shell.options.bucket:
            statuses = [js.object_store(name).status() for name in sorted(js.object_stores())]
            if shell.out.is_json:
                shell.out.json([{"bucket": each.bucket, "size": each.size, "sealed": each.sealed} for each in statuses])
            else:
                rows = [(each.bucket, each.description, show_size(each.size)) for each in statuses]
                shell.out.table(("Bucket", "Description", "Size#"), rows, empty="no buckets")
            return
        unreadable: list[Exception] = []
        infos = list(js.object_store(shell.options.bucket).list(malformed=unreadable.append))
    if shell.out.is_json:
        shell.out.json([info.to_dict() for info in infos])
    else:
        rows = [(info.name, show_size(info.size), show_time(info.mtime)) for info in infos]
        shell.out.table(("Name", "Size#", "Time"), rows, empty="no objects")
    for error in unreadable:
        shell.out.note(f"not listed: {error}")


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        store = shell.jetstream(client).object_store(shell.options.bucket)
        if shell.options.name:
            _show(shell, store.info(shell.options.name))
            return
        status = store.status()
    if shell.out.is_json:
        shell.out.json(status.stream_info.to_dict())
        return
    shell.out.facts(f"Bucket {status.bucket}", [
        ("Description", status.description or None), ("Size", show_size(status.size)), ("Storage", status.storage),
        ("Replicas", status.replicas), ("TTL", show_duration(status.ttl) if status.ttl else "unlimited"),
        ("Sealed", "yes" if status.sealed else "no"),
    ])  # fmt: skip


def _watch(shell: Shell) -> None:
    with (
        shell.connect() as client,
        shell.jetstream(client).object_store(shell.options.bucket).watch(updates_only=True) as watch,
    ):
        shell.out.note(f"watching {shell.options.bucket}")
        for info in watch:
            if info is None:
                continue
            if shell.out.is_json:
                shell.out.json(info.to_dict())
            else:
                what = "DEL" if info.deleted else "PUT"
                shell.out.text(f"[{show_time(info.mtime)}] {what} {info.name}: {show_size(info.size)}")


def _show(shell: Shell, info: ObjectInfo) -> None:
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    link = info.link
    shell.out.facts(f"{info.bucket} > {info.name}", [
        ("Description", info.description or None), ("Size", show_size(info.size)), ("Chunks", info.chunks),
        ("Digest", info.digest or None), ("Time", show_time(info.mtime) if info.mtime > 0 else None),
        ("Link to", f"{link.bucket} > {link.name}" if link else None), ("Sequence", info.sequence),
    ])  # fmt: skip


def _delete(shell: Shell) -> None:
    options = shell.options
    what = f"the object {options.name}" if options.name else f"the bucket {options.bucket} and everything in it"
    shell.confirm(f"Remove {what}?")
    with shell.connect() as client:
        js = shell.jetstream(client)
        if options.name:
            js.object_store(options.bucket).delete(options.name)
        else:
            js.delete_object_store(options.bucket)
    shell.out.note(f"removed {what}")


def _seal(shell: Shell) -> None:
    shell.confirm(f"Seal the bucket {shell.options.bucket}? It cannot be undone.")
    with shell.connect() as client:
        shell.jetstream(client).object_store(shell.options.bucket).seal()
    shell.out.note(f"sealed {shell.options.bucket}")

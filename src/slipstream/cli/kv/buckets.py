"""`slipstream kv add`, `edit`, `info` and `compact`: buckets as a whole."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from slipstream import BlockingKeyValue, BucketConfig, BucketSource, ExternalStream, Placement, Republish
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.config_options import Fields, Setting, add_fields, changed_fields
from slipstream.cli.kv.editor import edit_value
from slipstream.cli.kv.opening import add_bucket, add_bucket_options, opened
from slipstream.cli.values import show_duration, show_size
from slipstream.errors import UsageError

_EXTERNAL = ("api", "deliver")


def _sources(text: str) -> tuple[BucketSource, ...]:
    """`eu,us,keys=orders.*,prefix=us`: buckets, and settings of the one before them; `domain` is short for its API."""
    found: list[dict[str, str]] = []
    known = {field.name for field in fields(BucketSource)} - {"bucket", "external"} | {"domain", *_EXTERNAL}
    for part in values.names(text):
        name, equals, value = part.partition("=")
        if not equals:
            found.append({"bucket": name})
        elif not found or name not in known:
            raise argparse.ArgumentTypeError(
                f"must be a bucket, then settings of it ({', '.join(sorted(known))}), got {part!r}"
            )
        else:
            found[-1][name] = value
    return tuple(_source(settings) for settings in found)


def _source(settings: dict[str, str]) -> BucketSource:
    domain = settings.pop("domain", "")
    external: dict[str, Any] = {name: settings.pop(name) for name in _EXTERNAL if name in settings}
    if domain:
        external["api"] = f"$JS.{domain}.API"
    return BucketSource(**settings, external=ExternalStream(**external) if external else None)


def _mirror(text: str) -> BucketSource:
    found = _sources(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"must be one bucket, got {text!r}")
    return found[0]


_FIELDS: dict[str, Setting] = {
    "--description": ("description", str, "description"),
    "--history": ("history", values.count, "values kept per key, 1 to 64 (default: 1)"),
    "--ttl": ("ttl", values.duration, "time to live of values; 0: forever"),
    "--max-value-size": ("max_value_size", values.size, "maximum size of a value"),
    "--max-bucket-size": ("max_bytes", values.size, "maximum size of the bucket"),
    "--replicas": ("replicas", values.count, "number of replicas"),
    "--value-ttl": ("value_ttl", bool, "allow a TTL per value: put --ttl"),
    "--marker-ttl": (
        "limit_marker_ttl",
        values.duration,
        "keep markers of expired keys for this long; implies --value-ttl",
    ),
    "--compress": ("compression", bool, "compress it on disk"),
}
_FIXED: dict[str, Setting] = {  # they cannot be changed later
    "--storage": ("storage", str, "file or memory"),
    "--subject-prefix": ("subject_prefix", str, "prefix of its keys (default: $KV.<bucket>)"),
    "--mirror": ("mirror", _mirror, "make it a read replica of this bucket"),
}
_EXAMPLES = {
    "add": """\
  slipstream kv add SETTINGS --history 5 --ttl 24h
  slipstream kv add COPY --mirror SETTINGS,domain=hub
  slipstream kv add ALL --source 'EU,US,keys=orders.*,prefix=us'""",
    "edit": """\
  slipstream kv edit SETTINGS --history 10 --value-ttl
  slipstream kv edit SETTINGS theme              # its value, in $EDITOR""",
}


def add(group: Commands) -> None:
    """Declare the commands."""
    making = group.add("add", _add, "create a bucket", aliases=("create-bucket", "new"), examples=_EXAMPLES["add"])
    text = "update the given settings of a bucket, or edit the value of a key"
    editing = group.add("edit", _edit, text, examples=_EXAMPLES["edit"])
    for parser, settings in ((making, _FIELDS | _FIXED), (editing, _FIELDS)):
        parser.add_argument("bucket", metavar="BUCKET")
        if parser is editing:
            parser.add_argument("key", nargs="?", default="", metavar="KEY", help="edit the value of this key instead")
            add_bucket_options(parser)
        else:
            parser.add_argument(
                "--stream", default="", metavar="NAME", help="name of its stream (default: KV_<bucket>)"
            )
        add_fields(parser, settings, has_file=False)
        parser.add_argument(
            "--source", type=_sources, action="append", metavar="BUCKETS", help="make it an aggregate of these buckets"
        )
        for option, metavar, text in (
            ("--cluster", "NAME", "cluster that holds it"),
            ("--tags", "TAGS", "tags of the servers that hold it"),
            ("--republish-source", "SUBJECT", "subjects to republish (default: all)"),
            ("--republish-destination", "SUBJECT", "republish values there; '': do not"),
        ):
            parser.add_argument(option, metavar=metavar, help=text)
        parser.add_argument("--republish-headers", action="store_true", help="republish headers only")
    add_bucket(group.add("info", _info, "show a bucket", aliases=("status",)))
    compact = add_bucket(group.add("compact", _compact, "remove deleted keys for good, with their delete markers"))
    compact.add_argument(
        "--older-than", type=values.duration, default=None, metavar="DURATION", help="only older markers (default: 30m)"
    )
    compact.add_argument(
        "--recorded",
        action="store_true",
        help="record the purge, so that older snapshots raise instead of omitting keys",
    )
    compact.add_argument("-f", "--force", action="store_true", help="skip the confirmation")


def _config(options: argparse.Namespace, settings: Fields) -> BucketConfig:
    """The configuration with what the options name, and nothing else."""
    changes: dict[str, Any] = changed_fields(options, settings)
    if options.stream:
        changes["stream"] = options.stream
    if options.source:
        changes["sources"] = tuple(source for several in options.source for source in several)
    if options.cluster is not None or options.tags is not None:
        changes["placement"] = Placement(cluster=options.cluster or "", tags=tuple(values.names(options.tags or "")))
    if options.republish_destination is not None:
        changes["republish"] = _republish(options)
    elif options.republish_source or options.republish_headers:
        raise UsageError("--republish-source and --republish-headers require --republish-destination")
    return BucketConfig(bucket=options.bucket, **changes)


def _republish(options: argparse.Namespace) -> Republish | None:
    if not options.republish_destination:
        return None
    return Republish(
        src=options.republish_source or "",
        dest=options.republish_destination,
        headers_only=options.republish_headers,
    )


def _add(shell: Shell) -> None:
    config = _config(shell.options, _FIELDS | _FIXED)
    with shell.connect() as client:
        kv = shell.jetstream(client).create_key_value(config)
        shell.out.note(f"created bucket {shell.options.bucket}")
        if shell.out.is_json:
            _show(shell, kv)


def _edit(shell: Shell) -> None:
    if shell.options.key:
        if _config(shell.options, _FIELDS).fields_set - {"bucket", "stream"}:
            raise UsageError("a key and settings of the bucket are mutually exclusive")
        edit_value(shell)
        return
    config = _config(shell.options, _FIELDS)
    if config.fields_set <= {"bucket", "stream"}:
        raise UsageError("nothing to change: pass the settings to change, e.g. --history 5")
    with shell.connect() as client:
        _show(shell, shell.jetstream(client).update_key_value(config))


def _info(shell: Shell) -> None:
    with opened(shell) as kv:
        _show(shell, kv)


def _show(shell: Shell, kv: BlockingKeyValue[Any]) -> None:
    status = kv.status()
    if shell.out.is_json:
        shell.out.json({
            "bucket": status.bucket, "values": status.values, "history": status.history, "bytes": status.bytes,
            "ttl": status.ttl.total_seconds(), "backing_store": status.backing_store,
            "last_revision": status.last_revision, "value_ttl": status.value_ttl,
            "marker_ttl": status.limit_marker_ttl.total_seconds(), "mirror_of": status.mirror_of,
            "stream_info": status.stream_info.to_dict(),
        })  # fmt: skip
        return
    config, stream = status.config, status.stream_info.config
    shell.out.facts(f"Bucket {status.bucket}", [
        ("Description", config.description or None),
        ("Values", f"{status.values:,}, of {status.stream_info.state.num_subjects:,} keys"),
        ("Last revision", f"{status.last_revision:,}"), ("Size", show_size(status.bytes)), ("History", config.history),
        ("TTL", show_duration(config.ttl) if config.ttl else "unlimited"),
        ("TTL per value", "allowed" if config.value_ttl else "not allowed"),
        ("Markers", f"kept {show_duration(config.limit_marker_ttl)}" if config.limit_marker_ttl else None),
        ("Value size", show_size(config.max_value_size) if config.max_value_size >= 0 else None),
        ("Bucket size", show_size(config.max_bytes) if config.max_bytes >= 0 else None),
        ("Mirror of", status.mirror_of or None),
        ("Sources", ", ".join(source.name for source in stream.sources) or None),
        ("Republished to", config.republish.dest if config.republish else None),
        ("Stream", stream.name), ("Subjects", ", ".join(stream.subjects) or None),
        ("Storage", f"{config.storage}{', compressed' if config.compression else ''}"),
        ("Replicas", config.replicas), ("Backing store", status.backing_store),
        *((f"Metadata: {key}", value) for key, value in config.metadata.items()),
    ])  # fmt: skip


def _compact(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove the deleted keys of {options.bucket} for good?")
    older = {} if options.older_than is None else {"older_than": options.older_than}
    with opened(shell) as kv:
        removed = kv.purge_deletes(recorded=options.recorded, **older)
    if shell.out.is_json:
        shell.out.json({"removed": removed})
    else:
        shell.out.note(f"removed {removed:,} markers")

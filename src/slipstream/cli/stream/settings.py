"""Options that set the configuration of a stream: limits, storage, origin and features."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from slipstream import ExternalStream, Placement, Republish, StreamConfig, StreamSource, SubjectTransform
from slipstream.cli import values
from slipstream.cli.common import Parser
from slipstream.cli.config_options import Fields, add_fields, changed_fields, declare_fields, read_config
from slipstream.errors import UsageError

_GENERAL: Fields = {
    "--subjects": ("subjects", lambda text: tuple(values.names(text)), "subjects, separated by commas"),
    "--description": ("description", str, "description"),
}
_LIMITS: Fields = {
    "--retention": ("retention", values.choice("limits", "interest", "workqueue"), "when messages are removed"),
    "--discard": ("discard", values.choice("old", "new"), "which messages to discard when it is full"),
    "--discard-per-subject": ("discard_new_per_subject", bool, "with discard new: also when a subject is full"),
    "--max-msgs": ("max_msgs", int, "maximum number of messages; -1: unlimited"),
    "--max-bytes": ("max_bytes", values.size, "maximum size, such as 1GB"),
    "--max-age": ("max_age", values.duration, "maximum age of messages, such as 24h; 0: unlimited"),
    "--max-msgs-per-subject": ("max_msgs_per_subject", int, "maximum number of messages per subject"),
    "--max-msg-size": ("max_msg_size", values.size, "maximum size of a message"),
    "--max-consumers": ("max_consumers", int, "maximum number of consumers"),
    "--dupe-window": ("duplicate_window", values.duration, "duplicate window"),
}
_STORAGE: Fields = {
    "--storage": ("storage", values.choice("file", "memory"), "where messages are stored"),
    "--compression": ("compression", values.choice("none", "s2"), "compression on disk"),
    "--replicas": ("num_replicas", int, "number of replicas, 1 to 5"),
    "--first-sequence": ("first_seq", values.count, "sequence of the first message"),
}
_FEATURES: Fields = {
    "--allow-direct": ("allow_direct", bool, "Direct Get, from any replica (default: allowed)"),
    "--mirror-direct": ("mirror_direct", bool, "a mirror answers Direct Gets of its origin"),
    "--allow-atomic": ("allow_atomic", bool, "atomic batches"),
    "--allow-batched": ("allow_batched", bool, "fast batches"),
    "--allow-rollup": ("allow_rollup_hdrs", bool, "the rollup header"),
    "--allow-msg-ttl": ("allow_msg_ttl", bool, "a TTL per message"),
    "--marker-ttl": ("subject_delete_marker_ttl", values.duration, "keep markers of expired subjects for this long"),
    "--allow-schedules": ("allow_msg_schedules", bool, "scheduled messages"),
    "--allow-counter": ("allow_msg_counter", bool, "counters"),
    "--deny-delete": ("deny_delete", bool, "deny deleting messages"),
    "--deny-purge": ("deny_purge", bool, "deny purging the stream"),
}
_FIELDS: Fields = {**_GENERAL, **_LIMITS, **_STORAGE, **_FEATURES}
FLAGS = {option[2:]: field for option, (field, read, _) in _FIELDS.items() if read is bool}
_ORIGIN = ("api", "deliver", "domain", "filter", "seq", "since", "to")


def add_settings(parser: Parser) -> None:
    """Declare the options."""
    add_fields(parser, _GENERAL)
    declare_fields(parser, _LIMITS, title="limits")
    declare_fields(parser, _STORAGE, title="storage")
    group = parser.add_argument_group("placement")
    group.add_argument("--cluster", metavar="NAME", help="cluster that holds it")
    group.add_argument("--tags", metavar="TAGS", help="tags of the servers that hold it, separated by commas")
    group = parser.add_argument_group("origin and copies")
    group.add_argument("--mirror", type=_mirror, metavar="STREAM", help="make it a mirror of this stream")
    group.add_argument(
        "--source",
        type=_sources,
        action="append",
        metavar="STREAMS",
        help="take messages from these streams; may be repeated. Settings of a stream follow its name: "
        "filter=SUBJECT, to=SUBJECT, seq=N, since=TIME, domain=NAME, api=PREFIX, deliver=PREFIX",
    )
    for option, text in (
        ("--transform-source", "subjects to store under another subject (default: all)"),
        ("--transform-destination", "the subject to store them under; '': disable"),
        ("--republish-source", "subjects to republish (default: all)"),
        ("--republish-destination", "republish stored messages to this subject; '': disable"),
    ):
        group.add_argument(option, metavar="SUBJECT", help=text)
    group.add_argument("--republish-headers", action="store_true", help="republish headers only")
    declare_fields(parser, _FEATURES, title="features")
    parser.add_argument("--no-ack", action="store_true", default=None, help="do not acknowledge publishes")


def changed(options: argparse.Namespace, base: StreamConfig, *, name: str) -> StreamConfig:
    """The configuration with what a file and the options name, and nothing else changed."""
    config = replace(read_config(options.config, StreamConfig.from_json, base), name=name)
    changes = changed_fields(options, _FIELDS)
    if options.no_ack:
        changes["no_ack"] = True
    if options.cluster is not None or options.tags is not None:
        changes["placement"] = Placement(cluster=options.cluster or "", tags=tuple(values.names(options.tags or "")))
    if options.mirror:
        changes["mirror"] = options.mirror
    if options.source:
        changes["sources"] = tuple(source for several in options.source for source in several)
    for field, found in (("subject_transform", _transform(options)), ("republish", _republish(options))):
        if found is not False:
            changes[field] = found
    return replace(config, **changes)


def _transform(options: argparse.Namespace) -> Any:
    """The transform that the options name; None to remove it, False to leave it as it is."""
    if options.transform_destination is None:
        if options.transform_source:
            raise UsageError("--transform-source requires --transform-destination")
        return False
    if not options.transform_destination:
        return None
    return SubjectTransform(src=options.transform_source or "", dest=options.transform_destination)


def _republish(options: argparse.Namespace) -> Any:
    if options.republish_destination is None:
        if options.republish_source or options.republish_headers:
            raise UsageError("--republish-source and --republish-headers require --republish-destination")
        return False
    if not options.republish_destination:
        return None
    source, target = options.republish_source or "", options.republish_destination
    return Republish(src=source, dest=target, headers_only=options.republish_headers)


def _sources(text: str) -> tuple[StreamSource, ...]:
    """`EU,US,filter=orders.>,seq=100`: streams, and settings of the one before them; `domain` is short for its API."""
    found: list[dict[str, str]] = []
    for part in values.names(text):
        name, equals, value = part.partition("=")
        if not equals:
            found.append({"name": name})
        elif not found or name not in _ORIGIN:
            raise argparse.ArgumentTypeError(
                f"must be a stream, then settings of it ({', '.join(_ORIGIN)}), got {part!r}"
            )
        else:
            found[-1][name] = value
    return tuple(_source(settings) for settings in found)


def _source(settings: dict[str, str]) -> StreamSource:
    fields: dict[str, Any] = {}
    external: dict[str, Any] = {name: settings[name] for name in ("api", "deliver") if name in settings}
    if "domain" in settings:
        external["api"] = f"$JS.{settings['domain']}.API"
    if external:
        fields["external"] = ExternalStream(**external)
    if "seq" in settings:
        fields["opt_start_seq"] = values.count(settings["seq"])
    if "since" in settings:
        fields["opt_start_time"] = values.past(settings["since"])
    if "to" in settings:  # servers take a filter or transforms; the source of a transform is one
        fields["subject_transforms"] = (SubjectTransform(src=settings.get("filter", ">"), dest=settings["to"]),)
    else:
        fields["filter_subject"] = settings.get("filter", "")
    return StreamSource(settings["name"], **fields)


def _mirror(text: str) -> StreamSource:
    found = _sources(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"must be one stream, got {text!r}")
    return found[0]

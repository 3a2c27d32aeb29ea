"""`slipstream stream …` and `slipstream account`: management of streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from slipstream import BlockingJetStream, StreamConfig
from slipstream.cli import backup, values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.config_options import Fields, add_fields, changed_fields, read_config
from slipstream.cli.get import show_stored
from slipstream.cli.values import show_age, show_duration, show_limit, show_size, show_time
from slipstream.errors import UsageError

_FIELDS: Fields = {
    "--subjects": ("subjects", lambda text: tuple(values.names(text)), "subjects, separated by commas"),
    "--description": ("description", str, "description"),
    "--storage": ("storage", values.choice("file", "memory"), "file or memory"),
    "--retention": ("retention", values.choice("limits", "interest", "workqueue"), "limits, interest or workqueue"),
    "--discard": ("discard", values.choice("old", "new"), "old or new: which messages to discard when it is full"),
    "--max-msgs": ("max_msgs", int, "maximum number of messages; -1: unlimited"),
    "--max-bytes": ("max_bytes", values.size, "maximum size, such as 1GB"),
    "--max-age": ("max_age", values.duration, "maximum age of messages, such as 24h; 0: unlimited"),
    "--max-msgs-per-subject": ("max_msgs_per_subject", int, "maximum number of messages per subject"),
    "--max-msg-size": ("max_msg_size", values.size, "maximum size of a message"),
    "--max-consumers": ("max_consumers", int, "maximum number of consumers"),
    "--replicas": ("num_replicas", int, "number of replicas, 1 to 5"),
    "--dupe-window": ("duplicate_window", values.duration, "duplicate window"),
    "--compression": ("compression", values.choice("none", "s2"), "none or s2"),
}
_FLAGS: dict[str, tuple[str, bool, str]] = {
    "--allow-direct": ("allow_direct", True, "allow Direct Get, from any replica"),
    "--no-allow-direct": ("allow_direct", False, "disable Direct Get"),
    "--allow-rollup": ("allow_rollup_hdrs", True, "allow the rollup header"),
    "--deny-delete": ("deny_delete", True, "deny deleting messages"),
    "--deny-purge": ("deny_purge", True, "deny purging the stream"),
    "--no-ack": ("no_ack", True, "do not acknowledge publishes"),
    "--allow-msg-ttl": ("allow_msg_ttl", True, "allow a TTL per message"),
}


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("stream", "manage streams", aliases=("str",))
    for name, run, text, aliases in (
        ("add", _add, "create a stream", ("create", "new")),
        ("edit", _edit, "change the named settings of a stream", ("update",)),
    ):
        parser = group.add(
            name,
            run,
            text,
            aliases=aliases,
            examples=f"  slipstream stream {name} ORDERS --subjects 'orders.>' --max-age 24h",
        )
        parser.add_argument("name", metavar="STREAM")
        _config_options(parser)
    listing = group.add("ls", _list, "list streams", aliases=("list",))
    listing.add_argument("--subject", default="", help="only streams with this subject")
    listing.add_argument("-n", "--names", action="store_true", help="print names only")
    listing.add_argument("-a", "--all", action="store_true", help="include the streams of buckets (KV_ and OBJ_)")
    info = _named(group.add("info", _info, "show the configuration and state of a stream"))
    info.add_argument(
        "--subjects", dest="subjects_filter", default="", metavar="FILTER", help="count messages by subject"
    )
    _destructive(_named(group.add("rm", _delete, "remove a stream and all its messages", aliases=("delete", "del"))))
    purge = _destructive(_named(group.add("purge", _purge, "remove messages from a stream")))
    purge.add_argument("--subject", default="", metavar="FILTER", help="only messages that match")
    purge.add_argument("--seq", type=values.count, help="only messages below this sequence")
    purge.add_argument("--keep", type=values.count, default=0, help="keep this number of newest messages")
    drop = _destructive(_named(group.add("rmm", _delete_message, "remove one message from a stream")))
    drop.add_argument("seq", type=values.count, help="sequence of the message")
    view = _named(group.add("view", _view, "print messages of a stream"))
    view.add_argument("count", nargs="?", type=values.count, default=25, help="number of messages (default: 25)")
    view.add_argument("--seq", type=values.count, default=1, help="first sequence (default: 1)")
    view.add_argument("--subject", default="", metavar="FILTER", help="only messages that match")
    view.add_argument("--raw", action="store_true", help="print payloads only")
    get = _named(group.add("get", _get, "print one message of a stream"))
    get.add_argument("seq", nargs="?", type=values.count, help="sequence of the message")
    get.add_argument("-S", "--last-for", metavar="SUBJECT", help="the last message of a subject")
    get.add_argument("--raw", action="store_true", help="print the payload only")
    backup.add(group)
    commands.add("account", _account, "show the JetStream usage of the account")


def _named(parser: Parser) -> Parser:
    parser.add_argument("name", metavar="STREAM")
    return parser


def _destructive(parser: Parser) -> Parser:
    parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    return parser


def _config_options(parser: Parser) -> None:
    add_fields(parser, _FIELDS)
    for option, (field, value, text) in _FLAGS.items():
        parser.add_argument(option, dest=field, action="store_const", const=value, default=None, help=text)


def _changes(shell: Shell) -> dict[str, Any]:
    options = shell.options
    flags = {field: getattr(options, field) for field, _, _ in _FLAGS.values() if getattr(options, field) is not None}
    return changed_fields(options, _FIELDS) | flags


def _from_file(shell: Shell, base: StreamConfig) -> StreamConfig:
    return replace(read_config(shell.options.config, StreamConfig.from_json, base), name=shell.options.name)


def _add(shell: Shell) -> None:
    # Most commands read by Direct Get, so it is enabled by default.
    config = replace(_from_file(shell, StreamConfig(name=shell.options.name, allow_direct=True)), **_changes(shell))
    if not config.subjects and not config.mirror and not config.sources:
        config = replace(config, subjects=(config.name,))
    with shell.connect() as client:
        shell.jetstream(client).create_stream(config)
        _show_info(shell, shell.jetstream(client))


def _edit(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        now = js.stream(shell.options.name).info().config
        changed = replace(_from_file(shell, now), **_changes(shell))
        if changed == now:
            shell.out.note("nothing to change")
            return
        js.update_stream(changed)
        _show_info(shell, js)


def _list(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        if shell.options.names:
            found = sorted(name for name in js.stream_names(subject=shell.options.subject) if _is_listed(shell, name))
            if shell.out.is_json:
                shell.out.json(found)
            else:
                for name in found:
                    shell.out.text(name)
            return
        infos = sorted(js.streams(subject=shell.options.subject), key=lambda info: info.config.name)
    infos = [info for info in infos if _is_listed(shell, info.config.name)]
    if shell.out.is_json:
        shell.out.json([info.to_dict() for info in infos])
        return
    rows = [
        (info.config.name, info.config.description, f"{info.state.messages:,}", show_size(info.state.bytes),
         show_age(info.created), show_age(info.state.last_ts))
        for info in infos
    ]  # fmt: skip
    columns = ("Name", "Description", "Messages#", "Size#", "Created", "Last message")
    hidden = "" if shell.options.all else " (-a lists the streams of buckets as well)"
    shell.out.table(columns, rows, title="Streams", empty=f"no streams{hidden}")


def _is_listed(shell: Shell, name: str) -> bool:
    """Streams of buckets are listed by `kv ls` and `object ls`, and here with --all only."""
    return shell.options.all or not name.startswith(("KV_", "OBJ_"))


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        _show_info(shell, shell.jetstream(client))


def _show_info(shell: Shell, js: BlockingJetStream) -> None:
    wanted = getattr(shell.options, "subjects_filter", "")
    info = js.stream(shell.options.name).info(subjects_filter=wanted)
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    config, state = info.config, info.state
    if wanted:
        shell.out.table(("Subject", "Messages#"), sorted(state.subjects.items()), empty="no subjects")
        return
    limits = [
        ("Messages", show_limit(config.max_msgs)), ("Per subject", show_limit(config.max_msgs_per_subject)),
        ("Bytes", show_size(config.max_bytes)), ("Message size", show_size(config.max_msg_size)),
        ("Age", show_duration(config.max_age) if config.max_age else "unlimited"),
        ("Consumers", show_limit(config.max_consumers)),
    ]  # fmt: skip
    flags = [option[2:] for option, (field, value, _) in _FLAGS.items() if value and getattr(config, field)]
    shell.out.facts(f"Stream {config.name}", [
        ("Description", config.description or None), ("Created", show_time(info.created)),
        ("Subjects", ", ".join(config.subjects) or None),
        ("Mirror of", config.mirror.name if config.mirror else None),
        ("Sources", ", ".join(source.name for source in config.sources) or None),
        ("Storage", config.storage), ("Retention", config.retention), ("Discard", config.discard),
        ("Replicas", config.num_replicas), ("Duplicate window", show_duration(config.duplicate_window)),
        ("Allows", ", ".join(flags) or None), ("Sealed", "yes" if config.sealed else None),
        *((f"Limit: {name}", value) for name, value in limits if value != "unlimited"),
        *((f"Metadata: {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
        ("Messages", f"{state.messages:,}"), ("Bytes", show_size(state.bytes)),
        ("First sequence", f"{state.first_seq:,} at {show_time(state.first_ts)}"),
        ("Last sequence", f"{state.last_seq:,} at {show_time(state.last_ts)}"),
        ("Deleted", f"{state.num_deleted:,}" if state.num_deleted else None),
        ("Subjects held", f"{state.num_subjects:,}"), ("Consumers", state.consumer_count),
        ("Leader", info.cluster.get("leader") or None),
    ])  # fmt: skip


def _delete(shell: Shell) -> None:
    shell.confirm(f"Remove the stream {shell.options.name} and all its messages?")
    with shell.connect() as client:
        shell.jetstream(client).delete_stream(shell.options.name)
    shell.out.note(f"removed {shell.options.name}")


def _purge(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove messages of the stream {options.name}?")
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        removed = stream.purge(subject=options.subject, below=options.seq, keep=options.keep)
    if shell.out.is_json:
        shell.out.json({"purged": removed})
    else:
        shell.out.note(f"removed {removed:,} messages")


def _delete_message(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove message {options.seq} of the stream {options.name}?")
    with shell.connect() as client:
        shell.jetstream(client).stream(options.name).delete_message(options.seq)
    shell.out.note(f"removed message {options.seq}")


def _view(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        _show_first(shell, stream.read(start=options.seq, subject=options.subject), options.count)


def _show_first(shell: Shell, messages: Iterable[Any], count: int) -> None:
    for number, message in enumerate(messages, 1):
        show_stored(shell, message)
        if number == count:
            return


def _get(shell: Shell) -> None:
    options = shell.options
    if (options.seq is None) == (options.last_for is None):
        raise UsageError("exactly one of a sequence and --last-for is required")
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        found = stream.get(options.seq) if options.seq is not None else stream.get_last(options.last_for)
    show_stored(shell, found)


def _account(shell: Shell) -> None:
    with shell.connect() as client:
        info = shell.jetstream(client).account_info()
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    limits = info.limits
    shell.out.facts("JetStream of this account", [
        ("Domain", info.domain or None), ("Memory", f"{show_size(info.memory)} of {show_size(limits.max_memory)}"),
        ("Storage", f"{show_size(info.storage)} of {show_size(limits.max_storage)}"),
        ("Streams", f"{info.streams:,} of {show_limit(limits.max_streams)}"),
        ("Consumers", f"{info.consumers:,} of {show_limit(limits.max_consumers)}"),
        ("API requests", f"{info.api.total:,}, {info.api.errors:,} failed"),
    ])  # fmt: skip

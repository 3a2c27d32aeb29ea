"""`slipstream stream ls`, `info`, `report`, `find` and `subjects`: streams, their state and their lag."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from slipstream import BlockingJetStream, ConsumerInfo, StreamInfo
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.output import WARNING, Colored
from slipstream.cli.stream import settings
from slipstream.cli.values import show_age, show_duration, show_limit, show_size, show_time
from slipstream.errors import StreamNotFoundError

_ORDER = values.choice("lag", "name", "messages", "size", "consumers")


def add(group: Commands) -> None:
    """Declare the commands."""
    listing = group.add("ls", _list, "list streams", aliases=("list",))
    listing.add_argument("--subject", default="", metavar="SUBJECT", help="only streams with this subject")
    listing.add_argument("-n", "--names", action="store_true", help="print names only")
    info = group.add("info", _info, "show the configuration and state of a stream")
    info.add_argument("name", metavar="STREAM")
    info.add_argument(
        "--subjects", dest="subjects_filter", default="", metavar="FILTER", help="count messages by subject"
    )
    state = group.add("state", _state, "show the state of a stream")
    state.add_argument("name", metavar="STREAM")
    gaps = group.add("gaps", _gaps, "list the sequences that were removed from within a stream")
    gaps.add_argument("name", metavar="STREAM")
    report = group.add(
        "report",
        _report,
        "show streams with the lag of their consumers, mirrors and replicas",
        examples="  slipstream stream report\n  slipstream stream report --sort size -a",
    )
    report.add_argument(
        "--sort", type=_ORDER, default="lag", metavar="{lag,name,messages,size,consumers}",
        help="order of the streams (default: lag, the largest first)",
    )  # fmt: skip
    _find_options(group.add(
        "find",
        _find,
        "list streams with all of the given properties",
        examples="  slipstream stream find --empty --created 7d\n  slipstream stream find --consumers 0 --idle 24h",
    ))  # fmt: skip
    for parser in (listing, report):
        parser.add_argument("-a", "--all", action="store_true", help="include the streams of buckets (KV_ and OBJ_)")
    subjects = group.add(
        "subjects",
        _subjects,
        "list the subjects of a stream with their message counts",
        examples="  slipstream stream subjects ORDERS 'orders.eu.>' --sort name",
    )
    subjects.add_argument("name", metavar="STREAM")
    subjects.add_argument("filter", nargs="?", default=">", metavar="FILTER", help="only subjects that match")
    subjects.add_argument("-n", "--names", action="store_true", help="print names only")
    subjects.add_argument(
        "--sort", type=values.choice("messages", "name"), default="messages", metavar="{messages,name}",
        help="order of the subjects (default: messages, the most first)",
    )  # fmt: skip


def _find_options(parser: Parser) -> None:
    parser.add_argument("--subject", default="", metavar="SUBJECT", help="has this subject")
    parser.add_argument("--empty", action="store_true", help="has no messages")
    parser.add_argument("--idle", type=values.duration, metavar="DURATION", help="stored no message for this time")
    parser.add_argument("--created", type=values.duration, metavar="DURATION", help="was created this long ago or more")
    parser.add_argument("--consumers", type=values.whole, metavar="N", help="has at most this number of consumers")
    parser.add_argument("--messages", type=values.count, metavar="N", help="has at least this number of messages")
    parser.add_argument("--replicas", type=values.count, metavar="N", help="has at most this number of replicas")
    parser.add_argument("--mirrored", action="store_true", help="is a mirror")
    parser.add_argument("--sourced", action="store_true", help="has sources")
    parser.add_argument("--sealed", action="store_true", help="is sealed")
    parser.add_argument("--invert", action="store_true", help="list all other streams instead")
    parser.set_defaults(names=True, all=True)


def _found(shell: Shell, js: BlockingJetStream) -> list[StreamInfo]:
    """The streams that the options allow, by name."""
    subject = getattr(shell.options, "subject", "")
    infos = sorted(js.streams(subject=subject), key=lambda info: info.config.name)
    return [info for info in infos if _is_listed(shell, info.config.name)]


def _is_listed(shell: Shell, name: str) -> bool:
    """Streams of buckets are listed by `kv ls` and `object ls`, and here with --all only."""
    return shell.options.all or not name.startswith(("KV_", "OBJ_"))


def _show_names(shell: Shell, names: Iterable[str], *, empty: str) -> None:
    found = list(names)
    if shell.out.is_json:
        shell.out.json(found)
        return
    for name in found:
        shell.out.text(name)
    if not found and empty:
        shell.out.note(empty)


def _list(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        if shell.options.names:
            names = sorted(name for name in js.stream_names(subject=shell.options.subject) if _is_listed(shell, name))
            _show_names(shell, names, empty="")
            return
        infos = _found(shell, js)
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


def _find(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        js = shell.jetstream(client)
        found = {info.config.name for info in _found(shell, js) if _matches(info, options)}
        if options.invert:
            found = set(js.stream_names()) - found
    _show_names(shell, sorted(found), empty="no streams")


def _matches(info: StreamInfo, options: Any) -> bool:
    config, state, now = info.config, info.state, info.ts if info.ts > 0 else time.time_ns()

    def is_older(instant: int, age: timedelta) -> bool:
        return now - instant >= age / timedelta(microseconds=1) * 1000

    return (
        (not options.empty or not state.messages)
        and (options.idle is None or is_older(max(state.last_ts, info.created), options.idle))
        and (options.created is None or is_older(info.created, options.created))
        and (options.consumers is None or state.consumer_count <= options.consumers)
        and (options.messages is None or state.messages >= options.messages)
        and (options.replicas is None or config.num_replicas <= options.replicas)
        and (not options.mirrored or config.mirror is not None)
        and (not options.sourced or bool(config.sources))
        and (not options.sealed or config.sealed)
    )


def _subjects(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        counts = shell.jetstream(client).stream(options.name).info(subjects_filter=options.filter).state.subjects
    by_name = options.sort == "name" or options.names
    found = sorted(counts.items(), key=lambda item: (0 if by_name else -item[1], item[0]))
    if options.names:
        _show_names(shell, [subject for subject, _ in found], empty="no subjects")
    elif shell.out.is_json:
        shell.out.json(dict(found))
    else:
        rows = [(subject, f"{count:,}") for subject, count in found]
        shell.out.table(("Subject", "Messages#"), rows, empty="no subjects")


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        show_info(shell, shell.jetstream(client), shell.options.name)


def show_info(shell: Shell, js: BlockingJetStream, name: str) -> None:
    """Print the configuration and state of a stream."""
    wanted = getattr(shell.options, "subjects_filter", "")
    info = js.stream(name).info(subjects_filter=wanted)
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
    flags = [option for option, field in settings.FLAGS.items() if getattr(config, field)]
    flags += ["no-ack"] if config.no_ack else []
    placement, transform, republish = config.placement, config.subject_transform, config.republish
    shell.out.facts(f"Stream {config.name}", [
        ("Description", config.description or None), ("Created", show_time(info.created)),
        ("Subjects", ", ".join(config.subjects) or None),
        ("Mirror of", _origin(config.mirror, info.mirror) if config.mirror else None),
        *(("Source", _origin(source, status)) for source, status in _sources(info)),
        ("Transforms", f"{transform.src or '>'} to {transform.dest}" if transform else None),
        ("Republishes", f"{republish.src or '>'} to {republish.dest}" if republish else None),
        ("Storage", config.storage), ("Retention", config.retention), ("Discard", config.discard),
        ("Replicas", config.num_replicas),
        ("Placement", ", ".join((*filter(None, (placement.cluster,)), *placement.tags)) if placement else None),
        ("Duplicate window", show_duration(config.duplicate_window)),
        ("Allows", ", ".join(flags) or None), ("Sealed", "yes" if config.sealed else None),
        *((f"Limit: {name}", value) for name, value in limits if value != "unlimited"),
        *((f"Metadata: {key}", value) for key, value in config.metadata.items() if not key.startswith("_nats.")),
        *_state_facts(info),
        ("Leader", info.cluster.get("leader") or None),
        *(("Replica", _replica(peer)) for peer in info.cluster.get("replicas") or ()),
    ])  # fmt: skip


def _state(shell: Shell) -> None:
    with shell.connect() as client:
        info = shell.jetstream(client).stream(shell.options.name).info()
    if shell.out.is_json:
        shell.out.json(info.to_dict()["state"])
    else:
        shell.out.facts(f"State of {info.config.name}", _state_facts(info))


def _state_facts(info: StreamInfo) -> list[tuple[str, object]]:
    state = info.state
    return [
        ("Messages", f"{state.messages:,}"), ("Bytes", show_size(state.bytes)),
        ("First sequence", _sequence(state.first_seq, state.first_ts)),
        ("Last sequence", _sequence(state.last_seq, state.last_ts)),
        ("Deleted", f"{state.num_deleted:,}" if state.num_deleted else None),
        ("Subjects held", f"{state.num_subjects:,}"), ("Consumers", state.consumer_count),
    ]  # fmt: skip


def _sequence(seq: int, when: int) -> str:
    return f"{seq:,} at {show_time(when)}" if when > 0 else f"{seq:,}"  # a stream that never had a message has no time


def _gaps(shell: Shell) -> None:
    with shell.connect() as client:
        state = shell.jetstream(client).stream(shell.options.name).info(deleted_details=True).state
    ranges = list(_ranges(state.deleted))
    if shell.out.is_json:
        shell.out.json([{"first": first, "last": last} for first, last in ranges])
        return
    rows = [(f"{first:,}", f"{last:,}", f"{last - first + 1:,}") for first, last in ranges]
    shell.out.table(("First#", "Last#", "Messages#"), rows, title="Removed", empty="no gaps")
    if len(state.deleted) < state.num_deleted:
        shell.out.note(f"the server listed {len(state.deleted):,} of {state.num_deleted:,} removed messages")


def _ranges(seqs: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Runs of sequences without a gap, as their first and last one."""
    first = last = 0
    for seq in sorted(seqs):
        if last and seq == last + 1:
            last = seq
            continue
        if last:
            yield first, last
        first = last = seq
    if last:
        yield first, last


def _sources(info: StreamInfo) -> Iterable[tuple[Any, Any]]:
    """The sources of a stream with what the server says of them; it need not know all of them yet."""
    status = {each.get("name"): each for each in info.sources}
    return [(source, status.get(source.name, {})) for source in info.config.sources]


def _origin(source: Any, status: Any) -> str:
    parts = [source.name]
    if source.filter_subject:
        parts.append(f"filter {source.filter_subject}")
    parts += [f"{each.src} to {each.dest}" for each in source.subject_transforms]
    if source.external:
        parts.append(f"API {source.external.api}")
    if "lag" in status:
        parts.append(f"{status['lag']:,} behind")
    return ", ".join(parts)


def _replica(peer: Any) -> str:
    state = "offline" if peer.get("offline") else "current" if peer.get("current") else "outdated"
    return f"{peer.get('name')}, {state}" + (f", {peer['lag']:,} behind" if peer.get("lag") else "")


def _report(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        infos = _found(shell, js)
        consumers: dict[str, list[ConsumerInfo]] = {}
        with shell.out.count("streams", len(infos)) as meter:
            for number, info in enumerate(infos, 1):
                name = info.config.name
                try:
                    consumers[name] = list(js.stream(name).consumers()) if info.state.consumer_count else []
                except StreamNotFoundError:  # deleted meanwhile
                    continue
                if meter is not None:
                    meter(number)
    rows = [_row(info, consumers[info.config.name]) for info in infos if info.config.name in consumers]
    key = shell.options.sort
    rows.sort(key=lambda row: (row["stream"] if key == "name" else -row[_KEYS[key]], row["stream"]))
    if shell.out.is_json:
        shell.out.json(rows)
        return
    table = [
        (row["stream"], f"{row['messages']:,}", show_size(row["bytes"]), row["consumers"], _lag(row["lag"]),
         row["slowest"], _replicas(row["replicas"], row["replicas_behind"]), show_age(row["last"]))
        for row in rows
    ]  # fmt: skip
    columns = ("Stream", "Messages#", "Size#", "Consumers#", "Lag#", "Slowest", "Replicas", "Last message")
    hidden = "" if shell.options.all else " (-a lists the streams of buckets as well)"
    shell.out.table(columns, table, title="Streams", empty=f"no streams{hidden}")
    origins = [origin for row in rows for origin in _origins(row)]
    if origins:
        shell.out.table(("Stream", "Kind", "Origin", "Behind#", "Last contact"), origins, title="Mirrors and sources")


_KEYS = {"lag": "lag", "messages": "messages", "size": "bytes", "consumers": "consumers"}


def _row(info: StreamInfo, consumers: list[ConsumerInfo]) -> dict[str, Any]:
    """A line of the report: what a stream holds, and how far its readers are behind."""
    slowest = max(consumers, key=lambda each: each.num_pending + each.num_ack_pending, default=None)
    peers = info.cluster.get("replicas") or ()
    return {
        "stream": info.config.name,
        "storage": info.config.storage,
        "messages": info.state.messages,
        "bytes": info.state.bytes,
        "deleted": info.state.num_deleted,
        "consumers": len(consumers),
        "lag": slowest.num_pending + slowest.num_ack_pending if slowest else 0,
        "slowest": slowest.name if slowest and slowest.num_pending + slowest.num_ack_pending else "",
        "replicas": info.config.num_replicas,
        "replicas_behind": sum(1 for peer in peers if peer.get("offline") or not peer.get("current")),
        "last": info.state.last_ts,
        "mirror": dict(info.mirror),
        "sources": [dict(source) for source in info.sources],
    }


def _lag(lag: int) -> str:
    return Colored(f"{lag:,}", WARNING if lag else "")


def _replicas(number: int, behind: int) -> str:
    return Colored(f"{number}, {behind} behind", WARNING) if behind else str(number) if number > 1 else ""


def _origins(row: dict[str, Any]) -> Iterable[tuple[object, ...]]:
    for kind, origin in (
        *(("mirror", each) for each in (row["mirror"],) if each),
        *(("source", each) for each in row["sources"]),
    ):
        active = origin.get("active", -1)
        age = show_age(time.time_ns() - active) if active >= 0 else "never"
        yield row["stream"], kind, origin.get("name", ""), _lag(origin.get("lag", 0)), age

"""`slipstream consumer ls`, `info`, `report` and `find`: consumers, and how far they are behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream import ConsumerInfo
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.output import BAD, WARNING, Colored
from slipstream.cli.values import show_age, show_duration, show_time
from slipstream.errors import StreamNotFoundError

_ORDER = values.choice("lag", "name", "unacked", "redelivered")


def add(group: Commands) -> None:
    """Declare the commands."""
    listing = group.add("ls", _list, "list the consumers of a stream", aliases=("list",))
    listing.add_argument("stream", metavar="STREAM")
    listing.add_argument("-n", "--names", action="store_true", help="print names only")
    info = group.add("info", _info, "show the configuration and state of a consumer")
    info.add_argument("stream", metavar="STREAM")
    info.add_argument("name", metavar="CONSUMER")
    report = group.add(
        "report",
        _report,
        "show the consumers of a stream, or of all, the largest lag first",
        examples="  slipstream consumer report\n  slipstream consumer report ORDERS --sort redelivered",
    )
    report.add_argument(
        "stream", nargs="?", default="", metavar="STREAM", help="only consumers of this stream (default: all)"
    )
    report.add_argument("-a", "--all", action="store_true", help="include the streams of buckets (KV_ and OBJ_)")
    report.add_argument(
        "--sort", type=_ORDER, default="lag", metavar="{lag,name,unacked,redelivered}",
        help="order of the consumers (default: lag, the largest first)",
    )  # fmt: skip


def _list(shell: Shell) -> None:
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(shell.options.stream)
        if shell.options.names:
            found = sorted(stream.consumer_names())
            if shell.out.is_json:
                shell.out.json(found)
            else:
                for name in found:
                    shell.out.text(name)
            return
        infos = sorted(stream.consumers(), key=lambda info: info.name)
    if shell.out.is_json:
        shell.out.json([info.to_dict() for info in infos])
        return
    rows = [
        (info.name, f"{info.num_pending:,}", f"{info.num_ack_pending:,}", f"{info.num_redelivered:,}",
         "push" if info.config.deliver_subject else "pull", info.config.ack_policy, info.config.description)
        for info in infos
    ]  # fmt: skip
    columns = ("Name", "Pending#", "Unacked#", "Redelivered#", "Kind", "Ack", "Description")
    shell.out.table(columns, rows, title=f"Consumers of {shell.options.stream}", empty="no consumers")


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        show_info(shell, shell.jetstream(client).stream(shell.options.stream).consumer(shell.options.name).info())


def show_info(shell: Shell, info: ConsumerInfo) -> None:
    """Print the configuration and state of a consumer."""
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    config = info.config
    filters = ", ".join(config.filter_subjects) or config.filter_subject
    shell.out.facts(f"Consumer {info.stream_name} > {info.name}", [
        ("Description", config.description or None), ("Created", show_time(info.created)),
        ("Kind", f"push to {config.deliver_subject}" if config.deliver_subject else "pull"),
        ("Durable", "yes" if config.durable_name else "no"), ("Filter", filters or None),
        ("Deliver", config.deliver_policy), ("Replay", config.replay_policy), ("Ack", config.ack_policy),
        ("Ack wait", show_duration(config.ack_wait) if config.ack_wait else None),
        ("Max deliver", config.max_deliver if config.max_deliver > 0 else None),
        ("Max unacknowledged", config.max_ack_pending if config.max_ack_pending > 0 else None),
        ("Paused", f"for another {show_duration(info.pause_remaining)}" if info.paused else None),
        ("Delivered", f"{info.delivered.consumer_seq:,}, up to stream sequence {info.delivered.stream_seq:,}"),
        ("Acknowledged", f"all up to stream sequence {info.ack_floor.stream_seq:,}"),
        ("Unacknowledged", f"{info.num_ack_pending:,}"), ("Redelivered", f"{info.num_redelivered:,}"),
        ("Waiting pulls", f"{info.num_waiting:,}" if not config.deliver_subject else None),
        ("Messages to come", f"{info.num_pending:,}"),
    ])  # fmt: skip


def _report(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        js = shell.jetstream(client)
        is_all = options.all or options.stream
        names = [options.stream] if options.stream else sorted(js.stream_names())
        names = [name for name in names if is_all or not name.startswith(("KV_", "OBJ_"))]
        found: list[ConsumerInfo] = []
        with shell.out.count("streams", len(names)) as meter:
            for number, name in enumerate(names, 1):
                try:
                    found += js.stream(name).consumers()
                except StreamNotFoundError:
                    if options.stream:
                        raise
                if meter is not None:
                    meter(number)
    key = options.sort
    rows = sorted((report_row(info) for info in found), key=lambda row: (
        0 if key == "name" else -row[key], row["stream"], row["consumer"],
    ))  # fmt: skip
    if shell.out.is_json:
        shell.out.json(rows)
        return
    shell.out.table(COLUMNS, report_rows(rows), title="Consumers", empty="no consumers")


COLUMNS = ("Consumer", "Lag#", "Unacked#", "Redelivered#", "Stream", "Last delivery", "Last ack", "State")


def report_rows(rows: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Lines of the report for a table of `COLUMNS`."""
    return [
        (row["consumer"], Colored(f"{row['lag']:,}", WARNING if row["lag"] else ""),
         Colored(f"{row['unacked']:,}", WARNING if row["is_full"] else ""),
         Colored(f"{row['redelivered']:,}", WARNING if row["redelivered"] else ""),
         row["stream"], show_age(row["delivered_at"]), show_age(row["acked_at"]),
         Colored(row["state"], BAD if row["state"] == "idle" and row["lag"] else ""))
        for row in rows
    ]  # fmt: skip


def report_row(info: ConsumerInfo) -> dict[str, Any]:
    """A line of the report. `lag` counts what was not delivered and what was not acknowledged."""
    config, most = info.config, info.config.max_ack_pending
    is_full = 0 < most <= info.num_ack_pending
    is_read = info.num_waiting > 0 if not config.deliver_subject else info.push_bound
    state = "paused" if info.paused else "acks missing" if is_full else "read" if is_read else "idle"
    return {
        "stream": info.stream_name,
        "consumer": info.name,
        "lag": info.num_pending + info.num_ack_pending,
        "pending": info.num_pending,
        "unacked": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "waiting_pulls": info.num_waiting,
        "is_full": is_full,
        "state": state,
        "delivered_at": info.delivered.last_active or 0,
        "acked_at": info.ack_floor.last_active or 0,
    }

"""`slipstream top`: streams, consumers and connections of a server, live.

Streams and consumers are asked for with JetStream's API, so that it works on any server and without a system account;
connections with the monitoring port. Rates are differences between two looks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream import ConsumerInfo, StreamInfo
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.observe.monitoring import add_monitor, fetch
from slipstream.cli.output import WARNING, Colored
from slipstream.cli.values import show_size
from slipstream.errors import StreamNotFoundError

if TYPE_CHECKING:
    from slipstream import BlockingClient

_SORTS = {"lag": "lag", "rate": "in_per_second", "messages": "messages", "size": "bytes", "name": "stream"}
_FRAME = 5  # lines of a table that are not rows: frame, title, header
_MOST_CONSUMERS = 200  # streams with consumers that are asked about at each look


class Look(NamedTuple):
    """The state of a server at one moment."""

    at: float
    streams: list[StreamInfo]
    consumers: list[ConsumerInfo]
    server: dict[str, Any]
    connections: list[dict[str, Any]]


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "top",
        _top,
        "show streams, consumers and connections, live",
        examples="  slipstream top\n  slipstream top --monitor http://127.0.0.1:8222 --interval 5s",
    )
    add_monitor(parser)
    parser.add_argument(
        "--interval", type=values.seconds, default=2.0, metavar="DURATION", help="time between updates (default: 2s)"
    )
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of updates")
    parser.add_argument("-a", "--all", action="store_true", help="include the streams of buckets (KV_ and OBJ_)")
    parser.add_argument(
        "--sort", type=values.choice(*_SORTS), default="lag", metavar="{lag,rate,messages,size,name}",
        help="order of streams and consumers (default: lag)",
    )  # fmt: skip


def _top(shell: Shell) -> None:
    with shell.connect() as client:
        earlier = _look(shell, client)  # rates are those since then
        if not shell.out.is_terminal:
            _repeat(shell, client, earlier, lambda report: _print(shell, report))
            return
        with shell.out.live() as update:
            _repeat(shell, client, earlier, lambda report: update(_screen(shell, report)))


def _repeat(shell: Shell, client: BlockingClient, earlier: Look, show: Any) -> None:
    number = 0
    while True:
        number += 1
        if number > 1:  # the first report is at once, without rates
            time.sleep(shell.options.interval)
            now = _look(shell, client)
            show(_report(shell, client, earlier, now))
            earlier = now
        else:
            show(_report(shell, client, earlier, earlier))
        if number == shell.options.count:
            return


def _look(shell: Shell, client: BlockingClient) -> Look:
    js = shell.jetstream(client)
    streams = [info for info in js.streams() if shell.options.all or not info.config.name.startswith(("KV_", "OBJ_"))]
    consumers: list[ConsumerInfo] = []
    for info in [info for info in streams if info.state.consumer_count][:_MOST_CONSUMERS]:
        try:
            consumers += js.stream(info.config.name).consumers()
        except StreamNotFoundError:  # deleted meanwhile
            continue
    address: str = shell.options.monitor
    server: dict[str, Any] = {}
    connections: Rows = []
    if address:
        server = fetch(address, "varz", shell.timeout)
        connections = fetch(address, "connz?sort=msgs_to&limit=100", shell.timeout).get("connections") or []
    return Look(time.monotonic(), streams, consumers, server, connections)


Rows = list[dict[str, Any]]


def _report(shell: Shell, client: BlockingClient, earlier: Look, now: Look) -> dict[str, Any]:
    """Figures of one look, and rates since the one before."""
    consumers = _consumers(earlier, now)
    lags: dict[str, int] = {}
    for row in consumers:
        lags[row["stream"]] = max(lags.get(row["stream"], 0), row["lag"])
    streams = _streams(earlier, now, lags)
    order = shell.options.sort
    streams.sort(key=lambda row: (-row[_SORTS[order]] if order != "name" else 0, row["stream"]))
    key = "out_per_second" if order == "rate" else "lag"
    consumers.sort(key=lambda row: (-row[key] if order != "name" else 0, row["stream"], row["consumer"]))
    info, server = client.server_info, now.server
    fields = ("cid", "name", "ip", "pending_bytes", "in_msgs", "out_msgs", "subscriptions")
    return {
        "server": info.server_name,
        "version": info.version,
        "streams": streams,
        "consumers": consumers,
        "connections": [{field: each.get(field) for field in fields} for each in now.connections],
        **({field: server.get(field) for field in ("mem", "cpu", "uptime")} if server else {}),
    }


def _rate(new: int, old: int | None, passed: float) -> float:
    """The events in a second; 0 for what was not there before, or began again."""
    return round(max(new - (new if old is None else old), 0) / passed, 1) if passed > 0 else 0.0


def _streams(earlier: Look, now: Look, lags: dict[str, int]) -> Rows:
    last = {info.config.name: info.state.last_seq for info in earlier.streams}
    passed = now.at - earlier.at
    return [
        {
            "stream": info.config.name,
            "messages": info.state.messages,
            "bytes": info.state.bytes,
            "in_per_second": _rate(info.state.last_seq, last.get(info.config.name), passed),
            "consumers": info.state.consumer_count,
            "lag": lags.get(info.config.name, 0),
        }
        for info in now.streams
    ]


def _consumers(earlier: Look, now: Look) -> Rows:
    delivered = {(each.stream_name, each.name): each.delivered.consumer_seq for each in earlier.consumers}
    passed = now.at - earlier.at
    return [
        {
            "stream": each.stream_name,
            "consumer": each.name,
            "lag": each.num_pending + each.num_ack_pending,
            "unacked": each.num_ack_pending,
            "redelivered": each.num_redelivered,
            "out_per_second": _rate(each.delivered.consumer_seq, delivered.get((each.stream_name, each.name)), passed),
        }
        for each in now.consumers
    ]


def _headline(report: dict[str, Any]) -> str:
    streams = report["streams"]
    parts = [
        f"{report['server']} {report['version']}", f"{len(streams):,} streams",
        f"{sum(row['messages'] for row in streams):,} messages", show_size(sum(row["bytes"] for row in streams)),
        f"{sum(row['in_per_second'] for row in streams):,.0f} in/s",
    ]  # fmt: skip
    if "mem" in report:
        parts += [f"{show_size(report['mem'] or 0)} memory", f"{report['cpu'] or 0:g} % CPU"]
    return "  ".join(parts)


def _tables(report: dict[str, Any]) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    def lag(row: dict[str, Any]) -> str:
        return Colored(f"{row['lag']:,}", WARNING if row["lag"] else "")

    streams = [
        (row["stream"], lag(row), f"{row['in_per_second']:,.0f}", f"{row['messages']:,}", show_size(row["bytes"]),
         str(row["consumers"]))
        for row in report["streams"]
    ]  # fmt: skip
    consumers = [
        (row["consumer"], lag(row), f"{row['out_per_second']:,.0f}", f"{row['unacked']:,}", f"{row['redelivered']:,}",
         row["stream"])
        for row in report["consumers"]
    ]  # fmt: skip
    connections = [
        (str(row["name"] or row["cid"]), show_size(row["pending_bytes"] or 0), f"{row['in_msgs'] or 0:,}",
         f"{row['out_msgs'] or 0:,}", f"{row['subscriptions'] or 0:,}", str(row["ip"] or ""))
        for row in report["connections"]
    ]  # fmt: skip
    return [
        ("Streams", ("Stream", "Lag#", "In/s#", "Messages#", "Size#", "Consumers#"), streams),
        ("Consumers", ("Consumer", "Lag#", "Out/s#", "Unacked#", "Redelivered#", "Stream"), consumers),
        ("Connections", ("Connection", "Pending#", "In#", "Out#", "Subscriptions#", "Address"), connections),
    ]


def _print(shell: Shell, report: dict[str, Any]) -> None:
    if shell.out.is_json:
        shell.out.json(report)
        return
    shell.out.text(_headline(report))
    for _, columns, rows in _tables(report):
        if rows:
            shell.out.table(columns, rows)


def _screen(shell: Shell, report: dict[str, Any]) -> Sequence[Any]:
    """The tables that fit the height of the terminal, which they share."""
    shown = [table for table in _tables(report) if table[2] or table[0] == "Streams"]
    left = max(shell.out.height - 2 - _FRAME * len(shown), len(shown))
    parts: list[Any] = [Colored(_headline(report)[: shell.out.width])]
    for number, (title, columns, rows) in enumerate(shown):
        most = max(left // (len(shown) - number), 1)
        left -= min(most, len(rows))
        more = f" ({most} of {len(rows):,})" if len(rows) > most else ""
        parts.append(shell.out.layout(columns, rows[:most], title=f"{title}{more}"))
    return [*parts, "Ctrl-C ends"]

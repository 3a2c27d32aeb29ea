"""`slipstream server ls`, `ping` and `report`: all servers of a cluster, which answer users of the system account."""

from __future__ import annotations

import json
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.values import show_duration, show_size
from slipstream.errors import NoRespondersError, RequestTimeoutError, UsageError

PING = "$SYS.REQ.SERVER.PING"
IDLE = 0.5  # seconds without a further answer
_DEFAULT = 2.0


class Answer(NamedTuple):
    """What one server answered, and after which time."""

    server: dict[str, Any]
    report: dict[str, Any]
    rtt: float


def add(group: Commands) -> None:
    """Declare the commands."""
    for name, run, text, aliases in (
        ("ls", _list, "list all servers", ("list",)),
        ("ping", _ping, "measure the round trip to every server", ()),
    ):
        _expected(group.add(name, run, text, aliases=aliases))
    report = _expected(group.add(
        "report",
        _report,
        "report on connections, accounts or JetStream of all servers",
        examples="  slipstream server report jetstream --user admin --password s3cret",
    ))  # fmt: skip
    report.add_argument("what", type=values.choice(*_REPORTS), metavar="{connections,accounts,jetstream}")


def _expected(parser: Parser) -> Parser:
    parser.add_argument("--expect", type=values.count, metavar="N", help="return once N servers answered")
    return parser


def _ask(shell: Shell, kind: str = "", body: dict[str, Any] | None = None) -> list[Answer]:
    """The answers of all servers; raises UsageError if this user may not ask them."""
    subject = f"{PING}.{kind}" if kind else PING
    found: list[Answer] = []
    limit = min(shell.timeout, _DEFAULT)
    with shell.connect() as client:
        begin = time.perf_counter()
        replies = client.request_many(
            subject, json.dumps(body or {}).encode(), timeout=limit, idle_timeout=min(IDLE, limit),
            max_messages=shell.options.expect,
        )  # fmt: skip
        try:
            for message in replies:
                fields: dict[str, Any] = json.loads(message.data)
                report = fields.get("data") or fields.get("statsz") or {}
                found.append(Answer(fields.get("server") or {}, report, time.perf_counter() - begin))
        except (NoRespondersError, RequestTimeoutError):
            found = []
    if not found:
        raise UsageError(f"no server answered on {subject}; connect as a user of the system account")
    return sorted(found, key=lambda answer: str(answer.server.get("name")))


def _list(shell: Shell) -> None:
    answers = _ask(shell)
    if shell.out.is_json:
        shell.out.json([{**answer.server, "statsz": answer.report} for answer in answers])
        return
    shell.out.table(
        ("Name", "Cluster", "Version", "Up for", "Connections#", "Subs#", "Memory#", "CPU#"),
        [
            (server.get("name"), server.get("cluster", ""), server.get("ver"), _uptime(report.get("start")),
             f"{report.get('connections', 0):,}", f"{report.get('subscriptions', 0):,}",
             show_size(int(report.get("mem") or 0)), f"{report.get('cpu') or 0:g} %")
            for server, report, _ in answers
        ],
        title="Servers",
    )  # fmt: skip


def _uptime(start: object) -> str:
    try:
        began = values.moment(str(start))
    except ArgumentTypeError:  # not said
        return ""
    return show_duration(timedelta(seconds=max((time.time_ns() - began) // 10**9, 0)))


def _ping(shell: Shell) -> None:
    answers = sorted(_ask(shell), key=lambda answer: answer.rtt)
    if shell.out.is_json:
        shell.out.json([{"name": each.server.get("name"), "rtt_ms": each.rtt * 1000} for each in answers])
        return
    for each in answers:
        shell.out.text(f"{each.server.get('name')}: {each.rtt * 1000:.2f} ms")
    noun = "server" if len(answers) == 1 else "servers"
    shell.out.note(f"{len(answers)} {noun} answered, the slowest after {answers[-1].rtt * 1000:.2f} ms")


def _report(shell: Shell) -> None:
    kind, columns, rows = _REPORTS[shell.options.what]
    answers = _ask(shell, kind)
    if shell.out.is_json:
        shell.out.json([{"server": answer.server, "data": answer.report} for answer in answers])
    else:
        found = [row for answer in answers for row in rows(answer)]
        shell.out.table(columns, found, empty=f"no {shell.options.what}")


def _connections(answer: Answer) -> Iterable[tuple[object, ...]]:
    for each in answer.report.get("connections") or ():
        yield (
            answer.server.get("name"), each.get("cid"), each.get("name", ""), f"{each.get('ip')}:{each.get('port')}",
            each.get("account", ""), f"{each.get('subscriptions', 0):,}", f"{each.get('in_msgs', 0):,}",
            f"{each.get('out_msgs', 0):,}", show_size(int(each.get("pending_bytes") or 0)),
        )  # fmt: skip


def _accounts(answer: Answer) -> Iterable[tuple[object, ...]]:
    for name in answer.report.get("accounts") or ():
        yield answer.server.get("name"), name, "yes" if name == answer.report.get("system_account") else ""


def _jetstream(answer: Answer) -> Iterable[tuple[object, ...]]:
    report = answer.report
    if report.get("disabled"):
        return
    api = report.get("api") or {}
    yield (
        answer.server.get("name"), f"{report.get('streams', 0):,}", f"{report.get('consumers', 0):,}",
        f"{report.get('messages', 0):,}", show_size(int(report.get("bytes") or 0)),
        show_size(int(report.get("memory") or 0)), show_size(int(report.get("storage") or 0)),
        f"{api.get('total', 0):,}", f"{api.get('errors', 0):,}",
    )  # fmt: skip


_Rows = Callable[[Answer], Iterable[tuple[object, ...]]]
_REPORTS: dict[str, tuple[str, tuple[str, ...], _Rows]] = {
    "connections": (
        "CONNZ",
        ("Server", "Id#", "Name", "Address", "Account", "Subs#", "In#", "Out#", "Pending#"),
        _connections,
    ),
    "accounts": ("ACCOUNTZ", ("Server", "Account", "System"), _accounts),
    "jetstream": (
        "JSZ",
        ("Server", "Streams#", "Consumers#", "Messages#", "Bytes#", "Memory#", "File#", "API#", "Errors#"),
        _jetstream,
    ),
}

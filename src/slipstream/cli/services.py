"""`slipstream service`: which services there are, what they offer, and their counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from slipstream import BlockingServices, ServiceInfo, ServicePing, ServiceStats
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.errors import NoRespondersError

R = TypeVar("R", ServiceInfo, ServicePing, ServiceStats)


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("service", "discover services", aliases=("micro",))
    _options(group.add("ls", _list, "list the instances of services", aliases=("list",)))
    _options(group.add("ping", _ping, "show which instances answer, and how quickly"))
    for name, run, text in (
        ("info", _info, "show the endpoints of instances"),
        ("stats", _stats, "show the counters of instances"),
    ):
        parser = group.add(name, run, text, examples=f"  slipstream service {name} calc")
        _options(parser)
        parser.add_argument("id", nargs="?", default="", metavar="ID", help="id of one instance (default: all)")


def _options(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the service (default: all)")
    parser.add_argument(
        "--stall",
        type=values.seconds,
        default=0.3,
        metavar="DURATION",
        help="end after this time without a reply (300ms)",
    )


def _found(shell: Shell, ask: Callable[[BlockingServices], Callable[..., Iterator[R]]]) -> list[R]:
    """The replies of all instances that the options name; raises NoRespondersError if a named one does not answer."""
    options = shell.options
    names: list[str] = [name for name in (options.name, getattr(options, "id", "")) if name]
    with shell.connect() as client:
        replies = ask(client.services)(*names, timeout=shell.timeout, stall=options.stall)
        found = sorted(replies, key=lambda reply: (reply.name, reply.version, reply.id))
    if not found and names:
        raise NoRespondersError(".".join(("$SRV", *names)), "no service answered")
    return found


def _print_json(shell: Shell, found: list[R]) -> None:
    shell.out.json([reply.to_dict() for reply in found])


def _list(shell: Shell) -> None:
    found = _found(shell, lambda services: services.list)
    if shell.out.is_json:
        _print_json(shell, found)
        return
    rows = [(info.name, info.version, info.id, len(info.endpoints), info.description) for info in found]
    shell.out.table(("Name", "Version", "ID", "Endpoints#", "Description"), rows)


def _ping(shell: Shell) -> None:
    found = _found(shell, lambda services: services.ping)
    if shell.out.is_json:
        _print_json(shell, found)
        return
    rows = [
        (ping.name, ping.version, ping.id, _milliseconds(ping.rtt.total_seconds() if ping.rtt else 0)) for ping in found
    ]
    shell.out.table(("Name", "Version", "ID", "RTT#"), rows)


def _info(shell: Shell) -> None:
    found = _found(shell, lambda services: services.info)
    if shell.out.is_json:
        _print_json(shell, found)
        return
    for info in found:
        facts = [("ID", info.id), ("Version", info.version), ("Description", info.description or None)]
        shell.out.facts(f"Service {info.name}", [*facts, ("Metadata", _pairs(info.metadata))])
        rows = [(one.name, one.subject, one.queue_group or "-", _pairs(one.metadata) or "") for one in info.endpoints]
        shell.out.table(("Endpoint", "Subject", "Queue group", "Metadata"), rows)


def _stats(shell: Shell) -> None:
    found = _found(shell, lambda services: services.stats)
    if shell.out.is_json:
        _print_json(shell, found)
        return
    rows = [
        (
            stats.name,
            stats.id,
            one.subject,
            f"{one.num_requests:,}",
            f"{one.num_errors:,}",
            _milliseconds(one.average_processing_time / 10**9),
            one.last_error,
        )
        for stats in found
        for one in stats.endpoints
    ]
    shell.out.table(("Name", "ID", "Subject", "Requests#", "Errors#", "Average#", "Last error"), rows)


def _pairs(metadata: Mapping[str, str]) -> str | None:
    return ", ".join(f"{key}={value}" for key, value in metadata.items()) or None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.3f} ms"

"""`slipstream stream cluster …`: who leads a stream, and on which servers its replicas are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from slipstream import StreamInfo
from slipstream.cli.common import Commands, Shell
from slipstream.errors import StreamNotFoundError


def add(group: Commands) -> None:
    """Declare the commands."""
    cluster = group.group("cluster", "leaders and replicas of streams", aliases=("c",))
    down = cluster.add(
        "step-down",
        _step_down,
        "make the leader of a stream step down",
        aliases=("stepdown", "down"),
        examples="  slipstream stream cluster step-down ORDERS --preferred n2",
    )
    down.add_argument("name", metavar="STREAM")
    down.add_argument("--preferred", default="", metavar="SERVER", help="name of the server that is to lead")
    remove = cluster.add(
        "peer-remove", _remove_peer, "move a replica of a stream to another server", aliases=("pr",)
    )  # fmt: skip
    remove.add_argument("name", metavar="STREAM")
    remove.add_argument("peer", metavar="SERVER", help="name of the server that has the replica")
    remove.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    balance = cluster.add("balance", _balance, "spread the leaders of streams evenly over the servers")
    balance.add_argument("names", nargs="*", metavar="STREAM", help="only these streams (default: all)")
    balance.add_argument("--dry-run", action="store_true", help="show what would be moved")
    balance.add_argument("-f", "--force", action="store_true", help="skip the confirmation")


def _step_down(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        before = stream.info().cluster.get("leader", "")
        stream.step_down(preferred=options.preferred)
    shell.out.note(f"{before or 'the leader'} stepped down as leader of {options.name}")


def _remove_peer(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Move the replica of {options.name} from {options.peer} to another server?")
    with shell.connect() as client:
        shell.jetstream(client).stream(options.name).remove_peer(options.peer)
    shell.out.note(f"removed {options.peer} from the stream {options.name}")


class Move(NamedTuple):
    """The leader of one stream, from one server to another."""

    stream: str
    old: str
    new: str


def _balance(shell: Shell) -> None:
    with shell.connect() as client:
        js = shell.jetstream(client)
        wanted = set(shell.options.names)
        if missing := wanted - set(js.stream_names() if wanted else ()):
            raise StreamNotFoundError().about(stream=min(missing))
        moves = list(balanced([info for info in js.streams() if not wanted or info.config.name in wanted]))
        if shell.out.is_json:
            shell.out.json([move._asdict() for move in moves])
        else:
            shell.out.table(("Stream", "From", "To"), moves, title="Leaders", empty="the leaders are balanced")
        if not moves or shell.options.dry_run:
            return
        shell.confirm(f"Move the leaders of {len(moves)} streams?")
        for move in moves:
            js.stream(move.stream).step_down(preferred=move.new)
    shell.out.note(f"moved {len(moves)} leaders")


def balanced(infos: list[StreamInfo]) -> Iterator[Move]:
    """The moves after which no server leads two streams more than one that could lead one of them instead."""
    leaders: dict[str, str] = {}
    replicas: dict[str, list[str]] = {}
    for info in infos:
        peers = info.cluster.get("replicas") or ()
        if info.cluster.get("leader") and peers:
            leaders[info.config.name] = info.cluster["leader"]
            replicas[info.config.name] = [peer["name"] for peer in peers if peer.get("current")]
    counts = Counter(leaders.values())
    for stream, leader in sorted(leaders.items()):
        best = min(replicas[stream], key=lambda name: (counts[name], name), default=leader)
        if counts[leader] - counts[best] > 1:
            counts[leader] -= 1
            counts[best] += 1
            yield Move(stream, leader, best)

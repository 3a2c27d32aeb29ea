"""`slipstream kv lock`, `elect`, `leader` and `members`: programs that run with a lease, and who holds it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.exit_codes import NOT_FOUND
from slipstream.cli.kv.opening import add_bucket, add_key, opened
from slipstream.cli.output import payload, readable
from slipstream.errors import RequestTimeoutError

STOP_TIMEOUT = 10.0  # seconds for a command to exit after SIGTERM


def add(group: Commands) -> None:
    """Declare the commands."""
    example = "  slipstream kv {} -- ./job.sh  # $SLIPSTREAM_TOKEN is its token"
    lock = add_key(
        group.add("lock", _lock, "hold a lock while a command runs", examples=example.format("lock LOCKS nightly"))
    )
    elect = add_key(
        group.add("elect", _elect, "run a command while elected leader", examples=example.format("elect LOCKS boss"))
    )
    leader = add_key(group.add("leader", _leader, "show the elected leader"))
    members = group.group("members", "manage sets of members with leases, for service discovery")
    join = _add_set(
        members.add(
            "join",
            _join,
            "join a set while a command runs",
            examples="  slipstream kv members join AGREE web --data 10.0.0.1:80 -- ./serve.sh",
        )
    )
    listing = _add_set(members.add("ls", _members, "list the live members", aliases=("list",)))
    listing.add_argument(
        "--min-last-revision", type=values.whole, default=0, metavar="N", help="require a read at least as new as this"
    )
    watching = _add_set(members.add("watch", _watch_members, "print joins, changes and leaves as they happen"))
    leader.add_argument("--watch", action="store_true", help="print each change of leadership as it happens")
    for parser in (leader, watching):
        parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of changes")
    for parser in (elect, join):
        parser.add_argument("--data", default="", metavar="TEXT", help="data that others see, such as an address")
    for parser in (lock, elect, join):
        _add_lease(parser)


def _add_set(parser: Parser) -> Parser:
    add_bucket(parser).add_argument("prefix", metavar="PREFIX", help="prefix of the members' keys")
    return parser


def _add_lease(parser: Parser) -> None:
    parser.add_argument("--name", default="", metavar="NAME", help="name that others see (default: host and process)")
    parser.add_argument(
        "--ttl",
        type=values.duration,
        default=None,
        metavar="DURATION",
        help="lease duration; the lease expires this long after the process dies (default: 15s)",
    )
    parser.add_argument("--wait", type=values.seconds, default=None, metavar="DURATION", help="maximum wait")
    parser.add_argument("program", nargs="+", metavar="COMMAND", help="the command, after --")


def _lease_options(shell: Shell) -> dict[str, Any]:
    return {"ttl": shell.options.ttl} if shell.options.ttl is not None else {}


def _name(shell: Shell) -> str:
    """The holder's name. Dots separate the tokens of keys, which the name of a member is one of."""
    return shell.options.name or f"{os.uname().nodename.replace('.', '-')}-{os.getpid()}"


def _lock(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        lock = kv.lock(options.key, name=_name(shell), **_lease_options(shell))
        try:
            lock.acquire(timeout=options.wait)
        except RequestTimeoutError as exc:
            raise RequestTimeoutError(
                f"{options.key} is held by another process, and was not released in time"
            ) from exc
        try:
            _run(shell, lock, "the lock")
        finally:
            lock.release()


def _elect(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        election = kv.election(options.key, name=_name(shell), data=options.data.encode(), **_lease_options(shell))
        shell.out.note(f"waiting to become the leader of {options.key}")
        election.campaign(timeout=options.wait)
        try:
            _run(shell, election, "the leadership")
        finally:
            election.resign()


def _leader(shell: Shell) -> int | None:
    options = shell.options
    with opened(shell) as kv:
        election = kv.election(options.key)
        if options.watch:
            _show_all(shell, election.observe())
            return None
        leader = election.leader()
    _show_leader(shell, leader)
    return None if leader else NOT_FOUND


def _show_all(shell: Shell, leaders: Iterable[Any]) -> None:
    for number, leader in enumerate(leaders, 1):
        _show_leader(shell, leader)
        sys.stdout.flush()
        if number == shell.options.count:
            return


def _show_leader(shell: Shell, leader: Any) -> None:
    if shell.out.is_json:
        shell.out.json({"leader": leader.name, "term": leader.term, **payload(leader.data)} if leader else None)
    else:
        shell.out.text(f"{leader.name} term {leader.term}{_shown_data(leader.data)}" if leader else "no leader")


def _shown_data(data: bytes) -> str:
    return f": {readable(data)}" if data else ""


def _join(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        members = kv.members(options.prefix, **_lease_options(shell))
        lease = members.join(_name(shell), options.data.encode(), timeout=options.wait)
        try:
            _run(shell, lease, "the membership")
        finally:
            lease.release()


def _members(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        found = sorted(kv.members(options.prefix).members(min_last_revision=options.min_last_revision).values())
    if shell.out.is_json:
        shell.out.json([{"name": one.name, "revision": one.revision, **payload(one.data)} for one in found])
    else:
        rows = [(one.name, one.revision, readable(one.data)) for one in found]
        shell.out.table(("Member", "Revision#", "Data"), rows)


def _watch_members(shell: Shell) -> None:
    options = shell.options
    with opened(shell) as kv:
        shell.out.note(f"watching {options.prefix}")
        for number, (kind, member) in enumerate(kv.members(options.prefix).watch(), 1):
            if shell.out.is_json:
                shell.out.json({"change": kind, "name": member.name, **payload(member.data)})
            else:
                shell.out.text(f"{kind} {member.name}{_shown_data(member.data)}")
            sys.stdout.flush()
            if number == options.count:
                return


class _Held(Protocol):
    def check(self) -> int: ...


def _run(shell: Shell, held: _Held, what: str) -> None:
    """Run the command while the lock or leadership is held; terminate it if that is lost."""
    token = held.check()
    shell.out.note(f"got {what}, token {token}")
    process = subprocess.Popen(shell.options.program, env=os.environ | {"SLIPSTREAM_TOKEN": str(token)})
    try:
        while process.poll() is None:
            held.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:  # it must not go on: another process may hold the lock by now
            process.kill()
            process.wait(timeout=STOP_TIMEOUT)
        raise
    if process.returncode:
        raise SystemExit(process.returncode)  # that of the command

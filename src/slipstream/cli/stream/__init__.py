"""`slipstream stream …`: management of streams, their messages, reports and backups."""

from __future__ import annotations

from slipstream.cli.common import Commands
from slipstream.cli.stream import backup, cluster, listing, manage, reading


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("stream", "manage streams and read from them", aliases=("str",))
    manage.add(group.section("manage"))
    listing.add(group.section("show"))
    reading.add(group.section("read"))
    backup.add(group.section("backup"))
    cluster.add(group.section("cluster"))

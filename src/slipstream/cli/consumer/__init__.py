"""`slipstream consumer …`: management of consumers, reports on them, and reading from them."""

from __future__ import annotations

from slipstream.cli.common import Commands
from slipstream.cli.consumer import listing, manage, reading


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("consumer", "manage consumers and read from them", aliases=("con",))
    manage.add(group.section("manage"))
    listing.add(group.section("show"))
    reading.add(group.section("read"))
    manage.add_cluster(group.section("cluster"))

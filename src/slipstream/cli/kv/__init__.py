"""`slipstream kv …`: Key-Value buckets, their keys and values, encryption, locks, elections and sets."""

from __future__ import annotations

from slipstream.cli.common import Commands
from slipstream.cli.kv import buckets, coordination, encryption, reading, writing


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("kv", "manage and use Key-Value buckets")
    for module in (buckets, writing, reading, encryption, coordination):
        module.add(group)

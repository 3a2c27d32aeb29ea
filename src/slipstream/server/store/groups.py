"""Commits in one go; `server/loop/committer.py` does it in steps where a group is large and others are served."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.server.engine.ports import Group, Store


def write_group(store: Store, group: Group, written: Callable[[], object] | None = None) -> None:
    """Make a sealed group durable; `written` is called before it waits for the disk."""
    store.begin(group)
    while not store.write_some(group):
        pass
    if written is not None:
        written()
    store.commit(group)


def commit_open_group(store: Store) -> None:
    """Make all changes so far durable, and show them to readers."""
    group = store.seal()
    write_group(store, group)
    store.finish(group)

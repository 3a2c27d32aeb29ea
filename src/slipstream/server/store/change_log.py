"""Change log of a stream: what its groups added and removed, published once they are committed."""

from __future__ import annotations

from slipstream.server.engine.ports import Changes

MOST = 65_536  # entries of one group: beyond that, a recount costs less than the list


class ChangeLog:
    """What the open group, the sealed one and the finished ones did to one log."""

    __slots__ = ("_done", "_sealed", "added", "recount", "removed")

    def __init__(self) -> None:
        """It may begin in the middle of a group, or of a sealed one: what they did so far is not known."""
        self.added: list[tuple[int, str]] = []
        self.removed: list[tuple[int, str]] = []
        self.recount: bool = True
        self._sealed: Changes | None = Changes([], [], True)
        self._done: Changes | None = None

    def seal(self) -> None:
        """The open group is closed; the next one begins."""
        if len(self.added) + len(self.removed) > MOST:
            self._sealed = Changes([], [], True)
        else:
            self._sealed = Changes(self.added, self.removed, self.recount)
        self.added, self.removed, self.recount = [], [], False

    def finish(self) -> None:
        """The sealed group was committed."""
        news, self._sealed = self._sealed, None
        if news is None or not (news.added or news.removed or news.recount):
            return
        done = self._done
        if done is None:
            self._done = news
        elif len(done.added) + len(done.removed) > MOST:
            self._done = Changes([], [], True)
        else:
            self._done = Changes(done.added + news.added, done.removed + news.removed, done.recount or news.recount)

    def abandon(self) -> None:
        """The log is as of the last commit again."""
        self.added, self.removed, self.recount = [], [], False
        self._sealed = None

    def take(self) -> Changes | None:
        """The changes of the groups that were finished since the last call."""
        news, self._done = self._done, None
        return news

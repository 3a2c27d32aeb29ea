"""Subject router: finds the subscribers of a subject, by a tree of tokens with a cache in front.

The tree holds any number of subscriptions; a lookup costs one step per token and matching branch. Answers for literal
subjects are cached: adding or removing a literal subscription drops one entry, a wildcard drops all. Reply
subjects, each used once, are looked up with `match_once`, which leaves the cache alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from slipstream.wire.subjects import has_wildcard

T = TypeVar("T", bound=Hashable)

CACHE_LIMIT = 16 * 1024
CACHE_MEMBERS = 1024 * 1024  # subscribers in all cached answers: subjects times wildcards must not fill memory
FEW_BRANCHES = 16  # at one token: fewer are not counted


class Match(Generic[T]):
    """The receivers of a message: all of `plain`, and one member of each group in `queues`.

    Not a NamedTuple: compiled code reads attributes of its own classes without a lookup.
    """

    __slots__ = ("plain", "queues")

    def __init__(self, plain: tuple[T, ...], queues: tuple[tuple[str, tuple[T, ...]], ...]) -> None:
        self.plain: tuple[T, ...] = plain
        self.queues: tuple[tuple[str, tuple[T, ...]], ...] = queues

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Match) and self.plain == other.plain and self.queues == other.queues


class _Node(Generic[T]):
    __slots__ = ("children", "plain", "queues", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.star: _Node[T] | None = None
        self.rest: _Node[T] | None = None  # subscriptions ending in `>` here
        self.plain: dict[T, None] = {}
        self.queues: dict[str, dict[T, None]] = {}

    def is_empty(self) -> bool:
        return not (self.children or self.star or self.rest or self.plain or self.queues)


class Router(Generic[T]):
    """Subscriptions by filter and queue group."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._cache: dict[str, Match[T]] = {}
        self._cached_members = 0  # an upper bound: entries dropped one by one are not subtracted
        self._size = 0
        self.branches: int = 0  # that lookups went through, where a token met many; the reader resets it

    def __len__(self) -> int:
        return self._size

    @property
    def cached(self) -> int:
        """The number of cached subjects."""
        return len(self._cache)

    def add(self, pattern: str, value: T, queue: str = "") -> None:
        """Route `pattern` to `value`; the same value twice for one pattern and queue counts once."""
        node = self._root
        for token in pattern.split("."):
            node = self._child(node, token)
        slot = node.queues.setdefault(queue, {}) if queue else node.plain
        if value not in slot:
            slot[value] = None
            self._size += 1
            self._forget(pattern)

    def remove(self, pattern: str, value: T, queue: str = "") -> bool:
        """Undo `add`; False when there was nothing to undo."""
        path: list[tuple[_Node[T], str]] = []
        node: _Node[T] | None = self._root
        for token in pattern.split("."):
            assert node is not None
            path.append((node, token))
            node = node.star if token == "*" else node.rest if token == ">" else node.children.get(token)
            if node is None:
                return False
        assert node is not None
        slot = node.queues.get(queue, {}) if queue else node.plain
        if value not in slot:
            return False
        del slot[value]
        if queue and not slot:
            del node.queues[queue]
        self._size -= 1
        self._forget(pattern)
        self._prune(path, node)
        return True

    def match(self, subject: str) -> Match[T]:
        """The subscribers of `subject`, cached."""
        found = self._cache.get(subject)
        if found is None:
            found = self.match_once(subject)
            members = len(found.plain) + sum(len(group) for _, group in found.queues)
            if len(self._cache) >= CACHE_LIMIT or self._cached_members + members > CACHE_MEMBERS:
                self._forget_all()
            self._cache[subject] = found
            self._cached_members += members
        return found

    def match_once(self, subject: str) -> Match[T]:
        """The subscribers of `subject`, which is used once: they are not cached."""
        level: list[_Node[T]] = [self._root]
        hits: list[_Node[T]] = []
        for token in subject.split("."):
            below: list[_Node[T]] = []
            for node in level:
                child = node.children.get(token)
                if child is not None:
                    below.append(child)
                if node.star is not None:
                    below.append(node.star)
                if node.rest is not None:
                    hits.append(node.rest)
            level = below
            if len(level) > FEW_BRANCHES:
                self.branches += len(level)
            elif not level:
                break
        hits += level
        if len(hits) == 1 and not hits[0].queues:
            return Match(tuple(hits[0].plain), ())
        plain: dict[T, None] = {}
        queues: dict[str, dict[T, None]] = {}
        for node in hits:
            plain.update(node.plain)
            for queue, members in node.queues.items():
                queues.setdefault(queue, {}).update(members)
        return Match(tuple(plain), tuple((queue, tuple(members)) for queue, members in queues.items()))

    def _child(self, node: _Node[T], token: str) -> _Node[T]:
        if token == "*":
            node.star = node.star or _Node()
            return node.star
        if token == ">":
            node.rest = node.rest or _Node()
            return node.rest
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = _Node()
        return child

    def _prune(self, path: list[tuple[_Node[T], str]], node: _Node[T]) -> None:
        """Drop empty nodes: inboxes are subscribed to and given up all the time, and must not fill memory."""
        for parent, token in reversed(path):
            if not node.is_empty():
                return
            if token == "*":
                parent.star = None
            elif token == ">":
                parent.rest = None
            else:
                del parent.children[token]
            node = parent

    def _forget(self, pattern: str) -> None:
        if has_wildcard(pattern):
            self._forget_all()
        else:
            self._cache.pop(pattern, None)

    def _forget_all(self) -> None:
        self._cache.clear()
        self._cached_members = 0

    def __iter__(self) -> Iterator[T]:
        """Every value, once per subscription."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield from node.plain
            for members in node.queues.values():
                yield from members
            stack += node.children.values()
            stack += [n for n in (node.star, node.rest) if n is not None]

"""A set of subject filters, searched as one: whether any of them matches a subject, and which of them overlap.

The filters are a tree of tokens, so that a question costs steps for the branches it meets and not for the filters there
are: looking n filters over for overlaps is near linear, where comparing them two by two is not. Filters without
wildcards are looked up by a hash first; their tree is built only once a filter with wildcards is compared with them.

Filters can be chosen so that a question has to meet most of the tree (many stars before the tokens that differ).
`steps` counts the nodes that were visited: a caller that asks on behalf of a client can pause by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, KeysView
from typing import Any

from slipstream.wire.subjects import has_wildcard

# A node is a dict: a token leads to the node below, None to the filter that ends here.
_Node = dict[str | None, Any]


FEW_SHAPES = 64
_LITERAL = re.compile(r"[^.]{2,}|[^.*]")  # any token but `*`


class SubjectSet:
    """Subject filters, in the order in which they were added. They must be valid (`is_valid_filter`)."""

    __slots__ = ("_literal_tree", "_literals", "_tree", "_unindexed", "_wildcards", "steps")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._literals: dict[str, None] = {}
        self._wildcards: dict[str, None] = {}
        self._tree: _Node = {}  # of the wildcards
        self._literal_tree: _Node = {}  # of the literals that a wildcard had to be compared with: see `index_literals`
        self._unindexed: dict[str, None] = {}  # the literals that it does not have yet
        self.steps: int = 0
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: str) -> bool:
        """Add a filter; False if it was there."""
        if has_wildcard(pattern):
            if pattern in self._wildcards:
                return False
            self._wildcards[pattern] = None
            _insert(self._tree, pattern)
        else:
            if pattern in self._literals:
                return False
            self._literals[pattern] = self._unindexed[pattern] = None
        return True

    def discard(self, pattern: str) -> bool:
        """Remove a filter; False if it was not there."""
        if pattern in self._wildcards:
            del self._wildcards[pattern]
            _take(self._tree, pattern)
        elif pattern in self._literals:
            del self._literals[pattern]
            if self._unindexed.pop(pattern, pattern) is not None:
                _take(self._literal_tree, pattern)
        else:
            return False
        return True

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._literals or pattern in self._wildcards

    def __len__(self) -> int:
        return len(self._literals) + len(self._wildcards)

    def __iter__(self) -> Iterator[str]:
        """The literals, then the wildcards."""
        yield from self._literals
        yield from self._wildcards

    @property
    def literals(self) -> KeysView[str]:
        """The filters without wildcards: subjects that can be looked up."""
        return self._literals.keys()

    @property
    def wildcards(self) -> KeysView[str]:
        """The filters with wildcards."""
        return self._wildcards.keys()

    def prefixes(self) -> list[str]:
        """What the subjects of the wildcards begin with: sorted, none the beginning of another, so that a walk over
        the subjects below each meets no subject twice. `[""]`: they may begin with anything."""
        found: list[str] = []
        for prefix in sorted({literal_prefix(pattern) for pattern in self._wildcards}):
            if not found or not prefix.startswith(found[-1]):
                found.append(prefix)
        return found

    def most_steps(self) -> int:
        """How many nodes `matches` visits for a subject, at most: that of the worst subject there is, or more."""
        shapes = _shapes(self._wildcards)
        if shapes <= FEW_SHAPES:
            return shapes
        nodes = [self._tree]
        for node in nodes:  # grows meanwhile
            nodes += [child for key, child in node.items() if key is not None and key != ">"]
        most: dict[int, int] = {}
        for node in reversed(nodes):  # those below come first
            best = 0
            for key, child in node.items():
                if key is not None and key != ">" and key != "*":
                    best = max(best, most[id(child)])
            most[id(node)] = 1 + best + (most[id(node["*"])] if "*" in node else 0)
        return min(most[id(self._tree)], shapes)

    def matches(self, subject: str) -> bool:
        """Whether one of the filters matches the literal `subject`."""
        if subject in self._literals:
            return True
        if not self._wildcards:
            return False
        level = [self._tree]
        for token in subject.split("."):
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                if ">" in node:
                    return True
                if token in node:
                    below.append(node[token])
                if "*" in node:
                    below.append(node["*"])
            if not below:
                return False
            level = below
        return any(None in node for node in level)

    def matching(self, subject: str) -> list[str]:
        """All filters that match the literal `subject`."""
        found = [subject] if subject in self._literals else []
        level = [self._tree] if self._wildcards else []
        for token in subject.split("."):
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                if ">" in node:
                    found.append(node[">"][None])
                if token in node:
                    below.append(node[token])
                if "*" in node:
                    below.append(node["*"])
            level = below
        return found + [node[None] for node in level if None in node]

    def overlapping(self, pattern: str) -> str | None:
        """A filter of the set that shares a subject with `pattern`; None if none does. A filter overlaps itself."""
        return next(self.all_overlapping(pattern), None)

    def all_overlapping(self, pattern: str) -> Iterator[str]:
        """Every filter of the set that shares a subject with `pattern`, in no particular order."""
        if has_wildcard(pattern):
            self.index_literals()
            if self._literals:
                yield from self._search(self._literal_tree, pattern)
        elif pattern in self._literals:
            yield pattern
        if self._wildcards:
            yield from self._search(self._tree, pattern)

    def covering(self, pattern: str) -> str | None:
        """Another filter of the set that matches every subject that `pattern` matches; None if there is none."""
        return next((found for found in self.all_covering(pattern) if found != pattern), None)

    def all_covering(self, pattern: str) -> Iterator[str]:
        """Every filter of the set that matches all that `pattern` matches; `pattern` itself, if it is one of them."""
        if pattern in self._literals:
            yield pattern
        level = [self._tree] if self._wildcards else []
        for token in pattern.split("."):
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                if ">" in node:
                    yield node[">"][None]
                if token == ">":
                    continue  # only another `>` covers it: a star is one token
                if token in node:
                    below.append(node[token])
                if token != "*" and "*" in node:
                    below.append(node["*"])
            level = below
            if not level:
                return
        for node in level:
            if None in node:
                yield node[None]

    def index_literals(self) -> None:
        """Put the literals into their tree that are not there yet. A comparison with a wildcard does it, if need be."""
        if self._unindexed:
            self.steps += len(self._unindexed)
            for literal in self._unindexed:
                _insert(self._literal_tree, literal)
            self._unindexed.clear()

    def _search(self, tree: _Node, pattern: str) -> Iterator[str]:
        """The filters in `tree` that share a subject with `pattern`."""
        level = [tree]
        for token in pattern.split("."):
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                if token == ">":
                    for key, child in node.items():
                        if key is not None:
                            yield from self._all_of(child)
                    continue
                if ">" in node:
                    yield node[">"][None]
                if token == "*":
                    self.steps += len(node)
                    below += [child for key, child in node.items() if key is not None and key != ">"]
                else:
                    if token in node:
                        below.append(node[token])
                    if "*" in node:
                        below.append(node["*"])
            level = below
            if not level:
                return
        for node in level:
            if None in node:
                yield node[None]

    def _all_of(self, node: _Node) -> Iterator[str]:
        stack = [node]
        while stack:
            self.steps += 1
            for key, child in stack.pop().items():
                if key is None:
                    yield child
                else:
                    stack.append(child)


def literal_prefix(pattern: str) -> str:
    """What every subject that `pattern` matches begins with: its tokens before the first wildcard, with the dot. (Of a
    filter without wildcards: the subject itself.)"""
    tokens = pattern.split(".")
    for at, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{token}." for token in tokens[:at])
    return pattern


def most_steps(patterns: Iterable[str]) -> int:
    """`SubjectSet.most_steps` of a set of these filters, mostly without making one."""
    wildcards = dict.fromkeys([pattern for pattern in patterns if has_wildcard(pattern)])
    shapes = _shapes(wildcards)
    return shapes if shapes <= FEW_SHAPES else SubjectSet(wildcards).most_steps()


def _shapes(patterns: Iterable[str]) -> int:
    """How many beginnings of filters differ in where they have stars: a subject visits at most one node of each, and
    the root."""
    shapes = {_LITERAL.sub("", pattern) for pattern in patterns}
    beginnings: set[str] = set()
    for shape in shapes:
        ends = [at for at, char in enumerate(shape) if char == "."]
        beginnings.update([shape[:at] for at in ends], (shape,))
    return 1 + len(beginnings)


def _insert(tree: _Node, pattern: str) -> None:
    node = tree
    for token in pattern.split("."):
        below = node.get(token)
        if below is None:
            below = node[token] = {}
        node = below
    node[None] = pattern


def _take(tree: _Node, pattern: str) -> None:
    path: list[tuple[_Node, str]] = []
    node = tree
    for token in pattern.split("."):
        path.append((node, token))
        node = node[token]
    del node[None]
    for parent, token in reversed(path):
        if parent[token]:
            break
        del parent[token]

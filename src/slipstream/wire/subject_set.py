"""A set of subject filters that answers for all of them at once: which subject one matches, which filters overlap.

The filters are a tree of tokens, so that a question costs steps for the branches it meets and not for the filters there
are: looking n filters over for overlaps is near linear, where comparing them two by two is not. Filters without
wildcards are looked up by a hash first; their tree is built only once a filter with wildcards is compared with them.

Filters can be chosen so that a question has to meet most of the tree (many stars before the tokens that differ).
`steps` counts the nodes that were visited: a caller that asks on behalf of a client can pause by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from typing import Any

from slipstream.wire.subjects import has_wildcard

# A node is a dict: a token leads to the node below, "" (which is no token) to the filter that ends here.
_Node = dict[str, Any]


class SubjectSet:
    """Subject filters, in the order in which they were added. They must be valid (`is_valid_filter`)."""

    __slots__ = ("_literal_tree", "_literals", "_tree", "_unindexed", "_wildcards", "steps")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._literals: dict[str, None] = {}
        self._wildcards: dict[str, None] = {}
        self._tree: _Node = {}  # of the wildcards
        self._literal_tree: _Node = {}  # of the literals that a wildcard had to be compared with: see `_index_literals`
        self._unindexed: dict[str, None] = {}  # the literals that it does not have yet
        self.steps = 0
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
        return any("" in node for node in level)

    def overlapping(self, pattern: str) -> str | None:
        """A filter of the set that shares a subject with `pattern`; None if none does. A filter overlaps itself."""
        if not has_wildcard(pattern):
            return pattern if pattern in self._literals else self._search(self._tree, pattern)
        self._index_literals()
        return self._search(self._tree, pattern) or self._search(self._literal_tree, pattern)

    def covering(self, pattern: str) -> str | None:
        """Another filter of the set that matches every subject that `pattern` matches; None if there is none."""
        level, tokens = [self._tree], pattern.split(".")
        for token in tokens:
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                rest = node.get(">")
                if rest is not None and rest[""] != pattern:
                    return str(rest[""])
                if token == ">":
                    continue  # only another `>` covers it: a star is one token
                if token in node:
                    below.append(node[token])
                if token != "*" and "*" in node:
                    below.append(node["*"])
            if not below:
                return None
            level = below
        return next((node[""] for node in level if node.get("", pattern) != pattern), None)

    def _search(self, tree: _Node, pattern: str) -> str | None:
        """A filter in `tree` that shares a subject with `pattern`."""
        level = [tree]
        for token in pattern.split("."):
            self.steps += len(level)
            below: list[_Node] = []
            for node in level:
                if ">" in node:
                    return str(node[">"][""])
                if token == ">":
                    below += [child for key, child in node.items() if key]
                    if below:
                        return self._any_of(below[0])
                elif token == "*":
                    self.steps += len(node)
                    below += [child for key, child in node.items() if key]
                else:
                    if token in node:
                        below.append(node[token])
                    if "*" in node:
                        below.append(node["*"])
            if not below:
                return None
            level = below
        return next((node[""] for node in level if "" in node), None)

    def _any_of(self, node: _Node) -> str:
        while "" not in node:
            node = next(iter(node.values()))
        return str(node[""])

    def _index_literals(self) -> None:
        """Put the literals into their tree that are not there yet."""
        self.steps += len(self._unindexed)
        for literal in self._unindexed:
            _insert(self._literal_tree, literal)
        self._unindexed.clear()


def literal_prefix(pattern: str) -> str:
    """What every subject that `pattern` matches begins with: its tokens before the first wildcard, with the dot. (Of a
    filter without wildcards: the subject itself.)"""
    tokens = pattern.split(".")
    for at, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{token}." for token in tokens[:at])
    return pattern


def _insert(tree: _Node, pattern: str) -> None:
    node = tree
    for token in pattern.split("."):
        below = node.get(token)
        if below is None:
            below = node[token] = {}
        node = below
    node[""] = pattern


def _take(tree: _Node, pattern: str) -> None:
    path: list[tuple[_Node, str]] = []
    node = tree
    for token in pattern.split("."):
        path.append((node, token))
        node = node[token]
    del node[""]
    for parent, token in reversed(path):
        if parent[token]:
            break
        del parent[token]

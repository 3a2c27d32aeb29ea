"""Reader of LMDB's file format (0.9, 64 bits) that survives any damage: it reads pages as bytes and maps nothing.

LMDB trusts its pages. One of the wrong type ends the process by an assertion, one beyond the end of the file by a
SIGBUS, and one with another's number makes it reuse pages that are in use. So the pages are checked before LMDB maps
the file (`PageFile.check`), and a file that LMDB must not touch can still be read here (`entries`, `strays`).

The file has two meta pages and then pages of three types. A commit writes the meta page that its number is even or odd
for; each has the roots of two trees: the free list (transaction -> page numbers) and the main tree, whose entries are
the roots of the tables. Every page begins with its own number. A leaf has the keys and values, but for values that
need pages of their own (overflow). A tree knows how many entries it has: an older page in it hardly has as many.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module calls it `error`
from typing import NamedTuple

_PAGE = Struct("<QHHHH")  # number, unused, flags, lower, upper
_META = Struct("<IIQQ")  # magic, version, address, size of the map
_TREE = Struct("<IHHQQQQQ")  # unused, flags, depth, pages: branch, leaf, overflow; entries, root
_END = Struct("<QQ")  # last page, transaction
_NODE = Struct("<HHHH")  # size or child (low, high), flags, size of the key
_NUMBER = Struct("<Q")

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUBTREE, _DUPLICATES = 1, 2, 4
_NONE = (1 << 64) - 1
_HEAD = 16
_MAX_KEY = 511

_node = _NODE.unpack_from

TABLES = ("messages", "index", "subjects", "control", "expiries")


class Tree(NamedTuple):
    """Where a tree begins, and what it has."""

    flags: int
    depth: int
    entries: int
    root: int


class Meta(NamedTuple):
    """A meta page."""

    page_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


class Damage(NamedTuple):
    """One thing that is wrong with the file. Beyond `low` (and before `high`) keys of the table may be missing."""

    table: str
    page: int
    what: str
    low: bytes
    high: bytes | None
    fatal: bool  # LMDB must not be let near it
    keys: tuple[bytes, ...] = ()  # that the page has, and that do not belong there

    def __str__(self) -> str:
        return f"page {self.page} of table {self.table!r} {self.what}" if self.table else self.what


class Leaf(NamedTuple):
    """The leaf of a table that a key belongs to."""

    entries: list[tuple[bytes, bytes]]  # none, if it cannot be read
    high: bytes | None  # where the next leaf begins; None: it is the last one
    size: int  # bytes that were read


class _BadPageError(Exception):
    """What is wrong with a page."""


class PageFile:
    """The file of an environment that no process writes to (or, with `turn_to`, one that this process writes to)."""

    def __init__(self, path: str | os.PathLike[str], *, lenient: bool = False, walks: bool = True) -> None:
        """`lenient`: a page that is found in another place is read there (and reported). Without `walks`, only single
        leaves are read."""
        self._lenient = lenient
        self._moved: dict[int, list[int]] | None = None
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size: int = os.fstat(self._fd).st_size
        self.damage: list[Damage] = []
        self.meta = self._read_meta()
        self.page_size: int = self.meta.page_size if self.meta is not None else 4096
        self.pages: int = self.size // self.page_size
        self._seen = bytearray(self.pages + 1 if walks else 0)  # pages of trees that were walked
        self._branches: dict[int, tuple[list[bytes], list[int]]] = {}  # of one transaction, on the way to single leaves

    def close(self) -> None:
        os.close(self._fd)

    # One leaf at a time, of a file that a process writes to.

    def turn_to(self, transaction: int) -> bool:
        """Read the file as of a transaction whose pages stay as they are: a reader of it is open in LMDB. False if its
        meta page is not found; why is in `damage` then, which holds nothing older."""
        self.damage = []
        self._branches.clear()
        self.size = os.fstat(self._fd).st_size
        for number in (0, 1):
            try:
                meta = _meta(os.pread(self._fd, 512, number * self.page_size), number)
            except _BadPageError as exc:
                self._report("", number, f"meta page {number} {exc}")
                continue
            if meta.transaction == transaction:
                self.damage = []
                self.meta, self.pages = meta, self.size // self.page_size
                return True
        return False

    def leaf(self, table: str, key: bytes) -> Leaf:
        """The leaf of a table that has a key, or would have it."""
        if self.meta is None:
            return Leaf([], None, 0)
        found = self._descend(self.meta.main, "main", table.encode())
        if found is None:
            return Leaf([], None, self.page_size)
        page, nodes, _, _, _ = found
        for name, flags, begin, end in nodes:
            if name == table.encode() and flags == _SUBTREE and end - begin == _TREE.size:
                return self._leaf_of(_tree(page, begin), table, key)
        return Leaf([], None, self.page_size)

    def _leaf_of(self, tree: Tree, table: str, key: bytes) -> Leaf:
        if tree.root == _NONE:
            return Leaf([], None, 0)
        found = self._descend(tree, table, key)
        if found is None:
            return Leaf([], self.damage[-1].high, self.page_size * tree.depth)
        page, nodes, number, low, high = found
        entries: list[tuple[bytes, bytes]] = []
        size, before = self.page_size * tree.depth, None
        for name, flags, begin, end in nodes:
            if name < low or (high is not None and name >= high) or (before is not None and name <= before):
                self._report(table, number, "has keys of another page, or out of order", low, high)
                return Leaf([], high, size)
            before = name
            try:
                if flags & _SUBTREE:
                    raise _BadPageError("has a tree within a table")
                value = self._value(page, flags, begin, end)
            except (_BadPageError, OSError) as exc:
                self._report(table, number, str(exc), name, name + b"\0")
                continue
            entries.append((name, value))
            size += len(value) if flags & _BIG else 0
        return Leaf(entries, high, size)

    def _descend(
        self, tree: Tree, table: str, key: bytes
    ) -> tuple[bytes, list[tuple[bytes, int, int, int]], int, bytes, bytes | None] | None:
        """The leaf that a key belongs to (content, nodes, number, bounds); None if a page on the way is damaged."""
        number, low, what = tree.root, b"", "has no pages"
        high: bytes | None = None
        for depth in range(tree.depth, 0, -1):
            try:
                if depth == 1:
                    page = self._page(number, _LEAF)
                    return page, self._leaf(page), number, low, high
                known = self._branches.get(number)
                if known is None:
                    children = self._branch(self._page(number, _BRANCH))
                    known = [name for name, _ in children], [child for _, child in children]
                    self._branches[number] = known
            except _BadPageError as exc:
                what = str(exc)
                break
            names, numbers = known
            at = bisect_right(names, key, 1)
            if at < len(names):
                high = names[at]
            number, low = numbers[at - 1], names[at - 1] if at > 1 else low
        self._report(table, number, what, low, high)
        return None

    def __enter__(self) -> PageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Meta pages.

    def _read_meta(self) -> Meta | None:
        """The newest meta page that makes sense; both should."""
        found: list[Meta] = []
        size = 4096
        for number in (0, 1):
            try:
                meta = _meta(os.pread(self._fd, 512, number * size), number)
            except _BadPageError as exc:
                self._report("", number, f"meta page {number} {exc}")
                size = self._guess_page_size()
                continue
            size = meta.page_size
            found.append(meta)
        if not found:
            return None
        newest = max(found, key=lambda meta: meta.transaction)
        if len(found) == 2 and (found[0].transaction, found[1].transaction) != (0, 0):
            first, second = found[0].transaction, found[1].transaction
            if abs(first - second) != 1 or first & 1 or not second & 1:
                self._report("", 0, f"the meta pages are of transactions {first} and {second}, not of two in a row")
                # One of them is not what was written, and the newest is not known: the older one is a whole store too.
                newest = min(found, key=lambda meta: meta.transaction)
        return newest

    def _guess_page_size(self) -> int:
        """The page size by where the second meta page is, if the first is damaged."""
        for size in (4096, 8192, 16384, 32768, 65536):
            data = os.pread(self._fd, 32, size)
            if len(data) == 32 and data[16:24] == _MAGIC.to_bytes(4, "little") + _VERSION.to_bytes(4, "little"):
                return size
        return 4096

    @property
    def is_cut(self) -> bool:
        """Whether the file ends before the last page that was ever used. Such a page may never have been written."""
        return self.meta is None or self.size < (self.meta.last_page + 1) * self.page_size

    def _report(
        self,
        table: str,
        page: int,
        what: str,
        low: bytes = b"",
        high: bytes | None = None,
        *,
        fatal: bool = True,
        keys: tuple[bytes, ...] = (),
    ) -> None:
        self.damage.append(Damage(table, page, what, low, high, fatal, keys))

    # Pages.

    def _page(self, number: int, flags: int) -> bytes:
        if not 1 < number < self.pages:
            raise _BadPageError("is beyond the end of the file" if number >= self.pages else "is a meta page")
        try:
            page = os.pread(self._fd, self.page_size, number * self.page_size)
        except OSError as exc:
            raise _BadPageError(f"cannot be read: {exc}") from None
        if len(page) != self.page_size:
            raise _BadPageError("is cut off")
        own, _, is_, lower, upper = _PAGE.unpack_from(page)
        if own != number:
            place = self._find(number) if self._lenient else 0
            if not place:
                raise _BadPageError("is zero" if not any(page) else f"says that it is page {own}")
            self._report("", number, f"page {number} was found at {place}")
            page = os.pread(self._fd, self.page_size, place * self.page_size)
            _, _, is_, lower, upper = _PAGE.unpack_from(page)
        if is_ != flags:
            raise _BadPageError(f"is of type {is_:#x}, not {flags:#x}")
        if flags != _OVERFLOW and not (_HEAD <= lower <= upper <= self.page_size and not lower & 1):
            raise _BadPageError("has impossible bounds")
        return page

    def _find(self, number: int) -> int:
        """The one place where a page is that is not in its own; 0 if there is none, or more than one."""
        if self._moved is None:
            self._moved = {}
            for place in range(2, self.pages):
                own, _, flags, _, _ = _PAGE.unpack(os.pread(self._fd, _HEAD, place * self.page_size))
                if own != place and flags in (_BRANCH, _LEAF) and 1 < own < self.pages:
                    self._moved.setdefault(own, []).append(place)
        places = self._moved.get(number, ())
        return places[0] if len(places) == 1 else 0

    def _take(self, number: int, count: int = 1) -> None:
        """A tree uses pages; none may be used twice."""
        for each in range(number, number + count):
            if self._seen[each]:
                raise _BadPageError(f"uses page {each}, which is used elsewhere")
            self._seen[each] = 1

    def _nodes(self, page: bytes) -> list[int]:
        lower, upper = page[12] | page[13] << 8, page[14] | page[15] << 8
        count = (lower - _HEAD) // 2
        offsets = list(memoryview(page)[_HEAD:lower].cast("H")) if count else []
        top = self.page_size - 8
        for offset in offsets:
            if not upper <= offset <= top:
                raise _BadPageError("has a node outside of it")
        return offsets

    def _leaf(self, page: bytes) -> list[tuple[bytes, int, int, int]]:
        """Key, flags, and where the data begins and ends (in the page)."""
        found, size = [], self.page_size
        spans: list[tuple[int, int]] = []
        for offset in self._nodes(page):
            low, high, flags, length = _node(page, offset)
            begin = offset + 8 + length
            data = low | high << 16
            end = begin + (8 if flags & _BIG else data)
            if end > size or length > _MAX_KEY or flags & ~3 or flags == 3:
                raise _BadPageError("has a node that cannot be")
            spans.append((offset, end))
            if flags & _BIG:
                end = -data  # the size of the value: `begin` has its first page
            found.append((page[offset + 8 : begin], flags, begin, end))
        self._check_spans(page, spans)
        return found

    def _branch(self, page: bytes) -> list[tuple[bytes, int]]:
        found = []
        spans: list[tuple[int, int]] = []
        for offset in self._nodes(page):
            low, high, flags, length = _node(page, offset)
            spans.append((offset, offset + 8 + length))
            if offset + 8 + length > self.page_size or length > _MAX_KEY:
                raise _BadPageError("has a node that cannot be")
            found.append((page[offset + 8 : offset + 8 + length], low | high << 16 | flags << 32))
        if len(found) < 2:
            raise _BadPageError("has too few children")
        self._check_spans(page, spans)
        return found

    def _check_spans(self, page: bytes, spans: list[tuple[int, int]]) -> None:
        """Nodes (where they begin and end) follow each other up to the end of their page. When LMDB deletes a node it
        moves those before it by its size: a wrong size destroys others, and memory beside the page. To be read they
        need not follow each other."""
        if self._lenient:
            return
        at = page[14] | page[15] << 8
        for begin, end in sorted(spans):
            if begin != at:
                raise _BadPageError("has nodes of wrong sizes")
            at = end + (end - begin & 1)
        if at != self.page_size:
            raise _BadPageError("has nodes of wrong sizes")

    def _overflow(self, page: bytes, begin: int, size: int) -> tuple[int, int]:
        """First page and number of pages of a large value."""
        number = _NUMBER.unpack_from(page, begin)[0]
        first = self._page(number, _OVERFLOW)
        count = int.from_bytes(first[12:16], "little")
        if count != (_HEAD - 1 + size) // self.page_size + 1 or number + count > self.pages:
            raise _BadPageError(f"has a value of {size} bytes on {count} pages from {number}")
        return number, count

    def _value(self, page: bytes, flags: int, begin: int, end: int) -> bytes:
        if not flags & _BIG:
            return page[begin:end]
        number, _ = self._overflow(page, begin, -end)
        return os.pread(self._fd, -end, number * self.page_size + _HEAD)

    # Trees.

    def _leaves(self, tree: Tree, table: str) -> Iterator[tuple[int, bytes, bytes, bytes | None]]:
        """The leaves of a tree that can be read, in order: number, content, and the bounds of their keys."""
        if tree.root == _NONE:
            return
        stack: list[tuple[int, int, bytes, bytes | None]] = [(tree.root, tree.depth, b"", None)]
        while stack:
            number, depth, low, high = stack.pop()
            try:
                page = self._page(number, _BRANCH if depth > 1 else _LEAF)
                self._take(number)
                if depth <= 1:
                    yield number, page, low, high
                    continue
                children = self._branch(page)
            except _BadPageError as exc:
                self._report(table, number, str(exc), low, high)
                continue
            bounds: list[bytes | None] = [low, *(key for key, _ in children[1:]), high]
            for at in range(len(children) - 1, -1, -1):
                stack.append((children[at][1], depth - 1, bounds[at] or b"", bounds[at + 1]))

    def check(self) -> list[Damage]:
        """Walk every tree. Damage that would end LMDB's process is fatal; other damage hides or repeats keys."""
        self._seen = bytearray(self.pages + 1)
        if self.meta is None:
            return self.damage
        trees = self.trees()
        for name, tree in trees.items():
            entries = 0
            for number, page, low, high in self._leaves(tree, name):
                try:
                    entries += self._check_leaf(number, page, low, high, name)
                except _BadPageError as exc:
                    self._report(name, number, str(exc), low, high)
            if entries != tree.entries and not any(each.table == name for each in self.damage):
                what = f"table {name!r} has {entries} entries and should have {tree.entries}"
                self._report("", 0, what, fatal=False)
        self._check_free()
        return self.damage

    def _check_leaf(self, number: int, page: bytes, low: bytes, high: bytes | None, table: str) -> int:
        nodes = self._leaf(page)
        before = b""
        strays: dict[bytes, None] = {}
        disordered: dict[bytes, None] = {}
        first = True
        for key, flags, begin, end in nodes:
            if flags:
                if flags & _SUBTREE:
                    raise _BadPageError("has a tree within a table")
                at, count = self._overflow(page, begin, -end)
                self._take(at, count)
            if key < low or (high is not None and key >= high):
                strays[key] = None
            if not first and key <= before:
                disordered[before] = disordered[key] = None
            first, before = False, key
        if strays:
            self._report(table, number, "has a key of another page", low, high, fatal=False, keys=tuple(strays))
        if disordered:
            self._report(table, number, "has keys out of order", low, high, fatal=False, keys=tuple(disordered))
        return len(nodes)

    def _check_free(self) -> None:
        """Pages in the free list must be free: LMDB writes new content there."""
        assert self.meta is not None
        lists: list[tuple[int, list[int]]] = []  # checked when all pages of the list itself are known to be in use
        before = 0
        try:
            for number, page, _, _ in self._leaves(self.meta.free, "free list"):
                for key, flags, begin, end in self._leaf(page):
                    freed = int.from_bytes(key, "little")
                    if len(key) != 8 or not before < freed <= self.meta.transaction:
                        raise _BadPageError(f"has pages of transaction {freed} behind those of {before}")
                    before = freed
                    if flags & _BIG:
                        self._take(*self._overflow(page, begin, -end))
                    value = self._value(page, flags, begin, end)
                    numbers = memoryview(value[: len(value) & ~7]).cast("Q")
                    if not len(numbers) or numbers[0] > len(numbers) - 1:
                        raise _BadPageError("has a list that is too short")
                    lists.append((number, numbers[1 : numbers[0] + 1].tolist()))
            for number, listed in lists:
                self._check_numbers(number, listed)
            if len(lists) != self.meta.free.entries and not any(each.table == "free list" for each in self.damage):
                raise _BadPageError(f"has {len(lists)} entries and should have {self.meta.free.entries}")
        except _BadPageError as exc:
            self._report("free list", self.meta.free.root, str(exc))

    def _check_numbers(self, page: int, numbers: list[int]) -> None:
        assert self.meta is not None
        seen, pages = self._seen, self.pages
        before = self.meta.last_page + 1
        for number in numbers:
            if not 1 < number < before:
                raise _BadPageError(f"lists pages out of order ({number} on page {page})")
            if number < pages:
                if seen[number]:
                    raise _BadPageError(f"lists page {number}, which is in use or listed twice")
                seen[number] = 1
            before = number

    def free_pages(self) -> set[int] | None:
        """The pages of the free list; None if it cannot be read as a whole."""
        if self.meta is None:
            return None
        found: set[int] = set()
        known = len(self.damage)
        self._seen = bytearray(self.pages + 1)
        try:
            for _, page, _, _ in self._leaves(self.meta.free, "free list"):
                for _, flags, begin, end in self._leaf(page):
                    value = self._value(page, flags, begin, end)
                    numbers = memoryview(value[: len(value) & ~7]).cast("Q").tolist()
                    found.update(numbers[1 : numbers[0] + 1])
        except (_BadPageError, IndexError):
            return None
        return found if len(self.damage) == known else None

    # Tables.

    def trees(self) -> dict[str, Tree]:
        """The roots of the tables."""
        found: dict[str, Tree] = {}
        if self.meta is None:
            return found
        for number, page, low, high in self._leaves(self.meta.main, "main"):
            try:
                for key, flags, begin, end in self._leaf(page):
                    if flags != _SUBTREE or end - begin != _TREE.size:
                        raise _BadPageError("has an entry that is no table")
                    found[key.decode(errors="replace")] = _tree(page, begin)
            except _BadPageError as exc:
                self._report("main", number, str(exc), low, high)
        for name in [name for name in found if name not in TABLES or found[name].flags]:
            self._report("main", self.meta.main.root, f"has a table {name!r} that this store does not have")
            del found[name]
        for name in TABLES:
            # A store that is being made has no tables at all; afterwards all of them, since they are made together.
            if name not in found and (found or self.meta.main.entries):
                self._report(name, self.meta.main.root, "is not found")
        return found

    def entries(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """What can be read of a table, in the order of its pages; what cannot is in `damage`. Keys that do not belong
        where they are found are left out: they are of another page, or of another time."""
        self._seen = bytearray(self.pages + 1)
        tree = self.trees().get(table)
        if tree is None:
            return
        for number, page, low, high in self._leaves(tree, table):
            for key, value in self._leaf_entries(number, page, low, high, table):
                if key >= low and (high is None or key < high):
                    yield key, value

    def _leaf_entries(
        self, number: int, page: bytes, low: bytes, high: bytes | None, table: str
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            nodes = self._leaf(page)
        except _BadPageError as exc:
            self._report(table, number, str(exc), low, high)
            nodes = self._remains(page)
        for key, flags, begin, end in nodes:
            if flags & _SUBTREE:
                continue
            try:
                value = self._value(page, flags, begin, end)
            except (_BadPageError, OSError) as exc:
                self._report(table, number, str(exc), key, key + b"\0")
                continue
            yield key, value

    def _remains(self, page: bytes) -> list[tuple[bytes, int, int, int]]:
        """The nodes of a damaged leaf that are possible, one by one; checksums decide about their content."""
        lower = min(max(page[12] | page[13] << 8, _HEAD), self.page_size) & ~1
        found = []
        for offset in memoryview(page)[_HEAD:lower].cast("H"):
            try:
                low, high, flags, length = _node(page, offset)
            except StructError:
                continue
            begin = offset + 8 + length
            data = low | high << 16
            if begin + (8 if flags & _BIG else data) <= self.page_size and length <= _MAX_KEY and flags in (0, _BIG):
                found.append((page[offset + 8 : begin], flags, begin, -data if flags else begin + data))
        return found

    def strays(self, *, is_any: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries of leaves that no tree leads to though they are not free: a damaged branch led there. `is_any`: of
        every leaf in the file, of whatever time."""
        free: set[int] = set()
        used = bytearray(self.pages + 1)
        if not is_any:
            known_free, known = self.free_pages(), self.damage
            if known_free is None:
                return
            free, used, self.damage = known_free, self._seen, []
            for name, tree in self.trees().items():  # what is damaged there is known by now
                for _ in self._leaves(tree, name):
                    pass
            self.damage = known
        for number in range(2, self.pages):
            if used[number] or number in free:
                continue
            try:
                page = self._page(number, _LEAF)
            except _BadPageError:
                continue
            known, self.damage = self.damage, []
            yield from self._leaf_entries(number, page, b"", None, "")
            self.damage = known


def _tree(data: bytes, at: int) -> Tree:
    _, flags, depth, _, _, _, entries, root = _TREE.unpack_from(data, at)
    return Tree(flags, depth, entries, root)


def _meta(data: bytes, number: int) -> Meta:
    if len(data) < 168:
        raise _BadPageError("is cut off")
    own, _, flags, _, _ = _PAGE.unpack_from(data)
    magic, version, _, _ = _META.unpack_from(data, _HEAD)
    if not any(data):
        raise _BadPageError("is zero")
    if magic != _MAGIC or own != number or not flags & _META_PAGE:
        raise _BadPageError("is not one of LMDB")
    if version != _VERSION:
        raise _BadPageError(f"is of version {version} of LMDB's format; this reads version {_VERSION}")
    at = _HEAD + _META.size
    size = int.from_bytes(data[at : at + 4], "little")
    free, main = _tree(data, at), _tree(data, at + _TREE.size)
    last, transaction = _END.unpack_from(data, at + 2 * _TREE.size)
    if (
        size not in (4096, 8192, 16384, 32768, 65536)
        or free.flags != 8
        or main.flags
        or max(free.depth, main.depth) > 32
    ):
        raise _BadPageError("has impossible values")
    return Meta(size, free, main, last, transaction)

"""A text of SQL becomes the names of the tables in it, as far as they are known; Spark is not asked."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What is no SQL by itself: strings, raw and others, and comments; names in backticks, which may hold any of these.
_SQL_TEXT = re.compile(
    r"""`[^`]*`|\br'[^']*'|\br"[^"]*"|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""",
    re.DOTALL | re.IGNORECASE,
)
_SQL_TOKEN = re.compile(r"`[^`]*`|\w+|[(),]")
_SQL_ENDS = (  # behind these, commas do not part tables any more
    *("select", "where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "window"),
    *("qualify", "union", "except", "intersect", "minus", "view", "pivot", "unpivot"),
)


def mentioned(sql: str, names: Iterable[str]) -> set[str]:
    """Which of the names stand as tables in a text of SQL: behind FROM, JOIN, or a comma between tables."""
    known = {name.lower(): name for name in names}
    found = set()
    is_table = False  # whether a table's name can be next
    lists = [False]  # for each open bracket: whether commas part tables
    for token in _SQL_TOKEN.findall(_SQL_TEXT.sub(lambda text: text[0] if text[0][0] == "`" else " ", sql)):
        word = token.lower()
        if is_table and word.strip("`") in known:
            found.add(known[word.strip("`")])
            is_table = False
        elif token == "(":
            lists.append(is_table)
        elif token == ")":
            is_table = False
            lists = lists[:-1] or [False]
        elif token == ",":
            is_table = lists[-1]
        else:
            is_table = word in ("from", "join")
            lists[-1] = is_table or (lists[-1] and word not in _SQL_ENDS)
    return found

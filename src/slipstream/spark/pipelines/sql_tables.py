"""Finder of table names in SQL text, without Spark.

It need not parse SQL: it knows which names can be tables, and looks for them where a table can stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Strings, raw or not, and comments, whose content is not SQL; names in backticks, which may hold any of these.
_SQL_TEXT = re.compile(
    r"""`[^`]*`|\br'[^']*'|\br"[^"]*"|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""",
    re.DOTALL | re.IGNORECASE,
)
_SQL_TOKEN = re.compile(r"`[^`]*`|\w+|[(),]")
_SQL_ENDS = (  # after these keywords, commas no longer separate tables
    *("select", "where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "window"),
    *("qualify", "union", "except", "intersect", "minus", "view", "pivot", "unpivot"),
)


def tables_in(sql: str, names: Iterable[str]) -> set[str]:
    """Which of the names the SQL uses as tables: after FROM, JOIN, or a comma between tables."""
    known = {name.lower(): name for name in names}
    found = set()
    is_table = False  # whether a table name can be next
    lists = [False]  # for each open bracket: whether commas separate tables
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

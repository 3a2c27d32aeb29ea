"""Tables in SQL text."""

from __future__ import annotations

import pytest

from slipstream.spark.pipelines.sql_tables import tables_in


def test_names_in_strings_and_comments_are_not_tables() -> None:
    sql = "SELECT a, 'FROM x' FROM orders o JOIN `b` ON 1 -- FROM c\n, (SELECT * FROM d, e) /* JOIN f */"
    assert tables_in(sql, ["a", "orders", "b", "c", "d", "e", "f", "x"]) == {"orders", "b", "d", "e"}


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT o.x, c.y FROM orders o, customers AS c, b WHERE a, d", "orders customers b"),
        ("SELECT * FROM Orders JOIN B ON 1=1, `CUSTOMERS` x", "orders b customers"),
        ("SELECT \"it's\" FROM orders WHERE x = 'a'", "orders"),
        ("SELECT 'it\\'s', r'\\' FROM orders WHERE x = 'FROM b'", "orders"),
        ("SELECT 'it''s', \"FROM a\" FROM orders, b", "orders b"),
        ("SELECT `it's`, `from`, a FROM orders ORDER BY b, c", "orders"),
        ("SELECT * FROM (SELECT max(a, b) FROM orders o, c) x, customers", "orders c customers"),
        ("SELECT * FROM (a JOIN b USING (x, orders)), c GROUP BY d, e", "a b c"),
        ("SELECT * FROM a TABLESAMPLE (5 ROWS), b x(c, d) UNION SELECT d, e FROM e", "a b e"),
        ("SELECT * FROM a LATERAL VIEW explode(b) AS c, d JOIN e", "a e"),
        ("WITH x AS (SELECT a, b FROM c) SELECT a, d FROM x)", "c"),
        ("SELECT a, b", ""),
    ],
)
def test_tables_are_found_wherever_sql_allows_them(sql: str, tables: str) -> None:
    assert tables_in(sql, ["a", "b", "c", "d", "e", "orders", "customers"]) == set(tables.split())

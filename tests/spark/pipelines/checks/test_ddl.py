"""Schema strings: what Spark accepts is accepted, and the word that is wrong is named."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from slipstream.spark.pipelines.checks.ddl import DdlError, ddl_columns

ACCEPTED = [
    *("BOOLEAN", "tinyint", "BYTE", "smallint", "int", "integer", "bigint", "long", "float", "real", "double", "date"),
    *("timestamp", "timestamp_ntz", "timestamp_ltz", "time", "time(6)", "string", "char(3)", "varchar(9)", "binary"),
    *("decimal", "dec(3)", "numeric(10, 2)", "void", "interval", "interval day to second", "variant", "array<int>"),
    *("map<string, array<int>>", "struct<a int COMMENT 'x, y', b: array<map<string, int>>>", "struct<>"),
    *("string collate utf8_lcase", "timestamp without time zone", "timestamp with local time zone", "geometry(4326)"),
    *("int not null", "int comment 'a > b, c'", 'array<struct<a: int NOT NULL>> COMMENT "q"'),
]
REJECTED = ["bignt", "text", "json", "char", "array", "array<>", "map<int>", "struct<a>", "int int", "decimal(a)", ""]


def fields(text: str) -> list[StructField]:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found.fields


@pytest.mark.usefixtures("spark")  # which `fromDDL` asks
def test_types_are_those_of_spark() -> None:
    for kind in ACCEPTED:
        text = f"x {kind}, `y z` STRING"
        assert [one.name for one in fields(text)] == list(ddl_columns(text)), kind
    for kind in REJECTED:
        text = f"x {kind}, y STRING"
        with pytest.raises(PySparkException):
            fields(text)
        with pytest.raises(DdlError):
            ddl_columns(text)


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("id BIGINT, amount BIGNT", "column 'amount' has the unknown type 'BIGNT'; did you mean BIGINT?", 18),
        ("id TEXT", "column 'id' has the unknown type 'TEXT'; Spark has STRING", 3),
        ("id INT, größe INT", "column 'größe' must be in backticks: `größe`", 8),
        ("id, name STRING", "column 'id' needs a type, such as id STRING", 0),
        ("id INT name STRING", "schema must have a comma or the end after the type of column 'id', got 'name'", 7),
        ("id INT,", "schema must have a column's name and type, got 'the end'", 7),
        ("a INT, A STRING", "column 'A' is in the schema twice", 7),
        ("a VARCHAR", "VARCHAR of column 'a' needs a length, such as VARCHAR(20)", 2),
        ("a ARRAY", "schema must have the types inside ARRAY of column 'a', such as ARRAY<STRING>, got 'the end'", 7),
        ("a STRUCT<b: INTT>", "column 'b' has the unknown type 'INTT'; did you mean INT?", 12),
    ],
)
def test_mistake_names_the_word(text: str, message: str, offset: int) -> None:
    with pytest.raises(DdlError) as caught:
        ddl_columns(text)
    assert (str(caught.value), caught.value.offset) == (message, offset)

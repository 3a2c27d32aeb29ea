"""Decoding of a pipeline's sources: every message is a row or a dead letter with a reason."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from slipstream.spark.pipelines.build import decode
from slipstream.spark.pipelines.model import Source

COLUMNS = "subject STRING, sequence BIGINT, timestamp TIMESTAMP, headers MAP<STRING, ARRAY<STRING>>, data BINARY"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MORE = "trailing data after the JSON value"
NONE = "not JSON"
OTHER = "does not fit the schema a BIGINT, s STRING"
LOOSE = {
    "allowComments": "true", "allowUnquotedFieldNames": "true", "allowUnquotedControlChars": "true",
    "allowBackslashEscapingAnyCharacter": "true", "allowNumericLeadingZeros": "true",
}  # fmt: skip


def read(spark: SparkSession, source: Source, texts: list[str]) -> dict[str, str | None]:
    """Each text with the reason why it is a dead letter; None where it is a row, and nothing is both or neither."""
    headers: dict[str, list[str]] = {}
    rows = [("s", number, NOW, headers, text.encode()) for number, text in enumerate(texts)]
    good, bad = decode(source, spark.createDataFrame(rows, COLUMNS), "DEAD.s")
    found: dict[str, str | None] = {texts[row["_sequence"]]: None for row in good.collect()}
    dead = {bytes(row["data"]).decode(): row["headers"]["Slipstream-Reason"] for row in bad.collect()}
    assert not found.keys() & dead.keys()
    assert len(found) + len(dead) == len(texts)
    return found | dead


def test_message_must_be_one_json_value(spark: SparkSession) -> None:
    """`from_json` reads the first value and ignores the rest."""
    source = Source(name="s", stream="S", format="json", schema="a BIGINT, s STRING")
    one = ['{"a":1}', ' \n{"a":1} \r\n\t', "{'a':1}", "{}", '{"_not_decoded":[1]}', '{"b":{"c":[]},"a":1,"a":2}']
    more = [
        *('{"a":1}{"a":2}', '{"a":1}\n{"a":2}', '{"a":1} {', '{"a":1} x', '{"a":1}]', '{"a":1}] x', '{"a":1}}'),
        *('{"a":1},', '{"a":1},{"a":2}', '{"a":1},{}]', '{"a":1},{"_not_decoded":"x"}]', '{"a":1}]//', '{"a":1}\0'),
        *('{"a":1} // c', '{"a":1} /* c */', '{"a":1} #'),
    ]
    found = read(spark, source, [*one, *more, "{a:1}", '{"a":"x"}', '{"a":"x"}{}', "[{}]", "5", " "])
    expected = {
        **dict.fromkeys(one), **dict.fromkeys(more, MORE),
        **{"{a:1}": NONE, '{"a":"x"}': OTHER, '{"a":"x"}{}': OTHER, "[{}]": OTHER, "5": OTHER, " ": NONE},
    }  # fmt: skip
    assert found == expected


def test_parse_options_apply_to_trailing_data_as_well(spark: SparkSession) -> None:
    source = Source(name="s", stream="S", format="json", schema="a BIGINT, s STRING", parse=LOOSE)
    one = ['{"a":1} // c', '{"a":1} /* c */', "{a:01}", '/**/{"s":"\1\\x"}']
    more = ['{"a":1} // c\n{}', '{"a":1} /* c', '{"a":1} #', '{"a":1}]//']
    assert read(spark, source, [*one, *more]) == {**dict.fromkeys(one), **dict.fromkeys(more, MORE)}


def test_csv_message_may_end_with_a_newline(spark: SparkSession) -> None:
    source = Source(name="s", stream="S", format="csv", schema="a BIGINT, s STRING")
    texts = ["1,a", "2,b\n", "3,c\r\n", '4,"d\n"\n', "5,e \n", "6,\n", "\n", "x,f\n"]
    headers: dict[str, list[str]] = {}
    rows = [("s", number, NOW, headers, text.encode()) for number, text in enumerate(texts)]
    good, bad = decode(source, spark.createDataFrame(rows, COLUMNS), "DEAD.s")
    found = {row["a"]: row["s"] for row in good.collect()}
    assert found == {1: "a", 2: "b", 3: "c", 4: "d\n", 5: "e ", 6: None}
    assert [bytes(row["data"]) for row in bad.collect()] == [b"\n", b"x,f\n"]

"""Mistakes that people make in pipeline files: each is found before anything runs, at its position, with a suggestion.

The first group is found in the file alone, the second against a server, the third by Spark over empty input.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, StreamConfig
from slipstream.spark.pipelines import Pipeline, PipelineError, parse
from slipstream.spark.pipelines.checks.deep import deep_mistakes
from slipstream.spark.pipelines.checks.servers import check_servers
from slipstream.spark.pipelines.checks.validate import validate, validate_file
from slipstream.spark.pipelines.model import Mistake

GOOD = """\
[pipeline]
name = "sales"
dead_letter = "SALES_DEAD"
trigger = "1 second"

[streams.SALES]
subjects = ["sales.>"]
[streams.BIG]
subjects = ["big.>"]
[buckets.totals]

[sources.sales]
stream = "SALES"
format = "json"
schema = "id BIGINT, customer STRING, amount BIGINT, placed TIMESTAMP, day DATE"
watermark = { column = "placed", delay = "2 minutes" }

[steps.big]
sql = "SELECT id, customer, amount, day FROM sales WHERE amount > 100"

[steps.tot]
sql = '''
  SELECT customer, sum(amount) AS total, max(placed) AS last
  FROM sales
  GROUP BY customer
'''

[outputs.totals]
from = "tot"
bucket = "totals"
key = "customer"

[outputs.big]
from = "big"
stream = "BIG"
subject = "concat('big.', customer)"

[outputs.history]
from = "big"
path = "out"
partition_by = ["day"]
"""
IN_FILE = [
    ("amount BIGINT", "amount BIGNT", "column 'amount' has the unknown type 'BIGNT'; did you mean BIGINT?", (15, 46)),
    ('column = "placed"', 'column = "plced"', "there is no column 'plced'; did you mean placed?", (16, 15)),
    (
        'column = "placed"',
        'column = "customer"',
        "the watermark's column must be a TIMESTAMP, got 'customer', a STRING; such as placed",
        (16, 15),
    ),
    (
        '"2 minutes"',
        '"two minutes"',
        "delay must be an interval such as '2 minutes' or '1 hour 30 minutes', got 'two minutes'",
        (16, 34),
    ),
    ('key = "customer"', 'key = "custmer"', "there is no column 'custmer'; did you mean customer?", (31, 1)),
    ('["day"]', '["dy"]', "there is no column 'dy'; did you mean day?", (41, 1)),
    # Of a step that is a plain list of columns; the outputs of its columns are not said to be wrong.
    ("id, customer,", "id, custmer,", "step 'big': there is no column 'custmer'; did you mean customer?", (19, 19)),
    ("SELECT customer, sum", "SELECT\n custmer, sum", "step 'tot': there is no column 'custmer'; did", (24, 2)),
    (
        "concat('big.', customer)",
        "big.{customer}",
        "subject must be an SQL expression, got 'big.{customer}'; did you mean concat('big.', customer)?",
        (36, 1),
    ),
    (
        '"SELECT id',
        '"SELEC id',
        "sql must begin with SELECT or WITH, got 'SELEC'; did you mean SELECT?",
        (19, 1),
    ),
    ('from = "big"', 'from = "bigg"', "there is no source or step 'bigg'; did you mean big?", (34, 1)),
    ("FROM sales WHERE", "FROM big WHERE", "step 'big' depends on itself, directly or through others", (18, 1)),
    ('key = "customer"', 'kee = "customer"', "unknown key kee, did you mean key?", (31, 1)),
    (
        'key = "customer"',
        'key = "customer"\nmode = "complete"',
        "mode must be 'update' or 'append' for a bucket, got 'complete'",
        (32, 1),
    ),
    (
        '"1 second"',
        '"now and then"',
        "trigger must be an interval such as '500 milliseconds' or '1 minute', got 'now and then'",
        (4, 1),
    ),
    (
        'path = "out"',
        'path = "out"\nbucket = "totals"',
        "[outputs.history] needs exactly one of bucket, stream, path and table, got 2",
        (38, 1),
    ),
    ('schema = "id', 'schem = "id', "unknown key schem, did you mean schema?", (15, 1)),
    ("concat('big.', customer)", "concat('big.', custmer)", "no column 'custmer'; did you mean customer?", (36, 27)),
    (
        "concat('big.', customer)",
        "big.all",
        "there is no column 'big'; the columns are id, customer, amount, day (for the text itself: subject = "
        "\"'big.all'\")",
        (36, 12),
    ),
]
ON_SERVER = [
    (
        'stream = "SALES"',
        'stream = "SALEZ"',
        "there is no stream 'SALEZ', and the file does not declare it; did you mean SALES?",
        (13, 1),
    ),
    (
        'bucket = "totals"',
        'bucket = "views"',
        "there is no bucket 'views', and the file does not declare it; add [buckets.views]",
        (30, 1),
    ),
]
ON_SPARK = [
    ("sum(amount)", "sum(amont)", "step 'tot': there is no column 'amont'; did you mean amount?", (23, 24)),
    ("FROM sales\n", "FROM salez\n", "step 'tot': there is no source or step 'salez'; did you mean sales?", (24, 8)),
    ("FROM sales\n", "FRM sales\n", "step 'tot': SQL syntax error at 'FRM'; did you mean FROM?", (24, 3)),
    ("sum(amount)", "smu(amount)", "step 'tot': there is no function 'smu'; did you mean sum?", (23, 20)),
    (
        '[outputs.totals]\nfrom = "tot"',
        '[steps.one]\nsql = "SELECT customer c FROM sales"\n[outputs.totals]\nfrom = "one"',
        "output 'totals': there is no column 'customer'; the columns are c",
        (33, 1),
    ),
    (
        'key = "customer"',
        'key = "customer"\nmode = "append"',
        "output 'totals': mode 'append' does not work with aggregations without watermark: Spark never knows that a "
        'row is final; set mode = "update" (buckets and streams), or a watermark on a time column',
        (32, 1),
    ),
    (
        'path = "out"',
        'path = "out"\nformat = "parqet"',
        "output 'history': Spark has no format 'parqet'; did you mean parquet?",
        (41, 1),
    ),
    (
        'key = "customer"',
        'key = "customer"\ndeleted = "total"',
        "output 'totals': deleted must be a BOOLEAN column, got 'total', a BIGINT",
        (29, 1),
    ),
]


def found_in(text: str, folder: Path) -> list[tuple[tuple[int, int], str]]:
    with pytest.raises(PipelineError) as caught:
        parse(text, file=str(folder / "p.toml"))
    return [((one.position.line, one.position.column), one.text) for one in caught.value.mistakes]


def spoilt(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def flat(mistakes: list[Mistake]) -> list[tuple[tuple[int, int], str]]:
    return [((one.position.line, one.position.column), one.text) for one in mistakes]


def test_file_without_mistakes_has_none(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = parse(GOOD, file=str(tmp_path / "p.toml"))
    assert check_servers(pipeline, None) == ([], [])
    assert deep_mistakes(spark, pipeline) == []


@pytest.mark.parametrize(("old", "new", "message", "position"), IN_FILE, ids=[one[1][:24] for one in IN_FILE])
def test_mistake_is_found_in_the_file(
    tmp_path: Path, old: str, new: str, message: str, position: tuple[int, int]
) -> None:
    found = found_in(spoilt(old, new), tmp_path)
    assert (position, True) in [(at, message in text) for at, text in found], found


@pytest.mark.parametrize(("old", "new", "message", "position"), ON_SERVER, ids=[one[1] for one in ON_SERVER])
def test_mistake_is_found_without_a_server(
    tmp_path: Path, old: str, new: str, message: str, position: tuple[int, int]
) -> None:
    """The embedded server has no data yet: what the file does not declare will not be there."""
    with pytest.raises(PipelineError) as caught:
        validate(parse(spoilt(old, new), file=str(tmp_path / "p.toml")))
    (found,) = flat(list(caught.value.mistakes))
    assert (found[0], message in found[1]) == (position, True), found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("old", "new", "message", "position"), ON_SPARK, ids=[one[1][:24] for one in ON_SPARK])
def test_mistake_is_found_by_spark(
    spark: SparkSession, tmp_path: Path, old: str, new: str, message: str, position: tuple[int, int]
) -> None:
    (found,) = flat(deep_mistakes(spark, parse(spoilt(old, new), file=str(tmp_path / "p.toml"))))
    assert (found[0], message in found[1]) == (position, True), found
    assert not re.search(r"SQLSTATE|\[[A-Z_.]{8,}\]|\n", found[1])


def test_all_mistakes_are_reported_at_once_and_none_that_follows(spark: SparkSession, tmp_path: Path) -> None:
    text = GOOD.replace("sum(amount)", "sum(amont)").replace('["day"]', '["day"]\nformat = "parqet"')
    text = text.replace("WHERE amount > 100", "WHERE amuont > 100").replace(
        'key = "customer"', 'key = "customer"\nmode = "append"'
    )
    text += '[steps.more]\nsql = "SELECT upper(a) AS a, abs(b) AS b FROM big"\n'
    text += '[outputs.raw]\nfrom = "sales"\nstream = "BIG"\n'
    text += "subject = \"upper(amount, 'x')\"\n"
    found = flat(deep_mistakes(spark, parse(text, file=str(tmp_path / "p.toml"))))
    assert [(at[0], text.split(":")[0]) for at, text in found] == [
        (19, "step 'big'"),  # and nothing about step `more` and the outputs that read these two
        (23, "step 'tot'"),
        (49, "output 'raw'"),
    ]


def test_a_bad_watermark_does_not_hide_what_is_built_on_it(spark: SparkSession, tmp_path: Path) -> None:
    text = GOOD.replace('"2 minutes"', '"ten minutes"').replace("sum(amount)", "sum(amont)")
    with pytest.raises(PipelineError) as caught:
        parse(text, file=str(tmp_path / "p.toml"))
    pipeline = caught.value.pipeline
    assert pipeline is not None
    found = flat(deep_mistakes(spark, pipeline))
    assert [text.split(":")[0] for _, text in found] == ["source 'sales'", "step 'tot'"]


def test_mistakes_of_the_file_and_of_its_streams_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(GOOD.replace('["day"]', '["dy"]').replace('stream = "SALES"', 'stream = "SALEZ"'))
    with pytest.raises(PipelineError) as caught:
        validate_file(str(tmp_path / "p.toml"))
    assert [one.position.line for one in caught.value.mistakes] == [13, 41]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount BIGINT", "amount DECIMAL(10, 2) NOT NULL COMMENT 'in EUR, gross'"),
        ('"SELECT id, customer, amount, day FROM', '"SELECT *, CAST(amount AS STRING) AS text FROM'),
        ('"SELECT id, customer, amount, day FROM', '"SELECT id AS who, CUSTOMER, amount, day FROM'),
        ('"SELECT id, customer, amount, day FROM', '"-- all\\nWITH x AS (SELECT 1) SELECT * FROM'),
        ("concat('big.', customer)", "CASE WHEN amount > 5 THEN 'big.x' ELSE concat('big.', customer) END"),
        ("concat('big.', customer)", "'big.' || upper(customer)"),
        ("concat('big.', customer)", "concat('big.', _subject)"),  # the step's columns are others: see below
        ('"2 minutes"', '"interval 1 hour 30 minutes"'),
        ('["day"]', '["DAY"]'),
        ('key = "customer"', 'key = ["customer"]\nmode = "update"'),
    ],
)
def test_right_file_is_not_called_wrong(spark: SparkSession, tmp_path: Path, old: str, new: str) -> None:
    text = spoilt(old, new)
    if "_subject" in new:
        text = text.replace('from = "big"\nstream', 'from = "sales"\nstream')
    assert deep_mistakes(spark, parse(text, file=str(tmp_path / "p.toml"))) == []


@pytest.mark.parametrize("any_server", ["real", "ours"], indirect=True)
def test_streams_on_a_server_are_looked_at(js: BlockingJetStream, fresh: str, any_server: str, tmp_path: Path) -> None:
    def pipeline(stream: str, more: str = "") -> Pipeline:
        text = f'[sources.s]\nstream = "{stream}"\n{more}\n[outputs.o]\nfrom = "s"\npath = "o"\n'
        return parse(text, file=str(tmp_path / "p.toml"))

    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    js.create_stream(StreamConfig(name=f"{fresh}Q", subjects=(f"{fresh}Q.>",), retention="workqueue"))
    assert check_servers(pipeline(fresh, f'subjects = "{fresh}.x.*"'), js) == ([], [])
    (warning,) = check_servers(pipeline(fresh, 'subjects = ["foo.>"]'), js).warnings
    assert (*warning.position[:2], warning.text) == (
        3,
        1,
        f"subjects 'foo.>' matches no message of stream '{fresh}', whose subjects are {fresh}.>",
    )
    (mistake,) = check_servers(pipeline(f"{fresh}Q"), js).mistakes
    assert "has 'workqueue' retention" in mistake.text
    (mistake,) = check_servers(pipeline(f"{fresh}z"), js).mistakes
    assert f"did you mean {fresh}" in mistake.text
    result = validate(pipeline(fresh, 'subjects = ["foo.>"]'), servers=any_server)
    assert [one.split(": ")[1] for one in result.warnings] == ["warning"]
    assert result.unchecked == ("types and modes (--deep does)",)
    away = validate(pipeline("NOPE"), servers="nats://127.0.0.1:1")
    assert "Connection refused" in away.unchecked[1]

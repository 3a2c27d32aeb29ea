"""Test cases of a pipeline: what comes out of recorded input, in recorded time, with all that sinks do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, StreamConfig
from slipstream.cli.main import main
from slipstream.errors import UsageError
from slipstream.spark.pipelines import parse, pipeline_cases
from slipstream.spark.pipelines.workbench.cases import compare_case, run_case, write_expected
from slipstream.spark.pipelines.workbench.recording import record

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
FILE = '''
[pipeline]
dead_letter = "DEAD"
[connection]
servers = "nats://127.0.0.1:1"
[streams.BIG]
subjects = "big.>"
[sources.sales]
stream = "SALES"
subjects = "sales.>"
format = "json"
schema = "who STRING, amount BIGINT, at TIMESTAMP"
watermark = { column = "at", delay = "1 minute" }
[sources.limits]
bucket = "limits"
format = "json"
schema = "most BIGINT"
[steps.minutes]
sql = """
    SELECT date_format(window.start, 'HH_mm') AS minute, sum(amount) AS total
    FROM sales GROUP BY window(at, '1 minute')
"""
[steps.newest]
sql = "SELECT _key, most, _operation = 'DEL' AS gone FROM limits"
[outputs.minutes]
from = "minutes"
path = "/nowhere/minutes"
format = "json"
[outputs.big]
from = "sales"
stream = "BIG"
subject = "concat('big.', who)"
value = "who"
[outputs.limits]
from = "newest"
bucket = "known"
key = "_key"
value = "most"
deleted = "gone"
mode = "append"
'''
SALES = """
{"subject": "sales.a", "data": {"who": "ada", "amount": 5, "at": "2026-01-31T12:00:10Z"}}
{"subject": "sales.a", "data": {"who": "bob", "amount": 7, "at": "2026-01-31T12:00:50Z"}}
{"subject": "other", "data": {"who": "not of this source", "amount": 7, "at": "2026-01-31T12:00:50Z"}}
{"subject": "sales.a", "data": {"who": "eve", "amount": 1, "at": "2026-01-31T12:05:00Z"}}
{"subject": "sales.a", "data": {"who": "late", "amount": 100, "at": "2026-01-31T12:00:20Z"}, "batch": 2}
{"subject": "sales.a", "data": {"who": "no subject", "amount": 2, "at": "2026-01-31T12:05:01Z"}}
{"subject": "sales.a", "data": "broken"}
{"subject": "sales.a", "data": {"who": "last", "amount": 1, "at": "2026-01-31T13:00:00Z"}, "batch": 3}
"""
LIMITS = """
{"key": "ada", "value": {"most": 10}}
{"key": "bob", "value": {"most": 20}}
{"key": "ada", "operation": "DEL", "batch": 2}
"""


def write_case(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('_', '-')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def test_windows_late_rows_dead_letters_and_deletes_of_a_case(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.toml").write_text(FILE)
    expected = {
        "expected__minutes": '{"minute": "12_00", "total": 12}\n{"minute": "12_05", "total": 3}\n',
        "expected__big": '{"subject": "big.ada", "data": "ada"}\n{"subject": "big.bob", "data": "bob"}\n'
        '{"subject": "big.eve", "data": "eve"}\n{"subject": "big.late", "data": "late"}\n'
        '{"subject": "big.last", "data": "last"}\n',
        "expected__limits": '{"key": "bob", "value": 20}\n',
    }
    folder = tmp_path / "shop-tests" / "basic"
    write_case(folder, in__sales=SALES, in__limits=LIMITS, **expected)
    (case,) = pipeline_cases(tmp_path / "shop.toml")
    result = run_case(spark, case)
    # Two dead letters that nothing expects: one of the source, one of a sink. All else is as expected.
    assert list(result.differences) == ["dead-letters"]
    assert [(row["from"], row["data"]) for row in result.rows["dead-letters"]] == [
        ("sales", "broken"),
        ("big", "no subject"),
    ]
    assert next(result.lines()) == "  dead-letters: 2 differences"
    assert any("not JSON" in line for line in result.lines())
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.cases.run_case", lambda *_: result)
    with pytest.raises(AssertionError, match="case 'basic':\n  dead-letters: 2 differences"):
        case.check(spark)
    write_expected(case, result)
    assert compare_case(case, result.rows).differences == {}
    rows = (folder / "expected" / "minutes.jsonl").read_text().replace("12}", "13}")
    (folder / "expected" / "minutes.jsonl").write_text(rows)
    assert compare_case(case, result.rows).differences["minutes"][0][1:] == ("total", "13", "12")
    assert not Path("/nowhere").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop-tests", "shop.toml"]


def test_mistakes_in_cases_are_told_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(FILE)
    with pytest.raises(UsageError, match=r"there are no test cases in .*shop-tests"):
        pipeline_cases(file)
    folder = tmp_path / "shop-tests" / "basic"
    write_case(folder, in__sale="")
    with pytest.raises(UsageError, match="there is no case 'basik'; did you mean basic"):
        pipeline_cases(file, names=["basik"])
    (case,) = pipeline_cases(file)
    nothing: SparkSession = None  # type: ignore[assignment]  # it is not used
    with pytest.raises(UsageError, match="there is no source or table 'sale'; did you mean sales"):
        run_case(nothing, case)
    (folder / "in" / "sale.jsonl").unlink()
    write_case(folder, expected__bigg="")
    with pytest.raises(UsageError, match="there is no output 'bigg'; did you mean big"):
        run_case(nothing, case)


@pytest.mark.parametrize("any_server", ["ours", "real"], indirect=True)
def test_record_writes_what_a_case_reads(js: BlockingJetStream, fresh: str, tmp_path: Path) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    bucket = js.create_key_value(fresh, history=5)
    for n in range(6):
        js.publish(f"{fresh}.{n % 2}", b'{"n": %d}' % n if n < 5 else b"\xff", headers={"h": str(n)})
        bucket.put("k", b"%d" % n)
    bucket.delete("k")
    text = f'[sources.all]\nstream="{fresh}"\n[sources.odd]\nstream="{fresh}"\nsubjects="{fresh}.1"\n'
    text += f'[sources.kv]\nbucket="{fresh}"\n'
    text += '[outputs.o]\nfrom="all"\npath="o"\n'
    pipeline = parse(text, file=str(tmp_path / "p.toml"))
    files = record(js, pipeline, "one", limit=3)
    assert [(path.relative_to(tmp_path).as_posix(), count) for path, count in files.items()] == [
        ("p-tests/one/in/all.jsonl", 3),
        ("p-tests/one/in/odd.jsonl", 3),
        ("p-tests/one/in/kv.jsonl", 3),
    ]

    def lines(case: str, source: str) -> list[dict[str, object]]:
        found = (tmp_path / "p-tests" / case / "in" / f"{source}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in found]

    assert [(one["sequence"], one["subject"], one.get("data"), one["headers"]) for one in lines("one", "all")] == [
        (4, f"{fresh}.1", {"n": 3}, {"h": "3"}),
        (5, f"{fresh}.0", {"n": 4}, {"h": "4"}),
        (6, f"{fresh}.1", None, {"h": "5"}),
    ]
    assert [one["sequence"] for one in lines("one", "odd")] == [2, 4, 6]
    assert [(one["key"], one.get("value"), one.get("operation")) for one in lines("one", "kv")] == [
        ("k", 4, None),
        ("k", 5, None),
        ("k", None, "DEL"),
    ]
    with pytest.raises(UsageError, match="already exists"):
        record(js, pipeline, "one")
    record(js, pipeline, "two", sources=["odd"], starting="first", limit=2)
    assert [one["sequence"] for one in lines("two", "odd")] == [2, 4]
    time = str(lines("one", "all")[1]["time"])
    record(js, pipeline, "three", sources=["all"], starting=time)
    assert [one["sequence"] for one in lines("three", "all")] == [5, 6]
    record(js, pipeline, "four", sources=["all"], starting="6")
    assert [one["sequence"] for one in lines("four", "all")] == [6]
    for bad, message in ({"sources": ["odds"]}, "did you mean odd"), ({"starting": "noon"}, "--from must be"):
        with pytest.raises(UsageError, match=message):
            record(js, pipeline, "five", **bad)
    with pytest.raises(UsageError, match="a case must have a name"):
        record(js, pipeline, "../five")
    assert not (tmp_path / "p-tests" / "five").exists()


class SharedSession:
    """The session of all tests, which a command must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self.newSession = spark.newSession

    def stop(self) -> None:
        pass


def test_command_compares_the_cases_of_the_example(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "slipstream.spark.pipelines.workbench.cases.start_session", lambda *_, **__: SharedSession(spark)
    )
    shutil.copytree(EXAMPLES / "orders-tests", tmp_path / "cases")
    path = tmp_path / "cases" / "basic" / "expected" / "customers.jsonl"
    path.write_text(path.read_text().replace("750", "751"))
    arguments = ["pipeline", "test", str(EXAMPLES / "orders.toml"), "--cases", str(tmp_path / "cases")]
    assert main(arguments) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("basic: FAILED (alerts 1 rows, customers 2 rows, history 4 rows, minutes 2 rows")
    assert said[1] == "  output customers: 1 difference"
    assert [line.split() for line in said[2:4]] == [
        ["row", "column", "expected", "got"],
        ["alan", "value.revenue", "751", "750"],
    ]
    assert said[-1] == "1 case, 1 failed"

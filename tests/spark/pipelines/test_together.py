"""Several pipelines in one process: what their files may say, and runs on one Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import StreamConfig, connect_blocking
from slipstream.cli.main import main
from slipstream.errors import UsageError
from slipstream.spark.pipelines import Pipeline, parse
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.pipelines.together import SharedSpark, common_settings

FILE = """
[pipeline]
name = "{name}"
[spark]
master = "local[2]"
conf = {{ {conf} }}
[sources.messages]
stream = "{stream}"
format = "csv"
schema = "n BIGINT, word STRING"
[steps.sums]
sql = "SELECT word, sum(n) AS total, date_format(timestamp'2026-01-01 00:00:00', 'Z') AS zone FROM messages GROUP BY 1"
[buckets.{bucket}]
[outputs.sums]
from = "sums"
bucket = "{bucket}"
key = "word"
{more}
"""


def text(name: str, *, conf: str = "", stream: str = "S", bucket: str = "b", more: str = "") -> str:
    return FILE.format(name=name, conf=conf, stream=stream, bucket=bucket, more=more)


def pipeline(folder: Path, name: str, *, conf: str = "", more: str = "") -> Pipeline:
    return parse(text(name, conf=conf, more=more), file=str(folder / f"{name}.toml"))


def test_settings_of_the_jvm_are_those_of_all_files_and_of_sessions_those_that_are_equal(tmp_path: Path) -> None:
    one = pipeline(tmp_path, "one", conf='"spark.sql.ansi.enabled" = "true", "spark.sql.x" = "1", "spark.jars" = "a"')
    two = pipeline(tmp_path, "two", conf='"spark.sql.ansi.enabled" = "true", "spark.sql.x" = "2"')
    three = pipeline(tmp_path, "three", conf='"spark.sql.ansi.enabled" = "true"')
    found = common_settings([one, two, three])
    assert found.conf == {"spark.sql.ansi.enabled": "true", "spark.jars": "a"}
    assert found.name == "one, two, three"


TABLE = '[outputs.t]\nfrom = "messages"\ntable = "Seen"\n'
FILES = '[outputs.f]\nfrom = "messages"\npath = "out"\n'


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ({}, {"name": "ONE"}, "have the same name 'one': run them apart"),
        ({"more": TABLE}, {"more": TABLE.replace("Seen", "SEEN")}, "have the same table 'seen'"),
        ({"more": FILES}, {"more": FILES}, "have the same target '"),
        (
            {"conf": '"spark.driver.memory" = "1g"'},
            {"conf": '"spark.driver.memory" = "2g"'},
            "need one value of 'spark.driver.memory' in .spark. conf: .*one.toml has '1g', .*two.toml has '2g'",
        ),
    ],
)
def test_files_that_contradict_each_other_are_rejected(
    one: dict[str, str], two: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        common_settings([pipeline(tmp_path, **{"name": "one", **one}), pipeline(tmp_path, **{"name": "two", **two})])


def test_command_rejects_what_is_for_one_pipeline_and_files_that_differ_in_the_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.toml").write_text(text("one"))
    (tmp_path / "two.toml").write_text(text("two").replace("local[2]", "local[3]"))
    files = [str(tmp_path / "one.toml"), str(tmp_path / "two.toml")]
    for more, message in (
        (["--metrics", "9465"], "--metrics applies to one pipeline, got 2 files"),
        (["--console"], "--console applies to one pipeline, got 2 files"),
        ([], "pipelines that run together need one master: "),
    ):
        assert main(["pipeline", "run", *files, *more]) == 2
        assert message in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["one.toml", "two.toml"]


def test_session_of_each_pipeline_has_its_formats_registered(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its queries would change the environment that Spark gives to all of them, without a lock."""
    monkeypatch.setattr("slipstream.spark.pipelines.together.start_spark", lambda *_, **__: spark)
    monkeypatch.setattr(spark.sparkContext, "environment", {"OF_THE_TEST": "1"})
    one = pipeline(tmp_path, "one")
    session = SharedSpark([one]).session(one, "local[2]", StateFolder(one), verbose=False, stopping=threading.Event())
    for name in ("jetstream", "jetstream_kv"):
        found = session._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name)
        assert dict(found.dataSourceCls().envVars())["OF_THE_TEST"] == "1"


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_pipelines_on_one_spark_have_their_own_views_settings_and_state(
    our_url: str, fresh: str, tmp_path: Path
) -> None:
    """The sources and steps of both files have the same names."""
    zone = '"spark.sql.session.timeZone" = "{}"'
    for at, (name, where) in enumerate((("one", "+01:00"), ("two", "+02:00"))):
        bucket, stream = f"{fresh}-{name}", f"{fresh}{at}"
        file = text(
            name,
            conf=zone.format(where),
            stream=stream,
            bucket=bucket,
            more=f'[outputs.t]\nfrom = "messages"\ntable = "seen_{name}"\n',
        )
        (tmp_path / f"{name}.toml").write_text(file)
    (tmp_path / "bad.toml").write_text(
        text("bad", stream=f"{fresh}0", bucket=f"{fresh}-bad").replace("sum(n)", "sum(m)")
    )
    with connect_blocking(our_url) as client:
        js = client.jetstream()
        for at in range(2):
            js.create_stream(StreamConfig(name=f"{fresh}{at}", subjects=(f"{fresh}.{at}",), allow_direct=True))
            for n in range(100):
                js.publish(f"{fresh}.{at}", f"{n + 1000 * at},w{n % 2}".encode())
        arguments = [sys.executable, "-m", "slipstream.spark.pipelines", "run", "one.toml", "bad.toml", "two.toml"]
        done = subprocess.run(
            [*arguments, "--once", "--json", "--servers", our_url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        result = json.loads(done.stdout)
        assert [(one["pipeline"], one["ok"]) for one in result["pipelines"]] == [
            ("one", True),
            ("bad", False),
            ("two", True),
        ]
        mistake = "bad.toml:12:25: step 'sums': there is no column 'm'; the columns are"
        assert mistake in result["pipelines"][1]["error"]
        assert f"bad: failed: {mistake}" in done.stderr
        assert "one: sums: batch 0 read 100 rows" in done.stderr
        for at, name in enumerate(("one", "two")):
            view = js.key_value(f"{fresh}-{name}")
            values = {key: json.loads(view.get(key).value) for key in view.keys()}  # noqa: SIM118 - no mapping
            assert values == {
                f"w{odd}": {"total": sum(range(odd, 100, 2)) + 50_000 * at, "zone": f"+0{at + 1}00"} for odd in range(2)
            }
            assert list((tmp_path / f"{name}-state" / "warehouse" / f"seen_{name}").glob("*.parquet"))
        assert f"{fresh}-bad" not in set(js.key_values())

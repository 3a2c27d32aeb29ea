"""A first file from a sample: formats and types are inferred, and the file that is written is valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slipstream import StreamConfig, connect_blocking
from slipstream.cli.main import main
from slipstream.errors import UsageError
from slipstream.spark.pipelines import load, parse
from slipstream.spark.pipelines.checks.ddl import ddl_columns
from slipstream.spark.pipelines.checks.deep import deep_mistakes
from slipstream.spark.pipelines.workbench.sample import Sample, infer, infer_avro, json_type, pipeline_text
from tests.spark.pipelines.formats.test_protobuf import SET, order


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([2**70], "DOUBLE"),
        ([True, False], "BOOLEAN"),
        ([True, 1], "STRING"),
        (["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.123456+01:00"], "TIMESTAMP"),
        (["2026-01-31"], "DATE"),
        (["2026-01-31", "soon"], "STRING"),
        ([[1], [2.5], []], "ARRAY<DOUBLE>"),
        ([{"a": 1, "b c": [True]}, {"a": None}], "STRUCT<a: BIGINT, `b c`: ARRAY<BOOLEAN>>"),
        ([{}], "STRING"),
        ([[1], "x"], "STRING"),
        ([], "STRING"),
    ],
)
def test_type_holds_all_values(values: list[Any], kind: str) -> None:
    assert json_type(values) == kind


def test_csv_and_bytes_are_told_from_json() -> None:
    found = infer([b"1,ada,2.5\n", b"2,,3\r\n"])
    assert (found.format, [(one.name, one.kind) for one in found.fields]) == (
        "csv",
        [("c1", "BIGINT"), ("c2", "STRING"), ("c3", "DOUBLE")],
    )
    for raw in ([b"\xff\xfe"], [b"one", b"two"], [b"1,2", b"1,2,3"], [b"[1]"], [b'"a"'], [b""]):
        assert infer(raw) == Sample("raw", len(raw), ())


def orders(count: int) -> list[bytes]:
    return [
        json.dumps(
            {
                "id": n,
                "customer": ("ada", "alan")[n % 2],
                "amount": n * 1.5,
                "placed": "2026-01-31T12:00:00Z",
                "we-ird": n,
            }
            | ({"note": "x"} if n % 4 == 0 else {})
        ).encode()
        for n in range(count)
    ]


def test_file_says_what_the_sample_showed() -> None:
    text = pipeline_text("ORDERS", infer(orders(20)), "nats://a:4222, nats://b:4222")
    assert "# note: missing or null in 75 % of the sample" in text
    assert '# watermark = { column = "placed", delay = "10 minutes" }' in text
    found = parse(text)
    assert found.connection == {"servers": "nats://a:4222,nats://b:4222"}
    assert [one.name for one in found.outputs] == ["per_customer", "history"]
    schema = "id BIGINT, customer STRING, amount DOUBLE, placed TIMESTAMP, `we-ird` BIGINT, note STRING"
    assert " ".join(found.sources[0].schema.split()) == schema
    assert parse(pipeline_text("9-RAW", infer([b"\xff"]))).sources[0].format == "raw"


def test_file_says_how_many_messages_are_not_of_its_format() -> None:
    text = pipeline_text("ORDERS", infer([*orders(99), b'{"id": 1']))
    assert "# 1 of 100 messages of the sample are not JSON objects." in text
    assert "are not" not in pipeline_text("ORDERS", infer(orders(99)))


def test_file_says_which_values_do_not_fit_the_others() -> None:
    rows: list[dict[str, Any]] = [{"n": n, "t": {"a": 1}, "m": n} for n in range(1, 300)]
    sample = infer([json.dumps(one).encode() for one in [*rows, {"n": "x", "t": {"a": 1}, "m": None}]])
    text = pipeline_text("ORDERS", sample)
    assert '# n: BIGINT in 99 % of the sample, but also "x"' in text
    assert "# m: missing or null in less than 1 % of the sample" in text
    assert "# t:" not in text
    parse(text)


AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "value", "type": ["null", "long"]}],
}


@pytest.mark.parametrize("doc", ["", "it'''s"])
def test_columns_of_avro_are_those_of_the_schema(doc: str) -> None:
    messages = [bytes([4, 115, 48 + n % 2, 2, 2 * n]) for n in range(10)] + [b"\x04s0\x00", b"{}"]
    sample = infer_avro(messages, json.dumps({**AVRO, "doc": doc}, indent=1))
    text = pipeline_text("READINGS", sample)
    found = parse(text)
    assert (found.sources[0].format, json.loads(found.sources[0].schema)["doc"]) == ("avro", doc)
    assert "# 1 of 12 messages of the sample are not records of this type." in text
    assert "# value: missing or null in 9 % of the sample" in text
    assert found.outputs[0].key == ("sensor",)
    assert "sum(value) AS total" in found.steps[0].sql
    with pytest.raises(UsageError, match="an Avro schema must be JSON"):
        infer_avro(messages, "x")


def test_columns_of_protobuf_are_those_of_the_message_type(
    our_url: str, fresh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.desc").write_bytes(SET)
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "new.toml"
    with connect_blocking(our_url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        for n in range(20):
            js.publish(f"{fresh}.x", order(id=n, note=("ada", "alan")[n % 2]).SerializeToString())
        js.publish(f"{fresh}.x", b"\x08")
    new = ["pipeline", "new", "-s", our_url, "--stream", fresh]
    descriptor = ["--descriptor", str(tmp_path / "shop.desc")]
    assert main([*new, *descriptor, "--message", "shop.Order", str(file)]) == 0
    capsys.readouterr()
    text = file.read_text()
    found = load(str(file))
    assert (found.sources[0].message, found.sources[0].descriptor) == ("shop.Order", SET)
    assert f'descriptor = "{Path("..", "shop.desc")}"' in text
    assert "# 1 of 21 messages of the sample are not records of this type." in text
    assert '# watermark = { column = "placed", delay = "10 minutes" }' in text
    assert (found.outputs[0].key, found.steps[0].sql.count("sum(id)")) == (("note",), 1)
    for more, said in (
        (descriptor, "--descriptor and --message go together"),
        ([*descriptor, "--message", "shop.Ordr"], "no message type 'shop.Ordr'; did you mean shop.Order?"),
        ([*descriptor, "--message", "shop.Order", "--avro", "x"], "--avro and --descriptor are mutually exclusive"),
        (["--avro", str(tmp_path / "no")], "no cannot be read: No such file or directory"),
    ):
        assert main([*new, *more]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("names", "codec"), [(("ada", "alan"), "none"), (("Ada Lovelace", "alan"), "base64")])
def test_keys_that_a_bucket_does_not_take_are_encoded(names: tuple[str, ...], codec: str) -> None:
    messages = [json.dumps({"customer": names[n % 2], "amount": n}).encode() for n in range(20)]
    (output, _) = parse(pipeline_text("ORDERS", infer(messages))).outputs
    assert (output.key, output.key_codec) == (("customer",), codec)


NAMES = [
    *("select", "order id", "größe", "a.b", "tick`s", "quote'", 'quotes"', "back\\slash", "comment--", "/*", "tab\t"),
    *("", "line\nbreak", "three'''quotes", "_subject", "_Sequence", "Same", "same", "1st", "x" * 200),
]


@pytest.mark.parametrize("name", NAMES)
def test_columns_may_have_any_name(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Also in structs. The file is read, and Spark takes what is in it."""
    rows = [{name: f"k{n % 2}", "amount": n, "t": {"s": {name: n}, "u": 1}} for n in range(20)]
    sample = infer([json.dumps(one).encode() for one in [*rows, {"amount": 1}]])
    text = pipeline_text("größe", sample)
    pipeline = parse(text, file=str(tmp_path / "p.toml"))
    assert deep_mistakes(spark, pipeline) == []
    kept = {} if name in ("", "_subject", "_Sequence") else {name: "STRING"}
    columns = ddl_columns(pipeline.sources[0].schema)
    assert columns == kept | {"amount": "BIGINT", "t": columns["t"]}
    assert (f"# {name}: left out, since every source has a column of this name" in text) == name.startswith("_")


@pytest.mark.parametrize("name", NAMES)
def test_column_with_any_name_is_a_key_or_no_output_has_it(name: str, spark: SparkSession, tmp_path: Path) -> None:
    sample = infer([json.dumps({name: f"k{n % 2}", "amount": n / 3}).encode() for n in range(20)])
    pipeline = parse(pipeline_text("S", sample), file=str(tmp_path / "p.toml"))
    assert deep_mistakes(spark, pipeline) == []
    keys = [one.key for one in pipeline.outputs if one.key]
    assert keys == ([] if name in ("", "_subject", "_Sequence", "a.b", "tick`s") else [(name,)])


def test_objects_without_columns_are_raw() -> None:
    for data in (b"{}", b'{"": 1}', b'{"_subject": 1}'):
        assert infer([data] * 3).format == "raw"


def test_new_writes_a_file_that_is_valid(
    our_url: str, fresh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "new.toml")
    with connect_blocking(our_url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        new = ["pipeline", "new", "-s", our_url, "--stream"]
        assert main([*new, fresh]) == 2
        assert "has no messages to infer a schema from" in capsys.readouterr().err
        for data in [b"old"] * 30 + orders(20):
            js.publish(f"{fresh}.x", data)
    assert main([*new, fresh, "--sample", "20", file]) == 0
    assert capsys.readouterr().out == f"wrote {file}, from 20 messages of stream {fresh}\n"
    assert load(file).sources[0].format == "json"
    assert main(["pipeline", "validate", file]) == 0
    assert main([*new, fresh, file]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main([*new, f"{fresh}q"]) == 2
    assert f"there is no stream '{fresh}q'; did you mean {fresh}?" in capsys.readouterr().err

"""Pipeline files: what is taken, and where each mistake is said to be."""

from __future__ import annotations

import io
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import NoReturn
from unittest import mock
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipstream.errors import Error
from slipstream.spark.pipelines import PipelineError, main, parse
from slipstream.spark.pipelines.avro import AvroError, Decoder, fingerprint, spark_schema
from slipstream.spark.pipelines.cli import load
from slipstream.spark.pipelines.display import Lines, display, table
from slipstream.spark.pipelines.runner import Runner, Running
from slipstream.spark.pipelines.sql_tables import mentioned
from slipstream.spark.pipelines.state import QueryState, StateFolder, lag_of, misplaced, sources_of
from slipstream.spark.pipelines.toml_positions import TomlPosition, TomlPositions

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "orders.toml"

SMALL = """
[sources.orders]
stream = "ORDERS"

[outputs.copy]
from = "orders"
stream = "COPY"
subject = "subject"
value = "data"
"""


SEVERAL = """
[sources.a]
stream = "S"
[sources.b]
stream = "S"
[sources.c]
bucket = "c"
[steps.ab]
sql = "SELECT * FROM a JOIN b USING (subject)"
[steps.abc]
sql = "SELECT * FROM ab UNION ALL (SELECT * FROM c)"
[outputs.one]
from = "a"
path = "one"
[outputs.both]
from = "ab"
path = "both"
[outputs.all]
from = "abc"
path = "all"
"""


def field(kind: str) -> str:
    """An Avro schema with one field."""
    return f'{{"type":"record","name":"R","fields":[{{"name":"a","type":{kind}}}]}}'


def mistakes(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(PipelineError) as caught:
        parse(text, file="p.toml", check=misplaced)
    for one in caught.value.mistakes:
        assert f"p.toml:{one.place.line}:{one.place.column}: {one.text}" in str(caught.value)
    return [(*one.place, one.text) for one in caught.value.mistakes]


class TestFile:
    def test_the_example(self) -> None:
        found = parse(EXAMPLE.read_text(), file=str(EXAMPLE))
        assert found.name == "orders"
        assert [one.name for one in found.outputs] == ["customers", "minutes", "alerts", "history"]
        assert found.sources[0].options == {"maxMessagesPerTrigger": "100000"}
        assert found.outputs[0].mode == "update"
        assert found.conf == {"spark.sql.shuffle.partitions": "2"}

    def test_a_small_one(self) -> None:
        found = parse(SMALL, name="x")
        assert (found.name, found.sources[0].format, found.outputs[0].kind) == ("x", "raw", "stream")

    @pytest.mark.parametrize("value", ["false", '"false"'])
    def test_loss_of_data_may_be_accepted(self, value: str) -> None:
        found = parse(SMALL.replace('stream = "ORDERS"', f'stream = "ORDERS"\nfail_on_data_loss = {value}'))
        assert found.sources[0].options == {"failOnDataLoss": "false"}

    @pytest.mark.parametrize(
        ("table", "conf", "path"),
        [
            ("JT", "", "/x/p-state/warehouse/jt"),
            ("spark_catalog.default.jt", '"spark.sql.shuffle.partitions" = 1', "/x/p-state/warehouse/jt"),
            ("jt", '"spark.sql.warehouse.dir" = "file:///w"', "/w/jt"),
            ("jt", '"spark.sql.warehouse.dir" = "s3a://w/"', "s3a://w/jt"),
            ("jt", '"spark.sql.catalog.spark_catalog" = "some.Catalog"', "None"),
            ("lake.db.jt", "", "None"),
            ("`../jt`", "", "None"),
        ],
    )
    def test_where_a_table_lies(self, table: str, conf: str, path: str) -> None:
        text = f"{SMALL}[outputs.t]\nfrom = 'orders'\ntable = '{table}'\n[spark.conf]\n{conf}\n"
        found = parse(text, file="/x/p.toml", name="p")
        state = StateFolder(found)
        assert str(state.path_of(found.outputs[1])) == path
        assert state.path_of(found.outputs[0]) is None

    def test_steps_come_in_the_order_they_need(self) -> None:
        steps = '[steps.b]\nsql = "SELECT * FROM a"\n[steps.a]\nsql = "SELECT b FROM orders"\n'
        assert [step.name for step in parse(SMALL + steps).steps] == ["a", "b"]

    def test_syntax(self) -> None:
        assert mistakes("[pipeline]\nname = \n")[0][:2] == (2, 8)
        assert mistakes("[pipeline]\nname = 'x")[0][0] == 2

    @pytest.mark.parametrize(
        ("text", "place", "said"),
        [
            ('[sources.s]\nstream = "S"\nformt = "json"\n', (3, 1), "formt is not known here, did you mean format?"),
            ('[sources.s]\nstream = "a.b"\n', (2, 1), "bad stream name 'a.b'"),
            ("[sources.s]\nstream = 5\n", (2, 1), "stream is 5: a text is allowed"),
            ("[sources.s]\n", (1, 1), "needs a stream or a bucket to read"),
            (
                '[sources.s]\nstream = "S"\nformat = "xml"\nschema="a INT"',
                (3, 1),
                "format is 'xml': json, csv, avro, raw",
            ),
            ('[sources.s]\nstream = "S"\nformat = "json"\n', (3, 1), "json needs a schema"),
            ('[sources.s]\nstream = "S"\nschema = "a INT"\n', (3, 1), "raw has no schema"),
            ('[sources.s]\nstream = "S"\n\n  starting = "soon"\n', (4, 3), "'starting' is 'soon'"),
            ('[sources.s]\nstream = "S"\npartitions = 0\n', (3, 1), "'partitions' is '0': a whole number"),
            ('[sources.s]\nstream = "S"\npartitions = true\n', (3, 1), "partitions is True: a text or a number is"),
            ('[sources.s]\nstream = "S"\nfail_on_data_loss = 0\n', (3, 1), "fail_on_data_loss is 0: true or false is"),
            ('[sources.s]\nstream = "S"\nsubjects = ["a..b"]\n', (3, 1), "bad subject filter 'a..b'"),
            ('[sources.s]\nstream="S"\nwatermark = { column = "t" }\n', (3, 1), "needs delay"),
            (
                '[outputs.o]\nfrom = "ordres"\nbucket = "b"\nkey = "k"\n',
                (2, 1),
                "no source or step 'ordres': did you mean",
            ),
            ('[outputs.o]\nfrom = "orders"\n', (1, 1), "needs one of bucket, stream, path and table, it has 0"),
            ('[outputs.o]\nfrom = "orders"\nbucket = "b"\n', (1, 1), "needs key"),
            ('[outputs.o]\nfrom = "orders"\nstream = "S"\n', (1, 1), "needs subject"),
            ('[outputs.o]\nfrom = "orders"\npath = "x"\nmode = "update"', (4, 1), "files and tables take 'append'"),
            ('[outputs.o]\nfrom = "orders"\npath = "x"\nkey = "k"\n', (4, 1), "key is not for an output into a file"),
            ('[outputs.o]\nfrom = "orders"\nbucket = "b"\nkey="k"\nmode = "complete"', (5, 1), "takes 'update' or"),
            ('[outputs.dead-orders]\nfrom = "orders"\npath = "x"\n', (1, 1), "of the dead letters of source 'orders'"),
            ('[steps.x]\nsql = "SELECT * FROM x"', (1, 1), "is made of itself"),
            ('[steps.orders]\nsql = "SELECT 1"\n', (1, 1), "'orders' is a source as well"),
            ('[steps.Orders]\nsql = "SELECT 1"\n', (1, 1), "'Orders' is source 'orders' as well: SQL ignores case"),
            (
                '[steps.x]\nsql = "SELECT 1"\n[steps.X]\nsql = "SELECT 1"\n',
                (3, 1),
                "'X' is step 'x' as well: SQL ignores case: names of sources and steps must differ",
            ),
            ('[steps.a-b]\nsql = "SELECT 1"\n', (1, 1), "bad name 'a-b': letters, digits and '_' are allowed"),
            ('[steps.x]\nsql = " "\n', (2, 1), "sql is empty"),
            ('[connection]\nservers = "nats://me:hush@x"\n', (1, 1), "has user info in a URL"),
            ('[connection]\nserver = "x"\n', (2, 1), "did you mean servers?"),
            ('[connection]\nservers = "x"\n[server]\nport = 1\n', (3, 1), "one is allowed"),
            ("[server]\nport = 70000\n", (2, 1), "port is 70000: 0 to 65535 is allowed"),
            ("[streams.S]\n", (1, 1), "[streams.S] needs subjects"),
            ('[streams.S]\nsubjects="s"\nmax_age_seconds = -5', (3, 1), "max_age_seconds is -5: 0 (for ever) to"),
            ('[streams.S]\nsubjects="s"\nmax_age_seconds = nan', (3, 1), "max_age_seconds is nan: 0 (for ever) to"),
            ('[spark]\nmaster = "nonsense"\n', (2, 1), "master is 'nonsense': local[*], local[2], spark://host"),
            (
                '[sources.s]\nstream = "S"\nformat = "avro"\nschema = \'{"type":"record","name":"R"}\'\n',
                (4, 1),
                'an Avro record needs fields, a list: {"type": "record", "name": "R"}',
            ),
            ('[streams."a b"]\nsubjects = "x"\n', (1, 1), "bad stream name 'a b'"),
            ("[buckets.b]\nhistory = 65\n", (2, 1), "history is 65: 1 to 64 is allowed"),
            ('[pipeline]\nname = "a b"\n', (2, 1), "name is 'a b': letters, digits"),
            ('[pipeline]\ntrigger = "soon"\n', (2, 1), "trigger is 'soon': a time such as"),
            ("[sources]\ns = 5\n", (2, 1), "s is 5: a table [sources.s] is allowed"),
            (
                '[outputs.o]\nfrom = "orders"\npath = "."\n',
                (3, 1),
                "which is the folder of the pipeline's file",
            ),
            ('[outputs.o]\nfrom = "orders"\npath = "x/../.."\n', (3, 1), "contains the folder of the pipeline's file"),
            ('[outputs.o]\nfrom = "orders"\npath = "file:///"\n', (3, 1), "contains the folder of the pipeline's file"),
            (
                '[outputs.o]\nfrom = "orders"\npath = "pipeline-state"\n',
                (3, 1),
                "is the folder of the pipeline's state",
            ),
            (
                '[pipeline]\nstate = "a/b"\n[outputs.o]\nfrom = "orders"\npath = "a"\n',
                (5, 1),
                "path is 'a', which contains the folder of the pipeline's state",
            ),
            (
                '[server]\ndata = "a/b"\n[outputs.o]\nfrom = "orders"\npath = "a"\n',
                (5, 1),
                "contains the folder of the server's data",
            ),
            ("typo = 1\n", (1, 1), "typo is not known here"),
        ],
    )
    def test_a_mistake_is_found_where_it_is(self, text: str, place: tuple[int, int], said: str) -> None:
        found = mistakes(text + "\n" + SMALL if text.startswith("typo") else text + SMALL)
        assert len(found) == 1, found
        assert (found[0][:2], said in found[0][2]) == (place, True), found
        assert "hush" not in str(found)

    @pytest.mark.parametrize(
        ("one", "other", "said"),
        [
            ('path = "out"', 'path = "./out/"', "path is './out/', which is the place of output 'one'"),
            ('path = "out"', 'path = "out/inner"', "path is 'out/inner', which lies in the place of output 'one'"),
            (
                'path = "out/inner"',
                'path = "x/../out"',
                "which contains the place of output 'one': a folder",
            ),
            ('path = "s3a://x/out/"', 'path = "s3a://x/out/y"', "which lies in the place of output 'one'"),
            ('table = "t"', 'table = "T"', "table is 'T', which is the place of output 'one': a table of its own"),
            ('table = "t"', 'table = "spark_catalog.default.t"', "which is the place of output 'one'"),
            ('table = "db.t"', 'table = "`DB`.t"', "which is the place of output 'one'"),
            ('table = "t"', 'path = "pipeline-state/warehouse/t"', "which is the place of output 'one'"),
        ],
    )
    def test_two_outputs_have_two_places(self, one: str, other: str, said: str) -> None:
        text = f"{SMALL}[outputs.one]\nfrom = 'orders'\n{one}\n[outputs.other]\nfrom = 'orders'\n{other}\n"
        found = mistakes(text)
        assert [(*place, said in text) for *place, text in found] == [(15, 1, True)], found

    def test_places_that_only_look_alike(self, tmp_path: Path) -> None:
        places = ['path = "out"', 'path = "out2"', 'path = "s3a://x/out"', 'table = "out"', 'table = "a.out"']
        outputs = "".join(f"[outputs.o{i}]\nfrom = 'orders'\n{place}\n" for i, place in enumerate(places))
        assert len(parse(SMALL + outputs, file=str(tmp_path / "p.toml"), check=misplaced).outputs) == 6

    def test_tables_of_another_catalog_may_have_several_writers(self, tmp_path: Path) -> None:
        catalog = '[spark]\nconf = { "spark.sql.catalog.lake" = "org.apache.iceberg.spark.SparkCatalog" }\n'
        outputs = "".join(f"[outputs.o{i}]\nfrom = 'orders'\ntable = 'lake.db.t'\n" for i in range(2))
        assert len(parse(SMALL + outputs + catalog, file=str(tmp_path / "p.toml"), check=misplaced).outputs) == 3

    @pytest.mark.parametrize(
        "text",
        [
            "sources = 5",
            "[sources]\ns = 5",
            "[sources.s]\nstream = 5",
            '[sources.s]\nstream = ""',
            '[sources.s]\nstream = "S"\nformat = 5\nschema = "a INT"',
            '[sources.s]\nstream = "S"\nformat = "xml"',
            '[sources.s]\nstream = "S"\nformat = "json"\nschema = 5',
            '[sources.s]\nstream = "S"\nwatermark = 3',
            '[outputs.o]\nfrom = 3\npath = "x"',
            '[outputs.o]\nfrom = "a"\nbucket = "b"\nkey = [1]',
            '[outputs.o]\nfrom = "a"\nstream = "b"\nsubject = 1',
            '[outputs.o]\nfrom = "a"\npath = ""',
            '[outputs.o]\nfrom = "a"\nbucket = 5',
            '[outputs.o]\nfrom = "a"\npath = "x"\nbucket = "b"\nkey = "k"',
            '[outputs.o]\nfrom = "a"\npath = "x"\nmode = "no"',
            "[streams.S]\nsubjects = 5",
            '[pipeline]\ntrigger = ""',
            '[connection]\ncontext = ""',
        ],
    )
    def test_one_mistake_is_one_line(self, text: str) -> None:
        whole = {"source": '[sources.a]\nstream = "A"\n', "output": '[outputs.x]\nfrom = "a"\npath = "out"\n'}
        if text.startswith(("sources", "[sources]")):
            del whole["source"]
            whole["output"] = '[steps.a]\nsql = "SELECT 1"\n' + whole["output"]
        assert len(found := mistakes(f"{text}\n{''.join(whole.values())}")) == 1, found

    def test_all_mistakes_at_once(self) -> None:
        text = '[sources.s]\nstream = "a b"\nformat = 5\n[outputs.o]\nfrom = "t"\n'
        assert {one[0] for one in mistakes(text)} == {2, 3, 4, 5}
        ring = '[steps.x]\nsql = "SELECT * FROM y"\n[steps.y]\nsql = "SELECT * FROM x"\n'
        assert [one[0] for one in mistakes(ring + SMALL) if "is made of itself" in one[2]] == [1, 3]
        assert any("there is no source" in one[2] for one in mistakes("[pipeline]\n"))


class TestPlaces:
    def test_keys_of_all_kinds(self) -> None:
        text = '''# [not.this]
top = """
[neither] = "this"
"""   # comment
[a . "b c"]
  x = { y = [1, { z = 2 }], "w" = 'q=1' }
a.b = 1
[[list]]
k = "v"
'''
        places = TomlPositions(text)
        assert places[("top",)] == TomlPosition(2, 1)
        assert places[("a", "b c")] == TomlPosition(5, 1)
        assert places[("a", "b c", "x")] == TomlPosition(6, 3)
        assert places[("a", "b c", "x", "y")] == TomlPosition(6, 9)
        assert places[("a", "b c", "x", "y", "z")] == TomlPosition(6, 19)
        assert places[("a", "b c", "x", "w")] == TomlPosition(6, 29)
        assert places[("a", "b c", "a", "b")] == TomlPosition(7, 1)
        assert places[("list", "k")] == TomlPosition(9, 1)
        assert places[("list", "not there")] == TomlPosition(8, 1)
        assert places[("nowhere",)] == TomlPosition(1, 1)


def test_which_names_a_query_is_made_of() -> None:
    sql = "SELECT a, 'FROM x' FROM orders o JOIN `b` ON 1 -- FROM c\n, (SELECT * FROM d, e) /* JOIN f */"
    assert mentioned(sql, ["a", "orders", "b", "c", "d", "e", "f", "x"]) == {"orders", "b", "d", "e"}


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
def test_names_are_found_wherever_tables_stand(sql: str, tables: str) -> None:
    assert mentioned(sql, ["a", "b", "c", "d", "e", "orders", "customers"]) == set(tables.split())


class TestAvro:
    SCHEMA = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "namespace": "shop",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "note", "type": ["null", "string"]},
                {"name": "tags", "type": {"type": "array", "items": "string"}},
                {"name": "sizes", "type": {"type": "map", "values": "int"}},
                {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
                {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
                {"name": "ok", "type": "boolean"},
                {"name": "x", "type": "double"},
                {"name": "again", "type": "shop.Kind"},
            ],
        }
    )
    # id 150, note "hi", tags [a, b], sizes {k: -1}, kind B, price 12.34, at 1000 ms, raw 0102, ok, x 0.5, again A
    DATA = bytes.fromhex("ac020204686904026102620002026b0100020404d2d00f010201000000000000e03f00")

    def test_records_become_json_and_columns(self) -> None:
        assert spark_schema(self.SCHEMA) == (
            "`id` BIGINT, `note` STRING, `tags` ARRAY<STRING>, `sizes` MAP<STRING, INT>, `kind` STRING, "
            "`price` DECIMAL(9, 2), `at` TIMESTAMP, `raw` BINARY, `ok` BOOLEAN, `x` DOUBLE, `again` STRING"
        )
        expected = {
            **{"id": 150, "note": "hi", "tags": ["a", "b"], "sizes": {"k": -1}, "kind": "B", "price": "12.34"},
            **{"at": "1970-01-01T00:00:01+00:00", "raw": "AQI=", "ok": True, "x": 0.5, "again": "A"},
        }
        decoder = Decoder(self.SCHEMA)
        assert json.loads(decoder.to_json(self.DATA)) == expected
        header = b"\xc3\x01" + fingerprint(json.loads(self.SCHEMA))
        assert json.loads(decoder.to_json(header + self.DATA)) == expected
        with pytest.raises(AvroError):  # of another schema
            decoder.to_json(b"\xc3\x01" + b"\0" * 8 + self.DATA)

    def test_a_plain_record_may_begin_as_a_header_does(self) -> None:
        fields = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
        decoder = Decoder(json.dumps({"type": "record", "name": "R", "fields": fields}))
        for size in (3, 8, 40):
            data = b"\xc3\x01" + bytes([2 * size]) + b"a" * size
            assert json.loads(decoder.to_json(data)) == {"id": -98, "s": "a" * size}

    @pytest.mark.parametrize(
        ("schema", "expected"),
        [  # of the Avro project's own tests
            ("null", 7195948357588979594),
            ({"type": "int", "doc": "x"}, 8247732601305521295),
            ({"fields": [], "type": "record", "name": "foo"}, -4824392279771201922),
            ({"fields": [], "type": "record", "name": "foo", "namespace": "x.y"}, 5916914534497305771),
            (
                {"type": "record", "name": "foo", "fields": [{"name": "f1", "type": {"type": "boolean"}, "doc": "x"}]},
                7843277075252814651,
            ),
        ],
    )
    def test_the_fingerprint_of_a_schema(self, schema: object, expected: int) -> None:
        assert int.from_bytes(fingerprint(schema), "little", signed=True) == expected

    def test_the_fingerprint_does_not_depend_on_how_a_schema_is_written(self) -> None:
        plain = json.loads(self.SCHEMA)
        other = {**plain, "name": "shop.Order", "namespace": "ignored", "doc": "An order.", "aliases": ["Bestellung"]}
        assert fingerprint(other) == fingerprint(plain)
        assert fingerprint({**plain, "name": "Other"}) != fingerprint(plain)

    @given(st.integers(-(10**39), 10**39), st.integers(0, 38))
    @example(12345678901234567890123456789012345678, 2)
    @example(1, 10)
    def test_decimals_are_exact(self, number: int, scale: int) -> None:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale}
        decoder = Decoder(json.dumps({"type": "record", "name": "R", "fields": [{"name": "d", "type": decimal}]}))
        data = number.to_bytes(17, "big", signed=True)
        if len(str(abs(number))) > 38:
            with pytest.raises(AvroError, match="not a record of the schema"):
                decoder.to_json(bytes([34]) + data)
            return
        found = json.loads(decoder.to_json(bytes([34]) + data))["d"]
        assert Fraction(found) * 10**scale == number
        assert "E" not in found

    @given(st.binary(max_size=60))
    def test_other_bytes_are_an_error_and_nothing_else(self, data: bytes) -> None:
        decoder = Decoder(self.SCHEMA)
        try:
            decoder.to_json(data)
        except AvroError:
            return

    def test_every_cut_of_a_record_is_an_error(self) -> None:
        decoder = Decoder(self.SCHEMA)
        for end in range(len(self.DATA)):
            with pytest.raises(AvroError):
                decoder.to_json(self.DATA[:end])
        with pytest.raises(AvroError, match="1 bytes are left"):
            decoder.to_json(self.DATA + b"\0")

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            ("{", "is JSON"),
            ('"string"', "is a record"),
            ('{"type":"record","name":"R","fields":[{"name":"a","type":["int","string"]}]}', "has no type in Spark"),
            ('{"type":"record","name":"R","fields":[{"name":"a","type":"Other"}]}', "unknown Avro type 'Other'"),
            ('{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}', "contains itself"),
            ('{"type":"record","name":"R"}', "needs fields, a list"),
            ('{"type":"record","name":"R","fields":"x"}', "needs fields, a list"),
            ('{"type":"record","name":5,"fields":[]}', "name and namespace of an Avro type are texts"),
            ('{"type":"record","name":"R","fields":[5]}', "needs name, a text, and type: 5"),
            ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "needs name, a text, and type"),
            (field('{"type":"bytes","logicalType":"decimal"}'), "precision is missing, 1 to 38 is allowed"),
            (field('{"type":"bytes","logicalType":"decimal","precision":39}'), "precision is 39, 1 to 38 is allowed"),
            (
                field('{"type":"bytes","logicalType":"decimal","precision":9,"scale":10}'),
                "scale is 10, 0 to 9",
            ),
            (field('{"type":"long","logicalType":"decimal","precision":9}'), "is of bytes or fixed"),
            (field('{"type":"long","logicalType":[]}') + "}", "is JSON"),
            (field('{"type":"array"}'), "an Avro array needs items"),
            (field('{"type":"map"}'), "an Avro map needs values"),
            (field('{"type":"enum","name":"E"}'), "an Avro enum needs symbols"),
            (field('{"type":"fixed","name":"F"}'), "size is missing"),
            (field("5"), "5 is no Avro type"),
            ("[" * 100_000, "is JSON"),
        ],
    )
    def test_a_schema_that_cannot_be_used(self, schema: str, said: str) -> None:
        with pytest.raises(AvroError, match=said):
            spark_schema(schema)


class TestState:
    def test_what_a_run_has_seen_is_read_back(self, tmp_path: Path) -> None:
        state = StateFolder(parse(SMALL, file=str(tmp_path / "p.toml"), name="p"))
        assert state.read_run() == (0, "", {})
        seen = {"copy": QueryState(rows=5, batch=2, rate=1.5, at="now", sequences={"0": 7})}
        state.write_run("nats://x", seen)
        assert state.read_run() == (0, "nats://x", seen)
        with state.lock.held("it"):
            assert state.read_run() == (os.getpid(), "nats://x", seen)
        assert state.read_run() == (0, "nats://x", seen)

    def test_a_run_without_news_keeps_what_earlier_ones_have_seen(self) -> None:
        earlier = QueryState(rows=5, batch=2, rate=1.5, at="then", sequences={"0": 7}, skipped=1, error="away")
        assert QueryState().after(earlier) == QueryState(
            rows=5, batch=2, rate=1.5, at="then", sequences={"0": 7}, skipped=1
        )
        now = QueryState(rows=4, batch=3, rate=0.5, at="now", sequences={"0": 9})
        assert now.after(earlier) == QueryState(rows=9, batch=3, rate=0.5, at="now", sequences={"0": 9}, skipped=1)
        assert now.after(QueryState()) == now

    def test_a_reset_forgets_what_runs_have_seen(self, tmp_path: Path) -> None:
        state = StateFolder(parse(SMALL, file=str(tmp_path / "p.toml"), name="p"))
        state.write_run("nats://x", {"copy": QueryState(rows=5), "other": QueryState(rows=6)})
        state.reset(["copy"])
        assert state.read_run() == (0, "nats://x", {"other": QueryState(rows=6)})

    def test_how_far_an_output_is_behind(self) -> None:
        pipeline = parse(SMALL)
        assert lag_of(pipeline, "copy", [{"seq": 7}], {"orders": 10}) == 3
        assert lag_of(pipeline, "copy", [], {"orders": 10}) == 10
        assert lag_of(pipeline, "copy", [{"seq": 7}, {"seq": 1}], {"orders": 10}) == 12  # joined with itself
        assert lag_of(pipeline, "copy", [{"seq": 12}], {"orders": 10}) == 0
        assert lag_of(pipeline, "copy", [], {}) is None

    def test_how_far_outputs_of_several_sources_are_behind(self) -> None:
        pipeline = parse(SEVERAL)
        assert sources_of(pipeline, "one") == {"a"}
        assert sources_of(pipeline, "both") == {"a", "b"}
        assert sources_of(pipeline, "all") == {"a", "b", "c"}
        assert sources_of(pipeline, "dead-b") == {"b"}
        last = {"a": 10, "b": 10, "c": 5}
        assert lag_of(pipeline, "one", [{"seq": 7}], last) == 3
        assert lag_of(pipeline, "both", [{"seq": 7}, {"seq": 9}], last) == 4
        assert lag_of(pipeline, "both", [{"seq": 7}], last) == 3  # of one stream: whichever it is
        assert lag_of(pipeline, "all", [{"seq": 7}, {"seq": 9}, {"seq": 1}], last) == 8
        assert lag_of(pipeline, "all", [{"seq": 7}, {"seq": 1}], last) is None
        assert lag_of(pipeline, "all", [], last) == 25
        assert lag_of(pipeline, "dead-b", [{"seq": 4}], last) == 6
        assert lag_of(pipeline, "all", [{"seq": 7}], {"a": 10, "b": 10}) is None


class Query:
    """A streaming query as Spark has it, with what the runner asks of it."""

    def __init__(self, failure: str = "") -> None:
        self.isActive = not failure
        self.status = {"isDataAvailable": False}
        self.lastProgress = None
        self.recentProgress: list[object] = []
        self.exception = lambda: failure or None

    def stop(self) -> None:
        self.isActive = False


class TestRunner:
    def test_a_query_that_failed_is_told_while_others_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
        bad, *slow = (Running(name, mock.Mock()) for name in ("bad", "slow", "slower", "waiting"))
        runner.queries = {one.name: one for one in (bad, *slow)}
        started = []

        def start(one: Running) -> None:
            started.append(one.name)
            one.start(Query("AnalysisException: no such column" if one is bad else ""))  # type: ignore[arg-type]

        monkeypatch.setattr(runner, "_at_once", 2)
        monkeypatch.setattr(runner, "_start", start)
        monkeypatch.setattr(runner, "_build", mock.Mock())
        monkeypatch.setattr(runner, "_report", mock.Mock())
        with pytest.raises(Error, match="output 'bad' failed: AnalysisException: no such column"):
            runner._run(mock.Mock(), {}, mock.Mock(), Lines(io.StringIO()))
        assert started == ["bad", "slow", "slower"]
        assert not any(one.query and one.query.isActive for one in slow)

    def test_it_is_the_only_one_from_the_start_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = parse(SMALL, file=str(tmp_path / "p.toml"))
        state = StateFolder(pipeline)
        state.write_run("nats://earlier", {"copy": QueryState(rows=5)})
        seen = []

        def look(*_: object) -> NoReturn:
            seen.append(state.read_run())
            raise Error("no server")

        monkeypatch.setattr("slipstream.spark.pipelines.runner.servers", look)
        with pytest.raises(Error, match="no server"):
            Runner(pipeline, once=True).run()
        assert seen == [(os.getpid(), "", {"copy": QueryState(rows=5)})]
        assert state.read_run()[0] == 0


class TestDisplay:
    def test_lines_where_there_is_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        import sys

        screen = display(sys.stdout, "title")
        assert type(screen) is Lines
        queries = {"a": QueryState(rows=1500, batch=3, rate=250.0), "b": QueryState()}
        for _ in range(2):  # nothing new: nothing is said
            screen.show(queries, {"a": 20})
        assert capsys.readouterr().out == "a: batch 3, 1,500 rows, 250 rows/s, 20 behind\n"

    def test_a_table_where_there_is_one(self) -> None:
        from rich.console import Console

        console = Console(width=100, record=True, file=io.StringIO())
        console.print(table("pipeline p", {"a": QueryState(rows=1500, batch=3)}, {"a": 20}))
        text = console.export_text()
        assert "pipeline p" in text
        assert "1,500" in text


class TestCommand:
    @pytest.mark.parametrize("master", ["nonsense", "local[x]", "foo://x", "local[2"])
    def test_a_master_that_is_none(self, master: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "p.toml").write_text(SMALL)
        assert main(["run", str(tmp_path / "p.toml"), "--master", master]) == 2
        assert capsys.readouterr().err.startswith(f"error: master is {master!r}: local[*], local[2], spark://host:7077")

    def test_validate(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL)
        assert main(["validate", str(file)]) == 0
        assert "1 sources, 0 steps, 1 outputs" in capsys.readouterr().out
        file.write_text(SMALL + "typo = 1\n")
        assert main(["validate", str(file)]) == 2
        assert f"{file}:10:1: typo is not known here" in capsys.readouterr().err
        assert main(["validate", str(tmp_path / "none.toml")]) == 2

    def test_reset_asks_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL + '[outputs.files]\nfrom = "orders"\npath = "out"\n')
        checkpoint = tmp_path / "p-state" / "checkpoints" / "files"
        for folder in (checkpoint, tmp_path / "out"):
            folder.mkdir(parents=True)
        assert main(["reset", str(file), "--output", "files"]) == 1
        assert "say --yes" in capsys.readouterr().out
        assert checkpoint.exists()
        assert main(["reset", str(file), "--output", "nope"]) == 2
        assert main(["reset", str(file), "--yes"]) == 0
        assert not checkpoint.exists()
        assert not (tmp_path / "out").exists()  # Spark notes in it what it has, and would leave that out

    def test_reset_removes_what_spark_has_written_and_nothing_else(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL + '[outputs.files]\nfrom = "orders"\npath = "my out"\n')
        out, outside = tmp_path / "my out", tmp_path / "kept.json"
        written = [out / "part-0.json", out / "word=a%2Fb" / "part-1.json", out / "part-2.json"]
        others = [out / "notes.txt", out / "word=c" / "mine.json", outside]
        for one in (*written, *others, out / ".part-0.json.crc", out / "_spark_metadata" / ".1.crc"):
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_text("{}")
        names = [*written, outside, out / ".." / "kept.json", out / "gone.json", out]
        notes = [json.dumps({"path": one.parent.as_uri() + "/" + quote(one.name), "size": 1}) for one in names]
        (out / "_spark_metadata" / "9.compact").write_text("\n".join(["v1", *notes[:2], '{"cut']))
        (out / "_spark_metadata" / "10").write_text("\n".join(["v1", *notes[2:]]))
        assert main(["reset", str(file), "--yes"]) == 0
        assert sorted(path for path in out.rglob("*") if path.is_file()) == others[:2]
        assert outside.exists()
        assert not (out / "word=a%2Fb").exists()
        assert "leaves what it has not written in" in (said := capsys.readouterr().out)
        assert "my out: notes.txt, word=c" in said

    def test_reset_names_what_is_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        text = SMALL.replace('stream = "ORDERS"', 'stream = "ORDERS"\nformat = "csv"\nschema = "a INT"')
        file.write_text(text)
        assert main(["reset", str(file), "--yes"]) == 0
        assert "for copy\n" in capsys.readouterr().out
        file.write_text(f'[pipeline]\ndead_letter = "DEAD"\n{text}')
        assert main(["reset", str(file), "--yes"]) == 0
        assert "for copy, dead-orders\n" in capsys.readouterr().out
        file.write_text(text)
        (checkpoint := tmp_path / "p-state" / "checkpoints" / "dead-orders").mkdir(parents=True)
        assert main(["reset", str(file), "--yes"]) == 0
        assert not checkpoint.exists()

    def test_reset_of_a_folder_that_holds_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "."\n')
        assert main(["reset", str(file), "--yes"]) == 2
        assert file.exists()

    def test_reset_says_what_it_does_not_reach(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "s3a://x/y"\n')
        assert main(["reset", str(file), "--yes"]) == 0
        assert "does not reach s3a://x/y: remove _spark_metadata and the files there" in capsys.readouterr().out

    def test_reset_says_what_it_may_not_remove(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "out"\n')
        (tmp_path / "out").mkdir()
        with mock.patch("pathlib.Path.rmdir", side_effect=PermissionError(13, "Permission denied")):
            assert main(["reset", str(file), "--yes"]) == 1
        assert "out was not cleared, so reset it again: [Errno 13]" in capsys.readouterr().err

    def test_a_pipeline_that_runs_is_not_run_or_reset(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        file.write_text(SMALL)
        (checkpoint := tmp_path / "p-state" / "checkpoints" / "copy").mkdir(parents=True)
        with StateFolder(load(str(file))).lock.held("it"):
            for command in (["run", str(file)], ["reset", str(file), "--yes"]):
                assert main(command) == 2
                said = f"error: the pipeline 'p' is running already, as process {os.getpid()}: stop it first\n"
                assert capsys.readouterr() == ("", said)
        assert checkpoint.exists()
        assert main(["reset", str(file), "--yes"]) == 0
        assert not checkpoint.exists()

    def test_reset_of_tables(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "p.toml"
        tables = '[outputs.t]\nfrom = "orders"\ntable = "T"\n[outputs.u]\nfrom = "orders"\ntable = "lake.db.u"\n'
        file.write_text(SMALL + tables)
        folder = tmp_path / "p-state" / "warehouse" / "t"
        (folder / "_spark_metadata").mkdir(parents=True)
        written = [folder / "part-0.parquet", folder / "part-1.json"]  # the format was another one once
        for one in written:
            one.touch()
        (folder / "_spark_metadata" / "0").write_text("v1\n" + "\n".join(json.dumps({"path": str(w)}) for w in written))
        assert main(["reset", str(file), "--yes"]) == 0
        assert not folder.exists()
        assert "does not reach the table lake.db.u, which keeps its rows" in capsys.readouterr().out

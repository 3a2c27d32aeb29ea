"""Pipeline files: what the reader accepts, and the position of every mistake."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream import StreamConfig
from slipstream.kv.bucket import BucketConfig
from slipstream.spark.pipelines import PipelineError, load, parse
from slipstream.spark.pipelines.state import StateFolder
from tests.spark.pipelines.support import SMALL

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "orders.toml"


def mistakes(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(PipelineError) as caught:
        parse(text, file="p.toml")
    for one in caught.value.mistakes:
        assert f"p.toml:{one.position.line}:{one.position.column}: {one.text}" in str(caught.value)
    return [(*one.position[:2], one.text) for one in caught.value.mistakes]


def test_example_is_accepted() -> None:
    found = parse(EXAMPLE.read_text(), file=str(EXAMPLE))
    assert found.name == "orders"
    assert [one.name for one in found.outputs] == ["customers", "minutes", "alerts", "history"]
    assert found.sources[0].options == {"maxMessagesPerTrigger": "100000"}
    assert found.outputs[0].mode == "update"
    assert found.conf == {"spark.sql.shuffle.partitions": "2"}


def test_small_pipeline_has_defaults() -> None:
    found = parse(SMALL, name="x")
    assert (found.name, found.sources[0].format, found.outputs[0].kind) == ("x", "raw", "stream")


@pytest.mark.parametrize("value", ["false", '"false"'])
def test_data_loss_may_be_accepted(value: str) -> None:
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
def test_table_lies_in_the_warehouse(table: str, conf: str, path: str) -> None:
    text = f"{SMALL}[outputs.t]\nfrom = 'orders'\ntable = '{table}'\n[spark.conf]\n{conf}\n"
    found = parse(text, file="/x/p.toml", name="p")
    state = StateFolder(found)
    assert str(state.output_path(found.outputs[1])) == path
    assert state.output_path(found.outputs[0]) is None


@pytest.mark.parametrize(("value", "found"), [("9465", "9465"), ('"0.0.0.0:1"', "0.0.0.0:1")])
def test_metrics_are_a_port_or_an_address(value: str, found: str) -> None:
    assert parse(f"[pipeline]\nmetrics = {value}\n{SMALL}").metrics == found
    said = "metrics must be a port or host:port, such as 9465 or 0.0.0.0:9465, got 'x'"
    assert mistakes(f'[pipeline]\nmetrics = "x"\n{SMALL}') == [(2, 1, said)]


@pytest.mark.parametrize(("value", "found"), [("true", "4040"), ("4050", "4050"), ("false", "")])
def test_spark_ui_is_one_key(value: str, found: str) -> None:
    assert parse(f"[spark]\nui = {value}\n{SMALL}").ui == found
    assert mistakes(f"[spark]\nui = 70000\n{SMALL}")[0][2] == "ui must be true, false or a port, got 70000"
    assert mistakes(f'[spark]\nui = "x"\n{SMALL}')[0][2] == "ui must be true, false or a port, got 'x'"


def test_steps_are_in_dependency_order() -> None:
    steps = '[steps.b]\nsql = "SELECT * FROM a"\n[steps.a]\nsql = "SELECT data AS b FROM orders"\n'
    assert [step.name for step in parse(SMALL + steps).steps] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "column", "advice"),
    [
        ("key = customer", 7, "; text must be in quotation marks, got customer"),
        ("subject = concat('big.', customer)", 11, "; text must be in quotation marks, got concat('big.', customer)"),
        ("delay = 2 minutes", 11, "; text must be in quotation marks"),
        ('sql = "SELECT "a" FROM s"', 16, "; put three quotation marks around text that contains some"),
        ('sql = "SELECT', 14, "must end in its line; put three of them around several lines"),
        ("= 3", 1, "Invalid statement"),
    ],
)
def test_syntax_errors_say_what_was_probably_meant(line: str, column: int, advice: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse(f'[pipeline]\nname = "p"\n{line}\nnext = "x"\n', file="p.toml")
    (mistake,) = caught.value.mistakes
    assert (mistake.position.line, mistake.position.column) == (3, column)
    assert mistake.text.endswith(advice)


def test_syntax_errors_have_positions() -> None:
    assert mistakes("[pipeline]\nname = \n")[0][:2] == (2, 8)
    assert mistakes("[pipeline]\nname = 'x")[0][0] == 2


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ('[sources.s]\nstream = "S"\nformt = "json"\n', (3, 1), "unknown key formt, did you mean format?"),
        ('[sources.s]\nstream = "a.b"\n', (2, 1), "stream name must be 1 to 255 characters"),
        ("[sources.s]\nstream = 5\n", (2, 1), "stream must be a string, got 5"),
        ("[sources.s]\n", (1, 1), "needs either a stream or a bucket"),
        (
            '[sources.s]\nstream = "S"\nformat = "xml"\nschema="a INT"',
            (3, 1),
            "format must be one of json, csv, avro, protobuf, raw, got 'xml'",
        ),
        ('[sources.s]\nstream = "S"\nformat = "json"\n', (3, 1), "json needs a schema"),
        ('[sources.s]\nstream = "S"\nschema = "a INT"\n', (3, 1), "format raw takes no schema"),
        (
            '[sources.s]\nstream = "S"\n\n  starting = "soon"\n',
            (4, 3),
            "option 'starting' must be 'earliest', 'latest', a sequence",
        ),
        ('[sources.s]\nstream = "S"\npartitions = 0\n', (3, 1), "'partitions' must be a whole number"),
        ('[sources.s]\nstream = "S"\npartitions = true\n', (3, 1), "partitions must be a string or a number, got True"),
        (
            '[sources.s]\nstream = "S"\nfail_on_data_loss = 0\n',
            (3, 1),
            "fail_on_data_loss must be true or false, got 0",
        ),
        ('[sources.s]\nstream = "S"\nsubjects = ["a..b"]\n', (3, 1), "subject filter must be"),
        ('[sources.s]\nstream="S"\nwatermark = { column = "t" }\n', (3, 1), "needs delay"),
        (
            '[outputs.o]\nfrom = "ordres"\nbucket = "b"\nkey = "k"\n',
            (2, 1),
            "no source or step 'ordres'; did you mean",
        ),
        ('[outputs.o]\nfrom = "orders"\n', (1, 1), "needs exactly one of bucket, stream, path and table, got 0"),
        ('[outputs.o]\nfrom = "orders"\nbucket = "b"\n', (1, 1), "needs key"),
        ('[outputs.o]\nfrom = "orders"\nstream = "S"\n', (1, 1), "needs subject"),
        ('[outputs.o]\nfrom = "orders"\npath = "x"\nmode = "update"', (4, 1), "must be 'append' for files and tables"),
        (
            '[outputs.o]\nfrom = "orders"\npath = "x"\nkey = "k"\n',
            (4, 1),
            "key does not apply to an output into a file",
        ),
        ('[outputs.o]\nfrom = "orders"\nbucket = "b"\nkey="k"\nmode = "complete"', (5, 1), "must be 'update' or"),
        (
            '[outputs.dead-orders]\nfrom = "orders"\npath = "x"\n',
            (1, 1),
            "reserved for the dead letters of source 'orders'",
        ),
        ('[steps.x]\nsql = "SELECT * FROM x"', (1, 1), "depends on itself"),
        ('[steps.orders]\nsql = "SELECT 1"\n', (1, 1), "step 'orders' has the name of source 'orders'"),
        (
            '[steps.Orders]\nsql = "SELECT 1"\n',
            (1, 1),
            "step 'Orders' has the name of source 'orders' (SQL ignores case)",
        ),
        (
            '[steps.x]\nsql = "SELECT 1"\n[steps.X]\nsql = "SELECT 1"\n',
            (3, 1),
            "step 'X' has the name of step 'x' (SQL ignores case)",
        ),
        ('[steps.a-b]\nsql = "SELECT 1"\n', (1, 1), "a step's name must consist of letters, digits and '_', got 'a-b'"),
        ('[steps.x]\nsql = " "\n', (2, 1), "sql must not be empty"),
        ('[connection]\nservers = "nats://me:hush@x"\n', (1, 1), "without user info"),
        ('[connection]\nserver = "x"\n', (2, 1), "did you mean servers?"),
        ('[connection]\nservers = "x"\n[server]\nport = 1\n', (3, 1), "mutually exclusive"),
        ("[server]\nport = 70000\n", (2, 1), "port must be between 0 and 65535, got 70000"),
        ("[streams.S]\n", (1, 1), "[streams.S] needs subjects"),
        ('[streams.S]\nsubjects="s"\nmax_age_seconds = -5', (3, 1), "max_age_seconds must be between 0 (no limit) and"),
        (
            '[streams.S]\nsubjects="s"\nmax_age_seconds = nan',
            (3, 1),
            "max_age_seconds must be between 0 (no limit) and",
        ),
        ('[spark]\nmaster = "nonsense"\n', (2, 1), "master must be local[*], local[2], spark://host"),
        (
            '[sources.s]\nstream = "S"\nformat = "avro"\nschema = \'{"type":"record","name":"R"}\'\n',
            (4, 1),
            'an Avro record needs fields, a list: {"type": "record", "name": "R"}',
        ),
        ('[streams."a b"]\nsubjects = "x"\n', (1, 1), "stream name must be 1 to 255 characters"),
        ("[buckets.b]\nhistory = 65\n", (2, 1), "history must be between 1 and 64, got 65"),
        ('[pipeline]\nname = "a b"\n', (2, 1), "name must consist of letters, digits, '_' and '-', got 'a b'"),
        ('[pipeline]\ntrigger = "soon"\n', (2, 1), "trigger must be an interval such as"),
        ("[sources]\ns = 5\n", (2, 1), "s must be a table [sources.s], got 5"),
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
            "got 'a', which contains the folder of the pipeline's state",
        ),
        (
            '[server]\ndata = "a/b"\n[outputs.o]\nfrom = "orders"\npath = "a"\n',
            (5, 1),
            "contains the folder of the server's data",
        ),
        ("typo = 1\n", (1, 1), "unknown key typo"),
    ],
)
def test_mistake_is_reported_once_at_its_position(text: str, position: tuple[int, int], message: str) -> None:
    found = mistakes(text + "\n" + SMALL if text.startswith("typo") else text + SMALL)
    assert len(found) == 1, found
    assert (found[0][:2], message in found[0][2]) == (position, True), found
    assert "hush" not in str(found)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            'path = "out"',
            'path = "./out/"',
            "path must be a separate folder, got './out/', which is the target of output 'one'",
        ),
        ('path = "out"', 'path = "out/inner"', "got 'out/inner', which lies in the target of output 'one'"),
        (
            'path = "out/inner"',
            'path = "x/../out"',
            "which contains the target of output 'one'",
        ),
        ('path = "s3a://x/out/"', 'path = "s3a://x/out/y"', "which lies in the target of output 'one'"),
        (
            'table = "t"',
            'table = "T"',
            "table must be a separate table, got 'T', which is the target of output 'one'",
        ),
        ('table = "t"', 'table = "spark_catalog.default.t"', "which is the target of output 'one'"),
        ('table = "db.t"', 'table = "`DB`.t"', "which is the target of output 'one'"),
        ('table = "t"', 'path = "pipeline-state/warehouse/t"', "which is the target of output 'one'"),
    ],
)
def test_outputs_must_not_share_a_target(one: str, other: str, message: str) -> None:
    text = f"{SMALL}[outputs.one]\nfrom = 'orders'\n{one}\n[outputs.other]\nfrom = 'orders'\n{other}\n"
    found = mistakes(text)
    assert [(*position, message in text) for *position, text in found] == [(15, 1, True)], found


def test_similar_targets_are_accepted(tmp_path: Path) -> None:
    targets = ['path = "out"', 'path = "out2"', 'path = "s3a://x/out"', 'table = "out"', 'table = "a.out"']
    outputs = "".join(f"[outputs.o{i}]\nfrom = 'orders'\n{target}\n" for i, target in enumerate(targets))
    assert len(parse(SMALL + outputs, file=str(tmp_path / "p.toml")).outputs) == 6


def test_tables_of_another_catalog_may_have_several_writers(tmp_path: Path) -> None:
    catalog = '[spark]\nconf = { "spark.sql.catalog.lake" = "org.apache.iceberg.spark.SparkCatalog" }\n'
    outputs = "".join(f"[outputs.o{i}]\nfrom = 'orders'\ntable = 'lake.db.t'\n" for i in range(2))
    assert len(parse(SMALL + outputs + catalog, file=str(tmp_path / "p.toml")).outputs) == 3


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
def test_mistake_is_not_followed_by_others(text: str) -> None:
    whole = {"source": '[sources.a]\nstream = "A"\n', "output": '[outputs.x]\nfrom = "a"\npath = "out"\n'}
    if text.startswith(("sources", "[sources]")):
        del whole["source"]
        whole["output"] = '[steps.a]\nsql = "SELECT 1"\n' + whole["output"]
    assert len(found := mistakes(f"{text}\n{''.join(whole.values())}")) == 1, found


def test_all_mistakes_are_reported_at_once() -> None:
    text = '[sources.s]\nstream = "a b"\nformat = 5\n[outputs.o]\nfrom = "t"\n'
    assert {one[0] for one in mistakes(text)} == {2, 3, 4, 5}
    ring = '[steps.x]\nsql = "SELECT * FROM y"\n[steps.y]\nsql = "SELECT * FROM x"\n'
    assert [one[0] for one in mistakes(ring + SMALL) if "depends on itself" in one[2]] == [1, 3]
    assert any("at least one source" in one[2] for one in mistakes("[pipeline]\n"))


OUT = '[outputs.o]\nfrom="s"\npath="o"\n'


class TestVariables:
    def test_variables_of_the_environment_are_replaced_in_strings(self) -> None:
        text = """
[connection]
servers = ["${NATS}", "nats://b:4222"]
[server]
port = "${PORT:-0}"
[sources.s]
stream = "${PREFIX}_${KIND:-ORDERS}"
max_messages_per_trigger = "${MOST}"
[outputs.o]
from = "s"
path = "$${not}/${EMPTY:-x}"
"""
        environ = {"NATS": "nats://a:4222", "PREFIX": "EU", "MOST": "7", "EMPTY": ""}
        found = parse(text.replace('[server]\nport = "${PORT:-0}"\n', ""), environ=environ)
        assert found.connection["servers"] == "nats://a:4222,nats://b:4222"
        assert found.sources[0].stream == "EU_ORDERS"
        assert found.sources[0].options["maxMessagesPerTrigger"] == "7"
        assert found.outputs[0].target == "${not}/x"
        text = text.replace('[connection]\nservers = ["${NATS}", "nats://b:4222"]\n', "")
        assert parse(text, environ={**environ, "PORT": "4333"}).server["port"] == 4333

    def test_missing_variable_is_a_mistake_where_it_stands(self) -> None:
        with pytest.raises(PipelineError) as caught:
            parse(f'[sources.s]\nstream = "A_${{PREFX}}"\n{OUT}', file="p.toml", environ={"PREFIX": "x"})
        assert str(caught.value) == (
            "p.toml:2:13: the environment has no variable 'PREFX'; did you mean PREFIX? Set it, or write "
            "${PREFX:-default}"
        )
        with pytest.raises(PipelineError, match=r"p.toml:2:11: a variable must be .*got '\$\{1x\}'"):
            parse(f'[sources.s]\nstream = "${{1x}}"\n{OUT}', file="p.toml", environ={})

    def test_variable_that_is_no_number_is_a_mistake(self) -> None:
        with pytest.raises(PipelineError, match="port must be a whole number, got 'x'"):
            parse(f'[server]\nport = "${{P}}"\n[sources.s]\nstream = "A"\n{OUT}', environ={"P": "x"})


class TestIncludes:
    def test_included_tables_are_below_those_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "common.toml").write_text(
            '[pipeline]\ninclude = "deep.toml"\ntrigger = "9 seconds"\nname = "common"\n[sources.s]\nstream = "A"\n'
        )
        (tmp_path / "more" / "deep.toml").write_text('[streams.A]\nsubjects = "a"\n[sources.s]\nstream = "Z"\n')
        main = tmp_path / "p.toml"
        main.write_text(f'[pipeline]\ninclude = ["more/common.toml"]\nname = "mine"\n{OUT}')
        found = load(str(main))
        assert (found.name, found.trigger) == ("mine", "9 seconds")
        assert found.sources[0].stream == "A"
        assert [one.name for one in found.streams] == ["A"]

    def test_mistake_is_told_with_the_file_it_is_in(self, tmp_path: Path) -> None:
        main, other = tmp_path / "p.toml", tmp_path / "other.toml"
        main.write_text(f'[pipeline]\ninclude = "other.toml"\ntriger = 1\n{OUT}')
        other.write_text('\n[sources.s]\nstrem = "A"\nstream = "A b"\n')
        with pytest.raises(PipelineError) as caught:
            load(str(main))
        assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
            f"{main}:3:1",
            f"{other}:3:1",
            f"{other}:4:1",
        ]
        other.write_text("[sources")
        with pytest.raises(PipelineError, match=r"other.toml:1:1: Expected"):
            load(str(main))

    @pytest.mark.parametrize(
        ("include", "message"),
        [
            ('"p.toml"', "p.toml:2:1: p.toml cannot be included: it includes itself"),
            ('"nope.toml"', "p.toml:2:1: nope.toml cannot be included: .*No such file"),
            ("3", "p.toml:2:1: include must be a file or a list of files, got 3"),
        ],
    )
    def test_file_that_cannot_be_included(self, tmp_path: Path, include: str, message: str) -> None:
        main = tmp_path / "p.toml"
        main.write_text(f"[pipeline]\ninclude = {include}\n")
        with pytest.raises(PipelineError, match=message):
            load(str(main))


class TestSettings:
    def test_streams_and_buckets_take_every_setting(self) -> None:
        found = parse(
            f"""
[streams.A]
subjects = "a"
replicas = 3
max_age_seconds = 60
max_bytes = 1_000
max_msgs_per_subject = 5
storage = "memory"
compression = "s2"
allow_atomic = true
duplicate_window = 30
placement = {{ cluster = "c", tags = ["x"] }}
sources = [{{ name = "B" }}]
metadata = {{ team = "t" }}
[buckets.b]
history = 5
ttl = 3600
storage = "memory"
compression = true
max_value_size = 100
[sources.s]
stream = "A"
{OUT}"""
        )
        (stream,), (bucket,) = found.streams, found.buckets
        config = StreamConfig(**{"name": "A", **stream.settings})
        assert (config.num_replicas, config.max_age, config.max_bytes) == (3, timedelta(minutes=1), 1_000)
        assert config.placement is not None
        assert (config.placement.cluster, config.sources[0].name) == ("c", "B")
        values = BucketConfig(**{"bucket": "b", **bucket.settings})
        assert (values.history, values.ttl, values.storage) == (5, timedelta(hours=1), "memory")

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ('storage = "disk"', "storage must be"),
            ("max_bytes = 'x'", "max_bytes must"),
            ("storge = 1", "unknown key storge, did you mean storage"),
            ("duplicate_window = 'x'", "duplicate_window must"),
            ("placement = { clster = 'x' }", "placement must not be"),
        ],
    )
    def test_wrong_setting_is_a_mistake_at_its_key(self, setting: str, message: str) -> None:
        (found,) = mistakes(f'[streams.A]\nsubjects="a"\n{setting}\n[sources.s]\nstream="A"\n{OUT}')
        assert found[:2] == (3, 1)
        assert message in found[2]


class TestTables:
    TEXT = '[tables.t]\nbucket = "b"\nformat = "json"\nschema = "x BIGINT"\nkeys = "eu.*"\n[sources.s]\nstream="A"\n'

    def test_lookup_table(self) -> None:
        found = parse(self.TEXT + '[steps.j]\nsql = "SELECT * FROM s JOIN t ON s.subject = t._key"\n' + OUT)
        assert found.tables[0].bucket == "b"
        assert found.tables[0].options == {"keys": "eu.*"}
        assert found.sources_of("o") == {"s"}
        assert "t" in found.views()

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('bucket = "b"\n', "", "[tables.t] needs bucket"),
            ('"x BIGINT"', '"x BIGNT"', "BIGINT"),
            ("[tables.t]", "[tables.s]", "table 's' has the name of source 's'"),
            ('keys = "eu.*"', 'stream = "A"', "unknown key stream"),
            ('from="s"', 'from="t"', "a table is not a stream of rows: join 't' with a source"),
        ],
    )
    def test_mistakes_of_a_table(self, old: str, new: str, message: str) -> None:
        assert any(message in one[2] for one in mistakes((self.TEXT + OUT).replace(old, new)))


def test_a_file_is_read_without_pyspark() -> None:
    """`pipeline validate` works where Spark is not installed, and does not wait for its import."""
    code = (
        "import sys; from slipstream.spark.pipelines import parse; parse(sys.argv[1]); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, SMALL], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "False\n"

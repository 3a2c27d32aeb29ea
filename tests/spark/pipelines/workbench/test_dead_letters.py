"""Dead letters: grouped by reason and column, and sent again once, with their headers, after a fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, StreamConfig
from slipstream.cli.main import main
from slipstream.errors import UsageError
from slipstream.spark.pipelines import Pipeline, parse
from slipstream.spark.pipelines.workbench.dead_letters import fits, groups_of, letters_of, resend

FILE = """
[pipeline]
dead_letter = "{0}_DEAD"
[sources.orders]
stream = "{0}"
format = "json"
schema = "id BIGINT, who STRING, at TIMESTAMP"
[sources.limits]
bucket = "{0}"
format = "json"
schema = "most BIGINT"
[outputs.out]
from = "orders"
path = "out"
"""


def letter(js: BlockingJetStream, fresh: str, origin: str, data: bytes, reason: str, **headers: object) -> None:
    named = {f"Slipstream-{name.title()}": str(value) for name, value in headers.items()}
    js.publish(f"{fresh}_DEAD.{origin}", data, headers={"Slipstream-Reason": reason, **named})


@pytest.fixture
def pipeline(js: BlockingJetStream, fresh: str, tmp_path: Path) -> Pipeline:
    """Three messages and two values that cannot be decoded, and a row that its target rejected."""
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    js.create_stream(StreamConfig(name=f"{fresh}_DEAD", subjects=(f"{fresh}_DEAD.>",)))
    bucket = js.create_key_value(fresh, history=5)
    misfit = "does not fit the schema id BIGINT, who STRING"
    for data in (b'{"id": "x", "who": "ada"}', b'{"id": "y", "at": "noon"}', b"{"):
        seq = js.publish(f"{fresh}.a", data, headers={"trace": "t1"}, msg_id=f"id-{data!r}").seq
        reason = "not JSON" if data == b"{" else misfit
        letter(js, fresh, "orders", data, reason, source=fresh, subject=f"{fresh}.a", sequence=seq)
    for key in ("old", "new"):
        revision = bucket.put(key, b'{"most": "x"}')
        letter(js, fresh, "limits", b'{"most": "x"}', misfit, source=fresh, key=key, revision=revision)
    bucket.put("old", b'{"most": 1}')  # corrected meanwhile
    letter(js, fresh, "out", b"row", "subject must be a text", row=3, name="'x'")
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(fresh))
    return parse(file.read_text(), file=str(file))


def test_letters_are_grouped_by_reason_and_column(js: BlockingJetStream, pipeline: Pipeline) -> None:
    groups = groups_of(letters_of(js, pipeline))
    assert [(one.letters, one.origin, one.reason, one.columns) for one in groups] == [
        (2, "limits", "does not fit the schema", "most"),
        (1, "orders", "does not fit the schema", "id"),
        (1, "orders", "does not fit the schema", "id, at"),
        (1, "orders", "not JSON", ""),
        (1, "out", "subject must be a text", ""),
    ]
    assert groups[0].example == '{"most": "x"}'
    assert [one.reason for one in letters_of(js, pipeline, origin="orders", reason="NOT json")] == ["not JSON"]
    with pytest.raises(UsageError, match="there is no source or output 'order'; did you mean orders"):
        list(letters_of(js, pipeline, origin="order"))


def test_letters_of_sources_are_sent_again_and_removed(js: BlockingJetStream, fresh: str, pipeline: Pipeline) -> None:
    found = list(letters_of(js, pipeline))
    assert resend(js, pipeline, found) == {"sent": 4, "replaced": 1, "outputs": 1}
    again = list(js.stream(fresh).read(start=4))
    assert [one.data for one in again] == [one.message.data for one in found if one.origin == "orders"]
    for number, one in enumerate(again, 1):
        assert one.subject == f"{fresh}.a"
        assert one.headers.get("trace") == "t1"
        assert one.headers.get("Slipstream-Resent") == str(number)
    bucket = js.key_value(fresh)
    assert bucket.get("old").value == b'{"most": 1}'
    assert (bucket.get("new").value, len(bucket.history("new"))) == (b'{"most": "x"}', 2)
    assert [one.origin for one in letters_of(js, pipeline)] == ["out"]
    # A crash after the publish and before the removal: the next attempt does not store the message twice.
    resend_ids = [one.headers.get("Nats-Msg-Id") for one in again]
    assert js.publish(f"{fresh}.a", b"", msg_id=resend_ids[0]).duplicate


def test_message_whose_original_is_gone_is_sent_without_its_headers(
    js: BlockingJetStream, fresh: str, pipeline: Pipeline
) -> None:
    js.stream(fresh).purge()
    resend(js, pipeline, list(letters_of(js, pipeline, origin="orders")))
    first, *_ = js.stream(fresh).read(start=4)
    assert first.headers.get("trace") is None
    assert first.data == b'{"id": "x", "who": "ada"}'


def test_command_lists_and_sends_again(
    js: BlockingJetStream, any_server: str, fresh: str, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["pipeline", "dead", pipeline.file, "-s", any_server]
    assert main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"6 dead letters in stream {fresh}_DEAD"
    assert said[2].split()[:8] == ["2", "limits", "does", "not", "fit", "the", "schema", "most"]
    assert main([*arguments, "--json", "--of", "out"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["letters"] == 1
    assert main([*arguments, "--resend", "--reason", "JSON"]) == 1
    assert "pass --yes" in capsys.readouterr().out
    assert main([*arguments, "--resend", "--reason", "JSON", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 sent again"
    assert js.stream(fresh).info().state.messages == 4
    assert main([*arguments, "--resend", "--of", "out", "--yes"]) == 0
    assert "nothing to send again" in capsys.readouterr().out


def test_pipeline_without_dead_letters_says_so(js: BlockingJetStream) -> None:
    text = '[sources.s]\nstream="S"\n[outputs.o]\nfrom="s"\npath="o"\n'
    with pytest.raises(UsageError, match="this pipeline keeps no dead letters"):
        list(letters_of(js, parse(text)))
    assert list(letters_of(js, parse(text + '[pipeline]\ndead_letter = "NOT_THERE_YET"\n'))) == []


@pytest.mark.parametrize(
    ("value", "kind", "is_fit"),
    [
        (1, "BIGINT", True), (2**63, "BIGINT", False), (True, "INT", False), ("1", "INT", False), (1.5, "INT", False),
        (1, "DOUBLE", True), ("NaN", "DOUBLE", True), ("x", "DOUBLE", False), (True, "BOOLEAN", True),
        (1, "BOOLEAN", False), ("x", "STRING", True), (1, "STRING", True), ("2026-01-31T12:00:00Z", "TIMESTAMP", True),
        ("noon", "TIMESTAMP", False), ("2026-01-31", "DATE", True), ([1], "ARRAY<INT>", True), (1, "ARRAY<INT>", False),
        ({}, "STRUCT<a: INT>", True), ([], "MAP<STRING, INT>", False), ("1.5", "DECIMAL(5, 2)", True),
        (True, "DECIMAL(5, 2)", False), (1, "VARIANT", True),
    ],
)  # fmt: skip
def test_fits(value: object, kind: str, is_fit: bool) -> None:
    assert fits(value, kind) is is_fit

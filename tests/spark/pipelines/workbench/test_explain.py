"""The graph of a pipeline in a terminal, as Mermaid and as HTML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from slipstream.cli.main import main
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.workbench.explain import explain

FILE = """
[pipeline]
name = "p"
dead_letter = "DEAD"
[sources.orders]
stream = "ORDERS"
format = "json"
schema = "id BIGINT, customer STRING"
[sources.people]
bucket = "people"
[steps.both]
sql = "SELECT * FROM orders JOIN people ON customer = key"
[steps.end]
sql = "SELECT id, customer AS who FROM orders"
[outputs.a-b]
from = "end"
stream = "OUT"
subject = "concat('out.', who)"
[outputs.files]
from = "both"
path = "<out>"
"""


def test_text_is_a_tree_per_source() -> None:
    assert explain(parse(FILE)).splitlines() == [
        "pipeline p, trigger 1 second",
        "source orders ← stream ORDERS, json  [id BIGINT, customer STRING]",
        "├─ step both  [columns: see validate --deep]",
        "│  └─ output files → files in <out>, append",
        "└─ step end  [id BIGINT, who]",
        "   └─ output a-b → stream OUT, append",
        "   (what cannot be decoded → stream DEAD)",
        "source people ← changes of bucket people, raw  [key STRING, value BINARY, operation STRING, revision BIGINT, "
        "created TIMESTAMP, delta BIGINT]",
        "└─ step both (see above)",
    ]


def test_mermaid_has_every_node_and_edge() -> None:
    lines = [line.strip() for line in explain(parse(FILE), "mermaid").splitlines()]
    assert lines[0] == "flowchart LR"
    assert 'v_end["end"]' in lines  # which alone would be a word of Mermaid
    assert 'v_orders -->|"id BIGINT, customer STRING"| v_end' in lines
    assert "v_both --> o_files" in lines
    assert 'v_end -->|"id BIGINT, who"| o_a_m_b' in lines
    assert 'o_files[/"files<br/>files in &lt;out&gt;, append"/]' in lines
    assert "v_orders -.-> dead_letters" in lines


def test_html_has_a_picture_of_its_own() -> None:
    page = explain(parse(FILE), "html")
    assert "<script" not in page
    assert "https:" not in page  # nothing is loaded from elsewhere
    picture = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    name = "{http://www.w3.org/2000/svg}"
    texts = [one.text for one in picture.iter(f"{name}text")]
    assert {"orders", "people", "both", "end", "a-b", "files", "DEAD"} <= {*texts}
    assert texts.count("id BIGINT, customer STRING") == 2
    boxes = list(picture.iter(f"{name}rect"))
    assert len(boxes) == 7
    assert len(list(picture.iter(f"{name}path"))) == 6
    places = [(one.attrib["x"], one.attrib["y"]) for one in boxes]
    assert len(set(places)) == len(places)


def test_html_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text(FILE)
    assert main(["pipeline", "explain", "--style", "html", str(tmp_path / "p.toml")]) == 0
    page = capsys.readouterr().out
    assert "<title>Pipeline p</title>" in page
    assert "<out>" not in page
    assert list(tmp_path.iterdir()) == [tmp_path / "p.toml"]

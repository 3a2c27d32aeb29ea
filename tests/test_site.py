"""Parts of the site that are made when it is built, and how it is laid out."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import slipstream
from benchmarks import __main__ as benchmarks
from benchmarks import forms
from benchmarks.report import PLAIN, Compared, Row, compared, row, two_digits
from slipstream.cli.commands import build_parser
from tools import site_hooks

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def test_the_command_line_reference_has_every_command() -> None:
    columns = os.environ.get("COLUMNS")
    text = site_hooks.on_page_markdown((DOCS / "reference/command-line.md").read_text("utf-8"))
    headings = set(re.findall(r"^##+ (slipstream.*)$", text, re.MULTILINE))
    assert {"slipstream"} | {f"slipstream {name}" for name in ("pub", "stream", "kv", "server")} <= headings
    for name, parser in build_parser().commands.items():
        assert parser.prog in headings, name
        assert all(command.prog in headings for command in parser.commands.values())
    assert max(map(len, text.splitlines())) <= 160
    assert os.environ.get("COLUMNS") == columns


def test_the_chart_has_every_ratio_of_the_benchmarks_those_below_1_too() -> None:
    text = site_hooks.BENCHMARKS.read_text("utf-8")
    rows = site_hooks.ratios(text)
    assert text.count("| work | ") > 2  # the tables of other reads, of Parquet and of bounds have none
    kept = json.loads(benchmarks.RESULTS.read_text("utf-8"))["results"]
    works = [Compared(*one) for name in benchmarks.SHOWN for one in kept[name]]
    assert {one.work for one in rows} == {one.work for one in works if one.against in ("nats-py", "nats-server")}
    assert len(rows) >= 15
    assert any(row.value < 1 for row in rows)
    svg = site_hooks.chart()
    assert svg.count("<rect ") == len(rows)
    assert svg.count('class="less"') == sum(row.value < 1 for row in rows)
    assert all(f">{row.value:g}x</text>" in svg for row in rows)


def test_the_tables_of_the_two_forms_are_those_of_the_results_file() -> None:
    text = site_hooks.BENCHMARKS.read_text("utf-8")
    kept = json.loads(forms.RESULTS.read_text("utf-8"))
    assert forms.rewritten(text, forms.page(kept)) == text
    works = kept["results"]["pure"].keys()
    assert works == kept["results"]["compiled"].keys()
    assert all(text.count(f"| {work.partition(', ')[2]} |") >= 1 for work in works)
    kept["results"]["compiled"] = dict.fromkeys(works, 1234.5)
    changed = forms.rewritten(text, forms.page(kept))
    assert changed.count("| 1234.50 |") + changed.count("| 1,234 |") == len(works)  # CPU time, and rates
    assert forms.rewritten(changed, forms.page(json.loads(forms.RESULTS.read_text("utf-8")))) == text


def test_the_tables_of_rates_are_those_of_the_results_file() -> None:
    text = site_hooks.BENCHMARKS.read_text("utf-8")
    kept = json.loads(benchmarks.RESULTS.read_text("utf-8"))

    def written(kept: dict[str, Any]) -> str:
        return forms.rewritten(text, benchmarks.page(kept), benchmarks.BEGIN, benchmarks.END)

    assert written(kept) == text
    works = [Compared(*one) for name in benchmarks.SHOWN for one in kept["results"][name]]
    assert all(benchmarks.page(kept).count(f"| {one.work} |") == 1 for one in works)
    changed = [one._replace(peer=2.0, ours=one.ours | {"compiled": 8642.0}) for one in works]
    assert written(kept | {"results": {"core": changed}}).count(" | 2 | ") == len(works)
    assert written(kept | {"results": {"core": changed}}).count(" | 8,640 | 4321x |") == len(works)


def test_a_comparison_has_the_medians_of_all_rounds_and_the_peer_those_beside_both_forms() -> None:
    def rows(ours: float, peer: float | None) -> list[Row]:
        return [row("work", ours, peer, target=2)]

    pure, compiled = [rows(30, 10), rows(10, 50), rows(20, 20)], [rows(99, 30), rows(60, 40), rows(80, 60)]
    (both,) = compared({"pure": pure, "compiled": compiled})
    assert (both.peer, both.ours, both.ratio) == (35, {"pure": 20, "compiled": 80}, 80 / 35)
    plain = {
        form: [[one[0] | {"against": PLAIN}] for one in rows] for form, rows in (("pure", pure), ("compiled", compiled))
    }
    assert compared(plain)[0].peer == 40
    (alone,) = compared({"pure": pure})
    assert (alone.peer, alone.ratio) == (20, 1)
    (without,) = compared({"pure": [rows(30, None)]})
    assert (without.peer, without.ratio) == (None, None)
    assert [two_digits(value) for value in (0.567, 5.67, 56.7)] == ["0.57", "5.7", "57"]


def test_every_made_part_of_a_page_is_known() -> None:
    pages = {page: site_hooks.MARK.findall(page.read_text("utf-8")) for page in DOCS.rglob("*.md")}
    names = {name for found in pages.values() for name in found}
    tables = {f"fields-{name}" for name in tomllib.loads(site_hooks.FIELDS.read_text("utf-8"))}
    assert names == {*site_hooks.PARTS, *tables}


def test_the_tables_of_configurations_have_every_field_and_no_other() -> None:
    for name, meanings in tomllib.loads(site_hooks.FIELDS.read_text("utf-8")).items():
        known = [one.name for one in fields(getattr(slipstream, name)) if one.init and one.name != "unknown"]
        assert list(meanings) == known
        table = site_hooks.part(f"fields-{name}")
        assert table.count("\n") == len(known) + 1
    assert "| `max_ack_pending` | `int` |" in site_hooks.part("fields-ConsumerConfig")
    assert "| `num_replicas` | `int` | `1` | number of replicas, 1 to 5 |" in site_hooks.part("fields-StreamConfig")


def test_every_page_of_the_design_has_a_diagram() -> None:
    pages = sorted((DOCS / "design").glob("*.md"))
    assert [page.name for page in pages if "```mermaid" not in page.read_text("utf-8")] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 150

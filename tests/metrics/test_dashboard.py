"""The Grafana dashboard asks for metrics that exist, and is what its generator writes."""

from __future__ import annotations

import json
import re

from slipstream.metrics.server import FAMILIES
from tools.grafana import TARGET, dashboard


def test_the_file_is_what_the_tool_writes() -> None:
    assert json.loads(TARGET.read_text("utf-8")) == dashboard()


def test_every_metric_of_the_dashboard_exists() -> None:
    texts = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    texts += [variable["query"] for variable in dashboard()["templating"]["list"]]
    names = {name for text in texts for name in re.findall(r"slipstream_(\w+)", text)}
    names = {re.sub(r"_(bucket|sum|count)$", "", name) if name.startswith("commit_") else name for name in names}
    assert len(names) > 15
    assert names - FAMILIES.keys() == set()
    assert not [text for text in texts if re.search(r"\bP[a-z]|SEL", text)]

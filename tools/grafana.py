"""Writes examples/grafana-dashboard.json: `python tools/grafana.py`. A test compares it with the metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "examples" / "grafana-dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
SELECTED = 'account=~"$account",stream=~"$stream"'

# Row -> panels: title, unit, (expression, legend) of each line. `P` is the prefix of all names.
ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Server": [
        (
            "Messages a second",
            "short",
            [
                ("sum(rate(Preceived_messages_total[$__rate_interval]))", "received"),
                ("sum(rate(Psent_messages_total[$__rate_interval]))", "sent"),
            ],
        ),
        (
            "Bytes a second",
            "Bps",
            [
                ("sum(rate(Preceived_bytes_total[$__rate_interval]))", "received"),
                ("sum(rate(Psent_bytes_total[$__rate_interval]))", "sent"),
            ],
        ),
        ("Connections", "short", [("Pconnections", "{{instance}}")]),
        ("Memory and pending output", "bytes", [("President_memory_bytes", "memory"), ("Ppending_bytes", "pending")]),
        ("CPU", "percentunit", [("Pcpu_ratio", "{{instance}}")]),
        (
            "Commit time",
            "s",
            [
                ("histogram_quantile(0.5, sum by (le, storage) (rate(Pcommit_seconds_bucket[$__rate_interval])))",
                 "median, {{storage}}"),
                ("histogram_quantile(0.99, sum by (le, storage) (rate(Pcommit_seconds_bucket[$__rate_interval])))",
                 "99%, {{storage}}"),
            ],
        ),
        (
            "Changes in a commit",
            "short",
            [
                ("sum by (storage) (rate(Pcommit_changes_sum[$__rate_interval]))"
                 " / sum by (storage) (rate(Pcommit_changes_count[$__rate_interval]))", "{{storage}}"),
            ],
        ),
        (
            "API requests and errors a second",
            "short",
            [
                ("sum(rate(Pjetstream_api_requests_total[$__rate_interval]))", "requests"),
                ("sum(rate(Pjetstream_api_errors_total[$__rate_interval]))", "errors"),
            ],
        ),
    ],
    "Streams": [
        ("Publishes a second", "short", [("rate(Pstream_last_sequence{SEL}[$__rate_interval])", "{{stream}}")]),
        ("Bytes", "bytes", [("Pstream_bytes{SEL}", "{{stream}}")]),
        ("Replica lag", "short", [("Pstream_replica_lag_messages{SEL}", "{{stream}} on {{replica}}")]),
        (
            "Mirror and source lag",
            "short",
            [
                ("Pstream_mirror_lag_messages{SEL}", "{{stream}} of {{of}}"),
                ("Pstream_source_lag_messages{SEL}", "{{stream}} from {{source}}"),
            ],
        ),
        (
            "Reads a second",
            "short",
            [("sum by (stream, replica, kind) (rate(Pstream_reads_total{SEL}[$__rate_interval]))",
              "{{stream}}, {{replica}}, {{kind}}")],
        ),
        (
            "Reads that waited or were rejected",
            "short",
            [
                ("sum by (stream) (rate(Pstream_reads_waited_total{SEL}[$__rate_interval]))", "{{stream}} waited"),
                ("sum by (stream) (rate(Pstream_reads_rejected_total{SEL}[$__rate_interval]))", "{{stream}} rejected"),
            ],
        ),
    ],
    "Consumers": [
        ("Lag", "short", [("Pconsumer_lag_messages{SEL}", "{{stream}} {{consumer}}")]),
        ("Unacknowledged", "short", [("Pconsumer_ack_pending_messages{SEL}", "{{stream}} {{consumer}}")]),
        ("Redelivered", "short", [("Pconsumer_redelivered_messages{SEL}", "{{stream}} {{consumer}}")]),
        ("Deliveries a second", "short",
         [("rate(Pconsumer_deliveries_total{SEL}[$__rate_interval])", "{{stream}} {{consumer}}")]),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, inside in ROWS.items():
        panels.append({"type": "row", "title": row, "collapsed": False, "id": len(panels) + 1, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})  # fmt: skip
        y += 1
        for number, (title, unit, lines) in enumerate(inside):
            panels.append({
                "type": "timeseries",
                "title": title,
                "id": len(panels) + 1,
                "datasource": SOURCE,
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": y + 8 * (number // 2)},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "lineWidth": 2}},
                                "overrides": []},
                "options": {"tooltip": {"mode": "multi", "sort": "desc"},
                            "legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": [
                    {"refId": chr(65 + at), "datasource": SOURCE, "expr": _expression(text), "legendFormat": legend}
                    for at, (text, legend) in enumerate(lines)
                ],
            })  # fmt: skip
        y += 8 * ((len(inside) + 1) // 2)
    return {
        "title": "Slipstream and NATS",
        "uid": "slipstream",
        "tags": ["nats", "jetstream"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("account", "label_values(slipstream_account_streams, account)"),
                _variable("stream", 'label_values(slipstream_stream_messages{account=~"$account"}, stream)'),
            ]
        },
        "panels": panels,
    }


def _expression(text: str) -> str:
    return re.sub(r"\bP(?=[a-z])", "slipstream_", text.replace("{SEL}", f"{{{SELECTED}}}"))


def _variable(name: str, query: str) -> dict[str, Any]:
    return {"name": name, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "multi": True,
            "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1}  # fmt: skip


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", "utf-8")

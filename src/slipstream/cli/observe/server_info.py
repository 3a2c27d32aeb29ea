"""`slipstream server info`: the server at the other end of the connection, without a system account."""

from __future__ import annotations

import time
from typing import Any

from slipstream.cli.common import Commands, Shell
from slipstream.cli.observe.monitoring import add_monitor, fetch
from slipstream.cli.values import show_size
from slipstream.errors import Error


def add(group: Commands) -> None:
    """Declare the command."""
    parser = group.add(
        "info",
        _info,
        "show the server of the connection",
        examples="  slipstream server info\n  slipstream server info --monitor http://127.0.0.1:8222",
    )
    add_monitor(parser)


def _info(shell: Shell) -> None:
    begin = time.perf_counter()
    with shell.connect() as client:
        connected = time.perf_counter() - begin
        begin = time.perf_counter()
        client.flush(timeout=shell.timeout)
        rtt = time.perf_counter() - begin
        info = client.server_info
        try:
            account: dict[str, Any] | None = shell.jetstream(client).account_info().to_dict()
        except Error:  # JetStream is off, or not permitted
            account = None
    report = fetch(shell.options.monitor, "varz", shell.timeout) if shell.options.monitor else {}
    if shell.out.is_json:
        fields = {name: getattr(info, name) for name in _FIELDS}
        shell.out.json({**fields, "connect_ms": connected * 1000, "rtt_ms": rtt * 1000, "jetstream_account": account,
                        **({"varz": report} if report else {})})  # fmt: skip
        return
    wants = [name for name, is_on in (("credentials", info.auth_required), ("TLS", info.tls_required)) if is_on]
    shell.out.facts(f"Server {info.server_name}", [
        ("Version", info.version), ("Id", info.server_id), ("Address", f"{info.host}:{info.port}"),
        ("Cluster", info.cluster or None), ("Other servers", ", ".join(info.connect_urls) or None),
        ("Requires", " and ".join(wants) or None), ("Maximum payload", show_size(info.max_payload)),
        ("Headers", "yes" if info.headers else "no"),
        ("JetStream", _jetstream(account)),
        ("Connected in", f"{connected * 1000:.1f} ms"), ("Round trip", f"{rtt * 1000:.2f} ms"),
        *_varz(report),
    ])  # fmt: skip


_FIELDS = (
    "server_name", "server_id", "version", "host", "port", "cluster", "connect_urls", "auth_required", "tls_required",
    "max_payload", "headers", "jetstream",
)  # fmt: skip


def _jetstream(account: dict[str, Any] | None) -> str:
    if account is None:
        return "not available to this account"
    return f"{account.get('streams', 0):,} streams, {account.get('consumers', 0):,} consumers"


def _varz(report: dict[str, Any]) -> list[tuple[str, object]]:
    if not report:
        return []
    return [
        ("Up for", report.get("uptime")), ("Connections", report.get("connections")),
        ("Subscriptions", report.get("subscriptions")), ("Memory", show_size(int(report.get("mem") or 0))),
        ("CPU", f"{report.get('cpu') or 0:g} %"), ("Slow consumers", report.get("slow_consumers")),
        ("Received", f"{report.get('in_msgs') or 0:,} messages, {show_size(int(report.get('in_bytes') or 0))}"),
        ("Sent", f"{report.get('out_msgs') or 0:,} messages, {show_size(int(report.get('out_bytes') or 0))}"),
    ]  # fmt: skip

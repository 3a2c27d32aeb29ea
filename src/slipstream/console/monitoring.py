"""Servers and connections: by `$SYS.REQ.ACCOUNT.PING`, which every login may ask for its own account, and by the
monitoring addresses that the console was given.

Every server of a cluster answers a ping. What a server does not tell is left out, never guessed.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import msgspec

from slipstream import Client, Error, UsageError
from slipstream.metrics.monitoring import report_request

PING = "$SYS.REQ.ACCOUNT.PING."
IDLE = 0.15  # seconds without another server's answer
TIMEOUT = 2.0
LARGEST = 16 * 1024 * 1024  # bytes of a report
MOST_CONNECTIONS = 200


def check_monitor(url: str) -> str:
    """A monitoring address, checked."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"a monitoring address must be an http or https URL, got {monitor_name(url)!r}")
    return url.rstrip("/")


def monitor_name(url: str) -> str:
    """A monitoring address as pages and metrics may show it: without a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


async def read_monitor(url: str, path: str) -> dict[str, Any] | None:
    """A report of a monitoring address; None if it cannot be had."""

    def read() -> Any:
        with urllib.request.urlopen(report_request(url, path), timeout=TIMEOUT) as answer:
            body = answer.read(LARGEST + 1)
        return msgspec.json.decode(body) if len(body) <= LARGEST else None

    try:
        found = await asyncio.to_thread(read)
    # HTTPException is no OSError; RecursionError is what a report that is nested too deeply raises.
    except (OSError, HTTPException, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def _pinged(client: Client, kind: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What each server answers; empty if the login may not ask."""
    found = []
    try:
        async for message in client.request_many(
            PING + kind, msgspec.json.encode(body), timeout=TIMEOUT, idle_timeout=IDLE
        ):
            answer = msgspec.json.decode(message.data)
            if isinstance(answer, dict) and "error" not in answer:
                found.append(answer)
    except (Error, msgspec.MsgspecError):
        return []
    return found


async def servers(client: Client, monitors: Sequence[str]) -> list[dict[str, Any]]:
    """The servers, with what they count for the account (`$SYS`) or as a whole (monitoring)."""
    found: dict[str, dict[str, Any]] = {}
    for answer in await _pinged(client, "STATZ", {}):
        server = answer.get("server") or {}
        stats = ((answer.get("data") or {}).get("account_statz") or [{}])[0]
        found[str(server.get("id", ""))] = {
            "name": server.get("name", ""),
            "version": server.get("ver", ""),
            "cluster": server.get("cluster", ""),
            "connections": stats.get("conns"),
            "subscriptions": stats.get("num_subscriptions"),
            "in": (stats.get("received") or {}).get("msgs"),
            "out": (stats.get("sent") or {}).get("msgs"),
            "slow": stats.get("slow_consumers"),
            "scope": "account",
        }
    for url, varz in zip(
        monitors, await asyncio.gather(*(read_monitor(url, "/varz") for url in monitors)), strict=True
    ):
        if varz is None:
            found[f"monitor {monitor_name(url)}"] = {"name": monitor_name(url), "away": True}
            continue
        found[str(varz.get("server_id", url))] = {
            "name": varz.get("server_name", ""),
            "version": varz.get("version", ""),
            "cluster": (varz.get("cluster") or {}).get("name", ""),
            "connections": varz.get("connections"),
            "subscriptions": varz.get("subscriptions"),
            "in": varz.get("in_msgs"),
            "out": varz.get("out_msgs"),
            "slow": varz.get("slow_consumers"),
            "cpu": varz.get("cpu"),
            "memory": varz.get("mem"),
            "uptime": varz.get("uptime"),
            "scope": "server",
        }
    if not found:
        info = client.server_info
        found[info.server_id] = {"name": info.server_name, "version": info.version}
    return [one | {"id": key} for key, one in found.items()]


async def connections(client: Client, monitors: Sequence[str]) -> dict[str, Any]:
    """Connections, those with the most waiting bytes first; of the account, or of the monitored servers."""
    reports = []
    if monitors:
        query = f"/connz?limit={MOST_CONNECTIONS}&sort=pending"
        for url, report in zip(
            monitors, await asyncio.gather(*(read_monitor(url, query) for url in monitors)), strict=True
        ):
            if report is not None:
                reports.append((monitor_name(url), report))
    else:
        for answer in await _pinged(client, "CONNZ", {"limit": MOST_CONNECTIONS}):
            reports.append((str((answer.get("server") or {}).get("name", "")), answer.get("data") or {}))
    rows = [
        {
            "server": name,
            "cid": one.get("cid", 0),
            "name": one.get("name", ""),
            "kind": one.get("type", one.get("kind", "")),
            "address": f"{one.get('ip', '')}:{one.get('port', '')}",
            "lang": f"{one.get('lang', '')} {one.get('version', '')}".strip(),
            "subscriptions": one.get("subscriptions", 0),
            "pending": one.get("pending_bytes", 0),
            "in": one.get("in_msgs", 0),
            "out": one.get("out_msgs", 0),
            "rtt": one.get("rtt", ""),
            "uptime": one.get("uptime", ""),
            "idle": one.get("idle", ""),
        }
        for name, report in reports
        for one in report.get("connections") or ()
    ]
    rows.sort(key=lambda one: (-one["pending"], -(one["in"] + one["out"])))
    return {
        "known": bool(reports),
        "scope": "servers" if monitors else "account",
        "total": sum(report.get("total", 0) for _, report in reports),
        "connections": rows[:MOST_CONNECTIONS],
    }

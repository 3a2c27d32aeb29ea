"""`/metrics`: the account, and the servers whose monitoring address the console was given, for Prometheus.

A Prometheus server authenticates itself by the console's token (`Authorization: Bearer`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipstream import ApiError, Error
from slipstream.console.monitoring import monitor_name, read_monitor
from slipstream.console.state import ConsoleState
from slipstream.console.web import Endpoint
from slipstream.metrics.client import ClientMetrics
from slipstream.metrics.exposition import CONTENT_TYPE, Exposition, label_set
from slipstream.metrics.server import FAMILIES, add_account, add_consumer, add_server, add_stream, stream_labels

TIMEOUT = 10.0


async def _metrics(state: ConsoleState, _: Request) -> Any:
    began = time.monotonic()
    page = Exposition(FAMILIES)
    try:
        await _add_account(state, page)
    except Error:  # half a report is none
        page = Exposition(FAMILIES)
        page.add("up", 0)
    else:
        page.add("up", 1)
    page.add("scrape_seconds", round(time.monotonic() - began, 6))
    merged = Exposition(FAMILIES)
    merged.merge(page, "")
    for url in state.settings.monitors:
        own = Exposition(FAMILIES)
        report = await read_monitor(url, "/varz")
        is_up = report is not None
        if report is not None:
            try:
                add_server(own, report)
            except (TypeError, ValueError, AttributeError):  # not a report of a NATS server
                own, is_up = Exposition(FAMILIES), False
        own.add("up", int(is_up))
        merged.merge(own, label_set(target=monitor_name(url)))
    # The console's own connection is a program like any other: its reads show which of them had to ask the leader.
    return Response(merged.encode() + ClientMetrics(state.js).page(), media_type=CONTENT_TYPE)


async def _add_account(state: ConsoleState, page: Exposition) -> None:
    js, server = state.js, state.client.server_info
    page.add("server_info", 1, label_set(id=server.server_id, name=server.server_name, version=server.version))
    streams = [info async for info in js.streams(timeout=TIMEOUT)]
    account = "$G"
    add_account(page, account, (await js.account_info(timeout=TIMEOUT)).to_dict(), len(streams))
    for info in streams:
        labels = stream_labels(account, info.config.name)
        add_stream(page, labels, info.to_dict())
        if info.state.consumer_count:
            with suppress(ApiError):  # deleted since
                async for consumer in js.stream(info.config.name).consumers(timeout=TIMEOUT):
                    add_consumer(page, labels, consumer.to_dict())


ENDPOINTS = (Endpoint("/metrics", _metrics),)

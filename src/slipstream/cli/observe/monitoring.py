"""Reports of the monitoring port of a server (`-m`), as far as commands show them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from slipstream.cli.common import Parser
from slipstream.errors import ConnectionLostError, RemoteProtocolError, UsageError
from slipstream.metrics.monitoring import report_request, shown_address

LARGEST = 64 * 1024 * 1024  # bytes of a report


def add_monitor(parser: Parser) -> None:
    """Declare the address of the monitoring port."""
    parser.add_argument(
        "--monitor", default="", metavar="URL", help="monitoring address, such as http://127.0.0.1:8222"
    )


def fetch(address: str, report: str, timeout: float) -> dict[str, Any]:
    """A report of the server at this address."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(f"--monitor must be a URL like http://127.0.0.1:8222, got {shown_address(address)!r}")
    try:
        with urllib.request.urlopen(report_request(address, f"/{report}"), timeout=timeout) as answer:
            found = json.loads(answer.read(LARGEST))
    except (OSError, urllib.error.URLError) as error:
        raise ConnectionLostError(f"{shown_address(address)}: {getattr(error, 'reason', error)}") from error
    except ValueError as error:
        raise RemoteProtocolError(f"{shown_address(address)}/{report} is not a report of a NATS server") from error
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"{shown_address(address)}/{report} is not a report of a NATS server")
    return found

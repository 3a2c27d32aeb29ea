"""Requests for the reports of a monitoring address, which may have a user and a password."""

from __future__ import annotations

import base64
import urllib.request
from urllib.parse import unquote, urlsplit, urlunsplit


def report_request(url: str, path: str) -> urllib.request.Request:
    """A request for a report. urllib would take a user and password in the address for a part of the host's name."""
    parts = urlsplit(url.rstrip("/"))
    login = parts.netloc.rpartition("@")[0]
    request = urllib.request.Request(shown_address(url) + path)
    if login:
        user, _, password = login.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        # Unlike other headers, it does not follow a redirect to another host.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    return request


def shown_address(url: str) -> str:
    """An address without its user and password."""
    parts = urlsplit(url.rstrip("/"))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

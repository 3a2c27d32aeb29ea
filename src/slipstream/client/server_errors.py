"""The text of an `-ERR` becomes an error of ours and what it denies, so that whoever waits for that hears of it.

Texts are compared without case: nats-server, its forks and its older releases do not agree on it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream.errors import AuthorizationError, ServerError

_AUTHORIZATION = (
    "authorization", "authentication", "permissions violation", "user authentication", "account authentication",
)  # fmt: skip
_LATE = "authentication timeout"
_DENIED = re.compile(r'permissions violation for (?:(publish)|subscription) to "([^"]*)"(?: using queue "([^"]*)")?')


class Complaint(NamedTuple):
    """What the server complains of."""

    error: ServerError
    is_final: bool = False  # it hangs up next, and this is why
    is_shutdown: bool = False
    denied_publish: str = ""  # the subject
    denied_subscription: str = ""
    queue: str = ""


def read_complaint(text: str) -> Complaint:
    """What an `-ERR` with this text means."""
    lower = text.lower()
    if not lower.startswith(_AUTHORIZATION) or lower.startswith(_LATE):  # that is a server with too much to do
        return Complaint(ServerError(text), is_final=True, is_shutdown="server shutdown" in lower)
    error = AuthorizationError(text)
    if not lower.startswith("permissions violation"):
        return Complaint(error, is_final=True)
    denied = _DENIED.match(lower)
    if denied is None:
        return Complaint(error)
    subject = text[denied.start(2) : denied.end(2)]
    if denied[1]:
        return Complaint(error, denied_publish=subject)
    queue = text[denied.start(3) : denied.end(3)] if denied[3] else ""
    return Complaint(error, denied_subscription=subject, queue=queue)

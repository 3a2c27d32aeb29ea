"""Parser of the texts of `-ERR`: the error, and the publish or subscription that it denies.

Texts are compared without case: nats-server, its forks and its older releases differ in it.
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


class ErrReply(NamedTuple):
    """The meaning of an `-ERR`."""

    error: ServerError
    is_final: bool = False  # the server closes the connection next, for this reason
    is_shutdown: bool = False
    denied_publish: str = ""  # the subject
    denied_subscription: str = ""
    queue: str = ""


def parse_err(text: str) -> ErrReply:
    """The meaning of an `-ERR` with this text."""
    lower = text.lower()
    if not lower.startswith(_AUTHORIZATION) or lower.startswith(_LATE):  # the server is overloaded
        return ErrReply(ServerError(text), is_final=True, is_shutdown="server shutdown" in lower)
    error = AuthorizationError(text)
    if not lower.startswith("permissions violation"):
        return ErrReply(error, is_final=True)
    denied = _DENIED.match(lower)
    if denied is None:
        return ErrReply(error)
    subject = text[denied.start(2) : denied.end(2)]
    if denied[1]:
        return ErrReply(error, denied_publish=subject)
    queue = text[denied.start(3) : denied.end(3)] if denied[3] else ""
    return ErrReply(error, denied_subscription=subject, queue=queue)

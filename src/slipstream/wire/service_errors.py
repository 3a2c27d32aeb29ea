"""Errors of services in the headers of a reply (ADR-32): two headers, a description and a code."""

from __future__ import annotations

from slipstream.errors import ServiceError
from slipstream.wire.headers import Headers

ERROR_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"


def error_of(subject: str, headers: Headers, data: bytes) -> ServiceError | None:
    """The error that a reply from `subject` carries; None if it is none. Either header makes it one."""
    description, code = headers.get(ERROR_HEADER), headers.get(ERROR_CODE_HEADER)
    if description is None and code is None:
        return None
    text = (code or "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not number and text not in ("", "0"):  # peers do send words
        description = f"{description or ''} (code {text!r})".strip()
    return ServiceError(number, description or "", data=data, subject=subject)

"""Description of a client in events and advisories: nats-server's fields, in its order, without secrets."""

from __future__ import annotations

from typing import Any

from slipstream.api import format_time
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.core.session import Session

# Why a connection was closed, in the words of nats-server's events, by the error that the client was sent.
_REASONS = {
    "": "Client Closed",
    "Slow Consumer": "Slow Consumer (Pending Bytes)",
    "Parser Error": "Parse Error",
    "Unknown Protocol Operation": "Parse Error",
    "maximum connections exceeded": "Maximum Connections Exceeded",
    "maximum account active connections exceeded": "Maximum Account Connections Exceeded",
    "Maximum Payload Violation": "Maximum Message Payload Exceeded",
    "Maximum Control Line Exceeded": "Maximum Control Line Exceeded",
    "message headers not supported": "Message Header Violation",
    "no responders requires headers support": "No Responders Requires Headers",
    "User Authentication Expired": "Authentication Expired",
    "Account Authentication Expired": "Authentication Expired",
}


def closed_reason(session: Session) -> str:
    """Why a connection was closed; of a failed authentication not what was wrong, which the log has."""
    if session.reason.startswith("Authentication Failure"):
        return "Authentication Failure"
    return _REASONS.get(session.reason, session.reason)


def client_info(session: Session, *, server: str = "", tagged: bool = False, stopped: int = 0) -> dict[str, Any]:
    """A client. `server` is named in advisories; events have the account's name as a tag, and when the client left."""
    account = session.account or DEFAULT_ACCOUNT
    found: dict[str, Any] = {
        "start": format_time(session.started),
        "host": session.peer.host,
        "id": session.cid,
        "acc": account,
        "user": session.user,
        "name": session.name,
        "lang": session.lang,
        "ver": session.version,
        "rtt": session.rtt,
        "server": server,
        "stop": format_time(stopped) if stopped else "",
        "name_tag": account if tagged else "",
        "kind": "Client",
        "client_type": "websocket" if session.listener.connection_type == "WEBSOCKET" else "nats",
    }
    return {name: value for name, value in found.items() if value not in ("", 0)}

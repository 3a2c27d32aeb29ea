"""The INFO line: the greeting, the account of an authenticated client, and lame duck mode."""

from __future__ import annotations

from slipstream.api import encode_json
from slipstream.server.engine.auth.users import at_most
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.settings import Settings
from slipstream.server.engine.streams.features import API_LEVEL


def info(settings: Settings, session: Session, *, locked: bool, system_account: str, lame_duck: bool) -> bytes:
    """The INFO line for one client. `locked`: clients must authenticate."""
    fields: dict[str, object] = {
        "server_id": settings.server_id,
        "server_name": settings.server_name,
        "version": settings.version,
        "slipstream": settings.slipstream,
        "proto": 1,
        "go": "",  # some clients require the field
        "host": session.listener.host,
        "port": session.listener.port,
        "headers": True,
        "max_payload": at_most(settings.max_payload, session.max_payload),
        "jetstream": settings.jetstream,
        "client_id": session.cid,
        "client_ip": session.peer.host,
        "api_lvl": API_LEVEL,
    }
    if settings.compat:
        del fields["slipstream"]
    if settings.domain:
        fields["domain"] = settings.domain
    if locked:
        fields["auth_required"] = True
    for name in ("tls_required", "tls_verify", "tls_available"):
        if getattr(session.listener, name):
            fields[name] = True
    if lame_duck:
        fields["ldm"] = True
    elif session.info_sent:
        fields |= {"connect_info": True, "remote_account": session.account}
        if session.account == system_account:
            fields["acc_is_sys"] = True
    elif session.nonce:
        fields["nonce"] = session.nonce
    return b"INFO %b\r\n" % encode_json(fields)

"""Reload of a running server: which options can be changed, and the words for those that cannot.

A reload is applied whole or not at all: everything that can fail (reading certificates, matching users and accounts)
happens before the first change.
"""

from __future__ import annotations

from slipstream.errors import UsageError
from slipstream.server.options import ServerOptions, options_of

# The others are fixed: addresses, directories, and what clients and streams were promised.
RELOADABLE = frozenset(
    (
        *("tls", "tls_cert", "tls_key", "tls_ca", "tls_verify", "tls_map", "tls_timeout", "tls_min_version"),
        *("user", "password", "token", "users", "accounts", "no_auth_user", "account_tokens", "auth_timeout"),
        *("max_payload", "max_control_line", "max_connections", "max_subscriptions", "max_pending_bytes"),
        *("max_memory", "max_storage", "write_deadline", "ping_interval", "max_pings_out"),
        *("lame_duck_duration", "lame_duck_grace", "trace"),
    )
)
# With TLS from the first byte the listener keeps its context, in which only the certificate can be replaced.
_FIXED_FIRST = ("tls", "tls_ca", "tls_verify", "tls_map", "tls_timeout", "tls_min_version")


def check_reload(old: ServerOptions, new: ServerOptions) -> None:
    """Raise a UsageError that names every option that a running server cannot change. Values are not shown: some are
    secrets."""
    fixed = [one.name for one in options_of(ServerOptions) if one.name not in RELOADABLE]
    fixed += _FIXED_FIRST if old.tls_first else ()
    changed = [name for name in fixed if getattr(old, name) != getattr(new, name)]
    if changed:
        raise UsageError(f"a reload cannot change {', '.join(changed)}; restart the server")

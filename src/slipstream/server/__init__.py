"""The embedded JetStream server: `Server` for programs and tests, `slipstream server` for a command line."""

from slipstream.server.engine.limits import AccountLimits
from slipstream.server.engine.users import AccountOptions, Permissions, Responses, User
from slipstream.server.net import Server
from slipstream.server.options import ServerOptions, TlsOptions, WebSocketOptions
from slipstream.server.upstream import Upstream

__all__ = [
    "AccountLimits",
    "AccountOptions",
    "Permissions",
    "Responses",
    "Server",
    "ServerOptions",
    "TlsOptions",
    "Upstream",
    "User",
    "WebSocketOptions",
]

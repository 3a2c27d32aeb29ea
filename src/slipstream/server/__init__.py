"""The embedded JetStream server: `Server` for programs and tests, `slipstream server` for a command line."""

from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import AccountOptions, Permissions, Responses, User
from slipstream.server.engine.monitoring.health import Health
from slipstream.server.loop.compacting import Compacted
from slipstream.server.loop.upstream import Upstream
from slipstream.server.options import ServerOptions, WebSocketOptions
from slipstream.server.server import Server

__all__ = [
    "AccountLimits",
    "AccountOptions",
    "Compacted",
    "Health",
    "Permissions",
    "Responses",
    "Server",
    "ServerOptions",
    "Upstream",
    "User",
    "WebSocketOptions",
]

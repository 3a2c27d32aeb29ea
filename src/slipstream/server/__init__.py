"""The embedded JetStream server: `Server` for programs and tests, `slipstream server` for a command line."""

from slipstream.server.engine.users import Permissions, Responses, User
from slipstream.server.net import Server
from slipstream.server.upstream import Upstream

__all__ = ["Permissions", "Responses", "Server", "Upstream", "User"]

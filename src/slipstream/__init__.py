"""JetStream for Python and Spark: reads you can trust from any replica, and pipelines built on them.

`connect` is for asyncio, `connect_blocking` for programs without it; both have the same methods. `Server` is a
JetStream server to embed.
"""

from typing import TYPE_CHECKING

from slipstream.errors import Error
from slipstream.facade import (
    AckPolicy,
    BucketConfig,
    BucketSource,
    ConsumerConfig,
    ConsumerInfo,
    Context,
    Contexts,
    DeliverPolicy,
    Entry,
    Headers,
    ObjectInfo,
    ObjectStoreConfig,
    Operation,
    PubAck,
    ReplayPolicy,
    StreamConfig,
    from_env,
)
from slipstream.facade.aio import Client, JetStream, connect
from slipstream.facade.blocking import Client as BlockingClient
from slipstream.facade.blocking import JetStream as BlockingJetStream
from slipstream.facade.blocking import connect as connect_blocking

if TYPE_CHECKING:
    from slipstream.server.net import Server

__all__ = [
    "AckPolicy",
    "BlockingClient",
    "BlockingJetStream",
    "BucketConfig",
    "BucketSource",
    "Client",
    "ConsumerConfig",
    "ConsumerInfo",
    "Context",
    "Contexts",
    "DeliverPolicy",
    "Entry",
    "Error",
    "Headers",
    "JetStream",
    "ObjectInfo",
    "ObjectStoreConfig",
    "Operation",
    "PubAck",
    "ReplayPolicy",
    "Server",
    "StreamConfig",
    "connect",
    "connect_blocking",
    "from_env",
]


def __getattr__(name: str) -> object:
    """`Server` is imported when it is first used: a client should not pay for it."""
    if name == "Server":
        from slipstream.server.net import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

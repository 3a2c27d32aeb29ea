"""JetStream for Python and Spark: reads you can trust from any replica, and pipelines built on them.

`connect` is for asyncio, `connect_blocking` for programs without it; both have the same methods. `Server` is a
JetStream server to embed. Each name is imported when it is first used: a server should not pay for the client, nor the
other way round.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.errors import Error
    from slipstream.facade import (
        AckPolicy,
        BucketConfig,
        BucketSource,
        ClientOptions,
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
    from slipstream.facade._async.client import Client, JetStream, connect
    from slipstream.facade._sync.client import Client as BlockingClient
    from slipstream.facade._sync.client import JetStream as BlockingJetStream
    from slipstream.facade._sync.client import connect as connect_blocking
    from slipstream.jetstream._async.message import JsMessage
    from slipstream.kv._async.key_value import KeyValue
    from slipstream.kv._sync.key_value import KeyValue as BlockingKeyValue
    from slipstream.server.server import Server

__all__ = [
    "AckPolicy",
    "BlockingClient",
    "BlockingJetStream",
    "BlockingKeyValue",
    "BucketConfig",
    "BucketSource",
    "Client",
    "ClientOptions",
    "ConsumerConfig",
    "ConsumerInfo",
    "Context",
    "Contexts",
    "DeliverPolicy",
    "Entry",
    "Error",
    "Headers",
    "JetStream",
    "JsMessage",
    "KeyValue",
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


_HOMES = {
    "BlockingClient": ("slipstream.facade._sync.client", "Client"),
    "BlockingKeyValue": ("slipstream.kv._sync.key_value", "KeyValue"),
    "BlockingJetStream": ("slipstream.facade._sync.client", "JetStream"),
    "Client": ("slipstream.facade._async.client", "Client"),
    "Error": ("slipstream.errors", "Error"),
    "JetStream": ("slipstream.facade._async.client", "JetStream"),
    "JsMessage": ("slipstream.jetstream._async.message", "JsMessage"),
    "KeyValue": ("slipstream.kv._async.key_value", "KeyValue"),
    "Server": ("slipstream.server.server", "Server"),
    "connect": ("slipstream.facade._async.client", "connect"),
    "connect_blocking": ("slipstream.facade._sync.client", "connect"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES.get(name, ("slipstream.facade", name))
    value: object = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

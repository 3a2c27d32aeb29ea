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
    from slipstream.jetstream.aio_messages import JsMessage
    from slipstream.kv.aio import KeyValue
    from slipstream.kv.blocking import KeyValue as BlockingKeyValue
    from slipstream.server.net import Server

__all__ = [
    "AckPolicy",
    "BlockingClient",
    "BlockingJetStream",
    "BlockingKeyValue",
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
    "BlockingClient": ("slipstream.facade.blocking", "Client"),
    "BlockingKeyValue": ("slipstream.kv.blocking", "KeyValue"),
    "BlockingJetStream": ("slipstream.facade.blocking", "JetStream"),
    "Client": ("slipstream.facade.aio", "Client"),
    "Error": ("slipstream.errors", "Error"),
    "JetStream": ("slipstream.facade.aio", "JetStream"),
    "JsMessage": ("slipstream.jetstream.aio_messages", "JsMessage"),
    "KeyValue": ("slipstream.kv.aio", "KeyValue"),
    "Server": ("slipstream.server.net", "Server"),
    "connect": ("slipstream.facade.aio", "connect"),
    "connect_blocking": ("slipstream.facade.blocking", "connect"),
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

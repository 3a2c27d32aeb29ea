"""JetStream for Python and Spark: reads you can trust from any replica, and pipelines built on them.

`connect` is for asyncio, `connect_blocking` for programs without it; both have the same methods. `Server` is a
JetStream server to embed. The errors here are those that programs catch most; `slipstream.errors` has all of them. Each
name is imported when it is first used, so that a server does not pay for the client, nor a client for the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.client._async.subscription import Message, Subscription
    from slipstream.client._sync.subscription import Message as BlockingMessage
    from slipstream.client._sync.subscription import Subscription as BlockingSubscription
    from slipstream.errors import (
        ApiError,
        AtomicPublishError,
        AuthorizationError,
        BucketNotFoundError,
        CodecError,
        ConnectionClosedError,
        ConnectionLostError,
        ConsumerNotFoundError,
        CredentialsError,
        DecryptionError,
        Error,
        ErrorCode,
        HistoryLostError,
        KeyExistsError,
        KeyNotFoundError,
        LeaseLostError,
        MessageNotFoundError,
        MinLastSequenceUnsupportedError,
        NoRespondersError,
        NoStreamError,
        ObjectNotFoundError,
        ReadOnlyError,
        RemoteProtocolError,
        RequestTimeoutError,
        ServerError,
        SlowConsumerError,
        StaleReadError,
        StreamNotFoundError,
        TlsError,
        UsageError,
        WrongLastSequenceError,
    )
    from slipstream.facade import (
        AccountInfo,
        AckPolicy,
        BucketConfig,
        BucketSource,
        BucketStatus,
        CacheStats,
        ClientEvent,
        ClientOptions,
        ConsumerConfig,
        ConsumerInfo,
        ConsumerLimits,
        Context,
        Contexts,
        DeliverPolicy,
        Discard,
        Entry,
        EventKind,
        ExternalStream,
        Headers,
        ObjectInfo,
        ObjectStoreConfig,
        Operation,
        Placement,
        PriorityPolicy,
        PubAck,
        ReadStats,
        ReplayPolicy,
        Republish,
        Retention,
        Stats,
        Storage,
        StoredMessage,
        StreamConfig,
        StreamInfo,
        StreamSource,
        StreamState,
        SubjectTransform,
        from_env,
    )
    from slipstream.facade._async.client import Client, JetStream, connect
    from slipstream.facade._sync.client import Client as BlockingClient
    from slipstream.facade._sync.client import JetStream as BlockingJetStream
    from slipstream.facade._sync.client import connect as connect_blocking
    from slipstream.jetstream._async.consumer import Consumer
    from slipstream.jetstream._async.message import JsMessage
    from slipstream.jetstream._async.stream import Stream
    from slipstream.jetstream._sync.consumer import Consumer as BlockingConsumer
    from slipstream.jetstream._sync.message import JsMessage as BlockingJsMessage
    from slipstream.jetstream._sync.stream import Stream as BlockingStream
    from slipstream.kv._async.key_value import KeyValue, open_local_key_value
    from slipstream.kv._sync.key_value import KeyValue as BlockingKeyValue
    from slipstream.kv._sync.key_value import open_local_key_value as open_local_key_value_blocking
    from slipstream.objects._async.object_store import ObjectStore
    from slipstream.objects._sync.object_store import ObjectStore as BlockingObjectStore
    from slipstream.server.server import Server

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "ApiError",
    "AtomicPublishError",
    "AuthorizationError",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingJetStream",
    "BlockingJsMessage",
    "BlockingKeyValue",
    "BlockingMessage",
    "BlockingObjectStore",
    "BlockingStream",
    "BlockingSubscription",
    "BucketConfig",
    "BucketNotFoundError",
    "BucketSource",
    "BucketStatus",
    "CacheStats",
    "Client",
    "ClientEvent",
    "ClientOptions",
    "CodecError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerNotFoundError",
    "Context",
    "Contexts",
    "CredentialsError",
    "DecryptionError",
    "DeliverPolicy",
    "Discard",
    "Entry",
    "Error",
    "ErrorCode",
    "EventKind",
    "ExternalStream",
    "Headers",
    "HistoryLostError",
    "JetStream",
    "JsMessage",
    "KeyExistsError",
    "KeyNotFoundError",
    "KeyValue",
    "LeaseLostError",
    "Message",
    "MessageNotFoundError",
    "MinLastSequenceUnsupportedError",
    "NoRespondersError",
    "NoStreamError",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectStoreConfig",
    "Operation",
    "Placement",
    "PriorityPolicy",
    "PubAck",
    "ReadOnlyError",
    "ReadStats",
    "RemoteProtocolError",
    "ReplayPolicy",
    "Republish",
    "RequestTimeoutError",
    "Retention",
    "Server",
    "ServerError",
    "SlowConsumerError",
    "StaleReadError",
    "Stats",
    "Storage",
    "StoredMessage",
    "Stream",
    "StreamConfig",
    "StreamInfo",
    "StreamNotFoundError",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "Subscription",
    "TlsError",
    "UsageError",
    "WrongLastSequenceError",
    "connect",
    "connect_blocking",
    "from_env",
    "open_local_key_value",
    "open_local_key_value_blocking",
]

# Module -> its public names; all others are in `slipstream.errors` or `slipstream.facade`.
_MODULES = {
    "slipstream.client._async.subscription": ("Message", "Subscription"),
    "slipstream.facade._async.client": ("Client", "JetStream", "connect"),
    "slipstream.jetstream._async.consumer": ("Consumer",),
    "slipstream.jetstream._async.message": ("JsMessage",),
    "slipstream.jetstream._async.stream": ("Stream",),
    "slipstream.kv._async.key_value": ("KeyValue", "open_local_key_value"),
    "slipstream.objects._async.object_store": ("ObjectStore",),
    "slipstream.server.server": ("Server",),
}
# The same for the blocking driver, under names that say so.
_BLOCKING = {
    "BlockingMessage": ("slipstream.client._sync.subscription", "Message"),
    "BlockingSubscription": ("slipstream.client._sync.subscription", "Subscription"),
    "BlockingClient": ("slipstream.facade._sync.client", "Client"),
    "BlockingJetStream": ("slipstream.facade._sync.client", "JetStream"),
    "BlockingConsumer": ("slipstream.jetstream._sync.consumer", "Consumer"),
    "BlockingJsMessage": ("slipstream.jetstream._sync.message", "JsMessage"),
    "BlockingStream": ("slipstream.jetstream._sync.stream", "Stream"),
    "BlockingKeyValue": ("slipstream.kv._sync.key_value", "KeyValue"),
    "BlockingObjectStore": ("slipstream.objects._sync.object_store", "ObjectStore"),
    "connect_blocking": ("slipstream.facade._sync.client", "connect"),
    "open_local_key_value_blocking": ("slipstream.kv._sync.key_value", "open_local_key_value"),
}


def _find(name: str) -> tuple[str, str]:
    """The module and the name in it of a public name."""
    if name in _BLOCKING:
        return _BLOCKING[name]
    for module, names in _MODULES.items():
        if name in names:
            return module, name
    return ("slipstream.errors" if name.endswith("Error") or name == "ErrorCode" else "slipstream.facade"), name


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _find(name)
    value: object = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""JetStream for Python and Spark: reads you can trust from any replica, and pipelines built on them.

`connect` is for asyncio, `connect_blocking` for programs without it; both have the same methods. `Server` is a
JetStream server to embed. Every class that a program holds or catches is a name here; those of the blocking client
begin with `Blocking`. Each is imported when it is first used, so that a server does not pay for the client, nor a
client for the server.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# Compiled modules that `make native` put here may be older than their sources, and must not be imported then.
if os.environ.get("SLIPSTREAM_PURE") or os.path.exists(os.path.join(os.path.dirname(__file__), "native.json")):
    import_module("slipstream.form")

if TYPE_CHECKING:
    from slipstream import api, errors, frames, server, testing
    from slipstream.client._async.opening import Opening
    from slipstream.client._async.subscription import Message, Subscription
    from slipstream.client._sync.subscription import Message as BlockingMessage
    from slipstream.client._sync.subscription import Subscription as BlockingSubscription
    from slipstream.codecs import Base64Values, Codec, Compressed, Json, MessagePack, Text
    from slipstream.errors import (
        ApiError,
        AtomicPublishDisabledError,
        AtomicPublishError,
        AtomicPublishIncompleteError,
        AtomicPublishTooLargeError,
        AuthorizationError,
        BadApiRequestError,
        BadRequestError,
        BucketNotFoundError,
        BucketOptionsError,
        CodecError,
        ConfigMismatchError,
        ConnectionClosedError,
        ConnectionLostError,
        ConsumerDeletedError,
        ConsumerDoesNotExistError,
        ConsumerExistsError,
        ConsumerGoneError,
        ConsumerNameInUseError,
        ConsumerNotFoundError,
        CorruptRecordError,
        CredentialsError,
        DecryptionError,
        DirectGetNotAllowedError,
        DuplicateSubscriptionError,
        Error,
        ErrorCode,
        FilterMismatchError,
        HeartbeatLostError,
        HistoryLostError,
        InvalidJsonError,
        JetStreamNotEnabledError,
        KeyExistsError,
        KeyNotFoundError,
        KeyRevisionError,
        LeaseLostError,
        MessageDecodeError,
        MessageGapError,
        MessageNotFoundApiError,
        MessageNotFoundError,
        MinLastSequenceError,
        MinLastSequenceUnsupportedError,
        MissingExtraError,
        NoDeliverGroupError,
        NoRespondersError,
        NoStreamError,
        NothingToSubscribeError,
        NotJetStreamMessageError,
        ObjectDamagedError,
        ObjectExistsError,
        ObjectNotFoundError,
        OriginUnreachableError,
        PullAckPolicyError,
        PullConsumerError,
        PullRefusedError,
        PushConsumerError,
        QueueFlowControlError,
        QueueHeartbeatError,
        QueueMismatchError,
        QueueRequiredError,
        ReadOnlyError,
        RemoteProtocolError,
        ReplicaOptionsError,
        ReplicasNotSupportedError,
        RequestTimeoutError,
        ServerError,
        ServiceError,
        SessionTokenError,
        SlowConsumerError,
        SnapshotError,
        StaleReadError,
        StatusError,
        StoreError,
        StrayMessageError,
        StreamInvalidConfigError,
        StreamLookupError,
        StreamMessageTooLargeError,
        StreamNameInUseError,
        StreamNameMismatchError,
        StreamNotFoundError,
        StreamNotMatchError,
        StreamStoreFailedError,
        StreamSubjectOverlapError,
        SubscribeError,
        TlsError,
        TokenMismatchError,
        TooManyResultsError,
        UsageError,
        WrongLastMsgIdError,
        WrongLastSequenceConstantError,
        WrongLastSequenceError,
    )
    from slipstream.facade import (
        AccountInfo,
        AccountLimits,
        AckPolicy,
        BucketConfig,
        BucketFields,
        BucketSource,
        BucketStatus,
        CacheStats,
        ClientEvent,
        ClientOptions,
        Columns,
        Compression,
        ConsumerConfig,
        ConsumerFields,
        ConsumerInfo,
        ConsumerLimits,
        Context,
        Contexts,
        DeliverPolicy,
        Discard,
        EndpointInfo,
        EndpointStats,
        Entry,
        EventKind,
        ExternalStream,
        FailedPublish,
        Headers,
        Metadata,
        Msg,
        ObjectInfo,
        ObjectLink,
        ObjectStoreConfig,
        ObjectStoreFields,
        ObjectStoreStatus,
        Operation,
        Part,
        Pause,
        Placement,
        PriorityPolicy,
        PubAck,
        PublishStats,
        ReadStats,
        ReplayPolicy,
        Republish,
        Retention,
        SequenceInfo,
        ServerInfo,
        ServiceInfo,
        ServicePing,
        ServiceStats,
        Stats,
        Status,
        Storage,
        StoredMessage,
        StreamConfig,
        StreamFields,
        StreamInfo,
        StreamSource,
        StreamState,
        SubjectTransform,
        from_env,
    )
    from slipstream.facade._async.client import Client, JetStream, Session, connect
    from slipstream.facade._sync.client import Client as BlockingClient
    from slipstream.facade._sync.client import JetStream as BlockingJetStream
    from slipstream.facade._sync.client import Session as BlockingSession
    from slipstream.facade._sync.client import connect as connect_blocking
    from slipstream.form import COMPILED as __compiled__  # noqa: N811
    from slipstream.jetstream._async.atomic_batch import AtomicBatch
    from slipstream.jetstream._async.consumer import Consumer
    from slipstream.jetstream._async.consuming import Consuming
    from slipstream.jetstream._async.message import JsMessage
    from slipstream.jetstream._async.ordered import OrderedConsumer
    from slipstream.jetstream._async.publisher import Publisher
    from slipstream.jetstream._async.pull_loop import MessageLists, Messages
    from slipstream.jetstream._async.push import PushSubscription
    from slipstream.jetstream._async.snapshot import Snapshot
    from slipstream.jetstream._async.stream import Stream
    from slipstream.jetstream._async.subscribe import PullSubscription
    from slipstream.jetstream._sync.atomic_batch import AtomicBatch as BlockingAtomicBatch
    from slipstream.jetstream._sync.consumer import Consumer as BlockingConsumer
    from slipstream.jetstream._sync.consuming import Consuming as BlockingConsuming
    from slipstream.jetstream._sync.message import JsMessage as BlockingJsMessage
    from slipstream.jetstream._sync.ordered import OrderedConsumer as BlockingOrderedConsumer
    from slipstream.jetstream._sync.publisher import Publisher as BlockingPublisher
    from slipstream.jetstream._sync.pull_loop import MessageLists as BlockingMessageLists
    from slipstream.jetstream._sync.pull_loop import Messages as BlockingMessages
    from slipstream.jetstream._sync.push import PushSubscription as BlockingPushSubscription
    from slipstream.jetstream._sync.snapshot import Snapshot as BlockingSnapshot
    from slipstream.jetstream._sync.stream import Stream as BlockingStream
    from slipstream.jetstream._sync.subscribe import PullSubscription as BlockingPullSubscription
    from slipstream.jetstream.consume.error_policy import Attempts, DeadLetter, Leave, Nak, Term
    from slipstream.jetstream.consume.worker_stats import WorkerStats
    from slipstream.kv._async.election import Change, Election, Leader, Member, Members
    from slipstream.kv._async.key_value import CachedKeyValue, KeyValue, Writer, open_local_key_value
    from slipstream.kv._async.lease import Lease, Lock
    from slipstream.kv._async.watch import Watch
    from slipstream.kv._sync.election import Change as BlockingChange
    from slipstream.kv._sync.election import Election as BlockingElection
    from slipstream.kv._sync.election import Leader as BlockingLeader
    from slipstream.kv._sync.election import Member as BlockingMember
    from slipstream.kv._sync.election import Members as BlockingMembers
    from slipstream.kv._sync.key_value import CachedKeyValue as BlockingCachedKeyValue
    from slipstream.kv._sync.key_value import KeyValue as BlockingKeyValue
    from slipstream.kv._sync.key_value import Writer as BlockingWriter
    from slipstream.kv._sync.key_value import open_local_key_value as open_local_key_value_blocking
    from slipstream.kv._sync.lease import Lease as BlockingLease
    from slipstream.kv._sync.lease import Lock as BlockingLock
    from slipstream.kv._sync.watch import Watch as BlockingWatch
    from slipstream.metrics.client import ClientMetrics
    from slipstream.objects._async.object_store import ObjectReader, ObjectStore
    from slipstream.objects._async.watch import ObjectWatch
    from slipstream.objects._sync.object_store import ObjectReader as BlockingObjectReader
    from slipstream.objects._sync.object_store import ObjectStore as BlockingObjectStore
    from slipstream.objects._sync.watch import ObjectWatch as BlockingObjectWatch
    from slipstream.server import Compacted, Health, Server
    from slipstream.services._async.discovery import Services
    from slipstream.services._async.request import ServiceRequest
    from slipstream.services._async.service import Service, ServiceGroup
    from slipstream.services._sync.discovery import Services as BlockingServices
    from slipstream.services._sync.request import ServiceRequest as BlockingServiceRequest
    from slipstream.services._sync.service import Service as BlockingService
    from slipstream.services._sync.service import ServiceGroup as BlockingServiceGroup
    from slipstream.version import VERSION as __version__  # noqa: N811

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AckPolicy",
    "ApiError",
    "AtomicBatch",
    "AtomicPublishDisabledError",
    "AtomicPublishError",
    "AtomicPublishIncompleteError",
    "AtomicPublishTooLargeError",
    "Attempts",
    "AuthorizationError",
    "BadApiRequestError",
    "BadRequestError",
    "Base64Values",
    "BlockingAtomicBatch",
    "BlockingCachedKeyValue",
    "BlockingChange",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingConsuming",
    "BlockingElection",
    "BlockingJetStream",
    "BlockingJsMessage",
    "BlockingKeyValue",
    "BlockingLeader",
    "BlockingLease",
    "BlockingLock",
    "BlockingMember",
    "BlockingMembers",
    "BlockingMessage",
    "BlockingMessageLists",
    "BlockingMessages",
    "BlockingObjectReader",
    "BlockingObjectStore",
    "BlockingObjectWatch",
    "BlockingOrderedConsumer",
    "BlockingPublisher",
    "BlockingPullSubscription",
    "BlockingPushSubscription",
    "BlockingService",
    "BlockingServiceGroup",
    "BlockingServiceRequest",
    "BlockingServices",
    "BlockingSession",
    "BlockingSnapshot",
    "BlockingStream",
    "BlockingSubscription",
    "BlockingWatch",
    "BlockingWriter",
    "BucketConfig",
    "BucketFields",
    "BucketNotFoundError",
    "BucketOptionsError",
    "BucketSource",
    "BucketStatus",
    "CacheStats",
    "CachedKeyValue",
    "Change",
    "Client",
    "ClientEvent",
    "ClientMetrics",
    "ClientOptions",
    "Codec",
    "CodecError",
    "Columns",
    "Compacted",
    "Compressed",
    "Compression",
    "ConfigMismatchError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerFields",
    "ConsumerGoneError",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerNameInUseError",
    "ConsumerNotFoundError",
    "Consuming",
    "Context",
    "Contexts",
    "CorruptRecordError",
    "CredentialsError",
    "DeadLetter",
    "DecryptionError",
    "DeliverPolicy",
    "DirectGetNotAllowedError",
    "Discard",
    "DuplicateSubscriptionError",
    "Election",
    "EndpointInfo",
    "EndpointStats",
    "Entry",
    "Error",
    "ErrorCode",
    "EventKind",
    "ExternalStream",
    "FailedPublish",
    "FilterMismatchError",
    "Headers",
    "Health",
    "HeartbeatLostError",
    "HistoryLostError",
    "InvalidJsonError",
    "JetStream",
    "JetStreamNotEnabledError",
    "JsMessage",
    "Json",
    "KeyExistsError",
    "KeyNotFoundError",
    "KeyRevisionError",
    "KeyValue",
    "Leader",
    "Lease",
    "LeaseLostError",
    "Leave",
    "Lock",
    "Member",
    "Members",
    "Message",
    "MessageDecodeError",
    "MessageGapError",
    "MessageLists",
    "MessageNotFoundApiError",
    "MessageNotFoundError",
    "MessagePack",
    "Messages",
    "Metadata",
    "MinLastSequenceError",
    "MinLastSequenceUnsupportedError",
    "MissingExtraError",
    "Msg",
    "Nak",
    "NoDeliverGroupError",
    "NoRespondersError",
    "NoStreamError",
    "NotJetStreamMessageError",
    "NothingToSubscribeError",
    "ObjectDamagedError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectLink",
    "ObjectNotFoundError",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreConfig",
    "ObjectStoreFields",
    "ObjectStoreStatus",
    "ObjectWatch",
    "Opening",
    "Operation",
    "OrderedConsumer",
    "OriginUnreachableError",
    "Part",
    "Pause",
    "Placement",
    "PriorityPolicy",
    "PubAck",
    "PublishStats",
    "Publisher",
    "PullAckPolicyError",
    "PullConsumerError",
    "PullRefusedError",
    "PullSubscription",
    "PushConsumerError",
    "PushSubscription",
    "QueueFlowControlError",
    "QueueHeartbeatError",
    "QueueMismatchError",
    "QueueRequiredError",
    "ReadOnlyError",
    "ReadStats",
    "RemoteProtocolError",
    "ReplayPolicy",
    "ReplicaOptionsError",
    "ReplicasNotSupportedError",
    "Republish",
    "RequestTimeoutError",
    "Retention",
    "SequenceInfo",
    "Server",
    "ServerError",
    "ServerInfo",
    "Service",
    "ServiceError",
    "ServiceGroup",
    "ServiceInfo",
    "ServicePing",
    "ServiceRequest",
    "ServiceStats",
    "Services",
    "Session",
    "SessionTokenError",
    "SlowConsumerError",
    "Snapshot",
    "SnapshotError",
    "StaleReadError",
    "Stats",
    "Status",
    "StatusError",
    "Storage",
    "StoreError",
    "StoredMessage",
    "StrayMessageError",
    "Stream",
    "StreamConfig",
    "StreamFields",
    "StreamInfo",
    "StreamInvalidConfigError",
    "StreamLookupError",
    "StreamMessageTooLargeError",
    "StreamNameInUseError",
    "StreamNameMismatchError",
    "StreamNotFoundError",
    "StreamNotMatchError",
    "StreamSource",
    "StreamState",
    "StreamStoreFailedError",
    "StreamSubjectOverlapError",
    "SubjectTransform",
    "SubscribeError",
    "Subscription",
    "Term",
    "Text",
    "TlsError",
    "TokenMismatchError",
    "TooManyResultsError",
    "UsageError",
    "Watch",
    "WorkerStats",
    "Writer",
    "WrongLastMsgIdError",
    "WrongLastSequenceConstantError",
    "WrongLastSequenceError",
    "__compiled__",
    "__version__",
    "api",
    "connect",
    "connect_blocking",
    "errors",
    "frames",
    "from_env",
    "open_local_key_value",
    "open_local_key_value_blocking",
    "server",
    "testing",
]

# Module of the asyncio driver -> its public names. Those of the blocking driver are in its module of the same name, and
# begin with `Blocking` here.
_DRIVERS = {
    "client._async.subscription": ("Message", "Subscription"),
    "facade._async.client": ("Client", "JetStream", "Session"),
    "jetstream._async.atomic_batch": ("AtomicBatch",),
    "jetstream._async.consumer": ("Consumer",),
    "jetstream._async.message": ("JsMessage",),
    "jetstream._async.ordered": ("OrderedConsumer",),
    "jetstream._async.publisher": ("Publisher",),
    "jetstream._async.consuming": ("Consuming",),
    "jetstream._async.pull_loop": ("MessageLists", "Messages"),
    "jetstream._async.push": ("PushSubscription",),
    "jetstream._async.snapshot": ("Snapshot",),
    "jetstream._async.stream": ("Stream",),
    "jetstream._async.subscribe": ("PullSubscription",),
    "kv._async.election": ("Change", "Election", "Leader", "Member", "Members"),
    "kv._async.key_value": ("CachedKeyValue", "KeyValue", "Writer"),
    "kv._async.lease": ("Lease", "Lock"),
    "kv._async.watch": ("Watch",),
    "objects._async.object_store": ("ObjectReader", "ObjectStore"),
    "objects._async.watch": ("ObjectWatch",),
    "services._async.discovery": ("Services",),
    "services._async.request": ("ServiceRequest",),
    "services._async.service": ("Service", "ServiceGroup"),
}
# Of one driver, or of none.
_MODULES = {
    "client._async.opening": ("Opening",),
    "client.contexts": ("Context", "Contexts"),
    "client.options": ("ClientOptions",),
    "metrics.client": ("ClientMetrics",),
    "jetstream.consume.error_policy": ("Attempts", "DeadLetter", "Leave", "Nak", "Term"),
    "jetstream.consume.worker_stats": ("WorkerStats",),
    "codecs": ("Base64Values", "Codec", "Compressed", "Json", "MessagePack", "Text"),
    "facade._async.client": ("connect",),
    "kv._async.key_value": ("open_local_key_value",),
    "server": ("Compacted", "Health", "Server"),
}
_RENAMED = {
    "__compiled__": ("form", "COMPILED"),
    "__version__": ("version", "VERSION"),
    "connect_blocking": ("facade._sync.client", "connect"),
    "open_local_key_value_blocking": ("kv._sync.key_value", "open_local_key_value"),
}
_SUBMODULES = ("api", "errors", "frames", "server", "testing")


def _find(name: str) -> tuple[str, str]:
    """The module and the name in it of a public name; all others are errors, or names of the facade."""
    if name in _RENAMED:
        return _RENAMED[name]
    for module, names in _MODULES.items():
        if name in names:
            return module, name
    plain = name.removeprefix("Blocking")
    for module, names in _DRIVERS.items():
        if plain in names:
            return (module if plain == name else module.replace("_async", "_sync")), plain
    return ("errors" if name.endswith("Error") or name == "ErrorCode" else "facade"), name


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"slipstream.{name}")  # which makes it an attribute
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _find(name)
    value: object = getattr(import_module(f"slipstream.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

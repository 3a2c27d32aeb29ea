"""Objects that users hold: a client with `jetstream()`, JetStream with `key_value()`, and the values of both.

Lower layers do not import it; the package re-exports it.
"""

from slipstream.api import (
    AccountInfo,
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    ConsumerLimits,
    DeliverPolicy,
    Discard,
    ExternalStream,
    Placement,
    PriorityPolicy,
    PubAck,
    ReplayPolicy,
    Republish,
    Retention,
    Storage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamState,
    SubjectTransform,
)
from slipstream.client.contexts import Context, Contexts
from slipstream.client.events import ClientEvent, EventKind, Stats
from slipstream.client.options import ClientOptions
from slipstream.client.secrets import from_env
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.read_state import ReadStats
from slipstream.kv.bucket import BucketConfig, BucketSource, BucketStatus
from slipstream.kv.cache import CacheStats
from slipstream.kv.entry import Entry, Operation
from slipstream.objects import ObjectInfo, ObjectStoreConfig
from slipstream.wire import Headers

__all__ = [
    "AccountInfo",
    "AckPolicy",
    "BucketConfig",
    "BucketSource",
    "BucketStatus",
    "CacheStats",
    "ClientEvent",
    "ClientOptions",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLimits",
    "Context",
    "Contexts",
    "DeliverPolicy",
    "Discard",
    "Entry",
    "EventKind",
    "ExternalStream",
    "Headers",
    "ObjectInfo",
    "ObjectStoreConfig",
    "Operation",
    "Placement",
    "PriorityPolicy",
    "PubAck",
    "ReadStats",
    "ReplayPolicy",
    "Republish",
    "Retention",
    "Stats",
    "Storage",
    "StoredMessage",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "from_env",
]

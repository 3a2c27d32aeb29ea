"""Objects that users hold: a client with `jetstream()`, JetStream with `key_value()`, and the values of both.

Lower layers do not import it; the package re-exports it.
"""

from slipstream.api import (
    AccountInfo,
    AccountLimits,
    AckPolicy,
    Compression,
    ConsumerConfig,
    ConsumerFields,
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
    SequenceInfo,
    Storage,
    StreamConfig,
    StreamFields,
    StreamInfo,
    StreamSource,
    StreamState,
    SubjectTransform,
)
from slipstream.client.contexts import Context, Contexts
from slipstream.client.events import ClientEvent, EventKind, Stats
from slipstream.client.options import ClientOptions
from slipstream.client.secrets import from_env
from slipstream.jetstream.consume.ack_subject import Metadata
from slipstream.jetstream.consumer_requests import Pause
from slipstream.jetstream.publish.counts import PublishStats
from slipstream.jetstream.publish.sent import FailedPublish
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.read_state import ReadStats
from slipstream.kv.bucket import BucketConfig, BucketFields, BucketSource, BucketStatus
from slipstream.kv.cache import CacheStats
from slipstream.kv.entry import Entry, Operation
from slipstream.objects.info import ObjectInfo, ObjectLink, ObjectStoreConfig, ObjectStoreFields, ObjectStoreStatus
from slipstream.services import EndpointInfo, EndpointStats, ServiceInfo, ServicePing, ServiceStats
from slipstream.wire import Headers, Msg, Status
from slipstream.wire.handshake import ServerInfo

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AckPolicy",
    "BucketConfig",
    "BucketFields",
    "BucketSource",
    "BucketStatus",
    "CacheStats",
    "ClientEvent",
    "ClientOptions",
    "Columns",
    "Compression",
    "ConsumerConfig",
    "ConsumerFields",
    "ConsumerInfo",
    "ConsumerLimits",
    "Context",
    "Contexts",
    "DeliverPolicy",
    "Discard",
    "EndpointInfo",
    "EndpointStats",
    "Entry",
    "EventKind",
    "ExternalStream",
    "FailedPublish",
    "Headers",
    "Metadata",
    "Msg",
    "ObjectInfo",
    "ObjectLink",
    "ObjectStoreConfig",
    "ObjectStoreFields",
    "ObjectStoreStatus",
    "Operation",
    "Part",
    "Pause",
    "Placement",
    "PriorityPolicy",
    "PubAck",
    "PublishStats",
    "ReadStats",
    "ReplayPolicy",
    "Republish",
    "Retention",
    "SequenceInfo",
    "ServerInfo",
    "ServiceInfo",
    "ServicePing",
    "ServiceStats",
    "Stats",
    "Status",
    "Storage",
    "StoredMessage",
    "StreamConfig",
    "StreamFields",
    "StreamInfo",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "from_env",
]

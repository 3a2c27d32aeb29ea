"""What a user holds: a client with `jetstream()`, JetStream with `key_value()`, and the values they take and give.

Lower rooms know nothing of it; the package re-exports it.
"""

from slipstream.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, PubAck, ReplayPolicy, StreamConfig
from slipstream.client.contexts import Context, Contexts
from slipstream.client.options import ClientOptions
from slipstream.client.secrets import from_env
from slipstream.kv.bucket import BucketConfig, BucketSource
from slipstream.kv.entry import Entry, Operation
from slipstream.objects import ObjectInfo, ObjectStoreConfig
from slipstream.wire import Headers

__all__ = [
    "AckPolicy",
    "BucketConfig",
    "BucketSource",
    "ClientOptions",
    "ConsumerConfig",
    "ConsumerInfo",
    "Context",
    "Contexts",
    "DeliverPolicy",
    "Entry",
    "Headers",
    "ObjectInfo",
    "ObjectStoreConfig",
    "Operation",
    "PubAck",
    "ReplayPolicy",
    "StreamConfig",
    "from_env",
]

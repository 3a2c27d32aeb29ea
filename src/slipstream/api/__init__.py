"""JetStream's vocabulary, for both sides: configurations, reports, subjects, header names; dataclasses <-> JSON."""

from slipstream.api.messages import (
    NOT_JSON,
    ErrorBody,
    GetRequest,
    PubAck,
    StoredBody,
    decode_get_request,
    decode_pub_ack,
    decode_response,
    encode_json,
)
from slipstream.api.stream import (
    ConsumerLimits,
    Discard,
    ExternalStream,
    Placement,
    Republish,
    Retention,
    Storage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamState,
    SubjectTransform,
)
from slipstream.api.times import format_time, parse_time

__all__ = [
    "NOT_JSON",
    "ConsumerLimits",
    "Discard",
    "ErrorBody",
    "ExternalStream",
    "GetRequest",
    "Placement",
    "PubAck",
    "Republish",
    "Retention",
    "Storage",
    "StoredBody",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamState",
    "SubjectTransform",
    "decode_get_request",
    "decode_pub_ack",
    "decode_response",
    "encode_json",
    "format_time",
    "parse_time",
]

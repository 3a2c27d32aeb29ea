"""Names of the JetStream API: subjects, headers and response types, shared by client and server."""

from __future__ import annotations

from slipstream.wire.arguments import check_text

API_PREFIX = "$JS.API"
RESPONSE_TYPE = "io.nats.jetstream.api.v1."

# Headers of a publish.
MSG_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST_SEQ = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQ = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQ_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = "Nats-Expected-Last-Msg-Id"
ROLLUP = "Nats-Rollup"
ROLLUP_SUBJECT = "sub"
TTL = "Nats-TTL"
INCR = "Nats-Incr"
COUNTER_SOURCES = "Nats-Counter-Sources"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"
SCHEDULE_SOURCE = "Nats-Schedule-Source"
SCHEDULE_ZONE = "Nats-Schedule-Time-Zone"
SCHEDULE_TTL = "Nats-Schedule-TTL"
SCHEDULE_ROLLUP = "Nats-Schedule-Rollup"
SCHEDULER = "Nats-Scheduler"
SCHEDULE_NEXT = "Nats-Schedule-Next"
STREAM_SOURCE = "Nats-Stream-Source"
MARKER_REASON = "Nats-Marker-Reason"
REQUIRED_API_LEVEL = "Nats-Required-Api-Level"

# Headers of a Direct Get reply.
STREAM = "Nats-Stream"
SUBJECT = "Nats-Subject"
SEQUENCE = "Nats-Sequence"
TIME_STAMP = "Nats-Time-Stamp"
NUM_PENDING = "Nats-Num-Pending"
PENDING_MESSAGES = "Nats-Pending-Messages"
LAST_SEQUENCE = "Nats-Last-Sequence"
UP_TO_SEQUENCE = "Nats-UpTo-Sequence"

# Our own headers, in the answer to a Direct Get with `as_of`: the peer that gave it, the sequence as of which its copy
# is the stream (0: it cannot say), and when that stream was created (nanoseconds since the epoch).
RESPONDER = "Slipstream-Responder"
AS_OF = "Slipstream-As-Of"
CREATED = "Slipstream-Created"

# Headers of a consumer's messages and statuses.
PENDING_BYTES = "Nats-Pending-Bytes"
LAST_CONSUMER = "Nats-Last-Consumer"
LAST_STREAM = "Nats-Last-Stream"
CONSUMER_STALLED = "Nats-Consumer-Stalled"

# Our own metadata of a consumer that a subscription created: which one, so that of two that race one is the owner.
OWNER = "slipstream.owner"

KV_OPERATION = "KV-Operation"
KV_DELETE = "DEL"
KV_PURGE = "PURGE"


def api_prefix(*, prefix: str = "", domain: str = "") -> str:
    """The subject prefix of the API: the default, a domain's, or the user's own."""
    check_text(prefix, "prefix")
    check_text(domain, "domain")
    if prefix:
        return prefix.rstrip(".")
    return f"$JS.{domain}.API" if domain else API_PREFIX

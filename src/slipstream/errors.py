"""All exceptions of Slipstream, and the table of JetStream API errors.

There is one root, `Error`, and branches by who can act: `UsageError` is a mistake in the call, `RemoteProtocolError` a
fault of the peer, `ConnectionLostError` of the network, `ApiError` a rejection by the JetStream API with its code,
`RequestTimeoutError` a missing answer. Messages say what was expected and what was seen ("X must be Y, got Z").

Errors of the JetStream API are declared once, in `ErrorCode`: the embedded server raises them by name and sends them as
JSON, the client finds the class by the code. Every error can be pickled (Spark's workers are processes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum, unique
from typing import Any, ClassVar, Self


class Error(Exception):
    """Root of all exceptions that Slipstream raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:  # Exception would call the class with `args`, the finished message
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[Error], args: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


class UsageError(Error, ValueError):
    """An invalid argument or an invalid combination of arguments; nothing was sent."""


class SessionTokenError(UsageError):
    """A session token that cannot be read, or is not signed with the session's secret."""


class CredentialsError(UsageError):
    """A seed, a token or a credentials file that cannot be used; the message never contains the secret."""


class MissingExtraError(UsageError):
    """A package that this feature needs is not installed; the message names the extra that brings it."""


class RemoteProtocolError(Error):
    """The peer sent something the protocol does not allow."""


class ConnectionLostError(Error, ConnectionError):
    """There is no connection to a server, or it was lost."""


class TlsError(ConnectionLostError):
    """The connection could not be secured: a certificate, its name or the server's settings."""


class ConnectionClosedError(ConnectionLostError):
    """The client was closed; it cannot be used again."""


class ServerError(Error):
    """The server reported an error with `-ERR`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the server said: {text}")
        self.text = text


class AuthorizationError(ServerError):
    """The server rejected the credentials, or a subject that they do not permit."""


class SlowConsumerError(Error):
    """Messages arrived faster than they were consumed; the limit was reached and some were dropped."""


class RequestTimeoutError(Error, TimeoutError):
    """No answer arrived in time."""


class NoRespondersError(Error):
    """The subject of the request has no subscribers."""

    template: ClassVar[str] = "no responders on subject {}"

    def __init__(self, subject: str, hint: str = "") -> None:
        super().__init__(self.template.format(repr(subject)) + (f": {hint}" if hint else ""))
        self.subject = subject
        self.hint = hint


class ServiceError(Error):
    """An error reply of a service: its code and description. Raised by a handler, it is what the caller gets."""

    def __init__(self, code: int, description: str, *, data: bytes = b"", subject: str = "") -> None:
        super().__init__(f"{code}: {description}" + (f" (service on {subject!r})" if subject else ""))
        self.code = code
        self.description = description
        self.data = data
        self.subject = subject


class MessageNotFoundError(Error):
    """The stream has no message that matches the request."""

    stream: str = ""


class StaleReadError(Error):
    """The responder's last sequence is below the required one, and no newer answer arrived in time.

    `waited` is how long the read tried, in seconds; 0 where it did not have to.
    """

    waited: float = 0.0

    def __init__(self, message: str, *, stream: str = "", min_last_seq: int = 0) -> None:
        super().__init__(message)
        self.stream = stream
        self.min_last_seq = min_last_seq

    def after(self, seconds: float) -> Self:
        """The same error, for a read that gave up after this many seconds."""
        if not self.waited:
            self.args: tuple[Any, ...] = (f"{self} (waited {seconds:.1f} s)", *self.args[1:])
        self.waited = seconds
        return self


class TokenMismatchError(StaleReadError):
    """A session token belongs to another stream: the stream was recreated since, or the token comes from elsewhere.

    Reading again does not help: begin a session without the token.
    """


class MinLastSequenceUnsupportedError(UsageError):
    """A consumer with `min_last_seq` on a server that does not keep it, where it cannot be promised otherwise.

    `stream.ordered_consumer(min_last_seq=…)` proves it on every server; the consumer was not created.
    """

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(
            f"the server does not keep min_last_seq of consumers, and {why}, so that a consumer of {stream} may read a "
            "copy that is behind; use ordered_consumer(min_last_seq=…), or create it without min_last_seq"
        )
        self.stream = stream


class BadRequestError(Error):
    """The server did not understand the request (status 408 of a Direct Get)."""


class TooManyResultsError(Error):
    """More subjects match than a server answers at once (status 413 of a Direct Get; the limit is 1,024)."""


class DirectGetNotAllowedError(NoRespondersError):
    """The stream does not offer Direct Get: its `allow_direct` is off, or there is no such stream."""


class KeyNotFoundError(Error, KeyError):
    """The bucket has no value for the key, or its last entry is a delete or purge."""

    def __init__(self, bucket: str, key: str, detail: str = "") -> None:
        super().__init__(f"no value for key {key!r} in bucket {bucket!r}" + (f": {detail}" if detail else ""))
        self.bucket = bucket
        self.key = key

    def __str__(self) -> str:  # KeyError shows the repr of its argument otherwise
        return str(self.args[0])


class BucketNotFoundError(Error):
    """No bucket has the requested name, or it was deleted."""


class ReplicaOptionsError(UsageError):
    """A read replica would answer reads of its origin with other values than the origin has.

    `differences` has a text for each option; nothing was created or changed.
    """

    def __init__(self, replica: str, origin: str, differences: Sequence[str], advice: str = "") -> None:
        super().__init__(
            f"bucket {replica!r} must keep what its origin, stream {origin!r}, keeps, because it answers reads of it: "
            + "; ".join(differences)
            + (f". {advice}" if advice else "")
        )
        self.replica = replica
        self.origin = origin
        self.differences: tuple[str, ...] = tuple(differences)


class ObjectNotFoundError(Error, KeyError):
    """The bucket has no object of that name, or it was deleted."""

    def __init__(self, bucket: str, name: str, detail: str = "") -> None:
        super().__init__(f"no object {name!r} in bucket {bucket!r}" + (f": {detail}" if detail else ""))
        self.bucket = bucket
        self.name = name

    def __str__(self) -> str:  # KeyError shows the repr of its argument otherwise
        return str(self.args[0])


class ObjectExistsError(Error):
    """The bucket has an object of that name already."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(f"bucket {bucket!r} already has an object {name!r}")
        self.bucket = bucket
        self.name = name


class ObjectDamagedError(Error):
    """The stored chunks of an object do not match its metadata: some are missing, or the digest differs."""


class ReadOnlyError(UsageError):
    """A write through a read-only handle on a bucket; nothing was sent."""

    def __init__(self, bucket: str, what: str) -> None:
        super().__init__(f"{what}: the handle on bucket {bucket!r} is read-only")
        self.bucket = bucket


class HistoryLostError(Error):
    """The bucket no longer has the history that is needed to read it as of a revision."""

    def __init__(self, bucket: str, revision: int, detail: str) -> None:
        super().__init__(f"bucket {bucket!r} cannot be read as of revision {revision}: {detail}")
        self.bucket = bucket
        self.revision = revision


class CodecError(Error, ValueError):
    """A key or value cannot be decoded: written without the codec, with another one, or damaged."""


class DecryptionError(CodecError):
    """A key or value could not be decrypted: wrong key, moved to another bucket or key, or tampered with."""


class MessageDecodeError(CodecError):
    """The payload of a message is not what its reader expects: another format, type or content type.

    `kind` is the name of the expected type, `reason` what is wrong; `stream` and `seq` are those of a stored message.
    """

    def __init__(self, message: str, *, subject: str, stream: str, seq: int, kind: str, reason: str) -> None:
        super().__init__(message)
        self.subject = subject
        self.stream = stream
        self.seq = seq
        self.kind = kind
        self.reason = reason


class LeaseLostError(Error):
    """A lock, a leadership or a membership is not held, or it is unknown whether it still is."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name!r} is not held: {detail}")
        self.name = name
        self.detail = detail


class SnapshotError(Error):
    """The server ended the snapshot of a stream before it was complete."""


class StoreError(Error):
    """The server's store could not store or return data."""


class CorruptRecordError(StoreError):
    """A stored record does not match its checksum; its content is never returned. `seq`: of a message."""

    stream: str = ""
    seq: int = 0


@unique
class ErrorCode(IntEnum):
    """Every error of the JetStream API that is raised or distinguished here: `err_code`, HTTP-like status, description.

    The names, codes and texts are those of nats-server's `errors.json`, in its notation: `{err}` is a field that
    `error` fills in. To add an error, add a line here; give it a subclass of `ApiError` if callers need to catch it.
    """

    status: int
    description: str

    # fmt: off
    ACCOUNT_RESOURCES_EXCEEDED = 10002, 400, "resource limits exceeded for account"
    BAD_REQUEST = 10003, 400, "bad request"
    CLUSTER_NO_PEERS = 10005, 400, "{err}"
    CLUSTER_NOT_AVAIL = 10008, 503, "JetStream system temporarily unavailable"
    CLUSTER_REQUIRED = 10010, 503, "JetStream clustering support required"
    CONSUMER_CREATE = 10012, 500, "{err}"
    CONSUMER_NAME_EXIST = 10013, 400, "consumer name already in use"
    CONSUMER_NOT_FOUND = 10014, 404, "consumer not found"
    SNAPSHOT_DELIVER_SUBJECT_INVALID = 10015, 400, "deliver subject not valid"
    CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT = (
        10016, 400, "consumer expected to be durable but no durable name set in subject")
    CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT = (
        10017, 400, "consumer name in subject does not match durable name in request")
    CONSUMER_DURABLE_NAME_NOT_SET = 10018, 400, "consumer expected to be durable but a durable name was not set"
    CONSUMER_EPHEMERAL_WITH_DURABLE_NAME = (
        10020, 400, "consumer expected to be ephemeral but a durable name was set in request")
    STREAM_EXTERNAL_API_OVERLAP = 10021, 400, "stream external api prefix {prefix} must not overlap with {subject}"
    STREAM_INVALID_EXTERNAL_DELIVERY_SUBJECT = (
        10024, 400, "stream external delivery prefix {prefix} must not contain wildcards")
    INVALID_JSON = 10025, 400, "invalid JSON: {err}"
    MAXIMUM_CONSUMERS_LIMIT = 10026, 400, "maximum consumers limit reached"
    MAXIMUM_STREAMS_LIMIT = 10027, 400, "maximum number of streams reached"
    MEMORY_RESOURCES_EXCEEDED = 10028, 500, "insufficient memory resources available"
    MIRROR_CONSUMER_SETUP_FAILED = 10029, 500, "{err}"
    MIRROR_MAX_MESSAGE_SIZE_TOO_BIG = 10030, 400, "stream mirror must have max message size >= source"
    MIRROR_WITH_SOURCES = 10031, 400, "stream mirrors can not also contain other sources"
    MIRROR_WITH_SUBJECTS = 10034, 400, "stream mirrors can not contain subjects"
    NO_MESSAGE_FOUND = 10037, 404, "no message found"
    NOT_EMPTY_REQUEST = 10038, 400, "expected an empty request payload"
    NOT_ENABLED_FOR_ACCOUNT = 10039, 503, "JetStream not enabled for account"
    CLUSTER_PEER_NOT_MEMBER = 10040, 400, "peer not a member"
    SEQUENCE_NOT_FOUND = 10043, 400, "sequence {seq} not found"
    SOURCE_CONSUMER_SETUP_FAILED = 10045, 500, "{err}"
    SOURCE_MAX_MESSAGE_SIZE_TOO_BIG = 10046, 400, "stream source must have max message size >= target"
    STORAGE_RESOURCES_EXCEEDED = 10047, 500, "insufficient storage resources available"
    STREAM_CREATE = 10049, 500, "{err}"
    STREAM_GENERAL = 10051, 500, "{err}"
    STREAM_INVALID_CONFIG = 10052, 500, "{err}"
    STREAM_MESSAGE_EXCEEDS_MAXIMUM = 10054, 400, "message size exceeds maximum allowed"
    STREAM_MIRROR_NOT_UPDATABLE = 10055, 400, "stream mirror configuration can not be updated"
    STREAM_MISMATCH = 10056, 400, "stream name in subject does not match request"
    STREAM_MSG_DELETE_FAILED = 10057, 500, "{err}"
    STREAM_NAME_EXIST = 10058, 400, "stream name already in use with a different configuration"
    STREAM_NOT_FOUND = 10059, 404, "stream not found"
    STREAM_NOT_MATCH = 10060, 400, "expected stream does not match"
    STREAM_RESTORE = 10062, 500, "restore failed: {err}"
    STREAM_SNAPSHOT = 10064, 500, "snapshot failed: {err}"
    STREAM_SUBJECT_OVERLAP = 10065, 400, "subjects overlap with an existing stream"
    STREAM_WRONG_LAST_MSG_ID = 10070, 400, "wrong last msg ID: {id}"
    STREAM_WRONG_LAST_SEQUENCE = 10071, 400, "wrong last sequence: {seq}"
    STREAM_REPLICAS_NOT_SUPPORTED = 10074, 500, "replicas > 1 not supported in non-clustered mode"
    PEER_REMAP = 10075, 503, "peer remap failed"
    NOT_ENABLED = 10076, 503, "JetStream not enabled"
    STREAM_STORE_FAILED = 10077, 503, "{err}"
    CONSUMER_DELIVER_TO_WILDCARDS = 10079, 400, "consumer deliver subject has wildcards"
    CONSUMER_PUSH_MAX_WAITING = 10080, 400, "consumer in push mode can not set max waiting"
    CONSUMER_DELIVER_CYCLE = 10081, 400, "consumer deliver subject forms a cycle"
    CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED = 10082, 400, "consumer requires ack policy for max ack pending"
    CONSUMER_SMALL_HEARTBEAT = 10083, 400, "consumer idle heartbeat needs to be >= 100ms"
    CONSUMER_PULL_REQUIRES_ACK = 10084, 400, "consumer in pull mode requires explicit ack policy on workqueue stream"
    CONSUMER_PULL_WITH_RATE_LIMIT = 10086, 400, "consumer in pull mode can not have rate limit set"
    CONSUMER_HEARTBEAT_REQUIRES_PUSH = 10088, 400, "consumer idle heartbeat requires a push based consumer"
    CONSUMER_FLOW_CONTROL_REQUIRES_PUSH = 10089, 400, "consumer flow control requires a push based consumer"
    CONSUMER_DIRECT_REQUIRES_PUSH = 10090, 400, "consumer direct requires a push based consumer"
    CONSUMER_DIRECT_REQUIRES_EPHEMERAL = 10091, 400, "consumer direct requires an ephemeral consumer"
    CONSUMER_INVALID_POLICY = 10094, 400, "{err}"
    CONSUMER_INVALID_SAMPLING = 10095, 400, "failed to parse consumer sampling configuration: {err}"
    STREAM_HEADER_EXCEEDS_MAXIMUM = 10097, 400, "header size exceeds maximum allowed of 64k"
    CONSUMER_WQ_REQUIRES_EXPLICIT_ACK = 10098, 400, "workqueue stream requires explicit ack"
    CONSUMER_WQ_MULTIPLE_UNFILTERED = 10099, 400, "multiple non-filtered consumers not allowed on workqueue stream"
    CONSUMER_WQ_NOT_UNIQUE = 10100, 400, "filtered consumer not unique on workqueue stream"
    CONSUMER_WQ_NOT_DELIVER_ALL = 10101, 400, "consumer must be deliver all on workqueue stream"
    CONSUMER_NAME_TOO_LONG = 10102, 400, "consumer name is too long, maximum allowed is {max}"
    CONSUMER_DESCRIPTION_TOO_LONG = 10107, 400, "consumer description is too long, maximum allowed is {max}"
    CONSUMER_FLOW_CONTROL_NEEDS_HEARTBEATS = 10108, 400, "consumer with flow control also needs heartbeats"
    STREAM_SEALED = 10109, 400, "invalid operation on sealed stream"
    STREAM_PURGE_FAILED = 10110, 500, "{err}"
    STREAM_ROLLUP_FAILED = 10111, 500, "{err}"
    CONSUMER_INVALID_DELIVER_SUBJECT = 10112, 400, "invalid push consumer deliver subject"
    STREAM_MAX_BYTES_REQUIRED = 10113, 400, "account requires a stream config to have max bytes set"
    CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL = 10115, 400, "consumer max request expires needs to be >= 1ms"
    CONSUMER_MAX_DELIVER_BACKOFF = 10116, 400, "max deliver is required to be > length of backoff values"
    CONSUMER_MAX_PENDING_ACK_EXCESS = 10121, 400, "consumer max ack pending exceeds system limit of {limit}"
    STREAM_MAX_STREAM_BYTES_EXCEEDED = 10122, 400, "stream max bytes exceeds account limit max stream bytes"
    CONSUMER_REPLICAS_EXCEEDS_STREAM = 10126, 400, "consumer config replica count exceeds parent stream"
    CONSUMER_NAME_CONTAINS_PATH_SEPARATORS = 10127, 400, "Consumer name can not contain path separators"
    STREAM_NAME_CONTAINS_PATH_SEPARATORS = 10128, 400, "Stream name can not contain path separators"
    STREAM_NAME_EXIST_RESTORE_FAILED = 10130, 400, "stream name already in use, cannot restore"
    CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH = (
        10131, 400, "Consumer create request did not match filtered subject from create subject")
    CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH = (
        10132, 400, "Consumer Durable and Name have to be equal if both are provided")
    REPLICAS_COUNT_CANNOT_BE_NEGATIVE = 10133, 400, "replicas count cannot be negative"
    CONSUMER_REPLICAS_SHOULD_MATCH_STREAM = (
        10134, 400, "consumer config replicas must match interest retention stream's replicas")
    CONSUMER_METADATA_LENGTH = 10135, 400, "consumer metadata exceeds maximum size of {limit}"
    CONSUMER_DUPLICATE_FILTER_SUBJECTS = (
        10136, 400, "consumer cannot have both FilterSubject and FilterSubjects specified")
    CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED = (
        10137, 400, "consumer with multiple subject filters cannot use subject based API")
    CONSUMER_OVERLAPPING_SUBJECT_FILTERS = 10138, 400, "consumer subject filters cannot overlap"
    CONSUMER_EMPTY_FILTER = 10139, 400, "consumer filter in FilterSubjects cannot be empty"
    SOURCE_DUPLICATE_DETECTED = 10140, 400, "duplicate source configuration detected"
    SOURCE_INVALID_STREAM_NAME = 10141, 400, "sourced stream name is invalid"
    MIRROR_INVALID_STREAM_NAME = 10142, 400, "mirrored stream name is invalid"
    MIRROR_WITH_FIRST_SEQ = 10143, 400, "stream mirrors can not have first sequence configured"
    SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED = (
        10144, 400, "source with multiple subject transforms cannot also have a single subject filter")
    SOURCE_INVALID_SUBJECT_FILTER = 10145, 400, "source transform source: {err}"
    SOURCE_INVALID_TRANSFORM_DESTINATION = 10146, 400, "source transform: {err}"
    SOURCE_OVERLAPPING_SUBJECT_FILTERS = 10147, 400, "source filters can not overlap"
    CONSUMER_ALREADY_EXISTS = 10148, 400, "consumer already exists"
    CONSUMER_DOES_NOT_EXIST = 10149, 400, "consumer does not exist"
    MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED = (
        10150, 400, "mirror with multiple subject transforms cannot also have a single subject filter")
    MIRROR_INVALID_SUBJECT_FILTER = 10151, 400, "mirror transform source: {err}"
    MIRROR_OVERLAPPING_SUBJECT_FILTERS = 10152, 400, "mirror subject filters can not overlap"
    CONSUMER_INACTIVE_THRESHOLD_EXCESS = 10153, 400, "consumer inactive threshold exceeds system limit of {limit}"
    MIRROR_INVALID_TRANSFORM_DESTINATION = 10154, 400, "mirror transform: {err}"
    STREAM_TRANSFORM_INVALID_SOURCE = 10155, 400, "stream transform source: {err}"
    STREAM_TRANSFORM_INVALID_DESTINATION = 10156, 400, "stream transform: {err}"
    PEDANTIC = 10157, 400, "pedantic mode: {err}"
    CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP = (
        10159, 400, "Setting PriorityPolicy requires at least one PriorityGroup to be set")
    CONSUMER_INVALID_PRIORITY_GROUP = 10160, 400, "Provided priority group does not exist for this consumer"
    CONSUMER_EMPTY_GROUP_NAME = 10161, 400, "Group name cannot be an empty string"
    CONSUMER_INVALID_GROUP_NAME = (
        10162, 400, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters")
    STREAM_WRONG_LAST_SEQUENCE_CONSTANT = 10164, 400, "wrong last sequence"
    MESSAGE_TTL_INVALID = 10165, 400, "invalid per-message TTL"
    MESSAGE_TTL_DISABLED = 10166, 400, "per-message TTL is disabled"
    MESSAGE_INCR_DISABLED = 10168, 400, "message counters is disabled"
    MESSAGE_INCR_MISSING = 10169, 400, "message counter increment is missing"
    MESSAGE_INCR_PAYLOAD = 10170, 400, "message counter has payload"
    MESSAGE_INCR_INVALID = 10171, 400, "message counter increment is invalid"
    MESSAGE_COUNTER_BROKEN = 10172, 400, "message counter is broken"
    MIRROR_WITH_COUNTERS = 10173, 400, "stream mirrors can not also calculate counters"
    ATOMIC_PUBLISH_DISABLED = 10174, 400, "atomic publish is disabled"
    ATOMIC_PUBLISH_MISSING_SEQ = 10175, 400, "atomic publish sequence is missing"
    ATOMIC_PUBLISH_INCOMPLETE_BATCH = 10176, 400, "atomic publish batch is incomplete"
    ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH = 10177, 400, "atomic publish unsupported header used: {header}"
    CONSUMER_PUSH_WITH_PRIORITY_GROUP = 10178, 400, "priority groups can not be used with push consumers"
    ATOMIC_PUBLISH_INVALID_BATCH_ID = 10179, 400, "atomic publish batch ID is invalid"
    STREAM_MIN_LAST_SEQ = 10180, 412, "min last sequence"
    CONSUMER_ACK_WAIT_NEGATIVE = 10183, 400, "consumer ack wait needs to be positive"
    CONSUMER_BACKOFF_NEGATIVE = 10184, 400, "consumer backoff needs to be positive"
    REQUIRED_API_LEVEL = 10185, 412, "JetStream minimum api level required"
    MIRROR_WITH_MSG_SCHEDULES = 10186, 400, "stream mirrors can not also schedule messages"
    SOURCE_WITH_MSG_SCHEDULES = 10187, 400, "stream source can not also schedule messages"
    MESSAGE_SCHEDULES_DISABLED = 10188, 400, "message schedules is disabled"
    MESSAGE_SCHEDULES_PATTERN_INVALID = 10189, 400, "message schedules pattern is invalid"
    MESSAGE_SCHEDULES_TARGET_INVALID = 10190, 400, "message schedules target is invalid"
    MESSAGE_SCHEDULES_TTL_INVALID = 10191, 400, "message schedules invalid per-message TTL"
    MESSAGE_SCHEDULES_ROLLUP_INVALID = 10192, 400, "message schedules invalid rollup"
    STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID = 10193, 400, "missing sequence for expected last sequence per subject"
    CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE = 10196, 400, "consumer can not have priority groups when policy is none"
    CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY = 10197, 400, "PinnedTTL cannot be set when PriorityPolicy is none"
    MIRROR_WITH_ATOMIC_PUBLISH = 10198, 400, "stream mirrors can not also use atomic publishing"
    ATOMIC_PUBLISH_TOO_LARGE_BATCH = 10199, 400, "atomic publish batch is too large: {size}"
    ATOMIC_PUBLISH_INVALID_BATCH_COMMIT = 10200, 400, "atomic publish batch commit is invalid"
    ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE = 10201, 400, "atomic publish batch contains duplicate message id"
    MESSAGE_SCHEDULES_SOURCE_INVALID = 10203, 400, "message schedules source is invalid"
    CONSUMER_INVALID_RESET = 10204, 400, "invalid reset: {err}"
    BATCH_PUBLISH_DISABLED = 10205, 400, "batch publish is disabled"
    BATCH_PUBLISH_INVALID_PATTERN = 10206, 400, "batch publish pattern is invalid"
    BATCH_PUBLISH_INVALID_BATCH_ID = 10207, 400, "batch publish ID is invalid"
    BATCH_PUBLISH_UNKNOWN_BATCH_ID = 10208, 400, "batch publish ID unknown"
    MIRROR_WITH_BATCH_PUBLISH = 10209, 400, "stream mirrors can not also use batch publishing"
    ATOMIC_PUBLISH_TOO_MANY_INFLIGHT = 10210, 429, "atomic publish too many inflight"
    BATCH_PUBLISH_TOO_MANY_INFLIGHT = 10211, 429, "batch publish too many inflight"
    MESSAGE_SCHEDULES_SCHEDULER_INVALID = 10212, 400, "message schedules invalid scheduler"
    MESSAGE_SCHEDULES_TIME_ZONE_INVALID = 10223, 400, "message schedules time zone is invalid"
    MESSAGE_SOURCE_HEADER_NOT_ALLOWED = 10227, 400, "message stream source header is not allowed"
    # fmt: on

    def __new__(cls, err_code: int, status: int, description: str) -> ErrorCode:
        code = int.__new__(cls, err_code)
        code._value_ = err_code
        code.status, code.description = status, description
        return code

    def error(self, description: str = "", *, status: int = 0, **fields: object) -> ApiError:
        """The exception for this code. `fields` fill in the text; `description` and `status` replace the table's."""
        return ApiError.of(status or self.status, self, description or self.description.format(**fields))


class ApiError(Error):
    """The JetStream API rejected the request: `code` is HTTP-like, `err_code` the reason, `description` the text.

    `stream` and `consumer` are those of the request, where it was for one; the server's description names neither.
    """

    code: int = 500
    err_code: int = 0
    stream: str = ""
    consumer: str = ""
    default_description: ClassVar[str] = "JetStream API error"
    _by_err_code: ClassVar[dict[int, type[ApiError]]] = {}

    def __init_subclass__(cls, *, reason: ErrorCode | None = None) -> None:
        """`reason` makes the class the one that is raised for this code."""
        super().__init_subclass__()
        if reason is not None:
            cls.code, cls.err_code = reason.status, reason.value
            fixed = reason.description.partition("{")[0].rstrip(": ")  # without the fields, which the class cannot know
            cls.default_description = fixed or ApiError.default_description
            ApiError._by_err_code[reason] = cls

    def __init__(self, description: str = "", *, code: int | None = None, err_code: int | None = None) -> None:
        self.description: str = description or type(self).default_description
        if code is not None:
            self.code = code
        if err_code is not None:
            self.err_code = int(err_code)
        super().__init__(self._server_text())

    def _server_text(self) -> str:
        return f"{self.description} (code {self.code}, err_code {self.err_code})"

    @classmethod
    def like(cls, other: ApiError) -> Self:
        """The same rejection as this class, where the request says more about it than the code does."""
        return cls(other.description, code=other.code, err_code=other.err_code)

    def about(self, *, stream: str = "", consumer: str = "", text: str = "") -> Self:
        """The same error of a request for that stream and consumer, which its message names from now on.

        `text` replaces the message where the request says more than the server's description does.
        """
        self.stream, self.consumer = stream or self.stream, consumer or self.consumer
        self.args: tuple[Any, ...] = (text or (self._named() if self.stream else self._server_text()),)
        return self

    def _named(self) -> str:
        """The message that names the stream and the consumer of the request."""
        of_consumer = f"consumer {self.consumer!r} of " if self.consumer else ""
        return f"{of_consumer}stream {self.stream!r}: {self._server_text()}"

    @staticmethod
    def of(code: int, err_code: int, description: str) -> ApiError:
        """The exception for an error object of the API; an unknown `err_code` gives a plain `ApiError`."""
        cls = ApiError._by_err_code.get(err_code, ApiError)
        return cls(description, code=code, err_code=err_code)


class BadApiRequestError(ApiError, reason=ErrorCode.BAD_REQUEST):
    """The server did not understand the body of the request."""


class InvalidJsonError(ApiError, reason=ErrorCode.INVALID_JSON):
    """The request's body is not the JSON the call expects."""


class JetStreamNotEnabledError(ApiError, reason=ErrorCode.NOT_ENABLED):
    """The server runs without JetStream."""


class MessageNotFoundApiError(ApiError, MessageNotFoundError, reason=ErrorCode.NO_MESSAGE_FOUND):
    """Message Get found nothing."""


class StreamInvalidConfigError(ApiError, reason=ErrorCode.STREAM_INVALID_CONFIG):
    """The configuration of the stream is not acceptable; the description says why."""


class StreamNameInUseError(ApiError, reason=ErrorCode.STREAM_NAME_EXIST):
    """A stream of that name exists with another configuration."""

    def _named(self) -> str:
        return f"stream {self.stream!r} already exists with a different configuration"


class BucketOptionsError(StreamNameInUseError):
    """A bucket of that name exists with other options: `differences` maps each to the requested and the existing
    value."""

    def __init__(self, bucket: str, differences: Mapping[str, tuple[object, object]]) -> None:
        told = "; ".join(f"{option}: wanted {wanted}, it has {has}" for option, (wanted, has) in differences.items())
        super().__init__(f"bucket {bucket!r} exists with other options: {told}")
        self.bucket = bucket
        self.differences: dict[str, tuple[object, object]] = dict(differences)


class StreamNotFoundError(ApiError, reason=ErrorCode.STREAM_NOT_FOUND):
    """No stream has the requested name."""

    def _named(self) -> str:
        return f"no stream is called {self.stream!r}"


class StreamSubjectOverlapError(ApiError, reason=ErrorCode.STREAM_SUBJECT_OVERLAP):
    """Another stream already listens on one of the subjects."""


class StreamMessageTooLargeError(ApiError, reason=ErrorCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM):
    """The message is larger than the stream's `max_msg_size`."""


class StreamNotMatchError(ApiError, reason=ErrorCode.STREAM_NOT_MATCH):
    """The message was meant for another stream (`Nats-Expected-Stream`)."""


class WrongLastMsgIdError(ApiError, reason=ErrorCode.STREAM_WRONG_LAST_MSG_ID):
    """The last message id is not the expected one."""


class WrongLastSequenceError(ApiError, reason=ErrorCode.STREAM_WRONG_LAST_SEQUENCE):
    """The last sequence of the stream or subject is not the expected one."""

    @property
    def last_seq(self) -> int | None:
        """The last sequence of the stream or subject, 0 if it has no message; None if the server does not say it."""
        found = re.fullmatch(r"wrong last sequence: (\d{1,20})", self.description)
        return int(found[1]) if found else None


class WrongLastSequenceConstantError(WrongLastSequenceError, reason=ErrorCode.STREAM_WRONG_LAST_SEQUENCE_CONSTANT):
    """The last sequence is not the expected one; this form does not say which it is."""


class KeyRevisionError(WrongLastSequenceError):
    """A write of a key expected another revision: `expected`; `revision` is the key's, None if it is not known.

    0 stands for a key without entries.
    """

    def __init__(
        self, bucket: str, key: str, *, expected: int, revision: int | None, cause: ApiError | None = None
    ) -> None:
        cause = cause or ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=revision)
        super().__init__(cause.description, code=cause.code, err_code=cause.err_code)
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.revision = revision
        self.args: tuple[Any, ...] = (self._key_text(),)

    def _key_text(self) -> str:
        key = f"key {self.key!r} in bucket {self.bucket!r}"
        if self.revision is None:
            return f"{key} is not at revision {self.expected}"
        if not self.revision:
            return f"{key} has no entry, expected revision {self.expected}"
        return f"{key} is at revision {self.revision}, not {self.expected}"


class KeyExistsError(KeyRevisionError):
    """`create` found a value for the key."""

    def __init__(self, bucket: str, key: str, revision: int) -> None:
        super().__init__(bucket, key, expected=0, revision=revision)

    def _key_text(self) -> str:
        return f"key {self.key!r} in bucket {self.bucket!r} already has a value (revision {self.revision})"


class StreamStoreFailedError(ApiError, reason=ErrorCode.STREAM_STORE_FAILED):
    """The store could not keep the message; the description says why."""


class StreamNameMismatchError(ApiError, reason=ErrorCode.STREAM_MISMATCH):
    """The name in the API subject and the name in the body differ."""


class ReplicasNotSupportedError(ApiError, reason=ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED):
    """The server is a single one."""


class MinLastSequenceError(ApiError, StaleReadError, reason=ErrorCode.STREAM_MIN_LAST_SEQ):
    """Message Get was answered by a server that has not yet seen the wanted sequence."""

    stream: str = ""
    min_last_seq: int = 0


class NoStreamError(NoRespondersError):
    """No stream listens on the subject of the publish."""

    template = "no stream accepts subject {}"


class OriginUnreachableError(NoStreamError):
    """A write through a read replica cannot reach the bucket's origin by this connection. Reads of it still work."""

    def __init__(self, bucket: str, origin: str, subject: str) -> None:
        super().__init__(
            subject,
            f"bucket {bucket!r} is a read replica, its writes go to {origin}, which cannot be reached from here; "
            "connect to the server of the origin and write there",
        )
        self.bucket = bucket
        self.origin = origin


class StreamLookupError(Error):
    """A subject does not lead to exactly one stream."""

    def __init__(self, subject: str, streams: tuple[str, ...]) -> None:
        found = ", ".join(streams) if streams else "none"
        super().__init__(f"exactly one stream must listen on {subject!r} to find it by subject, found: {found}")
        self.subject = subject
        self.streams = streams


# Consumers: rejections of the API.


class ConsumerNotFoundError(ApiError, reason=ErrorCode.CONSUMER_NOT_FOUND):
    """The stream has no consumer of that name."""

    def _named(self) -> str:
        return f"stream {self.stream!r} has no consumer {self.consumer!r}"


class ConsumerNameInUseError(ApiError, reason=ErrorCode.CONSUMER_NAME_EXIST):
    """A consumer of that name exists and is in use, or cannot be changed to the configuration."""


class ConsumerExistsError(ApiError, reason=ErrorCode.CONSUMER_ALREADY_EXISTS):
    """A consumer of that name exists with another configuration, and only a new one was wanted."""

    def _named(self) -> str:
        return f"stream {self.stream!r} already has a consumer {self.consumer!r}, with a different configuration"


class ConsumerDoesNotExistError(ApiError, reason=ErrorCode.CONSUMER_DOES_NOT_EXIST):
    """There is no consumer to update."""

    def _named(self) -> str:
        return f"stream {self.stream!r} has no consumer {self.consumer!r} to update"


# Consumers: errors of a running subscription.


class StatusError(Error):
    """An error status in place of messages: `code`, and the server's text; of the consumer and stream, where known."""

    stream: str = ""
    consumer: str = ""
    template: ClassVar[str] = "{consumer}: the server sent status {status}"

    def __init__(self, code: int, description: str, hint: str = "") -> None:
        super().__init__(f"the server sent status {code} {description}" + (f": {hint}" if hint else ""))
        self.code = code
        self.description = description

    def about(self, *, stream: str, consumer: str) -> Self:
        """The same error of that consumer, which its message names from now on."""
        if not self.consumer:
            self.stream, self.consumer = stream, consumer
            name = f"consumer {consumer!r} of stream {stream!r}"
            status = f"{self.code} {self.description}" if self.code else self.description
            self.args: tuple[Any, ...] = (self.template.format(consumer=name, status=status),)
        return self


class StrayMessageError(StatusError):
    """A message on a consumer's deliver subject or inbox that no consumer sent: another program published it there."""

    template = "{consumer}: {status}"

    def __init__(self, subject: str) -> None:
        text = f"a message on {subject!r} was not sent by a consumer but published there: it has no ack subject"
        Error.__init__(self, text)
        self.code = 0
        self.description = text


class PullRefusedError(StatusError):
    """A pull request was rejected: it exceeds a limit, too many are waiting, or it does not fit the consumer."""

    template = "{consumer} rejected a pull request: status {status}"


class ConsumerDeletedError(StatusError):
    """The consumer was deleted while it was read."""

    template = "{consumer} was deleted (status {status})"


class ConsumerGoneError(StatusError):
    """There are no responders for the consumer: it, its stream or JetStream does not exist (or no longer)."""

    template = "{consumer} does not exist, or its leader is changing (status {status})"


class HeartbeatLostError(Error):
    """Neither a message nor a heartbeat of the consumer arrived for three heartbeat intervals."""


class MessageGapError(Error):
    """Messages of a consumer were lost: `expected` is the next consumer sequence, `seen` the one that arrived."""

    def __init__(self, consumer: str, expected: int, seen: int) -> None:
        super().__init__(f"consumer {consumer}: expected message {expected}, got {seen}: those in between are missing")
        self.consumer = consumer
        self.expected = expected
        self.seen = seen


class NotJetStreamMessageError(RemoteProtocolError):
    """The message was not delivered by a consumer (its reply subject is not an ack subject), so it cannot be acked."""


# Subscribing: mistakes that are detected before a message arrives.


class SubscribeError(UsageError):
    """The subscription is not possible as requested; nothing was changed on the server."""


class NothingToSubscribeError(SubscribeError):
    """Neither a subject nor a stream was named."""


class PullAckPolicyError(SubscribeError):
    """A pull subscription needs explicit acks."""


class QueueHeartbeatError(SubscribeError):
    """Heartbeats cannot be shared by the members of a queue group."""


class QueueFlowControlError(SubscribeError):
    """Flow control cannot be shared by the members of a queue group."""


class DuplicateSubscriptionError(SubscribeError):
    """The push consumer is bound to another subscription already."""


class QueueRequiredError(SubscribeError):
    """The consumer delivers to a queue group, and the subscription names none."""


class QueueMismatchError(SubscribeError):
    """The consumer delivers to another queue group."""


class NoDeliverGroupError(SubscribeError):
    """The subscription is for a queue group, and the consumer delivers to none."""


class FilterMismatchError(SubscribeError):
    """The consumer filters another subject."""


class PullConsumerError(SubscribeError):
    """The consumer is a pull consumer: `pull_subscribe` is required."""


class PushConsumerError(SubscribeError):
    """The consumer is a push consumer: it cannot be pulled from."""


class ConfigMismatchError(SubscribeError):
    """The configuration differs from that of the existing consumer, which a subscription does not change."""

    def __init__(self, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


# Atomic batches.


class AtomicPublishError(ApiError):
    """An atomic batch was not stored."""


class AtomicPublishDisabledError(AtomicPublishError, reason=ErrorCode.ATOMIC_PUBLISH_DISABLED):
    """The stream does not have `allow_atomic`."""


class AtomicPublishIncompleteError(AtomicPublishError, reason=ErrorCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH):
    """Not every message of the batch arrived, or the batch took too long."""


class AtomicPublishTooLargeError(AtomicPublishError, reason=ErrorCode.ATOMIC_PUBLISH_TOO_LARGE_BATCH):
    """The batch has more messages than the server allows."""

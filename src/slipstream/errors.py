"""What can go wrong, as one family of exceptions: branches by who must act.

`UsageError` is for the caller to mend, `RemoteProtocolError` for whoever runs the peer, `ConnectionLostError` for the
network, `ApiError` is the server's considered "no" with its code, `RequestTimeoutError` is silence. Messages say what
was seen and what was allowed. An error of the JetStream API is declared once, here: the embedded server raises it and
sends it as JSON, the client raises the same class again. Every error can be pickled (Spark's workers are processes).
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """Root of everything Slipstream raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:  # Exception would call the class with `args`, the finished message
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[Error], args: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


class UsageError(Error, ValueError):
    """The call cannot be carried out as it was made; nothing was sent."""


class CredentialsError(UsageError):
    """A seed, a token or a credentials file that cannot be used; the message never holds what was in it."""


class RemoteProtocolError(Error):
    """The peer sent something the protocol does not allow."""


class ConnectionLostError(Error, ConnectionError):
    """There is no connection (any more) to a server."""


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
    """The server refused the credentials, or a subject that they do not allow."""


class SlowConsumerError(Error):
    """Messages arrived faster than they were taken; the bound was reached and some were dropped."""


class RequestTimeoutError(Error, TimeoutError):
    """No answer arrived in time."""


class NoRespondersError(Error):
    """Nobody listens on the subject of the request."""

    def __init__(self, subject: str, hint: str = "") -> None:
        super().__init__(f"nobody answers on {subject!r}" + (f": {hint}" if hint else ""))
        self.subject = subject


class MessageNotFoundError(Error):
    """The stream holds no message that fits the request."""


class StaleReadError(Error):
    """The responder's last sequence is below the wanted one, and no better answer came in time."""

    def __init__(self, message: str, *, stream: str = "", min_last_seq: int = 0) -> None:
        super().__init__(message)
        self.stream = stream
        self.min_last_seq = min_last_seq


class BadRequestError(Error):
    """The server did not understand the request (status 408 of a Direct Get)."""


class TooManyResultsError(Error):
    """More subjects match than a server answers at once (status 413 of a Direct Get; 1,024 are allowed)."""


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


class KeyExistsError(Error):
    """`create` found a value for the key."""

    def __init__(self, bucket: str, key: str, revision: int) -> None:
        super().__init__(f"key {key!r} in bucket {bucket!r} already has a value (revision {revision})")
        self.bucket = bucket
        self.key = key
        self.revision = revision


class BucketNotFoundError(Error):
    """No bucket has the requested name."""


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
    """What the stream has of an object is not what its record says: chunks are missing, or the digest differs."""


class ReadOnlyError(UsageError):
    """A write through a read-only handle on a bucket; nothing was sent."""

    def __init__(self, bucket: str, what: str) -> None:
        super().__init__(f"{what}: the handle on bucket {bucket!r} is read-only")
        self.bucket = bucket


class HistoryLostError(Error):
    """The bucket does not hold enough of its history (any more) to say what it was at a revision."""

    def __init__(self, bucket: str, revision: int, detail: str) -> None:
        super().__init__(f"bucket {bucket!r} as of revision {revision} cannot be told: {detail}")
        self.bucket = bucket
        self.revision = revision


class CodecError(Error, ValueError):
    """A key or value is not what the codec writes; it was made without it, with another one, or damaged."""


class DecryptionError(CodecError):
    """A key or value could not be decrypted: another key, another place, or it was tampered with."""


class LeaseLostError(Error):
    """A lock, a leadership or a membership is not held (any more), or not known to be."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name!r} is not held: {detail}")
        self.name = name


class SnapshotError(Error):
    """The server ended the snapshot of a stream before it was complete."""


class StoreError(Error):
    """The server's store could not keep or return what it was asked to."""


class CorruptRecordError(StoreError):
    """A stored record does not match its checksum; its content is never returned. `seq`: of a message."""

    stream: str = ""
    seq: int = 0


class ApiError(Error):
    """The JetStream API said no: `code` is HTTP-like, `err_code` the reason, `description` the server's text."""

    code: int = 500
    err_code: int = 0
    default_description: ClassVar[str] = "JetStream API error"
    _by_err_code: ClassVar[dict[int, type[ApiError]]] = {}

    def __init_subclass__(cls, *, code: int = 0, err_code: int = 0, description: str = "") -> None:
        super().__init_subclass__()
        if code:
            cls.code = code
        if description:
            cls.default_description = description
        if err_code:
            cls.err_code = err_code
            ApiError._by_err_code[err_code] = cls

    def __init__(self, description: str = "", *, code: int | None = None, err_code: int | None = None) -> None:
        self.description = description or type(self).default_description
        if code is not None:
            self.code = code
        if err_code is not None:
            self.err_code = err_code
        super().__init__(f"{self.description} (code {self.code}, err_code {self.err_code})")

    @staticmethod
    def of(code: int, err_code: int, description: str) -> ApiError:
        """The exception for an error object of the API; an unknown `err_code` gives a plain `ApiError`."""
        cls = ApiError._by_err_code.get(err_code, ApiError)
        return cls(description, code=code, err_code=err_code)


class BadApiRequestError(ApiError, code=400, err_code=10003, description="bad request"):
    """The request's body was not understood."""


class InvalidJsonError(ApiError, code=400, err_code=10025, description="invalid JSON"):
    """The request's body is not the JSON the call expects."""


class JetStreamNotEnabledError(ApiError, code=503, err_code=10076, description="JetStream not enabled"):
    """The server runs without JetStream."""


class MessageNotFoundApiError(ApiError, MessageNotFoundError, code=404, err_code=10037, description="no message found"):
    """Message Get found nothing."""


class StreamInvalidConfigError(ApiError, code=500, err_code=10052):
    """The configuration of the stream is not acceptable; the description says why."""


class StreamNameInUseError(
    ApiError, code=400, err_code=10058, description="stream name already in use with a different configuration"
):
    """A stream of that name exists with another configuration."""


class StreamNotFoundError(ApiError, code=404, err_code=10059, description="stream not found"):
    """No stream has the requested name."""


class StreamSubjectOverlapError(
    ApiError, code=400, err_code=10065, description="subjects overlap with an existing stream"
):
    """Another stream already listens on one of the subjects."""


class StreamMessageTooLargeError(
    ApiError, code=400, err_code=10054, description="message size exceeds maximum allowed"
):
    """The message is larger than the stream's `max_msg_size`."""


class StreamNotMatchError(ApiError, code=400, err_code=10060, description="expected stream does not match"):
    """The message was meant for another stream (`Nats-Expected-Stream`)."""


class WrongLastMsgIdError(ApiError, code=400, err_code=10070):
    """The last message id is not the expected one."""


class WrongLastSequenceError(ApiError, code=400, err_code=10071):
    """The last sequence is not the expected one."""


class WrongLastSequenceConstantError(
    WrongLastSequenceError, code=400, err_code=10164, description="wrong last sequence"
):
    """The last sequence is not the expected one; this form does not say which it is."""


class StreamStoreFailedError(ApiError, code=503, err_code=10077):
    """The store could not keep the message; the description says why."""


class StreamNameMismatchError(
    ApiError, code=400, err_code=10056, description="stream name in subject does not match request"
):
    """The name in the API subject and the name in the body differ."""


class ReplicasNotSupportedError(
    ApiError, code=500, err_code=10074, description="replicas > 1 not supported in non-clustered mode"
):
    """The server is a single one."""


class MinLastSequenceError(ApiError, StaleReadError, code=412, err_code=10180, description="min last sequence"):
    """Message Get was answered by a server that has not yet seen the wanted sequence."""

    stream: str = ""
    min_last_seq: int = 0


class NoStreamError(NoRespondersError):
    """No stream listens on the subject of the publish."""


class StreamLookupError(Error):
    """A subject does not lead to exactly one stream."""

    def __init__(self, subject: str, streams: tuple[str, ...]) -> None:
        found = ", ".join(streams) if streams else "none"
        super().__init__(f"exactly one stream must listen on {subject!r} to find it by subject, found: {found}")
        self.subject = subject
        self.streams = streams


# Consumers: what the API says.


class ConsumerNotFoundError(ApiError, code=404, err_code=10014, description="consumer not found"):
    """The stream has no consumer of that name."""


class ConsumerNameInUseError(ApiError, code=400, err_code=10013, description="consumer name already in use"):
    """A consumer of that name exists and is in use, or cannot be changed to the configuration."""


class ConsumerExistsError(ApiError, code=400, err_code=10148, description="consumer already exists"):
    """A consumer of that name exists with another configuration, and only a new one was wanted."""


class ConsumerDoesNotExistError(ApiError, code=400, err_code=10149, description="consumer does not exist"):
    """There is no consumer to update."""


# Consumers: what a subscription says while it runs.


class StatusError(Error):
    """A status where messages were awaited that is neither a pause nor an end: `code`, and the server's text."""

    def __init__(self, code: int, description: str, hint: str = "") -> None:
        super().__init__(f"the server said {code} {description}" + (f": {hint}" if hint else ""))
        self.code = code
        self.description = description


class PullRefusedError(StatusError):
    """A pull request was not accepted: it asks for too much, too many wait already, or it makes no sense there."""


class ConsumerDeletedError(StatusError):
    """The consumer was deleted while it was read."""


class ConsumerGoneError(StatusError):
    """Nobody answers for the consumer: it, its stream or JetStream is not there (any more)."""


class HeartbeatLostError(Error):
    """Nothing was heard of a consumer for longer than three of its heartbeats."""


class MessageGapError(Error):
    """Messages of a consumer did not arrive: `expected` is the consumer sequence awaited, `seen` the one that came."""

    def __init__(self, consumer: str, expected: int, seen: int) -> None:
        super().__init__(f"consumer {consumer}: message {expected} was awaited, {seen} came: those between are missing")
        self.consumer = consumer
        self.expected = expected
        self.seen = seen


class NotJetStreamMessageError(RemoteProtocolError):
    """The reply subject of a message is none that a consumer gives: there is nothing to acknowledge."""


# Subscribing: mistakes that can be seen before a message arrives, each with its own class.


class SubscribeError(UsageError):
    """The subscription cannot be what was asked for; nothing was changed on the server."""


class NothingToSubscribeError(SubscribeError):
    """Neither a subject nor a stream was given."""


class PullAckPolicyError(SubscribeError):
    """A pull subscription needs explicit acks."""


class QueueHeartbeatError(SubscribeError):
    """Heartbeats cannot be shared by the members of a queue group."""


class QueueFlowControlError(SubscribeError):
    """Flow control cannot be shared by the members of a queue group."""


class DuplicateSubscriptionError(SubscribeError):
    """The push consumer is bound to another subscription already."""


class QueueRequiredError(SubscribeError):
    """The consumer delivers to a queue group, and the subscription is for none."""


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


class AtomicPublishDisabledError(
    AtomicPublishError, code=400, err_code=10174, description="atomic publish is disabled"
):
    """The stream has not `allow_atomic`."""


class AtomicPublishIncompleteError(
    AtomicPublishError, code=400, err_code=10176, description="atomic publish batch is incomplete"
):
    """Not every message of the batch arrived, or the batch took too long."""


class AtomicPublishTooLargeError(
    AtomicPublishError, code=400, err_code=10199, description="atomic publish batch is too large"
):
    """The batch has more messages than the server allows."""

"""Checks of a publish against its stream; each raises the error that nats-server gives, in its order.

A check is a function of the stream's configuration and of the writer's view of its log. Those of an atomic batch
(`BatchChecks`) also take the earlier messages of the batch into account, which are not in the log yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.api import Discard, StreamConfig
from slipstream.errors import (
    ApiError,
    ErrorCode,
    StreamMessageTooLargeError,
    StreamNotMatchError,
    StreamStoreFailedError,
    WrongLastSequenceConstantError,
)
from slipstream.server.engine.ports import NEVER, Store, StreamLog, parse_ttl
from slipstream.server.engine.streams.dedupe import DuplicateWindow
from slipstream.server.engine.streams.publish_headers import PublishHeaders, set_header

MAX_HEADER = 0xFFFF
MAX_NUMBER = 4096  # digits of an increment: `int` is quadratic, so more would be an attack


def increment(config: StreamConfig, wanted: PublishHeaders, payload: bytes) -> int | None:
    """The increment of a counter; None if the message has none."""
    if not wanted.incr:
        return None
    digits = wanted.incr[1:] if wanted.incr[0] in "+-" else wanted.incr
    if not (digits.isascii() and digits.isdigit()) or len(digits) > MAX_NUMBER:
        raise ErrorCode.MESSAGE_INCR_INVALID.error()
    if not config.allow_msg_counter:
        raise ErrorCode.MESSAGE_INCR_DISABLED.error()
    if payload:
        raise ErrorCode.MESSAGE_INCR_PAYLOAD.error()
    expects = wanted.last_seq is not None or wanted.subject_seq is not None
    if expects or wanted.rollup or wanted.stream or wanted.last_msg_id or wanted.subject:
        raise ErrorCode.MESSAGE_INCR_INVALID.error()
    return int(wanted.incr)


def check_target(config: StreamConfig, wanted: PublishHeaders) -> None:
    """The stream is the expected one, and allows a time to live if the message has one."""
    if wanted.stream and wanted.stream != config.name:
        raise StreamNotMatchError
    if wanted.ttl and not config.allow_msg_ttl:
        try:
            parse_ttl(wanted.ttl)
        except ValueError:
            return  # reported by `check_lifetime`: the order of nats-server
        raise ErrorCode.MESSAGE_TTL_DISABLED.error()


def check_expected(log: StreamLog, wanted: PublishHeaders, subject: str, known: Mapping[str, int]) -> None:
    """`known`: the last sequences of subjects that were looked up before."""
    if wanted.subject_seq is not None:
        name = wanted.subject or subject
        last = known[name] if name in known else log.last_seq_of(name)
        if last != wanted.subject_seq:
            raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=last)
    elif wanted.subject:
        raise ErrorCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID.error()
    if wanted.last_seq is not None and wanted.last_seq != log.state.last_seq:
        raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=log.state.last_seq)


def check_origin(wanted: PublishHeaders) -> None:
    """Reject a header that only the server itself may set."""
    if wanted.source:
        raise ErrorCode.MESSAGE_SOURCE_HEADER_NOT_ALLOWED.error()


def check_rollup(config: StreamConfig, rollup: str) -> None:
    if not rollup:
        return
    if not config.allow_rollup_hdrs or config.deny_purge:
        raise _rollup("rollup not permitted")
    if rollup not in ("sub", "all"):
        raise _rollup(f'rollup value invalid: "{rollup}"')


def _rollup(text: str) -> ApiError:
    return ErrorCode.STREAM_ROLLUP_FAILED.error(err=text)


def check_size(max_size: int, header: bytes, payload: bytes) -> None:
    if len(header) + len(payload) > max_size:
        raise StreamMessageTooLargeError
    if len(header) > MAX_HEADER:
        raise ErrorCode.STREAM_HEADER_EXCEEDS_MAXIMUM.error()


def check_lifetime(config: StreamConfig, wanted: PublishHeaders, header: bytes) -> bytes:
    """The header with a time to live not below that of the stream's delete markers: a message that expired before the
    marker of its subject could leave the subject without any."""
    if not wanted.ttl:
        return header
    try:
        ttl = parse_ttl(wanted.ttl)
    except ValueError as exc:
        raise ErrorCode.MESSAGE_TTL_INVALID.error() from exc
    floor = int(config.subject_delete_marker_ttl.total_seconds())
    if ttl != NEVER and ttl < floor and config.max_msgs_per_subject != 1:
        return set_header(header, "Nats-TTL", str(floor))
    return header


def check_capacity(
    config: StreamConfig, store: Store, log: StreamLog, message: tuple[str, bytes, bytes], *, rollup: bool
) -> None:
    """Discard new: a full stream rejects a message, unless it replaces an older one on its subject."""
    subject, header, payload = message
    state, per_subject = log.state, max(config.max_msgs_per_subject, 0)
    replaces = bool(per_subject) and log.count_of(subject) >= per_subject
    if replaces and config.discard_new_per_subject and not rollup:
        raise StreamStoreFailedError("maximum messages per subject exceeded")
    if 0 < config.max_msgs <= state.messages and not replaces:
        raise StreamStoreFailedError("maximum messages exceeded")
    size = store.size_of(subject, header, payload)
    if 0 < config.max_bytes < state.bytes + size:
        oldest = log.peek(log.first_seq_of(subject)) if replaces else None
        if oldest is None or store.size_of(oldest.subject, oldest.header, oldest.payload) < size:
            raise StreamStoreFailedError("maximum bytes exceeded")


class BatchChecks:
    """The checks of one atomic batch, message by message."""

    def __init__(
        self,
        config: StreamConfig,
        store: Store,
        log: StreamLog,
        duplicates: DuplicateWindow,
        known: Mapping[str, int],
    ) -> None:
        """`known`: the last sequences of subjects that were looked up before."""
        self._config, self._store, self._log, self._duplicates, self._known = config, store, log, duplicates, known
        self._ids: set[str] = set()
        self._written: dict[str, int] = {}  # subject -> messages of this batch
        self._count = 0  # of them
        self._bytes = 0
        self._expected: set[str] = set()

    def headers(self, wanted: PublishHeaders, now: int) -> None:
        """Checks that do not depend on sequences."""
        check_target(self._config, wanted)
        if wanted.ttl:
            check_lifetime(self._config, wanted, b"")
        if wanted.msg_id:
            if wanted.msg_id in self._ids or self._duplicates.find(wanted.msg_id, now):
                raise ErrorCode.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE.error()
            self._ids.add(wanted.msg_id)
        if wanted.source:
            raise ErrorCode.MESSAGE_SOURCE_HEADER_NOT_ALLOWED.error()

    def sequences(self, wanted: PublishHeaders, subject: str) -> None:
        """Expected sequences. Only subjects that the batch has not written to yet can still have them."""
        last = self._log.state.last_seq + self._count
        if wanted.last_seq is not None:
            if wanted.last_seq != last:
                raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=last)
            if self._written:
                raise WrongLastSequenceConstantError
        if wanted.subject_seq is not None:
            name = wanted.subject or subject
            if name in self._written:
                raise WrongLastSequenceConstantError
            found = self._known[name] if name in self._known else self._log.last_seq_of(name)
            if found != wanted.subject_seq:
                raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=found)
        elif wanted.subject:
            raise ErrorCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID.error()

    def rollup(self, wanted: PublishHeaders, subject: str) -> None:
        check_rollup(self._config, wanted.rollup)
        if wanted.rollup == "sub" and subject in self._written:
            raise _rollup("batch rollup sub invalid")
        if wanted.rollup == "all" and self._written:
            raise _rollup("batch rollup all invalid")

    def capacity(self, wanted: PublishHeaders, subject: str, header: bytes, payload: bytes) -> None:
        """Count the message; a stream that discards new messages must have capacity for all of the batch."""
        config, state = self._config, self._log.state
        self._written[subject] = self._written.get(subject, 0) + 1
        self._count += 1
        self._bytes += self._store.size_of(subject, header, payload)
        if config.discard != Discard.NEW:
            return
        if 0 < config.max_msgs < state.messages + self._count:
            raise StreamStoreFailedError("maximum messages exceeded")
        if 0 < config.max_bytes < state.bytes + self._bytes:
            raise StreamStoreFailedError("maximum bytes exceeded")
        if config.discard_new_per_subject and not wanted.rollup:
            count = self._log.count_of(subject) + self._written[subject]
            if count > config.max_msgs_per_subject > 0:
                raise StreamStoreFailedError("maximum messages per subject exceeded")

"""A stream: published messages become entries of its log, or the reason why not; its limits; what its readers are told.

The checks look at the writer's view of the log, so that each message is judged by all that came before it; answers wait
in the journal until what they report is durable. The leader's log is the stream's; `replicas` has those who follow it.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

import msgspec

from slipstream.api import Discard, StreamConfig, encode_json
from slipstream.errors import (
    ApiError,
    CorruptRecordError,
    StoreError,
    StreamMessageTooLargeError,
    StreamNotMatchError,
    StreamStoreFailedError,
    WrongLastMsgIdError,
    WrongLastSequenceError,
)
from slipstream.server.engine.dedupe import DuplicateWindow, message_id
from slipstream.server.engine.host import Host
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import record_size
from slipstream.server.engine.publish import NOTHING, Demands, demands
from slipstream.server.engine.replicas import Replicas
from slipstream.server.engine.timers import Timer
from slipstream.wire import has_wildcard

NO_LIMIT = 1 << 62
EXPIRY_SLICE = 4096  # sequences per turn: a stream that expires as a whole does not stop the others
EXPIRY_PAUSE = 1_000_000


def nanoseconds(value: timedelta) -> int:
    return (value // timedelta(microseconds=1)) * 1000


class Stored(msgspec.Struct, frozen=True):
    """What the store keeps of a stream beside its messages."""

    created: int
    config: dict[str, object]


class Stream:
    """One stream, as its publishers meet it."""

    def __init__(self, host: Host, journal: Journal, config: StreamConfig, *, key: str, created: int, now: int) -> None:
        """`key` is its name in the store."""
        self.name = config.name
        self.key = key
        self.home = host.switch
        self.created = created
        self.journal = journal
        self.log = journal.store.log(key)
        self.replicas = Replicas(host, self.name, self.log, now=created)
        self._host = host
        self._timer: Timer | None = None
        quoted = encode_json(self.name)
        self._tail = b'"stream":%b,"seq":0}' % quoted
        self._ack_head = f'{{"stream":{quoted.decode()},"seq":'
        self._ack_size = len(quoted) + len('{"stream":,"seq":}')
        self.duplicates = DuplicateWindow(0)
        self.configure(config)
        self.restore(now)

    # Configuration.

    def configure(self, config: StreamConfig) -> None:
        """Take over a configuration; `enforce` then makes the messages fit it."""
        self.config = config
        self.replicas.scale(config.num_replicas, mirrors=config.mirror is not None)
        self._max_size = config.max_msg_size if config.max_msg_size > 0 else NO_LIMIT
        self._max_msgs = config.max_msgs if config.max_msgs > 0 else NO_LIMIT
        self._max_bytes = config.max_bytes if config.max_bytes > 0 else NO_LIMIT
        self._per_subject = max(config.max_msgs_per_subject, 0)
        self._max_age = nanoseconds(config.max_age)
        self._bounded = config.max_msgs > 0 or config.max_bytes > 0
        self._limited = bool(self._bounded or self._per_subject or self._max_age)
        # Streams that may refuse a message take the long way.
        self._choosy = config.sealed or config.discard == Discard.NEW
        self._acks = not config.no_ack
        self.duplicates.window = nanoseconds(config.duplicate_window)

    def stored(self) -> bytes:
        """For the store."""
        return encode_json(Stored(self.created, self.config.to_dict()))

    def restore(self, now: int) -> None:
        """Take what is not in the configuration from the log: after a start, and after a group was lost."""
        self._clock = self.log.state.last_time
        self.duplicates.rebuild(self.log, now)
        self._last_msg_id = ""
        with contextlib.suppress(CorruptRecordError):  # reported by whoever reads it; the stream goes on without its id
            last = self.log.get(self.log.state.last_seq)
            self._last_msg_id = message_id(last.header) if last is not None else ""
        self._arm(now)

    def enforce(self, now: int) -> None:
        """Drop what a changed configuration does not allow any more."""
        if self._per_subject:
            for subject, count in list(self.log.subjects(">")):
                if count > self._per_subject:
                    self.log.purge(pattern=subject, keep=self._per_subject)
        self._trim("")
        self._arm(now)

    def stop(self) -> None:
        """The stream is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self.replicas.stop()

    # Publishing.

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Store a message; its ack waits for the commit."""
        if now < self._clock:  # the log is ordered by time
            now = self._clock
        else:
            self._clock = now
        try:
            if header or self._choosy or len(payload) > self._max_size or "*" in subject or ">" in subject:
                seq, answer = self._consider(subject, header, payload, now)
            else:
                seq = self.log.append(now, subject, header, payload)
                self._last_msg_id = ""
                if self._limited:
                    self._trim(subject)
                    if self._timer is None:
                        self._arm(now)
                answer = b""
        except ApiError as exc:
            seq, answer = 0, self.failure(exc)
        except StoreError as exc:
            seq, answer = 0, self.failure(StreamStoreFailedError(str(exc)))
        if reply and self._acks:
            self.journal.answers.append((reply, seq, self, answer))
        return True

    def ack(self, seq: int) -> tuple[str, int]:
        """The ack that says yes."""
        digits = str(seq)
        return f"{self._ack_head}{digits}}}", self._ack_size + len(digits)

    def failure(self, error: ApiError) -> bytes:
        """The ack that says no."""
        return b'{"error":%b,%b' % (encode_json(error_body(error)), self._tail)

    def _consider(self, subject: str, header: bytes, payload: bytes, now: int) -> tuple[int, bytes]:
        """The long way: the sequence it was stored as, or an answer of another kind."""
        config, log = self.config, self.log
        if has_wildcard(subject):
            raise ApiError("a message cannot be stored on a subject with wildcards", code=400, err_code=10003)
        if config.sealed:
            raise ApiError("invalid operation on sealed stream", code=400, err_code=10109)
        if len(header) + len(payload) > self._max_size:
            raise StreamMessageTooLargeError
        wanted = demands(header) if header else NOTHING
        if wanted is not NOTHING:
            self._check_expected(wanted, subject)
            if wanted.msg_id and (seq := self.duplicates.find(wanted.msg_id, now)):
                return 0, self.ack(seq)[0][:-1].encode() + b',"duplicate": true}'
            if wanted.last_msg_id and wanted.last_msg_id != self._last_msg_id:
                raise WrongLastMsgIdError(f"wrong last msg ID: {self._last_msg_id}")
            self._check_rollup(wanted.rollup)
        if config.discard == Discard.NEW:
            self._check_room(subject, header, payload, rollup=bool(wanted.rollup))
        seq = log.append(now, subject, header, payload)
        self._last_msg_id = wanted.msg_id
        if wanted.msg_id:
            self.duplicates.add(wanted.msg_id, seq, now)
        if wanted.rollup:
            log.purge(pattern=subject if wanted.rollup == "sub" else "", keep=1)
        self._trim(subject)
        if self._timer is None:
            self._arm(now)
        return seq, b""

    def _check_expected(self, wanted: Demands, subject: str) -> None:
        if wanted.stream and wanted.stream != self.name:
            raise StreamNotMatchError
        if wanted.disabled is not None:
            raise wanted.disabled
        if wanted.subject_seq is not None:
            last = self.log.last_seq_of(wanted.subject or subject)
            if last != wanted.subject_seq:
                raise WrongLastSequenceError(f"wrong last sequence: {last}")
        elif wanted.subject:
            raise ApiError("missing sequence for expected last sequence per subject", code=400, err_code=10193)
        if wanted.last_seq is not None and wanted.last_seq != self.log.state.last_seq:
            raise WrongLastSequenceError(f"wrong last sequence: {self.log.state.last_seq}")

    def _check_rollup(self, rollup: str) -> None:
        if not rollup:
            return
        if not self.config.allow_rollup_hdrs or self.config.deny_purge:
            raise ApiError("rollup not permitted", code=500, err_code=10111)
        if rollup not in ("sub", "all"):
            raise ApiError(f'rollup value invalid: "{rollup}"', code=500, err_code=10111)

    def _check_room(self, subject: str, header: bytes, payload: bytes, *, rollup: bool) -> None:
        """Discard new: a full stream refuses, unless the message takes the place of an older one on its subject."""
        log, state = self.log, self.log.state
        replaces = bool(self._per_subject) and log.count_of(subject) >= self._per_subject
        if replaces and self.config.discard_new_per_subject and not rollup:
            raise StreamStoreFailedError("maximum messages per subject exceeded")
        if state.messages >= self._max_msgs and not replaces:
            raise StreamStoreFailedError("maximum messages exceeded")
        size = record_size(subject, header, payload)
        if state.bytes + size > self._max_bytes:
            oldest = log.get(log.first_seq_of(subject)) if replaces else None
            if oldest is None or record_size(oldest.subject, oldest.header, oldest.payload) < size:
                raise StreamStoreFailedError("maximum bytes exceeded")

    # Limits.

    def _trim(self, subject: str) -> None:
        """Drop the oldest until the limits hold again."""
        log = self.log
        if self._per_subject and subject:
            while log.count_of(subject) > self._per_subject:
                log.remove(log.first_seq_of(subject))
        if not self._bounded:
            return
        state = log.state
        if state.messages > self._max_msgs + 1:
            log.purge(keep=self._max_msgs)
            state = log.state
        while state.messages > self._max_msgs or state.bytes > self._max_bytes:
            log.remove(state.first_seq)
            state = log.state

    def _arm(self, now: int) -> None:
        """Wait until the oldest message is too old."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = self.log.state
        if self._max_age and state.messages:
            when = max(state.first_time + self._max_age, now + EXPIRY_PAUSE)
            self._timer = self._host.timers.at(when, self._expire)

    def _expire(self, now: int) -> None:
        state = self.log.state
        if self._max_age and state.messages and state.first_time + self._max_age <= now:
            too_old = self.log.time_to_seq(now - self._max_age + 1)
            below = min(too_old, state.first_seq + EXPIRY_SLICE)
            if below > state.first_seq:
                self.log.purge(below=below)
        self._arm(now)


def error_body(error: ApiError) -> dict[str, object]:
    """The error object of the API."""
    return {"code": error.code, "err_code": error.err_code, "description": error.description}

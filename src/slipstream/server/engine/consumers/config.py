"""Consumer configurations: parsed, completed with defaults, checked by the rules of nats-server; and their record.

Rules, defaults, codes and texts are those of nats-server 2.15, plus `min_last_seq` (read-after-write). What this server
does not support is rejected with a text that says so.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec

from slipstream.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
    Retention,
    StreamConfig,
    encode_json,
)
from slipstream.api.times import format_duration, nanoseconds
from slipstream.errors import ApiError, ErrorCode, StreamInvalidConfigError
from slipstream.server.engine import bounds
from slipstream.server.engine.streams.features import REQUIRED_LEVEL, SERVER_LEVEL, SERVER_VERSION, pedantic_error
from slipstream.wire import SubjectSet, has_wildcard, is_valid_filter

MAX_NAME = 255
MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024
ACK_WAIT = timedelta(seconds=30)
INACTIVE = timedelta(seconds=5)  # an ephemeral consumer that is not used for so long is deleted
PINNED = timedelta(minutes=2)
MAX_ACK_PENDING = 1000
MAX_WAITING = 512
ZERO = timedelta(0)
FLOW_CONTROL_ACKS = "flow_control"

_GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_CHOICES: dict[str, tuple[frozenset[str], str]] = {
    "deliver_policy": (frozenset(DeliverPolicy), "can not unmarshal {}"),
    "ack_policy": (frozenset((*AckPolicy, FLOW_CONTROL_ACKS)), "can not unmarshal {}"),
    "replay_policy": (frozenset(ReplayPolicy), "can not unmarshal {}"),
    "priority_policy": (frozenset(PriorityPolicy), "unknown priority policy: {}"),
}
_NOT_NEGATIVE = ("opt_start_seq", "rate_limit_bps", "min_last_seq")


def parse(data: Any) -> ConsumerConfig:
    """The configuration in a request's body; raises InvalidJsonError."""
    if not isinstance(data, dict):
        raise ErrorCode.INVALID_JSON.error(err="the consumer's config is not an object")
    body: dict[str, Any] = {"ack_policy": AckPolicy.NONE.value} | {k: v for k, v in data.items() if v is not None}
    bounds.check_count("consumer filter_subjects", body.get("filter_subjects"), bounds.MAX_FILTERS)
    # Those without wildcards are looked up by a hash.
    listed = [each for each in bounds.items_of(body.get("filter_subjects")) if isinstance(each, str)]
    wildcards = [each for each in listed if "*" in each or ">" in each]
    bounds.check_tokens("consumer filter_subjects with wildcards", wildcards)
    for name in ("backoff", "priority_groups"):
        bounds.check_count(f"consumer {name}", body.get(name), bounds.MAX_ENTRIES)
    bounds.check_count("consumer metadata", body.get("metadata"), bounds.MAX_METADATA_ENTRIES)
    for name, value in body.items():
        if isinstance(value, int) and not (0 if name in _NOT_NEGATIVE else -(2**63)) <= value < 2**63:
            raise ErrorCode.INVALID_JSON.error(err=f"{value} does not fit the field {name}")
    for name, (allowed, text) in _CHOICES.items():
        if name in body and not (isinstance(body[name], str) and body[name] in allowed):
            quoted = encode_json(body[name]).decode()
            if name != "priority_policy":  # nats-server quotes the others twice
                quoted = encode_json(quoted).decode()
            raise ErrorCode.INVALID_JSON.error(err=text.format(quoted))
    try:
        config = ConsumerConfig.from_dict(body)
    except ValueError as exc:
        raise ErrorCode.INVALID_JSON.error(err=exc) from exc
    if config.unknown:
        raise ErrorCode.INVALID_JSON.error(err=f'json: unknown field "{next(iter(config.unknown))}"')
    if config.priority_policy == PriorityPolicy.NONE:
        config = config.replace(priority_policy="")
    return config


def filters_of(config: ConsumerConfig) -> tuple[str, ...]:
    """All filters of a consumer."""
    return (*config.filter_subjects, config.filter_subject) if config.filter_subject else config.filter_subjects


def complete(config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool, most: int = -1) -> ConsumerConfig:
    """Fill in the defaults; a pedantic request is rejected where that would change a value that it gives. `most` is the
    account's bound of pending acks (-1: none)."""
    changes: dict[str, Any] = {}

    def fill(name: str, value: Any, reason: str = "") -> None:
        if pedantic and reason:
            raise pedantic_error(reason)
        changes[name] = value

    if config.max_deliver == 0 or config.max_deliver < -1:
        fill("max_deliver", -1, "max_deliver must be set to -1" if config.max_deliver else "")
    if config.max_ack_pending < -1:
        fill("max_ack_pending", -1, "max_ack_pending must be set to -1")
    for name in ("max_waiting", "max_batch", "max_bytes"):
        if getattr(config, name) < 0:
            fill(name, 0, f"{name} must not be negative")
    for name in ("max_expires", "idle_heartbeat", "inactive_threshold", "priority_timeout"):
        if getattr(config, name) < ZERO:
            fill(name, ZERO, f"{name} must not be negative")
    config = config.replace(**changes)
    changes = {}
    if not config.deliver_subject and not config.max_waiting:
        fill("max_waiting", MAX_WAITING)
    if not config.ack_wait and config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL):
        fill("ack_wait", ACK_WAIT)
    if config.backoff:
        same = changes.get("ack_wait", config.ack_wait) == config.backoff[0]
        fill("ack_wait", config.backoff[0], "" if same else "first backoff value has to equal batch AckWait")
    limits = stream.consumer_limits
    if not config.max_ack_pending and limits.max_ack_pending:
        bound = limits.max_ack_pending > 0
        fill(
            "max_ack_pending",
            limits.max_ack_pending,
            "max_ack_pending must be set if it's configured in stream limits" if bound else "",
        )
    elif not config.max_ack_pending and config.ack_policy != AckPolicy.NONE:
        fill("max_ack_pending", min(most, MAX_ACK_PENDING) if most > 0 else MAX_ACK_PENDING)
    if not config.inactive_threshold and limits.inactive_threshold:
        fill(
            "inactive_threshold",
            limits.inactive_threshold,
            "inactive_threshold must be set if it's configured in stream limits",
        )
    if config.priority_policy == PriorityPolicy.PINNED_CLIENT and not config.priority_timeout:
        fill("priority_timeout", PINNED)
    return config.replace(**changes)


def check(config: ConsumerConfig, stream: StreamConfig, *, most: int = -1) -> None:
    """Raise the ApiError of the first rule that is broken; `config` is complete. `most`: as for `complete`."""
    _check_names(config)
    _check_replicas(config, stream)
    if any(wait < ZERO for wait in config.backoff):
        raise ErrorCode.CONSUMER_BACKOFF_NEGATIVE.error()
    if config.ack_wait < ZERO:
        raise ErrorCode.CONSUMER_ACK_WAIT_NEGATIVE.error()
    if config.ack_policy == FLOW_CONTROL_ACKS:
        raise StreamInvalidConfigError("ack policy flow_control is not supported yet by this server")
    check_backoff(config)
    if len(config.description.encode()) > MAX_DESCRIPTION:
        raise ErrorCode.CONSUMER_DESCRIPTION_TOO_LONG.error(max=MAX_DESCRIPTION)
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    limits = stream.consumer_limits
    for bound in (most, limits.max_ack_pending):
        if 0 < bound < config.max_ack_pending:
            raise ErrorCode.CONSUMER_MAX_PENDING_ACK_EXCESS.error(limit=bound)
    if ZERO < limits.inactive_threshold < config.inactive_threshold:
        text = format_duration(nanoseconds(limits.inactive_threshold))
        raise ErrorCode.CONSUMER_INACTIVE_THRESHOLD_EXCESS.error(limit=text)
    if config.direct and not config.deliver_subject:
        raise ErrorCode.CONSUMER_DIRECT_REQUIRES_PUSH.error()
    if config.direct and config.durable_name:
        raise ErrorCode.CONSUMER_DIRECT_REQUIRES_EPHEMERAL.error()
    _check_filters(config)
    _check_start(config)
    _check_sampling(config)
    if config.flow_control and not config.idle_heartbeat:
        raise ErrorCode.CONSUMER_FLOW_CONTROL_NEEDS_HEARTBEATS.error()
    if config.durable_name and config.name and config.name != config.durable_name:
        raise ErrorCode.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH.error()
    if sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items()) > MAX_METADATA:
        raise ErrorCode.CONSUMER_METADATA_LENGTH.error(limit=f"{MAX_METADATA // 1024}KB")
    _check_priority(config)


def check_backoff(config: ConsumerConfig) -> None:
    """The steps of a back-off must not outnumber the deliveries."""
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise ErrorCode.CONSUMER_MAX_DELIVER_BACKOFF.error()


def with_level(config: ConsumerConfig) -> ConsumerConfig:
    """The configuration as it is stored: with the API level that it needs, without what depends on the server."""
    metadata = {key: value for key, value in config.metadata.items() if key not in (SERVER_VERSION, SERVER_LEVEL)}
    newer = config.pause_until is not None or config.priority_policy or config.priority_groups
    metadata[REQUIRED_LEVEL] = "1" if newer else "0"
    return config.replace(metadata=dict(sorted(metadata.items())))


_FIXED = (
    ("deliver_policy", "deliver policy"),
    ("mem_storage", "storage type"),
    ("direct", "direct"),
    ("sourcing", "sourcing"),
    ("opt_start_seq", "start sequence"),
    ("opt_start_time", "start time"),
    ("ack_policy", "ack policy"),
    ("replay_policy", "replay policy"),
    ("idle_heartbeat", "heart beats"),
    ("flow_control", "flow control"),
)


def check_update(old: ConsumerConfig, new: ConsumerConfig, *, bound: bool) -> None:
    """Raise the ApiError of a change that is not allowed; `bound`: the deliver subject has a subscriber."""
    for name, text in _FIXED:
        if getattr(old, name) != getattr(new, name):
            raise ErrorCode.CONSUMER_CREATE.error(err=f"{text} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.deliver_subject:
            raise ErrorCode.CONSUMER_CREATE.error(err="can not update pull consumer to push based")
        if not new.deliver_subject:
            raise ErrorCode.CONSUMER_CREATE.error(err="can not update push consumer to pull based")
        if bound:
            raise ErrorCode.CONSUMER_NAME_EXIST.error()
    if old.max_waiting != new.max_waiting:
        raise ErrorCode.CONSUMER_CREATE.error(err="max waiting can not be updated")
    check_backoff(new)


def valid_name(name: str) -> bool:
    """Whether a consumer may have that name."""
    return bool(name) and not any(char in ".*>\\/" or char.isspace() or char == "\0" for char in name)


def _check_names(config: ConsumerConfig) -> None:
    if config.name and not valid_name(config.name):
        raise StreamInvalidConfigError("consumer name can not contain '.', '*', '>', '\\', '/'")
    if config.durable_name and not valid_name(config.durable_name):
        raise StreamInvalidConfigError("consumer durable name can not contain '.', '*', '>', '\\', '/'")


def _check_replicas(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.num_replicas > stream.num_replicas:
        raise ErrorCode.CONSUMER_REPLICAS_EXCEEDS_STREAM.error()
    if config.num_replicas < 0:
        raise ErrorCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE.error()
    if stream.retention != Retention.LIMITS and config.num_replicas not in (0, stream.num_replicas):
        raise ErrorCode.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM.error()


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    if has_wildcard(config.deliver_subject):
        raise ErrorCode.CONSUMER_DELIVER_TO_WILDCARDS.error()
    if not is_valid_filter(config.deliver_subject):
        raise ErrorCode.CONSUMER_INVALID_DELIVER_SUBJECT.error()
    if SubjectSet(stream.subjects).matches(config.deliver_subject):
        raise ErrorCode.CONSUMER_DELIVER_CYCLE.error()
    if config.max_waiting:
        raise ErrorCode.CONSUMER_PUSH_MAX_WAITING.error()
    if config.max_ack_pending > 0 and config.ack_policy == AckPolicy.NONE:
        raise ErrorCode.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED.error()
    if ZERO < config.idle_heartbeat < timedelta(milliseconds=100):
        raise ErrorCode.CONSUMER_SMALL_HEARTBEAT.error()


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.ack_policy == AckPolicy.NONE and stream.retention == Retention.WORK_QUEUE:
        raise ErrorCode.CONSUMER_PULL_REQUIRES_ACK.error()
    if config.rate_limit_bps:
        raise ErrorCode.CONSUMER_PULL_WITH_RATE_LIMIT.error()
    if config.idle_heartbeat:
        raise ErrorCode.CONSUMER_HEARTBEAT_REQUIRES_PUSH.error()
    if config.flow_control:
        raise ErrorCode.CONSUMER_FLOW_CONTROL_REQUIRES_PUSH.error()
    if ZERO < config.max_expires < timedelta(milliseconds=1):
        raise ErrorCode.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL.error()


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise ErrorCode.CONSUMER_DUPLICATE_FILTER_SUBJECTS.error()
    if "" in config.filter_subjects:
        raise ErrorCode.CONSUMER_EMPTY_FILTER.error()
    filters = filters_of(config)
    invalid = next((at for at, one in enumerate(filters) if not is_valid_filter(one)), len(filters))
    if len(filters) > 1 and bounds.some_covered("consumer filter_subjects", filters[:invalid]):
        raise ErrorCode.CONSUMER_OVERLAPPING_SUBJECT_FILTERS.error()
    if invalid < len(filters):
        raise StreamInvalidConfigError("invalid subject")


def _check_start(config: ConsumerConfig) -> None:
    policy, seq, time = config.deliver_policy, config.opt_start_seq, config.opt_start_time is not None
    words = policy.replace("_", " ")
    if policy == DeliverPolicy.BY_START_SEQUENCE:
        if not seq:
            raise _start_missing(words, "start sequence")
        if time:
            raise _start_unwanted(words, "time")
    elif policy == DeliverPolicy.BY_START_TIME:
        if not time:
            raise _start_missing(words, "start time")
        if seq:
            raise _start_unwanted(words, "start sequence")
    elif seq or time:
        raise _start_unwanted(words, "sequence" if seq else "time")
    elif policy == DeliverPolicy.LAST_PER_SUBJECT and not filters_of(config):
        raise _start_missing(words, "filter subject")


def _start_unwanted(policy: str, what: str) -> ApiError:
    return ErrorCode.CONSUMER_INVALID_POLICY.error(
        err=f"consumer delivery policy is deliver {policy}, but optional start {what} is also set"
    )


def _start_missing(policy: str, what: str) -> ApiError:
    return ErrorCode.CONSUMER_INVALID_POLICY.error(
        err=f"consumer delivery policy is deliver {policy}, but optional {what} is not set"
    )


def sample_frequency(config: ConsumerConfig) -> int:
    """The percentage of acks that are sampled."""
    return int(config.sample_freq.removesuffix("%")) if config.sample_freq else 0


def _check_sampling(config: ConsumerConfig) -> None:
    text = config.sample_freq.removesuffix("%")
    if config.sample_freq and not re.fullmatch(r"\+?\d{1,9}", text, re.ASCII):
        reason = f"strconv.Atoi: parsing {encode_json(text).decode()}: invalid syntax"
        if re.fullmatch(r"-\d+", text, re.ASCII):
            reason = "<nil>"
        raise ErrorCode.CONSUMER_INVALID_SAMPLING.error(err=reason)


def _check_priority(config: ConsumerConfig) -> None:
    if not config.priority_policy:
        if config.priority_groups:
            raise ErrorCode.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE.error()
        if config.priority_timeout:
            raise ErrorCode.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY.error()
        return
    if config.deliver_subject:
        raise ErrorCode.CONSUMER_PUSH_WITH_PRIORITY_GROUP.error()
    if not config.priority_groups:
        raise ErrorCode.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP.error()
    for group in config.priority_groups:
        if not group:
            raise ErrorCode.CONSUMER_EMPTY_GROUP_NAME.error()
        if not valid_group(group):
            raise bad_group()


def valid_group(name: str) -> bool:
    return _GROUP_NAME.fullmatch(name) is not None


def bad_group() -> ApiError:
    return ErrorCode.CONSUMER_INVALID_GROUP_NAME.error()


class StoredConsumer(msgspec.Struct, frozen=True):
    """What the store keeps of a consumer beside its delivery state."""

    created: int
    config: dict[str, Any]
    after: int | None = None  # the stream's last sequence when it was requested


def config_record(created: int, config: ConsumerConfig, after: int | None = None) -> bytes:
    """The value of a configuration record."""
    return encode_json(StoredConsumer(created, config.to_dict(), after))


def read_config(record: bytes) -> StoredConsumer:
    """The content of a configuration record."""
    return msgspec.json.decode(record, type=StoredConsumer)

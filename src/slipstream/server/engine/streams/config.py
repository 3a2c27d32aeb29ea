"""Rules of stream configurations: defaults, checks, and what an update may change.

Rules, numbers, codes and texts are those of nats-server 2.15. A feature that this server does not have is rejected with
a text that says so: an accepted configuration is honoured in full.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from slipstream.api import Discard, Retention, Storage, StreamConfig, encode_json
from slipstream.errors import ErrorCode
from slipstream.server.engine import bounds
from slipstream.server.engine.streams.features import (
    check_feature_changes,
    check_features,
    check_mappings,
    pedantic_error,
    with_level,
)
from slipstream.server.engine.streams.features import invalid as _invalid
from slipstream.wire import SubjectSet, is_valid_filter, overlaps, subset_of

MAX_NAME = 255
MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024
MAX_REPLICAS = 5
DEFAULT_DUPLICATES = timedelta(minutes=2)
SHORTEST = timedelta(milliseconds=100)
ZERO = timedelta(0)

_NAME_TEXT = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_TRANSFORMS = "subject_transforms"
_RESERVED = ("$JS.>", "$JSC.>", "$NRG.>")
_CHOICES: dict[str, frozenset[str]] = {
    "retention": frozenset(Retention),
    "discard": frozenset(Discard),
    "storage": frozenset(Storage),
    "compression": frozenset(("none", "s2")),
    "persist_mode": frozenset(("default", "async", "")),
}
_LIMITS = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")


def parse(data: dict[str, Any]) -> StreamConfig:
    """The configuration in a request's body; raises InvalidJsonError."""
    body = {name: value for name, value in data.items() if name != "pedantic"}
    body.setdefault("name", "")
    _check_bounds(body)
    for name, value in body.items():
        if isinstance(value, int) and not (0 if name == "first_seq" else -(2**63)) <= value < 2**63:
            raise ErrorCode.INVALID_JSON.error(err=f"{value} does not fit the field {name}")
    for name, allowed in _CHOICES.items():
        if name in body and not (isinstance(body[name], str) and body[name] in allowed):
            if name == "compression" and isinstance(body[name], str):
                raise ErrorCode.INVALID_JSON.error(err="unknown compression algorithm")
            quoted = encode_json(encode_json(body[name]).decode()).decode()
            raise ErrorCode.INVALID_JSON.error(err=f"can not unmarshal {quoted}")
    try:
        config = StreamConfig.from_dict(body)
    except ValueError as exc:
        raise ErrorCode.INVALID_JSON.error(err=exc) from exc
    for model in (config, config.placement, config.mirror, *config.sources, config.subject_transform, config.republish):
        if model is not None and model.unknown:
            raise ErrorCode.INVALID_JSON.error(err=f'json: unknown field "{next(iter(model.unknown))}"')
    return config


def _check_bounds(body: dict[str, Any]) -> None:
    """Reject what is too large to be looked at, before anything is made of it."""
    bounds.check_count("stream subjects", body.get("subjects"), bounds.MAX_SUBJECTS)
    bounds.check_tokens("stream subjects", bounds.items_of(body.get("subjects")))
    bounds.check_count("stream metadata", body.get("metadata"), bounds.MAX_METADATA_ENTRIES)
    tags = bounds.fields_of(body.get("placement")).get("tags")
    bounds.check_count("stream placement tags", tags, bounds.MAX_ENTRIES)
    sources = body.get("sources")
    bounds.check_count("stream sources", sources, bounds.MAX_SOURCES)
    transforms = [bounds.fields_of(body.get(name)) for name in ("subject_transform", "republish")]
    for upstreams in (bounds.items_of(sources), [body.get("mirror")]):
        listed = [
            each for upstream in upstreams for each in bounds.items_of(bounds.fields_of(upstream).get(_TRANSFORMS))
        ]
        bounds.check_count(f"stream {_TRANSFORMS}", listed, bounds.MAX_TRANSFORMS)
        bounds.check_tokens(f"stream {_TRANSFORMS}", [bounds.fields_of(each).get("src") for each in listed])
        transforms += [bounds.fields_of(each) for each in listed]
    size = sum(
        len(text) for each in transforms for text in (each.get("src"), each.get("dest")) if isinstance(text, str)
    )
    if size > bounds.MAX_TRANSFORM_SIZE:
        text = f"subject transforms of a stream must have at most {bounds.MAX_TRANSFORM_SIZE} characters, got {size}"
        raise _invalid(text)


def normalise(config: StreamConfig, *, pedantic: bool = False, compat: bool = False) -> StreamConfig:
    """Fill in defaults and check the rest; raises the ApiError of the first broken rule. With `pedantic`, values that
    do not fit are rejected instead of adjusted; with `compat` it is all as on a single nats-server."""
    _check_names(config)
    if config.num_replicas > MAX_REPLICAS:
        raise _invalid(f"maximum replicas is {MAX_REPLICAS}")
    if config.num_replicas < 0:
        raise ErrorCode.REPLICAS_COUNT_CANNOT_BE_NEGATIVE.error()
    if compat and config.num_replicas > 1:
        raise ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED.error()
    for name in _LIMITS:
        if pedantic and getattr(config, name) < -1:
            raise pedantic_error(f"{name} must be set to -1")
    config = config.replace(
        num_replicas=config.num_replicas or 1,
        **{name: -1 for name in _LIMITS if getattr(config, name) <= 0},
    )
    config = _check_times(config, pedantic=pedantic)
    if config.deny_purge and config.allow_rollup_hdrs:
        raise _invalid("roll-ups require the purge permission")
    config = check_features(config, pedantic=pedantic)
    if not config.subjects and config.mirror is None and not config.sources:
        config = config.replace(subjects=(config.name,))
    _check_subjects(config)
    config = check_mappings(config, pedantic=pedantic)
    if config.placement is not None and not config.placement.to_dict():
        config = config.replace(placement=None)
    if config.placement is not None and config.placement.preferred:
        raise _invalid("preferred server not permitted in placement")
    # The specification of Direct Get: a limit per subject indicates a key-value bucket, and enables Direct Get whatever
    # the request says. (nats-server itself leaves it to the clients.)
    is_bucket = config.max_msgs_per_subject > 0 and not compat
    return with_level(config.replace(allow_direct=config.allow_direct or is_bucket))


def check_create(config: StreamConfig) -> None:
    """Rules for a new stream only."""
    if config.sealed:
        raise _invalid("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise _invalid("stream has no mirror but does have mirror direct")


def updated(old: StreamConfig, new: StreamConfig) -> StreamConfig:
    """The configuration after an update; `new` is normalised."""
    if new.name != old.name:
        raise _invalid("stream configuration name must match original")
    if new.storage != old.storage:
        raise _invalid("stream configuration update can not change storage type")
    if new.retention != old.retention and Retention.WORK_QUEUE in (new.retention, old.retention):
        raise _invalid("stream configuration update can not change retention policy to/from workqueue")
    if new.mirror is not None and new.mirror != old.mirror:  # without one, the mirror is promoted
        raise ErrorCode.STREAM_MIRROR_NOT_UPDATABLE.error()
    for name, text in (
        ("sealed", "unseal a sealed stream"),
        ("deny_delete", "cancel deny message deletes"),
        ("deny_purge", "cancel deny purge"),
    ):
        if getattr(old, name) and not getattr(new, name):
            raise _invalid(f"stream configuration update can not {text}")
    check_feature_changes(old, new)
    if new.sealed:
        return new.replace(
            max_age=ZERO, discard=Discard.NEW.value, deny_delete=True, deny_purge=True, allow_rollup_hdrs=False
        )
    return new


def _check_names(config: StreamConfig) -> None:
    name = config.name
    if not name or any(char in name for char in ".*>\\/") or any(char.isspace() or char == "\0" for char in name):
        raise _invalid(_NAME_TEXT)
    if len(name.encode()) > MAX_NAME:
        raise _invalid(f"stream name is too long, maximum allowed is {MAX_NAME}")
    if len(config.description.encode()) > MAX_DESCRIPTION:
        raise _invalid(f"stream description is too long, maximum allowed is {MAX_DESCRIPTION}")
    if sum(len(key) + len(value) for key, value in config.metadata.items()) > MAX_METADATA:
        raise _invalid(f"stream metadata exceeds maximum size of {MAX_METADATA} bytes")


def _check_times(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    age = config.max_age
    if age < ZERO:
        raise _invalid("max age can not be negative")
    if ZERO < age < SHORTEST:
        raise _invalid("max age needs to be >= 100ms")
    if not config.duplicate_window and config.mirror is None and not config.sources:
        if pedantic and ZERO < age < DEFAULT_DUPLICATES:
            raise pedantic_error("duplicate window cannot be bigger than max age")
        config = config.replace(duplicate_window=min(age, DEFAULT_DUPLICATES) if age else DEFAULT_DUPLICATES)
    window = config.duplicate_window
    if window < ZERO:
        raise _invalid("duplicates window can not be negative")
    if age and window > age:
        raise _invalid("duplicates window can not be larger then max age")
    if ZERO < window < SHORTEST:
        raise _invalid("duplicates window needs to be >= 100ms")
    return config


def _check_subjects(config: StreamConfig) -> None:
    seen = SubjectSet()
    for at, subject in enumerate(config.subjects):
        if not is_valid_filter(subject):
            raise _invalid("invalid subject")
        if subject in seen:
            raise _invalid("duplicate subjects detected")
        if subject == ">" and not config.no_ack:
            raise _invalid("capturing all subjects requires no-ack to be true")
        if not config.no_ack and subject[0] in "$*>":
            _check_reserved(subject)
        if seen.overlapping(subject) is not None:
            other = next(other for other in config.subjects[:at] if overlaps(other, subject))  # the first, as there
            raise _invalid(f'subject "{other}" overlaps with "{subject}"')
        seen.add(subject)
        bounds.check_steps("stream subjects", seen.steps)
    bounds.check_branches("stream subjects", seen)


def _check_reserved(subject: str) -> None:
    if any(overlaps(subject, space) for space in _RESERVED) and not subset_of(subject, "$JS.EVENT.>"):
        raise _invalid("subjects that overlap with jetstream api require no-ack to be true")
    if overlaps(subject, "$SYS.>") and not subset_of(subject, "$SYS.ACCOUNT.>"):
        raise _invalid("subjects that overlap with system api require no-ack to be true")

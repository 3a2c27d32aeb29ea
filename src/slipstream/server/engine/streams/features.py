"""Configuration rules of newer stream features, and the API level that each of them requires.

nats-server writes the level into the metadata of a stream: clients and tools check it before they use, move or restore
the stream.
"""

from __future__ import annotations

from datetime import timedelta

from slipstream.api import Discard, Retention, Storage, StreamConfig
from slipstream.errors import ApiError, ErrorCode, StreamInvalidConfigError
from slipstream.wire import SubjectMapping, SubjectSet, check_mapping, is_valid_filter

API_LEVEL = 5  # of nats-server 2.15
REQUIRED_LEVEL = "_nats.req.level"
SERVER_VERSION = "_nats.ver"
SERVER_LEVEL = "_nats.level"
ASYNC = "async"
_SECOND = timedelta(seconds=1)
_ZERO = timedelta(0)


def invalid(text: str) -> StreamInvalidConfigError:
    return StreamInvalidConfigError(text)


def pedantic_error(text: str) -> ApiError:
    """The error of a pedantic request, which must not be adjusted."""
    return ErrorCode.PEDANTIC.error(err=text)


def check_features(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    """Counters, delete markers, schedules, the mode of persistence, batches."""
    if config.allow_msg_counter:
        _check_counter(config)
    if config.discard_new_per_subject:
        if config.discard != Discard.NEW:
            raise invalid("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise invalid("discard new per subject requires max msgs per subject > 0")
    config = _check_markers(config, pedantic=pedantic)
    if config.allow_msg_schedules:
        if config.discard == Discard.NEW:
            raise invalid("message scheduling cannot use discard new")
        if not config.allow_rollup_hdrs:
            if pedantic:
                raise invalid("message scheduling cannot be set if roll-ups are disabled")
            config = config.replace(allow_rollup_hdrs=True, deny_purge=False)
    if config.persist_mode not in ("", "default", ASYNC):
        raise invalid(f"persist_mode {config.persist_mode!r} is not known")
    if config.persist_mode == "default":
        config = config.replace(persist_mode="")
    if config.persist_mode == ASYNC:
        if config.storage != Storage.FILE:
            raise invalid("async persist mode is only supported on file storage")
        if config.num_replicas > 1:
            raise invalid("async persist mode is not supported on replicated streams")
        if config.allow_atomic:
            raise invalid("async persist mode is not supported with atomic batch publish")
    return config


def _check_counter(config: StreamConfig) -> None:
    if config.discard == Discard.NEW:
        raise invalid("counter stream cannot use discard new")
    if config.allow_msg_ttl:
        raise invalid("counter stream cannot use message TTLs")
    if config.allow_msg_schedules:
        raise invalid("counter stream cannot use message schedules")
    if config.retention != Retention.LIMITS:
        raise invalid("counter stream can only use limits retention")


def _check_markers(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    ttl = config.subject_delete_marker_ttl
    if ttl < _ZERO:
        raise invalid("subject delete marker TTL must not be negative")
    if not ttl:
        return config
    if ttl < _SECOND:
        raise invalid("subject delete marker TTL must be at least 1 second")
    if not config.allow_msg_ttl:
        if pedantic:
            raise invalid("subject delete marker cannot be set if message TTLs are disabled")
        config = config.replace(allow_msg_ttl=True)
    if not config.allow_rollup_hdrs:
        if pedantic:
            raise invalid("subject delete marker cannot be set if roll-ups are disabled")
        config = config.replace(allow_rollup_hdrs=True, deny_purge=False)
    return config


def check_mappings(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    """Check the subject transform and republish."""
    transform = config.subject_transform
    if transform is not None:
        if transform.src and not is_valid_filter(transform.src):
            raise ErrorCode.STREAM_TRANSFORM_INVALID_SOURCE.error(err=f"invalid subject {transform.src}")
        try:
            check_mapping(transform.src, transform.dest)
        except ValueError as exc:
            raise ErrorCode.STREAM_TRANSFORM_INVALID_DESTINATION.error(err=exc) from exc
    return _check_republish(config, pedantic=pedantic)


def _check_republish(config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    again, transform = config.republish, config.subject_transform
    if again is None:
        return config
    if not again.src:
        if pedantic:
            raise pedantic_error("republish source can not be empty")
        again = again.replace(src=">")
    # Republishing everything under its own subject would be a cycle, unless the transform moves all of it elsewhere.
    if again.src == again.dest == ">" and transform is not None and config.subjects == (transform.src,):
        if pedantic:
            raise pedantic_error("implicit republish based on subject transform")
        again = again.replace(src=transform.dest, dest=transform.dest)
    if SubjectSet(config.subjects).overlapping(again.dest) is not None:
        raise invalid("stream configuration for republish destination forms a cycle")
    try:
        SubjectMapping(again.src, again.dest)
    except ValueError as exc:
        text = f"stream configuration for republish with transform from '{again.src}' to '{again.dest}' not valid"
        raise invalid(text) from exc
    return config.replace(republish=again)


def check_feature_changes(old: StreamConfig, new: StreamConfig) -> None:
    """Check that an update does not change what is fixed."""
    if old.allow_msg_ttl and not new.allow_msg_ttl:
        raise invalid("message TTL status can not be disabled")
    if old.allow_msg_counter != new.allow_msg_counter:
        raise invalid("stream configuration update can not change message counter setting")
    if old.allow_msg_schedules and not new.allow_msg_schedules:
        raise invalid("message schedules can not be disabled")
    if (old.persist_mode == ASYNC) != (new.persist_mode == ASYNC):
        raise invalid("stream configuration update can not change persist mode")


# The level in the metadata.


def required_level(config: StreamConfig) -> int:
    """The API level that a server must have to serve the stream."""
    if config.allow_batched:
        return 4
    newer = config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules
    if newer or config.persist_mode == ASYNC:
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl else 0


def with_level(config: StreamConfig) -> StreamConfig:
    """The configuration as stored: with its required level, without metadata that depends on the server."""
    metadata = {key: value for key, value in config.metadata.items() if key not in (SERVER_VERSION, SERVER_LEVEL)}
    metadata[REQUIRED_LEVEL] = str(required_level(config))
    return config.replace(metadata=dict(sorted(metadata.items())))


def server_metadata(version: str) -> dict[str, str]:
    """The metadata that the server adds in reports about a stream."""
    return {SERVER_VERSION: version, SERVER_LEVEL: str(API_LEVEL)}

"""Rules of mirror and source configurations, checked against the other streams of the account.

Codes and texts are those of nats-server 2.15. An upstream need not exist yet: the ingest waits for it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from slipstream.api import StreamConfig, StreamSource, SubjectTransform
from slipstream.api.names import API_PREFIX
from slipstream.errors import ErrorCode, StreamInvalidConfigError
from slipstream.server.engine import bounds
from slipstream.server.engine.replication.source import source_key
from slipstream.wire import SubjectMapping, has_wildcard, is_valid_filter, overlaps


class _Codes(NamedTuple):
    """The errors of an upstream's configuration, which differ for mirrors and sources."""

    name: ErrorCode
    multiple_filters: ErrorCode
    filter: ErrorCode
    destination: ErrorCode
    overlap: ErrorCode
    message_size: ErrorCode


_MIRROR = _Codes(
    name=ErrorCode.MIRROR_INVALID_STREAM_NAME,
    multiple_filters=ErrorCode.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED,
    filter=ErrorCode.MIRROR_INVALID_SUBJECT_FILTER,
    destination=ErrorCode.MIRROR_INVALID_TRANSFORM_DESTINATION,
    overlap=ErrorCode.MIRROR_OVERLAPPING_SUBJECT_FILTERS,
    message_size=ErrorCode.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG,
)
_SOURCE = _Codes(
    name=ErrorCode.SOURCE_INVALID_STREAM_NAME,
    multiple_filters=ErrorCode.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED,
    filter=ErrorCode.SOURCE_INVALID_SUBJECT_FILTER,
    destination=ErrorCode.SOURCE_INVALID_TRANSFORM_DESTINATION,
    overlap=ErrorCode.SOURCE_OVERLAPPING_SUBJECT_FILTERS,
    message_size=ErrorCode.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG,
)
_NOT_FOR_MIRRORS = (
    ("first_seq", ErrorCode.MIRROR_WITH_FIRST_SEQ),
    ("subjects", ErrorCode.MIRROR_WITH_SUBJECTS),
    ("sources", ErrorCode.MIRROR_WITH_SOURCES),
    ("allow_msg_counter", ErrorCode.MIRROR_WITH_COUNTERS),
    ("allow_atomic", ErrorCode.MIRROR_WITH_ATOMIC_PUBLISH),
    ("allow_batched", ErrorCode.MIRROR_WITH_BATCH_PUBLISH),
    ("allow_msg_schedules", ErrorCode.MIRROR_WITH_MSG_SCHEDULES),
)


class ConfiguredStream(Protocol):
    """Another stream."""

    config: StreamConfig


def checked(config: StreamConfig, streams: Mapping[str, ConfiguredStream]) -> StreamConfig:
    """The configuration, with `mirror_direct` taken from the upstream; raises the error of the first broken rule."""
    mirror = config.mirror
    if mirror is not None:
        for name, code in _NOT_FOR_MIRRORS:
            if getattr(config, name):
                raise code.error()
        if config.subject_delete_marker_ttl:
            raise StreamInvalidConfigError("subject delete markers forbidden on mirrors")
        _check_source(config, mirror, streams, _MIRROR)
        if mirror.external is None and mirror.name in streams:
            config = config.replace(mirror_direct=streams[mirror.name].config.allow_direct)
    elif config.sources:
        if config.allow_msg_schedules:
            raise ErrorCode.SOURCE_WITH_MSG_SCHEDULES.error()
        keys = [source_key(source) for source in config.sources]
        counts = Counter(keys)
        for source, key in zip(config.sources, keys, strict=True):
            if counts[key] > 1:
                raise ErrorCode.SOURCE_DUPLICATE_DETECTED.error()
            _check_source(config, source, streams, _SOURCE)
    _check_cycle(config, streams)
    return config


def _check_source(
    config: StreamConfig, source: StreamSource, streams: Mapping[str, ConfiguredStream], codes: _Codes
) -> None:
    is_mirror = codes is _MIRROR
    if not (is_mirror and source.external is not None) and not _is_name(source.name):
        raise codes.name.error()
    if source.filter_subject and source.subject_transforms:
        raise codes.multiple_filters.error()
    if source.filter_subject and not is_valid_filter(source.filter_subject):
        what = "the mirror" if is_mirror else "the source:"  # nats-server's texts
        text = f"subject filter '{source.filter_subject}' for {what} invalid subject"
        raise ErrorCode.STREAM_CREATE.error(err=text)
    _check_transforms(source.subject_transforms, codes)
    if source.external is not None:
        _check_external(source.external.api, source.external.deliver)
    elif source.name in streams and 0 < config.max_msg_size < streams[source.name].config.max_msg_size:
        raise codes.message_size.error()


def _check_transforms(transforms: Sequence[SubjectTransform], codes: _Codes) -> None:
    for transform in transforms:
        if transform.src and not is_valid_filter(transform.src):
            raise codes.filter.error(err=f"invalid subject {transform.src}")
        try:
            SubjectMapping(transform.src, transform.dest)
        except ValueError as exc:
            raise codes.destination.error(err=exc) from exc
    filters = [transform.src or ">" for transform in transforms]
    compare = bounds.some_overlap if codes is _MIRROR else bounds.some_covered
    if compare("stream subject_transforms", filters):
        raise codes.overlap.error()


def _check_external(api: str, deliver: str) -> None:
    if deliver and (not is_valid_filter(deliver) or has_wildcard(deliver)):
        raise ErrorCode.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJECT.error(prefix=deliver)
    if api and (not is_valid_filter(api) or has_wildcard(api)):
        text = f'stream external api prefix "{api}" must be a valid subject without wildcards'
        raise StreamInvalidConfigError(text)
    if api == API_PREFIX:
        raise ErrorCode.STREAM_EXTERNAL_API_OVERLAP.error(prefix=api, subject=API_PREFIX)


def _is_name(name: str) -> bool:
    return bool(name) and not any(char in ".*>\\/" or char.isspace() or char == "\0" for char in name)


def _check_cycle(config: StreamConfig, streams: Mapping[str, ConfiguredStream]) -> None:
    """Reject cycles: a message must not return to its origin."""
    waiting, visited, steps = deque([config]), set(), 0
    looked_at: dict[str, int] = {}  # stream -> how many were visited when its sources were looked at last
    while waiting:
        current = waiting.popleft()
        visited.add(current.name)
        if looked_at.get(current.name) == len(visited):
            continue  # one of several sources that are the same stream: nothing has changed since the one before
        looked_at[current.name] = len(visited)
        for source in current.sources:
            if source.external is not None:
                continue
            steps += 1
            if source.name not in visited:
                waiting += [streams[source.name].config] if source.name in streams else []
            elif not source.filter_subject or any(overlaps(s, source.filter_subject) for s in current.subjects):
                raise StreamInvalidConfigError("detected cycle")
            else:
                steps += len(current.subjects)
        bounds.check_steps("sources", steps)
        mirror = current.mirror
        if mirror is not None and mirror.external is None:
            if mirror.name in visited:
                raise StreamInvalidConfigError("detected cycle")
            waiting += [streams[mirror.name].config] if mirror.name in streams else []

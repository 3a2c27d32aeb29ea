"""Configuration, status and address of a bucket, and how each maps to its stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from slipstream.api import (
    ExternalStream,
    Placement,
    Republish,
    Storage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
    names,
)
from slipstream.api.fields_set import TracksFields, TracksFieldsType
from slipstream.api.times import duration
from slipstream.errors import UsageError
from slipstream.jetstream.requests import check_bucket
from slipstream.kv.keys import check_key, check_pattern
from slipstream.wire import check_subject

__all__ = ["Address", "BucketConfig", "BucketSource", "BucketStatus", "check_bucket", "check_key"]

MAX_HISTORY = 64
BACKING_STORE = "JetStream"
STREAM_PREFIX = "KV_"
SUBJECT_PREFIX = "$KV."
DUPLICATE_WINDOW = timedelta(minutes=2)
SHORTEST_TTL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSource:
    """A bucket that another one mirrors or aggregates.

    `keys` selects the keys that an aggregate takes; `prefix`, if set, is put before them there. `external` is for a
    bucket of another domain, account or server. `stream` (and its `subject_prefix`) is needed only for a bucket with a
    stream other than `KV_<bucket>`.
    """

    bucket: str
    keys: str = ">"
    prefix: str = ""
    external: ExternalStream | None = None
    stream: str = ""
    subject_prefix: str = ""

    def as_mirror(self) -> StreamSource:
        """The `mirror` of a read replica's stream configuration."""
        if self.prefix or self.keys != ">":
            raise UsageError(
                "mirror must not set keys or prefix: it has all keys of its origin under their names; use sources"
            )
        return StreamSource(name=self._stream(), external=self.external)

    def as_source(self, bucket: str) -> StreamSource:
        """One of the `sources` of an aggregate's stream configuration: subjects are mapped to those of `bucket`."""
        keys = check_pattern(self.keys)
        origin = self.subject_prefix or SUBJECT_PREFIX + check_bucket(self.bucket)
        below = f"{check_key(self.prefix)}." if self.prefix else ""
        transform = SubjectTransform(src=f"{origin}.{keys}", dest=f"{SUBJECT_PREFIX}{bucket}.{below}{_numbered(keys)}")
        return StreamSource(name=self._stream(), external=self.external, subject_transforms=(transform,))

    def _stream(self) -> str:
        return self.stream or STREAM_PREFIX + check_bucket(self.bucket)


def _numbered(pattern: str) -> str:
    """The same tokens as the destination of a subject transform: each `*` by its number."""
    tokens, number = pattern.split("."), 0
    for at, token in enumerate(tokens):
        if token == "*":
            number += 1
            tokens[at] = f"{{{{wildcard({number})}}}}"
    return ".".join(tokens)


def _source(source: BucketSource | str) -> BucketSource:
    return BucketSource(bucket=source) if isinstance(source, str) else source


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig(TracksFields, metaclass=TracksFieldsType):
    """Configuration of a bucket. A limit of -1 is unlimited; a `ttl` of 0 keeps values forever.

    `value_ttl` allows a TTL per value. With `limit_marker_ttl` the server leaves a marker, kept for that long, where
    its limits remove the last value of a key (this allows a TTL per value too). `mirror` makes a read replica of
    another bucket, `sources` an aggregate of several. `stream` and `subject_prefix` are for names other than
    `KV_<bucket>` and `$KV.<bucket>`.
    """

    bucket: str
    description: str = ""
    history: int = 1
    ttl: timedelta = timedelta(0)
    max_value_size: int = -1
    max_bytes: int = -1
    storage: str = Storage.FILE.value
    replicas: int = 1
    value_ttl: bool = False
    limit_marker_ttl: timedelta = timedelta(0)
    mirror: BucketSource | str | None = None
    sources: Sequence[BucketSource | str] = ()
    placement: Placement | None = None
    republish: Republish | None = None
    compression: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    stream: str = ""
    subject_prefix: str = ""

    def __post_init__(self) -> None:
        for name in ("ttl", "limit_marker_ttl"):  # a number of seconds is a duration too
            object.__setattr__(self, name, duration(getattr(self, name), name))

    @property
    def stream_name(self) -> str:
        """The name of the bucket's stream."""
        return self.stream or STREAM_PREFIX + check_bucket(self.bucket)

    @property
    def key_prefix(self) -> str:
        """The configured prefix of keys, if any: a mirror has the subjects of its origin."""
        return _source(self.mirror).subject_prefix if self.mirror else self.subject_prefix

    def stream_config(self) -> StreamConfig:
        """The configuration of the bucket's stream, exactly as the specification has it.

        `allow_direct` is always set: the specification expects servers to turn it on, released ones do not.
        """
        return self.applied_to(StreamConfig(name=self.stream_name))

    def applied_to(self, current: StreamConfig) -> StreamConfig:
        """A stream's configuration with this bucket's options; its other settings stay."""
        self._check()
        name = check_bucket(self.bucket)
        prefix = check_subject(self.subject_prefix) if self.subject_prefix else SUBJECT_PREFIX + name
        return current.replace(
            description=self.description,
            subjects=() if self.mirror else (f"{prefix}.>",),
            max_msgs_per_subject=self.history,
            max_bytes=self.max_bytes,
            max_age=self.ttl,
            max_msg_size=self.max_value_size,
            storage=self.storage,
            num_replicas=self.replicas,
            duplicate_window=min(self.ttl, DUPLICATE_WINDOW) if self.ttl else DUPLICATE_WINDOW,
            placement=self.placement or current.placement,
            republish=self.republish,
            compression="s2" if self.compression else "none",
            mirror=_source(self.mirror).as_mirror() if self.mirror else None,
            sources=tuple(_source(each).as_source(name) for each in self.sources),
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            mirror_direct=bool(self.mirror),
            allow_msg_ttl=self.value_ttl or bool(self.limit_marker_ttl),
            subject_delete_marker_ttl=self.limit_marker_ttl,
            metadata={**current.metadata, **self.metadata},
        )

    def _check(self) -> None:
        if not 1 <= self.history <= MAX_HISTORY:
            raise UsageError(f"history must be 1 to {MAX_HISTORY}, got {self.history}")
        if self.ttl < timedelta(0):
            raise UsageError(f"ttl must be 0 (forever) or more, got {self.ttl!r}")
        if self.limit_marker_ttl and self.limit_marker_ttl < SHORTEST_TTL:
            raise UsageError(
                f"limit_marker_ttl must be 0 (no markers) or at least 1 second, got {self.limit_marker_ttl!r}"
            )
        if self.mirror and (self.sources or self.limit_marker_ttl or self.subject_prefix):
            raise UsageError("a mirror must not set sources, limit_marker_ttl or subject_prefix")


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a bucket: its stream, the prefix of stored subjects, and the prefix that writes are published to."""

    stream: str
    prefix: str  # of stored subjects, with the dot
    put_prefix: str  # of subjects to publish to, with the dot
    is_direct: bool = True

    @classmethod
    def usual(cls, bucket: str, *, api_prefix: str = names.API_PREFIX) -> Address:
        """The address of a bucket with the standard names. With another API prefix (a domain) writes use it too."""
        prefix = f"{SUBJECT_PREFIX}{check_bucket(bucket)}."
        return cls(STREAM_PREFIX + bucket, prefix, _put_prefix(prefix, api_prefix))

    @classmethod
    def found(cls, config: StreamConfig, *, api_prefix: str, subject_prefix: str = "", put_prefix: str = "") -> Address:
        """The address that a stream's configuration implies; explicit prefixes take precedence."""
        stored, origin, api = _prefixes(config, api_prefix)
        stored, origin = subject_prefix or stored, subject_prefix or origin
        if not stored:
            raise UsageError(
                f"stream {config.name!r} does not say which subjects are keys (it has {list(config.subjects)}): "
                "pass subject_prefix"
            )
        put = f"{put_prefix}." if put_prefix else _put_prefix(f"{origin}.", api)
        is_direct = config.mirror_direct or config.allow_direct if config.mirror else config.allow_direct
        return cls(config.name, f"{stored}.", put, is_direct)


def _put_prefix(prefix: str, api_prefix: str) -> str:
    return prefix if api_prefix == names.API_PREFIX else f"{api_prefix}.{prefix}"


def _prefixes(config: StreamConfig, api_prefix: str) -> tuple[str, str, str]:
    """Prefixes of the stored subjects and of the origin's, and the API prefix of the origin, which takes writes."""
    mirror = config.mirror
    if mirror is None:
        usual = SUBJECT_PREFIX + config.name.removeprefix(STREAM_PREFIX)
        own = [subject.removesuffix(".>") for subject in config.subjects if subject.endswith(".>")]
        alone = own[0] if len(own) == 1 and len(config.subjects) == 1 else ""
        prefix = usual if usual in own else alone  # the stream may have other subjects beside the keys
        return prefix, prefix, api_prefix
    api = mirror.external.api if mirror.external and mirror.external.api else api_prefix
    if len(mirror.subject_transforms) == 1:
        transform = mirror.subject_transforms[0]
        return transform.dest.removesuffix(".>"), transform.src.removesuffix(".>"), api
    if not mirror.name.startswith(STREAM_PREFIX):
        return "", "", api
    origin = SUBJECT_PREFIX + mirror.name.removeprefix(STREAM_PREFIX)
    return origin, origin, api


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The state of a bucket, and the info of its stream."""

    bucket: str
    stream_info: StreamInfo
    backing_store: str = BACKING_STORE

    @property
    def values(self) -> int:
        """How many messages the bucket holds, historical values included."""
        return self.stream_info.state.messages

    @property
    def history(self) -> int:
        """How many values are kept per key."""
        return self.stream_info.config.max_msgs_per_subject

    @property
    def ttl(self) -> timedelta:
        """How long values are kept; 0 is forever."""
        return self.stream_info.config.max_age

    @property
    def bytes(self) -> int:
        """The size of the bucket on its server."""
        return self.stream_info.state.bytes

    @property
    def last_revision(self) -> int:
        """The newest revision."""
        return self.stream_info.state.last_seq

    @property
    def value_ttl(self) -> bool:
        """Whether a value may have a TTL of its own."""
        return self.stream_info.config.allow_msg_ttl

    @property
    def limit_marker_ttl(self) -> timedelta:
        """How long markers left by the server's limits are kept; 0: it leaves none."""
        return self.stream_info.config.subject_delete_marker_ttl

    @property
    def mirror_of(self) -> str:
        """The stream that this bucket is a read replica of; empty if it is none."""
        mirror = self.stream_info.config.mirror
        return mirror.name if mirror else ""

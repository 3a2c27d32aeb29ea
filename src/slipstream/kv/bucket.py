"""Configuration, status and address of a bucket, and how each maps to its stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from slipstream.api import (
    ExternalStream,
    Placement,
    Republish,
    Retention,
    Storage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
    names,
)
from slipstream.api.fields_set import ConfigType, TracksFields, one_of
from slipstream.api.notebook import facts
from slipstream.api.times import Duration
from slipstream.errors import UsageError
from slipstream.jetstream.requests import check_bucket
from slipstream.kv.keys import check_key, check_pattern
from slipstream.kv.lifetime import SHORTEST_TTL, shortest_ttl
from slipstream.wire import check_subject

__all__ = ["Address", "BucketConfig", "BucketSource", "BucketStatus", "check_bucket", "check_key"]

MAX_HISTORY = 64
BACKING_STORE = "JetStream"
STREAM_PREFIX = "KV_"
SUBJECT_PREFIX = "$KV."
DUPLICATE_WINDOW = timedelta(minutes=2)
OWN_METADATA = "slipstream.kv."  # metadata of a stream that the client keeps for itself
SERVER_METADATA = "_nats."


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSource(TracksFields, metaclass=ConfigType):
    """A bucket that another one mirrors or aggregates.

    `keys` selects the keys that an aggregate takes; `prefix`, if set, is put before them there. `external` is for a
    bucket of another domain, account or server. `stream` is needed only for a bucket with a stream other than
    `KV_<bucket>`, and `subject_prefix` if its keys are not below `$KV.<bucket>` and its server cannot be asked.
    """

    bucket: str = field(kw_only=False)
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
        return StreamSource(name=self.stream_name, external=self.external)

    def as_source(self, prefix: str) -> StreamSource:
        """One of the `sources` of an aggregate's stream configuration: keys are moved below the aggregate's prefix."""
        keys = check_pattern(self.keys)
        origin = self.subject_prefix or SUBJECT_PREFIX + check_bucket(self.bucket)
        below = f"{check_key(self.prefix)}." if self.prefix else ""
        transform = SubjectTransform(src=f"{origin}.{keys}", dest=f"{prefix}.{below}{_numbered(keys)}")
        return StreamSource(name=self.stream_name, external=self.external, subject_transforms=(transform,))

    @classmethod
    def of_stream(cls, source: StreamSource, prefix: str = "") -> BucketSource:
        """The bucket that a stream mirrors, or collects below `prefix`."""
        is_usual = source.name.startswith(STREAM_PREFIX)
        bucket = source.name.removeprefix(STREAM_PREFIX)
        found = cls(bucket=bucket, external=source.external, stream="" if is_usual else source.name)
        if not prefix or len(source.subject_transforms) != 1:
            return found
        transform = source.subject_transforms[0]
        src, dest = transform.src.split("."), transform.dest.removeprefix(f"{prefix}.").split(".")
        usual = found.subject_prefix or f"{SUBJECT_PREFIX}{bucket}"
        longest = min(len(src) - 1, len(dest))
        # How many tokens of the source are keys is not stored. Any cut with equal ends gives the same transform again.
        for count in (len(src) - len(usual.split(".")), *range(longest, 0, -1)):
            if 0 < count <= longest and _numbered(".".join(src[-count:])).split(".") == dest[-count:]:
                origin = ".".join(src[:-count])
                return replace(
                    found,
                    keys=".".join(src[-count:]),
                    prefix=".".join(dest[:-count]),
                    subject_prefix="" if origin == usual else origin,
                )
        return found

    @property
    def stream_name(self) -> str:
        """The name of the bucket's stream."""
        return self.stream or STREAM_PREFIX + check_bucket(self.bucket)


def _numbered(pattern: str) -> str:
    """The same tokens as the destination of a subject transform: each `*` by its number."""
    tokens, number = pattern.split("."), 0
    for at, token in enumerate(tokens):
        if token == "*":
            number += 1
            tokens[at] = f"{{{{wildcard({number})}}}}"
    return ".".join(tokens)


def as_source(source: BucketSource | str) -> BucketSource:
    """A source by its bucket's name, or as it is."""
    return BucketSource(bucket=source) if isinstance(source, str) else source


def _one_source(value: Any, name: str) -> BucketSource | str | None:
    if value is None or isinstance(value, (str, BucketSource)):
        return value
    raise UsageError(f"{name} must be a bucket's name or a BucketSource, got {value!r}")


def _several_sources(value: Any, name: str) -> tuple[BucketSource | str, ...]:
    each = [value] if isinstance(value, (str, BucketSource)) else value
    if not isinstance(each, (list, tuple)) or not all(isinstance(one, (str, BucketSource)) for one in each):
        raise UsageError(f"{name} must be a sequence of buckets' names or of BucketSource, got {value!r}")
    return tuple(each)


class BucketFields(TypedDict, total=False):
    """The fields of a `BucketConfig` except its name, as a program may pass them."""

    description: str
    history: int
    ttl: Duration
    max_value_size: int
    max_bytes: int
    storage: Storage | Literal["file", "memory"]
    replicas: int
    value_ttl: bool
    limit_marker_ttl: Duration
    mirror: BucketSource | str | None
    sources: BucketSource | str | Sequence[BucketSource | str]
    placement: Placement | None
    republish: Republish | None
    compression: bool
    metadata: dict[str, str]
    stream: str
    subject_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig(TracksFields, metaclass=ConfigType):
    """Configuration of a bucket. A limit of -1 is unlimited; a `ttl` of 0 keeps values forever.

    `value_ttl` allows a TTL per value. With `limit_marker_ttl` the server leaves a marker, kept for that long, where
    its limits remove the last value of a key (this allows a TTL per value too; with a `history` above 1 none shorter
    than the markers'). `mirror` makes a read replica of
    another bucket, which takes over its `history`, `ttl` and `value_ttl` where they are not set; `sources` makes an
    aggregate of several. `stream` and `subject_prefix` are for names other than `KV_<bucket>` and `$KV.<bucket>`.
    """

    bucket: str = field(kw_only=False)
    description: str = ""
    history: int = 1
    ttl: timedelta = timedelta(0)
    max_value_size: int = -1
    max_bytes: int = -1
    storage: str = field(default=Storage.FILE.value, metadata=one_of(Storage))
    replicas: int = 1
    value_ttl: bool = False
    limit_marker_ttl: timedelta = timedelta(0)
    mirror: BucketSource | str | None = field(default=None, metadata={"read": _one_source})
    sources: tuple[BucketSource | str, ...] = field(default=(), metadata={"read": _several_sources})
    placement: Placement | None = None
    republish: Republish | None = None
    compression: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    stream: str = ""
    subject_prefix: str = ""

    if TYPE_CHECKING:

        def __init__(self, bucket: str, **fields: Unpack[BucketFields]) -> None: ...

    @property
    def stream_name(self) -> str:
        """The name of the bucket's stream."""
        return self.stream or STREAM_PREFIX + check_bucket(self.bucket)

    @property
    def key_prefix(self) -> str:
        """The configured prefix of keys, if any: a mirror has the subjects of its origin."""
        return as_source(self.mirror).subject_prefix if self.mirror else self.subject_prefix

    @classmethod
    def of_stream(cls, config: StreamConfig, bucket: str = "") -> BucketConfig:
        """The options of a bucket of any client, by the configuration of its stream. Every field counts as set."""
        bucket = bucket or config.name.removeprefix(STREAM_PREFIX)
        prefix, usual = _prefixes(config, "")[0], SUBJECT_PREFIX + bucket
        private = (SERVER_METADATA, OWN_METADATA)
        return cls(
            bucket=bucket,
            description=config.description,
            history=config.max_msgs_per_subject,
            ttl=config.max_age,
            max_value_size=config.max_msg_size if config.max_msg_size > 0 else -1,
            max_bytes=config.max_bytes if config.max_bytes > 0 else -1,
            storage=cast("Any", config.storage),
            replicas=config.num_replicas,
            value_ttl=config.allow_msg_ttl,
            limit_marker_ttl=config.subject_delete_marker_ttl,
            mirror=BucketSource.of_stream(config.mirror) if config.mirror else None,
            sources=tuple(BucketSource.of_stream(source, prefix) for source in config.sources),
            placement=config.placement,
            republish=config.republish,
            compression=config.compression != "none",
            metadata={key: value for key, value in config.metadata.items() if not key.startswith(private)},
            stream="" if config.name == STREAM_PREFIX + bucket else config.name,
            subject_prefix="" if config.mirror or prefix == usual else prefix,
        )

    def stream_config(self) -> StreamConfig:
        """The configuration of the bucket's stream, exactly as the specification has it.

        `allow_direct` is always set: the specification expects servers to turn it on, released ones do not.
        """
        self._check()
        return StreamConfig(
            name=self.stream_name, allow_rollup_hdrs=True, deny_delete=True, allow_direct=True, **_settings(self)
        )

    def applied_to(self, current: StreamConfig) -> StreamConfig:
        """A stream's configuration with the options that were set here; everything else is unchanged."""
        self._check()
        now = BucketConfig.of_stream(current, self.bucket)
        wanted = now.replace(**{name: getattr(self, name) for name in self.fields_set if name in _DECIDES})
        settings = _settings(wanted)
        changes = {
            setting: settings[setting]
            for option, decided in _DECIDES.items()
            if getattr(wanted, option) != getattr(now, option)
            for setting in decided
        }
        if "metadata" in changes:
            changes["metadata"] = {**current.metadata, **wanted.metadata}
        return current.replace(**changes)

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


def _settings(config: BucketConfig) -> dict[str, Any]:
    """The settings of a stream that the options decide."""
    prefix = (
        check_subject(config.subject_prefix) if config.subject_prefix else SUBJECT_PREFIX + check_bucket(config.bucket)
    )
    return {
        "description": config.description,
        "subjects": () if config.mirror else (f"{prefix}.>",),
        "max_msgs_per_subject": config.history,
        "max_bytes": config.max_bytes,
        "max_age": config.ttl,
        "max_msg_size": config.max_value_size,
        "storage": config.storage,
        "num_replicas": config.replicas,
        "duplicate_window": min(config.ttl, DUPLICATE_WINDOW) if config.ttl else DUPLICATE_WINDOW,
        "placement": config.placement,
        "republish": config.republish,
        "compression": "s2" if config.compression else "none",
        "mirror": as_source(config.mirror).as_mirror() if config.mirror else None,
        "sources": tuple(as_source(each).as_source(prefix) for each in config.sources),
        "mirror_direct": bool(config.mirror),
        "allow_msg_ttl": config.value_ttl or bool(config.limit_marker_ttl),
        "subject_delete_marker_ttl": config.limit_marker_ttl,
        "metadata": dict(config.metadata),
    }


# The settings of a stream that each option of a bucket decides.
_DECIDES = {
    "description": ("description",),
    "history": ("max_msgs_per_subject",),
    "ttl": ("max_age", "duplicate_window"),
    "max_value_size": ("max_msg_size",),
    "max_bytes": ("max_bytes",),
    "storage": ("storage",),
    "replicas": ("num_replicas",),
    "value_ttl": ("allow_msg_ttl",),
    "limit_marker_ttl": ("subject_delete_marker_ttl", "allow_msg_ttl"),
    "mirror": ("mirror", "mirror_direct", "subjects"),
    "sources": ("sources",),
    "placement": ("placement",),
    "republish": ("republish",),
    "compression": ("compression",),
    "metadata": ("metadata",),
    "subject_prefix": ("subjects", "sources"),
}
# What a stream must have to keep values as a bucket does, whatever its options are.
_REQUIRED = {
    "retention": Retention.LIMITS.value,
    "max_msgs": -1,
    "allow_rollup_hdrs": True,
    "discard_new_per_subject": False,
}


def differences(wanted: StreamConfig, found: StreamConfig, config: BucketConfig) -> dict[str, tuple[object, object]]:
    """The options in which a bucket that exists differs from the one of `config`: each with both values.

    Only what the specification says of buckets, or an option decides, counts. Other clients make them with other
    settings besides: `discard`, `allow_direct`, `deny_delete`, duplicate windows, metadata that was not asked for. A
    TTL per value, which nats-py always allows, is a difference only if `value_ttl=False` was set.
    """
    ours, theirs = BucketConfig.of_stream(wanted, config.bucket), BucketConfig.of_stream(found, config.bucket)
    if theirs.republish is not None and ours.republish == theirs.republish.replace(src=""):  # no source: all subjects
        theirs = theirs.replace(republish=ours.republish)
    different = {
        option: (getattr(ours, option), getattr(theirs, option))
        for option in _DECIDES
        if getattr(ours, option) != getattr(theirs, option)
    }
    if theirs.value_ttl and "value_ttl" not in config.fields_set:
        different.pop("value_ttl", None)
    if wanted.placement is None:  # left to the server
        different.pop("placement", None)
    if ours.metadata.items() <= theirs.metadata.items():
        different.pop("metadata", None)
    if set(wanted.subjects) <= set(found.subjects) and bool(wanted.mirror) == bool(found.mirror):
        different.pop("subject_prefix", None)
    if wanted.sources != found.sources:  # also where a bucket's options cannot express what is found
        different["sources"] = ours.sources, theirs.sources
    for setting, required in _REQUIRED.items():
        has = getattr(found, setting)
        if has != required and not (setting == "max_msgs" and has <= 0):
            different[setting] = required, has
    return different


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a bucket: its stream, the prefix of stored subjects, and the prefix that writes are published to."""

    stream: str
    prefix: str  # of stored subjects, with the dot
    put_prefix: str  # of subjects to publish to, with the dot
    is_direct: bool = True
    origin: str = ""  # of a read replica: the stream that takes its writes, and where it is

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
        return cls(
            config.name, f"{stored}.", put, is_direct, stream_at(config.mirror.name, api) if config.mirror else ""
        )

    @classmethod
    def of_replica(cls, config: StreamConfig, origin: StreamConfig, *, api_prefix: str) -> Address:
        """The address of a read replica whose origin has that configuration, and is below that API prefix."""
        theirs, own = cls.found(origin, api_prefix=api_prefix), config.mirror_direct or config.allow_direct
        return cls(config.name, theirs.prefix, theirs.put_prefix, own, stream_at(origin.name, api_prefix))


def stream_at(stream: str, api_prefix: str) -> str:
    """A stream and where it is, for messages."""
    return f"stream {stream!r}" + (f" below {api_prefix!r}" if api_prefix != names.API_PREFIX else "")


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

    def _repr_html_(self) -> str:
        state = self.stream_info.state
        return facts(
            f"Bucket {self.bucket}",
            (
                ("Description", self.stream_info.config.description or None),
                ("Keys", self.num_keys),
                ("Values", self.values),
                ("History", self.history),
                ("Bytes", state.bytes),
                ("Last revision", state.last_seq),
                ("Last change", state.last_timestamp),
            ),
        )

    @property
    def config(self) -> BucketConfig:
        """The bucket's options, all of them: change some with `replace` and pass them to `update_key_value`."""
        return BucketConfig.of_stream(self.stream_info.config, self.bucket)

    @property
    def num_keys(self) -> int:
        """How many keys have an entry, be it a mark. Their names: `kv.keys()`."""
        return self.stream_info.state.num_subjects

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
        """Whether values may have their own TTL."""
        return self.stream_info.config.allow_msg_ttl

    @property
    def limit_marker_ttl(self) -> timedelta:
        """How long markers left by the server's limits are kept; 0: it leaves none."""
        return self.stream_info.config.subject_delete_marker_ttl

    @property
    def shortest_ttl(self) -> timedelta:
        """The shortest TTL that a value may have, where it may have one: see `limit_marker_ttl`."""
        return shortest_ttl(self.stream_info.config)

    @property
    def mirror_of(self) -> str:
        """The stream that this bucket is a read replica of; empty if it is none."""
        mirror = self.stream_info.config.mirror
        return mirror.name if mirror else ""

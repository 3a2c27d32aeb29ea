"""Configuration, status, subjects and object records of an object bucket.

The layout is the one every NATS client uses: the chunks of an object on a subject of their own, its record (the "meta
message", rolled up so that there is only one) on a subject made of its name. The record is written last, so an object
becomes visible only when all of its chunks are stored.
"""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import msgspec

from slipstream.api import Placement, Storage, StreamConfig, StreamInfo, encode_json
from slipstream.api.fields_set import ConfigType, TracksFields, one_of
from slipstream.api.model import TIME, JsonModel, always, nested, via
from slipstream.api.times import ZERO, Duration, to_datetime_or_none
from slipstream.errors import RemoteProtocolError, UsageError
from slipstream.jetstream.requests import check_bucket
from slipstream.wire import Headers
from slipstream.wire.arguments import check_text

STREAM_PREFIX = "OBJ_"
BACKING_STORE = "JetStream"
DEFAULT_CHUNK_SIZE = 128 * 1024
DIGEST = "SHA-256="


def header_lists(headers: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Headers in the form of a record: lists of values. A string is one value, not a sequence of characters."""
    Headers(headers)  # raises for what is no header
    return {key: [values] if isinstance(values, str) else list(values) for key, values in headers.items()}


def check_name(name: str) -> str:
    """Return an object's `name`, or raise a UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"object name must be a non-empty string, got {name!r}")
    return check_text(name, "object name")


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of an object; raises UsageError if it is no mapping of strings to strings."""
    is_mapping = isinstance(metadata, Mapping)
    if not is_mapping or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise UsageError(f"metadata must be a mapping of strings to strings, got {metadata!r}")
    return dict(metadata)


class ObjectStoreFields(TypedDict, total=False):
    """The fields of an `ObjectStoreConfig` except its name, as a program may pass them."""

    description: str
    ttl: Duration
    max_bytes: int
    storage: Storage | Literal["file", "memory"]
    replicas: int
    placement: Placement | None
    compression: bool
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig(TracksFields, metaclass=ConfigType):
    """Configuration of an object bucket. A limit of -1 is unlimited; a `ttl` of 0 keeps objects forever."""

    bucket: str = field(kw_only=False)
    description: str = ""
    ttl: timedelta = timedelta(0)
    max_bytes: int = -1
    storage: str = field(default=Storage.FILE.value, metadata=one_of(Storage))
    replicas: int = 1
    placement: Placement | None = None
    compression: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(self, bucket: str, **fields: Unpack[ObjectStoreFields]) -> None: ...

    def stream_config(self) -> StreamConfig:
        """The configuration of the bucket's stream. A full one rejects chunks: dropping old ones damages objects."""
        if self.ttl < timedelta(0):
            raise UsageError(f"ttl must be 0 (forever) or more, got {self.ttl!r}")
        name = check_bucket(self.bucket)
        return StreamConfig(
            name=STREAM_PREFIX + name,
            description=self.description,
            subjects=(f"$O.{name}.C.>", f"$O.{name}.M.>"),
            max_age=self.ttl,
            max_bytes=self.max_bytes or -1,
            storage=Storage(self.storage),
            num_replicas=self.replicas,
            placement=self.placement,
            discard="new",
            allow_rollup_hdrs=True,
            allow_direct=True,
            compression="s2" if self.compression else "none",
            metadata=self.metadata,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLink(JsonModel):
    """The target of a link: an object of a bucket, or without a name the bucket itself."""

    bucket: str = always("")
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions(JsonModel):
    """The chunk size of an object, or the target of a link."""

    link: ObjectLink | None = via(nested(ObjectLink), default=None)
    max_chunk_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo(JsonModel):
    """The record of an object.

    `sequence` is that of the record in the stream: pass it as `min_last_seq` to see this write in later reads. `mtime`
    is when the record was stored, in nanoseconds since the epoch by the server's clock (0 in the result of a write
    whose record was replaced at once), `modified_at` the same as a datetime.
    """

    name: str = always("")
    description: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: ObjectOptions | None = via(nested(ObjectOptions), default=None)
    bucket: str = always("")
    nuid: str = always("")
    size: int = always(0)
    mtime: int = via(TIME, default=ZERO, always=True)
    chunks: int = always(0)
    digest: str = ""
    deleted: bool = False
    sequence: int = 0

    @property
    def modified_at(self) -> datetime | None:
        """`mtime` as a datetime in UTC."""
        return to_datetime_or_none(self.mtime)

    @property
    def link(self) -> ObjectLink | None:
        """The target, if it is a link."""
        return self.options.link if self.options is not None else None

    def record(self) -> bytes:
        """The stored form. `mtime` is the time of the message, so none is written; other clients do the same."""
        body = replace(self, mtime=ZERO).to_dict()
        body.pop("sequence", None)
        return encode_json(body)


@dataclass(frozen=True, slots=True)
class ObjectStoreStatus:
    """The state of a bucket, and the info of its stream."""

    bucket: str
    stream_info: StreamInfo

    @property
    def description(self) -> str:
        """The description in its configuration."""
        return self.stream_info.config.description

    @property
    def ttl(self) -> timedelta:
        """How long objects are kept; 0 is forever."""
        return self.stream_info.config.max_age

    @property
    def storage(self) -> str:
        """The storage type: file or memory."""
        return self.stream_info.config.storage

    @property
    def replicas(self) -> int:
        """How many servers hold a copy."""
        return self.stream_info.config.num_replicas

    @property
    def sealed(self) -> bool:
        """Whether the bucket rejects further changes."""
        return self.stream_info.config.sealed

    @property
    def compressed(self) -> bool:
        """Whether the server compresses it."""
        return self.stream_info.config.compression not in ("", "none")

    @property
    def size(self) -> int:
        """The size of the bucket in bytes, records included."""
        return self.stream_info.state.bytes

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata in its configuration."""
        return self.stream_info.config.metadata

    @property
    def backing_store(self) -> str:
        """The kind of backend."""
        return BACKING_STORE


class Subjects:
    """The subjects of one bucket."""

    def __init__(self, bucket: str) -> None:
        self.records: str = f"$O.{bucket}.M.>"
        self._bucket = bucket

    def record(self, name: str) -> str:
        """The subject of an object's record."""
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(check_name(name).encode()).decode()}"

    def chunks(self, nuid: str) -> str:
        """The subject of an object's chunks."""
        return f"$O.{self._bucket}.C.{nuid}"


def read_record(data: bytes, *, seq: int, time: int) -> ObjectInfo:
    """Parse a record, with the sequence and time of its message."""
    try:
        body = msgspec.json.decode(data, type=dict[str, Any])
        body.pop("mtime", None)  # clients write different values into it, or none
        return replace(ObjectInfo.from_dict(body), sequence=seq, mtime=time)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"malformed object record at sequence {seq}: {exc}") from exc


def digest_text(digest: bytes) -> str:
    """A SHA-256 digest in the form of a record."""
    return DIGEST + base64.urlsafe_b64encode(digest).decode()


def same_digest(text: str, digest: bytes) -> bool:
    """Whether a record's digest equals this one; padding and the case of the method's name differ between clients."""
    method, found, value = text.partition("=")
    return bool(found) and method.upper() == "SHA-256" and value.rstrip("=") == digest_text(digest)[8:].rstrip("=")

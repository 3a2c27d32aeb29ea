"""A bucket of objects becomes a stream's configuration, an object becomes chunks and one record of what they are.

The layout is the one every NATS client uses: the chunks of an object on a subject of their own, its record (the "meta
message", rolled up so that there is only one) on a subject made of its name. The record is written last: an object is
visible when all of it is there.
"""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec

from slipstream.api import Placement, Storage, StreamConfig, StreamInfo, encode_json
from slipstream.api.model import TIME, JsonModel, always, nested, via
from slipstream.api.times import ZERO
from slipstream.errors import RemoteProtocolError, UsageError
from slipstream.jetstream.requests import check_bucket

STREAM_PREFIX = "OBJ_"
BACKING_STORE = "JetStream"
DEFAULT_CHUNK_SIZE = 128 * 1024
DIGEST = "SHA-256="


def header_lists(headers: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Headers as a record has them; a text is one value, not a sequence of characters."""
    return {key: [values] if isinstance(values, str) else list(values) for key, values in headers.items()}


def check_name(name: str) -> str:
    """Return an object's `name`, or raise a UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"bad object name {name!r}: any text that is not empty is allowed")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig:
    """How a bucket of objects is set up. A limit of -1 is no limit; a `ttl` of 0 keeps objects forever."""

    bucket: str
    description: str = ""
    ttl: timedelta = timedelta(0)
    max_bytes: int = -1
    storage: str = Storage.FILE.value
    replicas: int = 1
    placement: Placement | None = None
    compression: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    def stream_config(self) -> StreamConfig:
        """The stream that the bucket is. A full one refuses new chunks: dropping old ones would damage objects."""
        if self.ttl < timedelta(0):
            raise UsageError(f"bad ttl {self.ttl!r}: 0 (forever) or more is allowed")
        name = check_bucket(self.bucket)
        return StreamConfig(
            name=STREAM_PREFIX + name,
            description=self.description,
            subjects=(f"$O.{name}.C.>", f"$O.{name}.M.>"),
            max_age=self.ttl,
            max_bytes=self.max_bytes or -1,
            storage=self.storage,
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
    """Where a link points: an object of a bucket, or without a name the bucket itself."""

    bucket: str = always("")
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions(JsonModel):
    """How an object is stored, or that it is a link."""

    link: ObjectLink | None = via(nested(ObjectLink), default=None)
    max_chunk_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo(JsonModel):
    """What a bucket knows of an object.

    `sequence` is that of its record in the stream: what a later read may ask for with `min_last_seq`. `mtime` is when
    the record was stored, in nanoseconds since the epoch (0 where only the server knows it yet).
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
    def link(self) -> ObjectLink | None:
        """Where it points, if it is a link."""
        return self.options.link if self.options is not None else None

    def record(self) -> bytes:
        """The stored form. Its time is the message's, so none is written; other clients do the same."""
        body = replace(self, mtime=ZERO).to_dict()
        body.pop("sequence", None)
        return encode_json(body)


@dataclass(frozen=True, slots=True)
class ObjectStoreStatus:
    """The state of a bucket, and the info of the stream beneath it."""

    bucket: str
    stream_info: StreamInfo

    @property
    def description(self) -> str:
        """What its maker wrote."""
        return self.stream_info.config.description

    @property
    def ttl(self) -> timedelta:
        """How long objects are kept; 0 is forever."""
        return self.stream_info.config.max_age

    @property
    def storage(self) -> str:
        """Where it is kept."""
        return self.stream_info.config.storage

    @property
    def replicas(self) -> int:
        """How many servers have it."""
        return self.stream_info.config.num_replicas

    @property
    def sealed(self) -> bool:
        """Whether nothing can be changed any more."""
        return self.stream_info.config.sealed

    @property
    def compressed(self) -> bool:
        """Whether the server compresses it."""
        return self.stream_info.config.compression not in ("", "none")

    @property
    def size(self) -> int:
        """How much room the bucket takes, records included."""
        return self.stream_info.state.bytes

    @property
    def metadata(self) -> Mapping[str, str]:
        """What its maker attached to it."""
        return self.stream_info.config.metadata

    @property
    def backing_store(self) -> str:
        """The kind of backend."""
        return BACKING_STORE


class Subjects:
    """The subjects of one bucket."""

    def __init__(self, bucket: str) -> None:
        self.records = f"$O.{bucket}.M.>"
        self._bucket = bucket

    def record(self, name: str) -> str:
        """Where the record of an object is."""
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(check_name(name).encode()).decode()}"

    def chunks(self, nuid: str) -> str:
        """Where the chunks of an object are."""
        return f"$O.{self._bucket}.C.{nuid}"


def read_record(data: bytes, *, seq: int, time: int) -> ObjectInfo:
    """The info that a record holds, with the sequence and time of its message."""
    try:
        body = msgspec.json.decode(data, type=dict[str, Any])
        body.pop("mtime", None)  # clients write different things, or nothing, into it
        return replace(ObjectInfo.from_dict(body), sequence=seq, mtime=time)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"the record of an object (sequence {seq}) cannot be read: {exc}") from exc


def digest_text(digest: bytes) -> str:
    """A SHA-256 as it is written in a record."""
    return DIGEST + base64.urlsafe_b64encode(digest).decode()


def same_digest(text: str, digest: bytes) -> bool:
    """Whether a record's digest is this one; padding and the case of the method's name differ between clients."""
    method, found, value = text.partition("=")
    return bool(found) and method.upper() == "SHA-256" and value.rstrip("=") == digest_text(digest)[8:].rstrip("=")

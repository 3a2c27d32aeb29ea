"""A bucket's name and options become a stream's configuration, and back; keys become subjects, and back.

What the document forbids is refused here, before anything is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from slipstream.api import Storage, StreamConfig, StreamInfo
from slipstream.errors import UsageError

MAX_HISTORY = 64
BACKING_STORE = "JetStream"
STREAM_PREFIX = "KV_"
DUPLICATE_WINDOW = timedelta(minutes=2)

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_RESERVED = "_kv"


def check_bucket(bucket: str) -> str:
    """Return `bucket`, or raise a UsageError that says what a bucket may be called."""
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise UsageError(f"bad bucket name {bucket!r}: letters, digits, '_' and '-' are allowed")
    return bucket


def check_key(key: str) -> str:
    """Return `key`, or raise a UsageError that says what a key may be."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
        raise UsageError(
            f"bad key {key!r}: letters, digits and - / _ = . are allowed, not '.' at either end or twice in a row"
        )
    if key.startswith(_RESERVED):
        raise UsageError(f"bad key {key!r}: keys that begin with {_RESERVED!r} are reserved")
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """How a bucket is set up. A limit of -1 is no limit; a `ttl` of 0 keeps values forever."""

    bucket: str
    description: str = ""
    history: int = 1
    ttl: timedelta = timedelta(0)
    max_value_size: int = -1
    max_bytes: int = -1
    storage: str = Storage.FILE.value
    replicas: int = 1

    def stream_config(self) -> StreamConfig:
        """The stream that the bucket is, exactly as the document has it.

        `allow_direct` is said in words: the document's server turns it on by itself, released servers do not.
        """
        if not 1 <= self.history <= MAX_HISTORY:
            raise UsageError(f"bad history {self.history}: 1 to {MAX_HISTORY} is allowed")
        if self.ttl < timedelta(0):
            raise UsageError(f"bad ttl {self.ttl!r}: 0 (forever) or more is allowed")
        name = check_bucket(self.bucket)
        return StreamConfig(
            name=STREAM_PREFIX + name,
            description=self.description,
            subjects=(f"$KV.{name}.>",),
            max_msgs_per_subject=self.history,
            max_bytes=self.max_bytes,
            max_age=self.ttl,
            max_msg_size=self.max_value_size,
            storage=self.storage,
            num_replicas=self.replicas,
            duplicate_window=min(self.ttl, DUPLICATE_WINDOW) if self.ttl else DUPLICATE_WINDOW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
        )


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The state of a bucket, and the info of the stream beneath it."""

    bucket: str
    stream_info: StreamInfo

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
        """How much room the bucket takes."""
        return self.stream_info.state.bytes

    @property
    def backing_store(self) -> str:
        """The kind of backend."""
        return BACKING_STORE

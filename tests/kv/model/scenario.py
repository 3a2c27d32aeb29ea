"""Scenarios: a bucket's options and a list of steps, drawn at random.

Every part of a step is a small number, which the run maps to what there is (a handle, a key, a filter, a variant), so
that a failing scenario can be shortened without changing the meaning of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

from slipstream import BucketConfig, BucketSource
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.codecs import Base64Keys, Base64Values, Encrypted, Json, Keyring, PathKeys
from tests.kv.model.model import SECOND, Filter, Key, Limits

KEYS: tuple[Key, ...] = (("a",), ("a", "x"), ("b", "x", "z"), ("c",))
FILTERS: tuple[tuple[Filter, ...], ...] = ((), (("a", "*"),), (("*",),), (("b", ">"), ("a",)), (("a", ">"), ("*", "x")))


class CodecSpec(NamedTuple):
    """A way to write keys and values."""

    wrap: Callable[[KeyValue[bytes]], KeyValue[Any]] = lambda kv: kv
    write_key: Callable[[Key], str] = ".".join
    read_key: Callable[[str], Key] = lambda key: tuple(key.split("."))
    value: Callable[[int], Any] = lambda number: b"%d" % number


_RING = Keyring({"key": bytes(32)})
CODECS: dict[str, CodecSpec] = {
    "none": CodecSpec(),
    "path": CodecSpec(
        lambda kv: kv.with_codec(PathKeys()), lambda key: "/" + "/".join(key), lambda key: tuple(key[1:].split("/"))
    ),
    "base64": CodecSpec(lambda kv: kv.with_codec(Base64Keys()).with_codec(Base64Values())),
    "json": CodecSpec(lambda kv: kv.with_codec(Json()), value=lambda number: number),
    "encrypted": CodecSpec(lambda kv: kv.with_codec(Encrypted(_RING, context="model"))),
}


@dataclass(frozen=True)
class Options:
    """The options of a bucket, in seconds; of its read replica those that are set (None: there is none); and the prefix
    that an aggregate puts before its keys (None: there is none)."""

    history: int = 1
    ttl: int = 0
    value_ttl: bool = False
    marker_ttl: int = 0
    max_bytes: int = -1
    replicas: int = 1
    has_prefix: bool = False
    codec: str = "none"
    mirror: dict[str, int] | None = None
    aggregate: str | None = None

    def config(self, bucket: str) -> BucketConfig:
        return BucketConfig(
            bucket=bucket,
            history=self.history,
            ttl=timedelta(seconds=self.ttl),
            value_ttl=self.value_ttl,
            limit_marker_ttl=timedelta(seconds=self.marker_ttl),
            max_bytes=self.max_bytes,
            replicas=self.replicas,
            subject_prefix=self.prefix(bucket),
        )

    def prefix(self, bucket: str) -> str:
        return f"model.{bucket}" if self.has_prefix else ""

    def mirror_config(self, bucket: str) -> BucketConfig:
        assert self.mirror is not None
        explicit: dict[str, Any] = dict(self.mirror)
        if "ttl" in explicit:
            explicit["ttl"] = timedelta(seconds=explicit["ttl"])
        return BucketConfig(bucket=f"{bucket}-copy", mirror=bucket, **explicit)

    def aggregate_config(self, bucket: str) -> BucketConfig:
        source = BucketSource(bucket=bucket, prefix=self.aggregate or "")
        prefix = f"all.{bucket}" if self.has_prefix else ""
        return BucketConfig(bucket=f"{bucket}-all", sources=(source,), subject_prefix=prefix)

    @property
    def limits(self) -> Limits:
        return Limits(self.history, self.ttl * SECOND, self.marker_ttl * SECOND, self.max_bytes > 0)

    @property
    def is_copied_exactly(self) -> bool:
        """Whether the read replica keeps what the bucket keeps. Of a size limit that is never known, by decision."""
        same = {"history": self.history, "ttl": self.ttl, "value_ttl": self.allows_ttl}
        return self.max_bytes < 0 and all(same[name] == value for name, value in (self.mirror or {}).items())

    @property
    def allows_ttl(self) -> bool:
        return self.value_ttl or bool(self.marker_ttl)


class Step(NamedTuple):
    """One operation: its name, and numbers that select a handle, a key or filter, and a variant."""

    name: str
    handle: int = 0
    key: int = 0
    n: int = 0


@dataclass
class Scenario:
    options: Options
    steps: list[Step] = field(default_factory=list)


WRITES = (
    "put",
    "put",
    "put",
    "put_ttl",
    "put_ttl",
    "create",
    "create_ttl",
    "update",
    "stale",
    "delete",
    "purge",
    "writer",
)
READS = ("get", "get", "get", "history", "at", "keys", "range", "snapshot", "cached", "cached")
WATCHES = ("watch", "watch", "take", "take", "resume", "resume")
TIME = ("pass", "pass")
BUCKET = ("delete_range", "purge_range", "purge_deletes", "forget", "alter", "recreate", "status")
FAULTS = ("hold", "release", "cut")


def options(*, is_local: bool, times: tuple[int, ...], replicas: tuple[int, ...]) -> st.SearchStrategy[Options]:
    """Options of a bucket; a local one has no copies."""
    mirrors = st.fixed_dictionaries(
        {}, optional={"history": st.integers(1, 5), "ttl": st.sampled_from(times), "value_ttl": st.booleans()}
    )
    drawn = st.builds(
        Options,
        history=st.integers(1, 5),
        ttl=st.sampled_from(times),
        value_ttl=st.booleans(),
        marker_ttl=st.sampled_from((0, 0, 1, 3)),
        max_bytes=st.sampled_from((-1, -1, -1, 1000)),
        replicas=st.just(1) if is_local else st.sampled_from(replicas),
        has_prefix=st.just(False) if is_local else st.booleans(),
        codec=st.sampled_from(sorted(CODECS)),
        mirror=st.none() if is_local else st.one_of(st.none(), mirrors, st.just({})),
        aggregate=st.none() if is_local else st.sampled_from((None, "", "up")),
    )
    return drawn.map(_without_aggregate_of_limits)


def _without_aggregate_of_limits(options: Options) -> Options:
    """An aggregate keeps what its own limits say: it is compared with a bucket that removes nothing by itself."""
    has_limits = options.ttl or options.allows_ttl or options.max_bytes > 0
    return replace(options, aggregate=None) if has_limits else options


def scenarios(
    *,
    is_local: bool = False,
    length: int = 30,
    names: tuple[str, ...] = (*WRITES, *READS, *WATCHES, *TIME, *BUCKET, *FAULTS),
    times: tuple[int, ...] = (0, 0, 4, 20),
    replicas: tuple[int, ...] = (1, 1, 3),
) -> st.SearchStrategy[Scenario]:
    steps = st.builds(Step, st.sampled_from(names), st.integers(0, 6), st.integers(0, 4), st.integers(0, 7))
    return st.builds(
        Scenario,
        options(is_local=is_local, times=times, replicas=replicas),
        st.lists(steps, min_size=length // 3, max_size=length),
    )

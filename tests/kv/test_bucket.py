"""Names and options of buckets, without a server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.api import StreamConfig
from slipstream.errors import UsageError
from slipstream.kv.bucket import Address, BucketConfig, check_bucket, check_key
from slipstream.kv.entry import Entry, Operation, mark_of, operation_of


@pytest.mark.parametrize("key", ["a", "a.b", "A-/_=.z9", "/a/b", "x_kv"])
def test_good_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\n", "_kv", "_kv.x", "a:b"])
def test_bad_keys_are_refused_with_what_is_allowed(key: str) -> None:
    with pytest.raises(UsageError, match=r"key must .*, got"):
        check_key(key)


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a/b", "ä", "a\n", "*"])
def test_bad_buckets_are_refused(bucket: str) -> None:
    with pytest.raises(UsageError, match="bad bucket"):
        check_bucket(bucket)


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("history", [0, 65, -1])
def test_history_is_one_to_64(history: int) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        BucketConfig(bucket="b", history=history).stream_config()


def test_a_negative_ttl_is_refused() -> None:
    with pytest.raises(UsageError, match="ttl"):
        BucketConfig(bucket="b", ttl=timedelta(seconds=-1)).stream_config()


@pytest.mark.parametrize(("ttl", "window"), [(0, 120), (30, 30), (119, 119), (120, 120), (3600, 120)])
def test_the_duplicate_window_is_the_ttl_when_that_is_under_two_minutes(ttl: int, window: int) -> None:
    config = BucketConfig(bucket="b", ttl=timedelta(seconds=ttl)).stream_config()
    assert config.duplicate_window == timedelta(seconds=window)


@pytest.mark.parametrize(
    ("header", "operation"),
    [
        (b"", Operation.PUT),
        (b"NATS/1.0\r\nA: b\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nX: KV-Operation\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nKV-Operation: PUT\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n", Operation.PURGE),
        (b"NATS/1.0\r\nKV-Operation: NEW\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1s\r\n\r\n", Operation.EXPIRED),
        (b"NATS/1.0\r\nNats-Marker-Reason: Purge\r\n\r\n", Operation.PURGE),
        (b"NATS/1.0\r\nNats-Marker-Reason: Remove\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nNats-Marker-Reason: Whatever\r\n\r\n", Operation.EXPIRED),
    ],
)
def test_any_operation_but_put_means_deleted(header: bytes, operation: Operation) -> None:
    assert operation_of(header) is operation
    assert Entry("b", "k", b"v", 3, 5, 0, *mark_of(header)).is_deleted is (operation is not Operation.PUT)


def test_keys_are_found_also_where_a_stream_takes_more() -> None:
    config = StreamConfig(name="KV_b", subjects=("b.more", "$KV.b.>"))
    assert Address.found(config, api_prefix="$JS.API").prefix == "$KV.b."
    own = StreamConfig(name="KV_b", subjects=("keys.of.b.>",))
    assert Address.found(own, api_prefix="$JS.API").prefix == "keys.of.b."
    with pytest.raises(UsageError, match="does not say which subjects are keys"):
        Address.found(own.replace(subjects=("a.>", "b.>")), api_prefix="$JS.API")

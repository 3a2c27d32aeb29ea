"""Configuration and address of a bucket."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.api import ExternalStream, StreamConfig, StreamSource, SubjectTransform
from slipstream.errors import UsageError
from slipstream.kv.bucket import Address, BucketConfig, check_bucket


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a/b", "ä", "a\n", "*"])
def test_bad_bucket_names_are_rejected(bucket: str) -> None:
    with pytest.raises(UsageError, match="bucket name must"):
        check_bucket(bucket)


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("history", [0, 65, -1])
def test_history_is_one_to_64(history: int) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        BucketConfig(bucket="b", history=history).stream_config()


def test_a_negative_ttl_is_rejected() -> None:
    with pytest.raises(UsageError, match="ttl"):
        BucketConfig(bucket="b", ttl=timedelta(seconds=-1)).stream_config()


@pytest.mark.parametrize(("ttl", "window"), [(0, 120), (30, 30), (119, 119), (120, 120), (3600, 120)])
def test_the_duplicate_window_is_the_ttl_when_that_is_under_two_minutes(ttl: int, window: int) -> None:
    config = BucketConfig(bucket="b", ttl=timedelta(seconds=ttl)).stream_config()
    assert config.duplicate_window == timedelta(seconds=window)


def test_the_key_prefix_is_found_among_other_subjects_of_a_stream() -> None:
    config = StreamConfig(name="KV_b", subjects=("b.more", "$KV.b.>"))
    assert Address.found(config, api_prefix="$JS.API").prefix == "$KV.b."
    own = StreamConfig(name="KV_b", subjects=("keys.of.b.>",))
    assert Address.found(own, api_prefix="$JS.API").prefix == "keys.of.b."
    with pytest.raises(UsageError, match="does not say which subjects are keys"):
        Address.found(own.replace(subjects=("a.>", "b.>")), api_prefix="$JS.API")


def test_the_address_follows_from_the_stream_configuration() -> None:
    usual = StreamConfig(name="KV_b", subjects=("$KV.b.>",), allow_direct=True)
    assert Address.found(usual, api_prefix="$JS.API") == Address("KV_b", "$KV.b.", "$KV.b.", True)
    assert Address.usual("b", api_prefix="$JS.hub.API").put_prefix == "$JS.hub.API.$KV.b."
    mirror = StreamConfig(
        name="KV_edge",
        mirror=StreamSource(name="KV_b", external=ExternalStream(api="$JS.hub.API")),
        mirror_direct=True,
    )
    origin = "stream 'KV_b' below '$JS.hub.API'"
    there = Address("KV_edge", "$KV.b.", "$JS.hub.API.$KV.b.", True, origin)
    assert Address.found(mirror, api_prefix="$JS.API") == there
    assert Address.of_replica(mirror, usual, api_prefix="$JS.hub.API") == there
    moved = StreamConfig(
        name="KV_edge",
        mirror=StreamSource(name="KV_b", subject_transforms=(SubjectTransform(src="$KV.b.>", dest="$KV.edge.>"),)),
        allow_direct=False,
    )
    assert Address.found(moved, api_prefix="$JS.API") == Address(
        "KV_edge", "$KV.edge.", "$KV.b.", False, "stream 'KV_b'"
    )

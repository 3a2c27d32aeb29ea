"""The rules of leases, without a bucket: claims, observations and records."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream import BucketConfig
from slipstream.errors import CodecError
from slipstream.kv.lease import MARGIN, Claim, Observation, decode_record, record_ttl


def test_a_claim_counts_from_before_it_was_sent() -> None:
    claim = Claim(10.0)
    assert claim.remaining(0.0) == 0
    claim.sending(100.0)
    claim.stored(7, 100.0)
    assert claim.remaining(103.0) == 0  # the bucket was not looked at behind it
    claim.confirm()
    assert claim.remaining(103.0) == pytest.approx(10 * (1 - MARGIN) - 3)
    assert claim.remaining(110.0) == 0
    assert claim.token == 7


def test_a_claim_whose_answer_was_lost_counts_from_the_earliest_it_can_be() -> None:
    claim = Claim(10.0)
    claim.sending(100.0)
    claim.sending(104.0)
    claim.pause()
    claim.found(9, 105.0)
    claim.confirm()
    assert claim.remaining(105.0) == pytest.approx(4.0)
    assert claim.token == 9


def test_a_rejected_claim_is_not_the_one_in_force() -> None:
    claim = Claim(10.0)
    claim.sending(50.0)
    claim.rejected(50.0)
    claim.rejected(50.0)  # idempotent
    claim.sending(104.0)
    claim.found(9, 105.0)
    claim.confirm()
    assert claim.remaining(105.0) == pytest.approx(8.0)


def test_a_lease_may_be_taken_over_after_it_was_unchanged_for_longer_than_its_ttl() -> None:
    seen = Observation()
    seen.see(5, 1, 10.0, now=100.0)
    assert seen.takeover_in(105.0) == pytest.approx(10 * (1 + MARGIN) - 5)
    seen.see(5, 1, 10.0, now=108.0)
    assert seen.takeover_in(111.0) == pytest.approx(0.0)
    seen.see(6, 2, 10.0, now=111.0)
    assert seen.takeover_in(111.0) > 10


def test_a_record_of_a_bucket_that_was_made_again_is_another_one() -> None:
    seen = Observation()
    assert seen.takeover_in(-1e6) == 0  # clocks may show anything
    seen.see(1, 1, 10.0, now=100.0)
    seen.see(1, 2, 10.0, now=110.0)  # the same revision, written at another time
    assert seen.takeover_in(111.5) > 9
    seen.forget()
    assert seen.takeover_in(111.5) == 0


def test_a_record_lives_as_long_as_markers_where_the_server_would_lengthen_its_ttl() -> None:
    config = BucketConfig(bucket="b", limit_marker_ttl=timedelta(minutes=5)).stream_config()
    assert record_ttl(config, 15) == timedelta(seconds=30)
    assert record_ttl(config.replace(max_msgs_per_subject=2), 15) == timedelta(minutes=5)


def test_the_server_side_ttl_is_longer_than_the_lease() -> None:
    config = BucketConfig(bucket="b", value_ttl=True).stream_config()
    assert record_ttl(config, 1.2) == timedelta(seconds=3)
    assert record_ttl(config.replace(allow_msg_ttl=False), 1.2) is None


def test_a_key_with_another_value_is_not_a_lease() -> None:
    with pytest.raises(CodecError, match="does not contain a lease"):
        decode_record("k", b"hello")

"""Configurations know which of their fields were set."""

from __future__ import annotations

import copy
import pickle

import pytest

from slipstream.api import ConsumerConfig
from slipstream.kv.bucket import BucketConfig


def test_a_field_is_set_also_at_its_default() -> None:
    config = ConsumerConfig(headers_only=False, max_deliver=3)
    assert config.fields_set == {"headers_only", "max_deliver"}
    assert ConsumerConfig().fields_set == frozenset()
    assert config == ConsumerConfig(max_deliver=3)
    assert "_fields_set" not in repr(config)


def test_a_replaced_field_is_set_and_the_others_are_as_before() -> None:
    config = BucketConfig(bucket="b", history=1).replace(replicas=3)
    assert (config.history, config.replicas) == (1, 3)
    assert config.fields_set == {"bucket", "history", "replicas"}


def test_a_decoded_configuration_was_set_to_what_was_on_the_wire() -> None:
    assert {"ack_policy", "max_deliver"} <= ConsumerConfig.from_json(
        b'{"ack_policy": "none", "max_deliver": 1}'
    ).fields_set


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_a_copy_knows_at_least_what_is_not_at_its_default(copied: object) -> None:
    assert callable(copied)
    config = copied(BucketConfig(bucket="b", history=5, replicas=1))
    assert config == BucketConfig(bucket="b", history=5)
    assert config.fields_set >= {"bucket", "history"}

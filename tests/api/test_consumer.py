"""Consumers in the API's words, there and back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.api import ConsumerConfig, ConsumerInfo


def test_a_configuration_survives_the_way_there_and_back() -> None:
    config = ConsumerConfig(
        durable_name="worker",
        ack_wait=timedelta(seconds=30),
        backoff=(timedelta(seconds=1), timedelta(seconds=5)),
        opt_start_time=1_700_000_000_123_456_789,
        filter_subjects=("a.>", "b"),
    )
    data = config.to_dict()
    assert data["backoff"] == [1_000_000_000, 5_000_000_000]
    assert ConsumerConfig.from_dict(data) == config


def test_a_backoff_that_is_no_list_is_named() -> None:
    with pytest.raises(ValueError, match="backoff"):
        ConsumerConfig.from_dict({"backoff": 5})


def test_the_documents_info_is_read_and_unknown_fields_are_kept() -> None:
    info = ConsumerInfo.from_dict(
        {
            "stream_name": "bar",
            "name": "dur",
            "created": "2021-07-20T21:35:11.825973Z",
            "config": {"durable_name": "dur", "max_waiting": 512, "novel": 1},
            "delivered": {"consumer_seq": 11561, "stream_seq": 11560},
            "num_waiting": 1,
        }
    )
    assert (info.config.durable_name, info.delivered.stream_seq, info.num_waiting) == ("dur", 11560, 1)
    assert info.config.to_dict()["novel"] == 1

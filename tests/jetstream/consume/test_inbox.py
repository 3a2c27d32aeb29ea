"""Inboxes of consumers: retry pauses and consumer names derived from them."""

from __future__ import annotations

from slipstream.jetstream.consume.inbox import consumer_name, retry_pause


def test_retry_pauses_grow_are_bounded_and_differ_between_inboxes() -> None:
    pauses = [retry_pause(failures, "a") for failures in range(30)]
    assert 0.025 <= pauses[0] <= 0.05
    assert pauses[4] > pauses[0]
    assert max(pauses) <= 5.0
    assert min(pauses[10:]) >= 2.5
    assert retry_pause(3, "a") != retry_pause(3, "b")


def test_consumer_names_are_single_tokens() -> None:
    assert consumer_name("_INBOX.abc.7") == "abc_7"

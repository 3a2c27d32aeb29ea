"""Outboxes for fast batches, with a server: what goes out in blocks is there once, and what is refused is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream import BlockingJetStream, StreamConfig, connect_blocking
from slipstream.errors import ConnectionLostError, NoStreamError, RequestTimeoutError
from slipstream.spark.sink.outbox import FastOutbox
from tests.client.support import FakeServer, Peer
from tests.jetstream.publish.test_fast_batches import drafts


@pytest.fixture
def target(any_server: str, fresh: str) -> Iterator[BlockingJetStream]:
    with connect_blocking(any_server) as client:
        js = client.jetstream()
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True, allow_batched=True)
        js.create_stream(config.replace(max_msg_size=300))
        yield js


def test_every_message_is_there_in_its_place(target: BlockingJetStream, fresh: str) -> None:
    box: FastOutbox[int] = FastOutbox(target, max_in_flight=100, timeout=5)
    box.send(drafts(1_000, f"{fresh}.a"), range(1_000))
    box.flush()
    assert (box.acked, box.last_seq, box.refused()) == (1_000, 1_000, [])
    assert [int(message.data) for message in target.stream(fresh).read()] == list(range(1_000))
    box.send(drafts(1_001, f"{fresh}.a"), range(1_001))  # all duplicates but the last
    box.flush()
    assert (box.acked, box.last_seq) == (2_001, 1_001)
    assert target.stream(fresh).info().state.messages == 1_001


@pytest.mark.parametrize("at", [0, 1, 24, 25, 99])
def test_rejected_message_is_named_and_the_others_are_stored(target: BlockingJetStream, fresh: str, at: int) -> None:
    box: FastOutbox[int] = FastOutbox(target, max_in_flight=100, timeout=5)
    messages = drafts(100, f"{fresh}.a")
    messages[at] = (f"{fresh}.a", b"x" * 400, b"")
    box.send(messages, range(100))
    box.flush()
    ((item, error),) = box.refused()
    assert item == at
    assert "size" in str(error)
    assert box.acked == 99
    assert sorted(int(message.data) for message in target.stream(fresh).read()) == [n for n in range(100) if n != at]


def test_subject_without_a_stream_is_reported(target: BlockingJetStream, fresh: str) -> None:
    box: FastOutbox[int] = FastOutbox(target, max_in_flight=100, timeout=5)
    box.send(drafts(3, f"not.{fresh}"), range(3))
    box.flush()
    refused = box.refused()
    assert [item for item, _ in refused] == [0, 1, 2]
    assert all(isinstance(error, NoStreamError) for _, error in refused)


def test_stream_that_no_longer_allows_batches_gets_single_messages(target: BlockingJetStream, fresh: str) -> None:
    box: FastOutbox[int] = FastOutbox(target, max_in_flight=100, timeout=5)
    box.send(drafts(10, f"{fresh}.a"), range(10))
    box.flush()
    target.update_stream(target.stream(fresh).info().config.replace(allow_batched=False))
    box.send(drafts(30, f"{fresh}.a")[10:], range(20))
    box.flush()
    assert (box.acked, box.refused()) == (30, [])
    assert target.stream(fresh).info().state.messages == 30


def test_a_connection_that_is_lost_is_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"PUB ")

    with FakeServer(script) as server, connect_blocking(server.url, on_event=lambda _: None) as client:
        box: FastOutbox[int] = FastOutbox(client.jetstream(), max_in_flight=100, timeout=5)
        box.send(drafts(10), range(10))
        with pytest.raises(ConnectionLostError):
            box.flush()


def test_wait_for_a_silent_server_is_bounded() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.until_closed()

    with FakeServer(script) as server, connect_blocking(server.url) as client:
        box: FastOutbox[int] = FastOutbox(client.jetstream(), max_in_flight=10, timeout=0.2)
        box.send(drafts(1), [1])
        with pytest.raises(RequestTimeoutError):
            box.flush()

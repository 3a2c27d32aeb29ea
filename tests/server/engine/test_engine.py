"""The engine: the order of what happens around a commit, and the shortcut of publishes past the matcher."""

from __future__ import annotations

import pytest

from slipstream.errors import ApiError
from slipstream.server.engine.journal import Answer
from tests.server.support import Client, Rig


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.create("S")
    return client


class Recorder:
    """Takes part in a commit in every role, and records when it is called."""

    def __init__(self, client: Client, *, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.client, self.fails = client, fails
        self.reply_port = self

    @property
    def last_seq(self) -> int:
        return self.client.rig.engine.streams["S"].log.committed.last_seq

    def save(self) -> None:  # as a deferred state
        self.calls.append(f"state saved, {self.last_seq} visible")

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:  # as a reply port  # noqa: ARG002
        self.calls.append(f"message sent, {self.last_seq} visible")
        return True

    def committed(self, now: int) -> None:  # as a follower  # noqa: ARG002
        self.calls.append("consumers")
        if self.fails:
            raise RuntimeError("a consumer failed")

    def callback(self) -> None:
        self.calls.append("callback")

    def ack(self, seq: int) -> tuple[str, int]:  # as a source  # noqa: ARG002
        self.calls.append("ack")
        return "{}", 2

    def failure(self, error: ApiError) -> bytes:  # noqa: ARG002
        return b""

    def answer_all(self, answers: list[Answer]) -> None:
        raise NotImplementedError

    def release(self) -> None:  # as a waiter
        self.calls.append("waiting reads")


def take_part(client: Client, recorder: Recorder) -> None:
    engine = client.rig.engine
    (journal,) = engine.journals
    client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    journal.unsaved[recorder] = None
    journal.events.append((recorder, "event", b"", b"", None))
    journal.followers[recorder] = None
    journal.after.append(recorder.callback)
    journal.answers.append(("reply", 0, recorder, b"", None))
    engine.account().commit_waiters.follow(recorder)


def test_a_commit_is_followed_by_the_documented_steps_in_their_order(client: Client) -> None:
    recorder = Recorder(client)
    take_part(client, recorder)
    client.rig.commit()
    assert recorder.calls == [
        "state saved, 0 visible", "message sent, 1 visible", "consumers", "callback", "ack", "waiting reads",
    ]  # fmt: skip


def test_a_durable_publish_is_acknowledged_even_if_a_consumer_fails(client: Client) -> None:
    recorder = Recorder(client, fails=True)
    take_part(client, recorder)
    with pytest.raises(RuntimeError, match="a consumer failed"):
        client.rig.commit()
    assert recorder.calls[-2:] == ["ack", "waiting reads"]


def test_publishes_after_the_first_skip_the_matcher_until_a_subscription_matches(client: Client) -> None:
    router = client.rig.engine.account().router
    stream = client.rig.engine.streams["S"]
    assert "s.1" not in router.sole_receivers
    client.publish("s.1")
    assert router.sole_receivers["s.1"] is stream
    client.publish("s.1")
    client.send(b"SUB s.1 7\r\n")
    assert "s.1" not in router.sole_receivers
    client.take()
    client.publish("s.1", b"to both")
    assert "s.1" not in router.sole_receivers  # it has two subscribers now
    assert stream.log.committed.last_seq == 3


def test_a_wildcard_subscription_drops_all_shortcuts(client: Client) -> None:
    router = client.rig.engine.account().router
    client.publish("s.1")
    client.send(b"SUB _INBOX.other.* 8\r\n")
    assert "s.1" in router.sole_receivers  # an inbox matches no stream
    client.send(b"SUB s.* 9\r\n")
    assert not router.sole_receivers

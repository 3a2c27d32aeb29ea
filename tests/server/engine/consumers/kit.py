"""A stream with consumers in virtual time: the exchanges that the tests of consumers have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from slipstream.wire import Msg, pub
from tests.server.support import Client, Rig, headers, status

SECOND = 1_000_000_000
MILLISECOND = 1_000_000


class Ack(NamedTuple):
    """The tokens of an ack subject."""

    stream: str
    consumer: str
    times: int
    seq: int
    dseq: int
    time: int
    pending: int


def ack_of(message: Msg) -> Ack:
    tokens = message.reply.split(".")
    assert tokens[:2] == ["$JS", "ACK"]
    assert len(tokens) == 9
    return Ack(tokens[2], tokens[3], *map(int, tokens[4:]))


class Bench:
    """One client, one stream `S` on `s.>`, and what is done with its consumers."""

    def __init__(self, rig: Rig, **config: Any) -> None:
        self.rig = rig
        self.client = rig.client()
        if config.pop("create", True):
            self.client.create("S", **config)

    def fill(self, *subjects: str, payload: bytes = b"x") -> None:
        for subject in subjects:
            self.client.publish(subject, payload)

    def request(self, subject: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.client.api(f"CONSUMER.{subject}", {"stream_name": "S", "config": config} | more)

    def create(self, name: str = "c", **config: Any) -> dict[str, Any]:
        """A durable with explicit acks, unless the configuration says otherwise."""
        config = {"durable_name": name, "name": name, "ack_policy": "explicit"} | config
        if not config["durable_name"]:
            del config["durable_name"]
        return self.request(f"CREATE.S.{name}", config)

    def info(self, name: str = "c") -> dict[str, Any]:
        return self.client.api(f"CONSUMER.INFO.S.{name}")

    def pull(self, batch: int = 1, name: str = "c", *, client: Client | None = None, **body: Any) -> list[Msg]:
        """All that comes at once in answer to a pull, messages and statuses."""
        client = client or self.client
        self.ask_for(batch, name, client=client, **body)
        return client.messages()

    def ask_for(self, batch: int = 1, name: str = "c", *, client: Client | None = None, **body: Any) -> str:
        """Send a pull; its inbox."""
        client = client or self.client
        client.take()
        client._asked += 1
        reply = f"{client.inbox}{client._asked}"
        payload = msgspec.json.encode({"batch": batch} | body)
        client.send(pub(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", payload, reply))
        return reply

    def ack(self, message: Msg, body: bytes = b"+ACK", *, sync: bool = False) -> list[Msg]:
        """Ack a message; the answer, if it was asked for."""
        if sync:
            return self.client.ask(message.reply, body)
        self.client.send(pub(message.reply, body))
        return []


def seqs(messages: list[Msg]) -> list[int]:
    """Stream sequences of the messages; statuses left out."""
    return [ack_of(message).seq for message in messages if not status(message)[0]]


def statuses(messages: list[Msg]) -> list[tuple[int, str]]:
    return [status(message) for message in messages if status(message)[0]]


__all__ = ["MILLISECOND", "SECOND", "Ack", "Bench", "ack_of", "headers", "seqs", "status", "statuses"]

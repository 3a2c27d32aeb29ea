"""Ack router of an account: takes every ack and hands it to the consumer that its subject names.

A subscription per consumer would be slow: no ack subject is used twice, so the subject router would have to match each
ack against all of them.
"""

from __future__ import annotations

from typing import Final

from slipstream.server.engine.services import AckTarget

ACK_PREFIX: Final = "$JS.ACK."
FLOW_PREFIX = "$JS.FC."
FLOW_PATTERN = "$JS.FC.>"


class AckRouter:
    """The target of all acks of an account's consumers, and of the answers to flow control."""

    def __init__(self) -> None:
        self.consumers: dict[tuple[str, str], AckTarget] = {}

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Hand an ack to its consumer; False if there is none."""
        tokens = subject.split(".")
        count = len(tokens)
        if tokens[1] == "FC":
            return self._flow(tokens, subject, now)
        if count == 9:
            consumer = self.consumers.get((tokens[2], tokens[3]))
            return consumer is not None and consumer.ack(tokens, 4, reply, payload, now)
        if count > 10:  # the newer form, with the domain and the account in front and perhaps more behind
            consumer = self.consumers.get((tokens[4], tokens[5]))
            return consumer is not None and consumer.ack(tokens, 6, reply, payload, now)
        return False

    def _flow(self, tokens: list[str], subject: str, now: int) -> bool:
        consumer = self.consumers.get((tokens[2], tokens[3])) if len(tokens) > 4 else None
        if consumer is None:
            return False
        consumer.flow(subject, now)
        return True

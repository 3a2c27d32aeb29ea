"""Advisories of a consumer on `$JS.EVENT.…`, sent only where there is a subscriber."""

from __future__ import annotations

from typing import Any

from slipstream.api import format_time
from slipstream.server.engine.services import Services

_METRIC = "io.nats.jetstream.metric.v1.consumer_ack"


class ConsumerAdvisories:
    """The advisories of one consumer."""

    def __init__(self, services: Services, stream: str, consumer: str) -> None:
        self._services = services
        self._names = {"stream": stream, "consumer": consumer}
        self._tail = f".{stream}.{consumer}"

    def action(self, action: str) -> None:
        """The consumer was created (`create`) or deleted (`delete`)."""
        self._tell(f"ADVISORY.CONSUMER.{action.upper()}D", "consumer_action", {"action": action})

    def paused(self, until: int | None) -> None:
        fields = {
            "paused": until is not None and until > self._services.router.now,
            "pause_until": format_time(until) if until is not None else "0001-01-01T00:00:00Z",
        }
        self._tell("ADVISORY.CONSUMER.PAUSE", "consumer_pause", fields)

    def given_up(self, seq: int, deliveries: int) -> None:
        """A message was delivered as often as it may be, without an ack."""
        self._tell(
            "ADVISORY.CONSUMER.MAX_DELIVERIES",
            "max_deliver",
            {"stream_seq": seq, "deliveries": deliveries},
        )

    def refused(self, seq: int, dseq: int, deliveries: int) -> None:
        """A message was negatively acknowledged."""
        self._tell("ADVISORY.CONSUMER.MSG_NAKED", "nak", _delivery(seq, dseq, deliveries))

    def terminated(self, seq: int, dseq: int, deliveries: int, reason: str) -> None:
        """A message is not redelivered, by a `+TERM` or because it was removed."""
        fields = _delivery(seq, dseq, deliveries)
        if reason:
            fields["reason"] = reason
        self._tell("ADVISORY.CONSUMER.MSG_TERMINATED", "terminated", fields)

    def acked(self, seq: int, dseq: int, deliveries: int, delay: int) -> None:
        """A sampled ack, with the time that it took."""
        fields = {"consumer_seq": dseq, "stream_seq": seq, "ack_time": delay, "deliveries": deliveries}
        self._tell("METRIC.CONSUMER.ACK", _METRIC, fields)

    def pinned(self, group: str, client: str) -> None:
        self._tell(
            "ADVISORY.CONSUMER.PINNED",
            "consumer_group_pinned",
            {"group": group, "pinned_id": client},
            account=True,
        )

    def unpinned(self, group: str, reason: str) -> None:
        self._tell(
            "ADVISORY.CONSUMER.UNPINNED",
            "consumer_group_unpinned",
            {"group": group, "reason": reason},
            account=True,
        )

    def _tell(self, subject: str, kind: str, fields: dict[str, Any], *, account: bool = False) -> None:
        services = self._services
        subject = f"$JS.EVENT.{subject}{self._tail}"
        if services.router.interest(subject)[0]:
            head = {"account": services.name} if account else {}
            services.router.send(
                subject, b"", services.advisories.encode(kind, services.router.now, head | self._names | fields)
            )


def _delivery(seq: int, dseq: int, deliveries: int) -> dict[str, Any]:
    return {"consumer_seq": dseq, "stream_seq": seq, "deliveries": deliveries}

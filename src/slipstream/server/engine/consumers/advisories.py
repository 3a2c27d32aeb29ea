"""Events in a consumer's life become advisories on `$JS.EVENT.…`, if anybody listens."""

from __future__ import annotations

from typing import Any

from slipstream.api import encode_json, format_time
from slipstream.server.engine.host import Host

_ADVISORY = "io.nats.jetstream.advisory.v1."
_METRIC = "io.nats.jetstream.metric.v1."


class Advisories:
    """What a consumer has to tell."""

    def __init__(self, host: Host, stream: str, consumer: str) -> None:
        self._host = host
        self._names = {"stream": stream, "consumer": consumer}
        self._tail = f".{stream}.{consumer}"

    def action(self, action: str) -> None:
        """It was made (`create`) or deleted (`delete`)."""
        self._tell(f"ADVISORY.CONSUMER.{action.upper()}D", f"{_ADVISORY}consumer_action", {"action": action})

    def paused(self, until: int | None) -> None:
        fields = {
            "paused": until is not None and until > self._host.now,
            "pause_until": format_time(until) if until is not None else "0001-01-01T00:00:00Z",
        }
        self._tell("ADVISORY.CONSUMER.PAUSE", f"{_ADVISORY}consumer_pause", fields)

    def given_up(self, seq: int, deliveries: int) -> None:
        """A message was delivered as often as it may be, without an ack."""
        self._tell(
            "ADVISORY.CONSUMER.MAX_DELIVERIES",
            f"{_ADVISORY}max_deliver",
            {"stream_seq": seq, "deliveries": deliveries},
        )

    def refused(self, seq: int, dseq: int, deliveries: int) -> None:
        """A message was naked."""
        self._tell("ADVISORY.CONSUMER.MSG_NAKED", f"{_ADVISORY}nak", _delivery(seq, dseq, deliveries))

    def terminated(self, seq: int, dseq: int, deliveries: int, reason: str) -> None:
        """Nobody is to get a message again."""
        fields = _delivery(seq, dseq, deliveries)
        if reason:
            fields["reason"] = reason
        self._tell("ADVISORY.CONSUMER.MSG_TERMINATED", f"{_ADVISORY}terminated", fields)

    def acked(self, seq: int, dseq: int, deliveries: int, delay: int) -> None:
        """A sample: how long an ack took."""
        fields = {"consumer_seq": dseq, "stream_seq": seq, "ack_time": delay, "deliveries": deliveries}
        self._tell("METRIC.CONSUMER.ACK", f"{_METRIC}consumer_ack", fields)

    def pinned(self, group: str, client: str) -> None:
        self._tell(
            "ADVISORY.CONSUMER.PINNED",
            f"{_ADVISORY}consumer_group_pinned",
            {"group": group, "pinned_id": client},
            account=True,
        )

    def unpinned(self, group: str, reason: str) -> None:
        self._tell(
            "ADVISORY.CONSUMER.UNPINNED",
            f"{_ADVISORY}consumer_group_unpinned",
            {"group": group, "reason": reason},
            account=True,
        )

    def _tell(self, subject: str, kind: str, fields: dict[str, Any], *, account: bool = False) -> None:
        host = self._host
        subject = f"$JS.EVENT.{subject}{self._tail}"
        if not host.listeners(subject)[0]:
            return
        head = {"type": kind, "id": host.token(22), "timestamp": format_time(host.now)}
        if account:
            head["account"] = host.name
        host.send(subject, b"", encode_json(head | self._names | fields))


def _delivery(seq: int, dseq: int, deliveries: int) -> dict[str, Any]:
    return {"consumer_seq": dseq, "stream_seq": seq, "deliveries": deliveries}

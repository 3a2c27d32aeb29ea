"""Advisories: JSON messages on `$JS.EVENT.ADVISORY.…`, with nats-server's types and fields."""

from __future__ import annotations

from typing import Any

from slipstream.api import encode_json, format_time

PREFIX = "$JS.EVENT.ADVISORY"
TYPE = "io.nats.jetstream.advisory.v1."
_ACTIONS = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}


class Advisories:
    """Encoder of advisories. Their ids are unique in a run of the server, and the same when the run is repeated."""

    def __init__(self, server: str, domain: str = "") -> None:
        self._server = server[:12]
        self._domain = domain
        self._made = 0

    def token(self) -> str:
        """A unique token for a subject."""
        self._made += 1
        return f"{self._server}{self._made:010d}"

    def encode(self, kind: str, now: int, fields: dict[str, Any]) -> bytes:
        """An advisory: the common fields, then `fields`. The type of a metric is passed in full."""
        body: dict[str, Any] = {
            "type": kind if "." in kind else TYPE + kind,
            "id": self.token(),
            "timestamp": format_time(now),
        }
        body |= fields
        if self._domain:
            body["domain"] = self._domain
        return encode_json(body)

    def stream_action(self, stream: str, action: str, now: int) -> tuple[str, bytes]:
        """Subject and payload: a stream was created, updated or deleted."""
        payload = self.encode("stream_action", now, {"stream": stream, "action": action})
        return f"{PREFIX}.STREAM.{_ACTIONS[action]}.{stream}", payload

    def stream_event(self, event: str, stream: str, now: int, fields: dict[str, Any]) -> tuple[str, bytes]:
        """Subject and payload: a snapshot or a restore began or ended (`SNAPSHOT_CREATE`, ...)."""
        payload = self.encode(event.lower(), now, {"stream": stream} | fields)
        return f"{PREFIX}.STREAM.{event}.{stream}", payload

    def batch_abandoned(self, stream: str, batch: str, reason: str, now: int) -> tuple[str, bytes]:
        """Subject and payload: an atomic batch will not be committed."""
        fields = {"stream": stream, "batch": batch, "reason": reason}
        return f"{PREFIX}.STREAM.BATCH_ABANDONED.{stream}", self.encode("stream_batch_abandoned", now, fields)

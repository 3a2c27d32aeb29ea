"""Sources: messages of other streams, stored as new messages with a header that names their origin.

The position in the upstream is stored with the stream, in the same group as the messages. So a message is neither
taken twice nor left out, even when limits have removed the sourced messages already.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from slipstream.api import StreamConfig, StreamSource
from slipstream.server.engine.api.ids import short_hash
from slipstream.server.engine.ports import Record
from slipstream.server.engine.replication.ingest import Ingest, identity_of

HEADER = "Nats-Stream-Source"
_DROPPED = ("nats-stream-source:", "nats-expected-", "nats-batch-")


class SourceIngest(Ingest):
    """The ingest of one source. `identity` distinguishes an upstream from an earlier one of the same name."""

    @cached_property
    def key(self) -> str:
        """What distinguishes it from the other sources of its stream."""
        return source_key(self.source)

    def first_wanted(self) -> int:
        position, identity = self.stream.positions.get(self.key, (-1, ""))
        self.identity: str = identity
        if position >= 0:
            return position + 1
        by_time = self.source.opt_start_time is not None and not self.source.opt_start_seq
        return 0 if by_time else max(self.source.opt_start_seq, 1)

    def store(self, record: Record) -> None:
        name, filters, destinations = self.key.split(" ")
        origin = f"{name} {record.seq} {filters} {destinations} {self._original}"
        if self.identity:
            origin += f" {self.identity}"
        self.stream.take_in(
            record.subject, with_origin(record.header, origin), record.payload, self._services.router.now
        )

    def _mapped(self, record: Record) -> Record:
        self._original = record.subject
        return super()._mapped(record)

    def info(self, now: int) -> dict[str, Any]:
        found = super().info(now)
        if self.next_seq > 1:
            found["seq"] = self.next_seq - 1
        return found

    def looked(self, up_to: int) -> None:
        if self.stream.positions.get(self.key) != (up_to, self.identity):
            self.stream.keep_position(self.key, up_to, self.identity)

    def meet(self, created: int, config: StreamConfig) -> None:
        identity = identity_of(created)
        if self.identity and self.identity != identity:  # deleted and recreated: from its beginning
            # Unless that was lost with a group of its store, and the one that was read before is back.
            position, known = self.stream.positions.get(self.key, (-1, ""))
            self.next_seq: int = position + 1 if known == identity else 1
        self.identity = identity
        super().meet(created, config)


def source_key(source: StreamSource) -> str:
    """What distinguishes the sources of a stream, as on nats-server: name, filters, destinations."""
    name = source.name
    if source.external is not None:
        name += f":{short_hash(source.external.api)}"
    if not source.subject_transforms:
        return f"{name} {source.filter_subject or '>'} >"
    filters = "\f".join(transform.src or ">" for transform in source.subject_transforms)
    return f"{name} {filters} " + "\f".join(transform.dest or ">" for transform in source.subject_transforms)


def with_origin(header: bytes, origin: str) -> bytes:
    """A header block with the origin of the message, and without the headers meant for the upstream only."""
    lines = [b"NATS/1.0"]
    if header.startswith(b"NATS/1.0"):
        lines = [
            line
            for line in header.split(b"\r\n")
            if line and not line.decode(errors="replace").lower().startswith(_DROPPED)
        ]
    return b"\r\n".join([*lines, f"{HEADER}: {origin}".encode(), b"", b""])

"""Snapshots of streams in the simulation.

The archive begins with a state that readers saw since the request, and has its messages. In some seeds it is read in
many turns. What is removed before it is read may be missing then, and nothing else: the messages are those of that
state, and each one is there that readers saw until the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slipstream.api.snapshot.archive import STATE, ArchiveReader
from slipstream.api.snapshot.s2 import S2Reader
from slipstream.server.engine.snapshots import writer
from slipstream.wire import Msg, parse_status
from tests.server.simulation.model import Entry
from tests.server.simulation.world import Check, Client, Op, error_code

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

WHOLE = "a snapshot is a state"


class SnapshotLoad:
    """The snapshots of all streams."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._made = 0

    def draw(self, client: Client, name: str) -> Op:
        """Ask for a snapshot of a stream."""
        self._made += 1
        target = f"{client.inbox}.snapshot.{self._made}"
        data = bytearray()

        def run(now: int) -> Check:  # noqa: ARG001
            found, event = self.workload.named(op, name), self.workload.world.event
            if found is None:
                return lambda message: "" if error_code(message) else f"wrong answer: {message.payload!r}"
            born, is_new = found.born, self.workload.visible(name) is None

            def chunk(message: Msg) -> str:
                data.extend(message.payload)
                status = parse_status(message.header)
                if status is not None and status.code != 204:  # the stream was deleted, or the client was too slow
                    return ""
                return self._compare(name, born, event, bytes(data), is_new=is_new) if not message.payload else "more"

            chunks = Op(f"snapshot {self._made} of {name}", "", b"", lambda _: None)
            chunks.reply, chunks.check, chunks.optional = target, chunk, True
            client.pending[target] = chunks
            return lambda message: ""  # noqa: ARG005 - it describes the stream, as its info does

        body = msgspec.json.encode({"deliver_subject": target, "no_consumers": True, "chunk_size": writer.SMALLEST})
        op = Op(f"snapshot {name}", f"$JS.API.STREAM.SNAPSHOT.{name}", body, run)
        op.is_report = True
        return op

    def _compare(self, name: str, born: int, event: int, data: bytes, *, is_new: bool) -> str:
        entries = ArchiveReader().feed(S2Reader().feed(data))
        if not entries or entries[0].name != STATE:
            return f"{WHOLE}: {entries[:1]} is at its beginning"
        state = msgspec.json.decode(entries[0].payload)
        messages = {
            each.seq: Entry(each.seq, each.time, each.name, each.header, each.payload) for each in entries[1:-1]
        }
        if is_new and not messages:
            return ""
        states = self.workload.shown(name, born, event)
        stayed = set(messages.items()).union(*(stream.messages.items() for stream in states))
        for stream in states:  # the latest first
            whole = set(stream.messages.items())
            stayed = stayed & whole if self.workload.world.is_sliced else whole
            if state["last_seq"] == stream.last and stayed <= messages.items() <= whole:
                return ""
        return f"{WHOLE}: {name} with {list(messages)}, {state}"

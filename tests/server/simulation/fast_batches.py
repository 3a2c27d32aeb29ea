"""Fast batches in the simulation: messages that are stored as they arrive, and acknowledged many at a time.

Which parts are stored is known from the model, so none is stored twice or left out. An acknowledgement of a number must
not be sent before all parts up to it are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slipstream.wire import Msg, parse_status
from tests.server.simulation.loop import SECOND
from tests.server.simulation.model import ModelStream, RejectedError
from tests.server.simulation.world import Check, Client, Op, error_code

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

START, APPEND, COMMIT, END = range(4)
TIMEOUT = 10 * SECOND
EARLY = "no ack before its sync"


class Progress:
    """An open batch, as the server must see it."""

    def __init__(self) -> None:
        self.last = self.since = 0


class FastLoad:
    """The fast batches of all streams."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self._open: dict[tuple[str, str], Progress] = {}  # by stream and birth, and batch
        self._parts: dict[str, dict[int, Op]] = {}  # of a batch: those that were stored, or found to be there
        self._made = 0
        self.world.after_restart.append(self._open.clear)
        self.world.after_loss.append(self._lost)

    def _lost(self, storage: str) -> None:
        """Batches end with a lost group of their store."""
        names = {f"{stream.name}{stream.born}" for stream in self.world.states(storage).writer.values()}
        self._open = {key: progress for key, progress in self._open.items() if key[0] not in names}

    def draw(self, client: Client, name: str) -> None:
        """Queue the parts of a batch; some clients leave one out, or never end it."""
        pick = self.workload.choices
        self._made += 1
        batch, flow, gaps = f"fast{self._made}", pick.one_of((1, 2, 10)), pick.chance(40)
        ending = pick.below(10)
        count = 2 + pick.below(5)
        for number in range(1, count + 1):
            if number > 1 and pick.chance(8):
                continue
            operation = START if number == 1 else APPEND
            if number == count:
                operation = COMMIT if ending < 7 else END if ending < 9 else APPEND
            self.world.request(client, self._part(name, batch, flow, gaps, number, operation))

    def _part(self, name: str, batch: str, flow: int, gaps: bool, number: int, operation: int) -> Op:
        subject, header, payload = self.workload.content(name)
        suffix = f".{batch}.{flow}.{'ok' if gaps else 'fail'}.{number}.{operation}.$FI"

        def run(now: int) -> Check:
            stream = self.workload.at(subject)
            if stream is None:
                return _no_responders
            op.storage = stream.config["storage"]
            if self._receive(stream, batch, gaps, number, operation, (subject, header, payload), now):
                self._parts.setdefault(batch, {})[number] = op
            return lambda message: self._check(op, batch, message)

        op = Op(f"part {number} of {batch} ({operation}) {subject} {payload!r}", subject, payload, run, header=header)
        op.suffix, op.optional = suffix, True  # many parts have no answer of their own
        return op

    def _receive(
        self,
        stream: ModelStream,
        batch: str,
        gaps: bool,
        number: int,
        operation: int,
        message: tuple[str, bytes, bytes],
        now: int,
    ) -> bool:
        """What the server does with a part; whether it is stored, or was before."""
        subject, header, payload = message
        key = (f"{stream.name}{stream.born}", batch)
        if 0 < stream.max_msg_size < len(header) + len(payload) or not stream.allow_batched:
            return False
        progress = self._open.get(key)
        if progress is None or now >= progress.since + TIMEOUT:
            self._open.pop(key, None)
            if number != 1:
                return False
            progress = self._open[key] = Progress()
        progress.since = now
        if number != progress.last + 1 and not (gaps and number > progress.last):
            del self._open[key]
            return False
        if operation == END:
            del self._open[key]
            return False
        try:
            stream.publish(subject, header, payload, now)
        except RejectedError:
            progress.last = number
            if not gaps or operation == COMMIT:
                del self._open[key]
            return False
        progress.last = number
        if operation == COMMIT:
            del self._open[key]
        return True

    def _check(self, op: Op, batch: str, message: Msg) -> str:
        if error_code(message) or message.header:
            return "more"
        body = msgspec.json.decode(message.payload)
        parts = self._parts.get(batch, {})
        synced = self.world.states(op.storage).synced_index
        upto = body["seq"] if body.get("type") == "ack" else body.get("count", 0)
        early = [number for number, part in parts.items() if number <= upto and (part.needs > synced or part.lost)]
        if early:
            return f"{EARLY}: parts {early} of {batch} are acknowledged, and not on the disk"
        return "more"


def _no_responders(message: Msg) -> str:
    status = parse_status(message.header)
    is_right = status is not None and status.code == 503
    return "" if is_right else f"wrong answer: expected 503, got {message.header!r} {message.payload!r}"

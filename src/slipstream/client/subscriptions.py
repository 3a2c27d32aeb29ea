"""The subscriptions of one client: a sid and a mailbox for each, sent again to every server that is connected to.

Invariant: a subscription is known to the server, or ended; a rejected one ends with the server's error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from slipstream.client.events import Effects, EventKind, SendNow
from slipstream.client.mailbox import MESSAGE_COST, Mailbox
from slipstream.client.outgoing import Outgoing, check_names
from slipstream.client.raw_columns import Packed, Packer
from slipstream.client.raw_scanner import RawScanner
from slipstream.errors import Error, RemoteProtocolError, UsageError
from slipstream.wire import Msg, check_filter, check_subject, sub, unsub
from slipstream.wire.arguments import check_integer

FIRST_SID = 2  # the inbox of requests has 1
ANSWER_BELOW = 5 * 512 * 1024  # bytes: what one turn of an event loop reads, and not the next window of a server


class Subscriptions:
    """What a client is subscribed to."""

    def __init__(self, outgoing: Outgoing, *, scanner: RawScanner, effects: Effects) -> None:
        self.is_draining = False  # no new subscriptions
        self.now: float = 0.0  # when the chunk that is being delivered arrived
        self.sent_after: float = -math.inf  # what is delivered from now on was sent after that time: see `Session.mark`
        self._outgoing = outgoing
        self._scanner = scanner
        self._effects = effects
        self._boxes: dict[bytes, Mailbox] = {}
        self._next_sid = FIRST_SID

    def __len__(self) -> int:
        return len(self._boxes)

    def subscribe(self, subject: object, *, queue: object = "", max_msgs: object, max_bytes: object) -> Mailbox:
        """Subscribe to a subject; its messages arrive in the mailbox. What a program gave may be anything."""
        self._outgoing.check()
        if self.is_draining:
            raise UsageError(f"the client is draining: no new subscription of {subject!r} is possible")
        name, group = check_filter(subject), "" if queue == "" else check_subject(queue)
        check_names("a subject with its queue group" if group else "a subject", name, group)
        most_msgs = check_integer(max_msgs, "max_pending_msgs", least=1)
        most_bytes = check_integer(max_bytes, "max_pending_bytes", least=1)
        sid = b"%d" % self._next_sid
        box = Mailbox(sid, name, queue=group, max_msgs=most_msgs, max_bytes=most_bytes)
        box.on_gap = partial(self._effects.report, EventKind.ERROR)
        self._next_sid += 1
        self._boxes[sid] = box
        if self._outgoing.is_open:
            self._outgoing.send(sub(name, sid, group))
        return box

    def unsubscribe(self, box: Mailbox, max_msgs: object = 0) -> None:
        """End a subscription, at once or after `max_msgs` messages in all."""
        limit = check_integer(max_msgs, "max_msgs")
        if self._boxes.get(box.sid) is not box:
            return
        if limit > box.received:
            box.limit = limit
        else:
            self._remove(box)
            box.end()
        if self._outgoing.is_open:  # the server counts from the SUB it got
            self._outgoing.send(unsub(box.sid, 0 if box.is_ended else box.limit - box.before))

    def resubscribe(self) -> None:
        """Tell a server that was just connected to of every subscription."""
        for box in list(self._boxes.values()):
            self._outgoing.send(sub(box.subject, box.sid, box.queue))
            box.before = box.received
            if box.limit:
                self._outgoing.send(unsub(box.sid, box.limit - box.before))

    def stop(self, box: Mailbox | None) -> list[Mailbox]:
        """Ask the server for no more messages of one subscription, or of any; what it has sent still arrives."""
        boxes = [one for one in self._boxes.values() if box is None or one is box]
        for one in boxes:
            one.is_draining = True
        if self._outgoing.is_open:
            for one in boxes:
                self._outgoing.send(unsub(one.sid))
        return boxes

    def end(self, boxes: Sequence[Mailbox]) -> None:
        """End subscriptions that have got everything."""
        for box in boxes:
            if self._boxes.get(box.sid) is box:
                self._remove(box)
                box.end()

    def _remove(self, box: Mailbox) -> None:
        """Later messages of it are dropped."""
        self._boxes.pop(box.sid, None)
        self._scanner.remove(box.sid)

    # Messages

    def deliver(self, runs: Sequence[tuple[bytes, list[Msg]]]) -> None:
        """Deliver messages, those in a row for one subscription together."""
        for sid, run in runs:
            box = self._boxes.get(sid)
            if box is not None:
                box.heard = self.now
                if not box.items:
                    box.sent_after = self.sent_after
                if box.answers is not None:
                    run = self._answer(box, box.answers, run)
                if run and box.add_all(run):
                    self._remove(box)

    def answer_on_arrival(self, box: Mailbox, subject_of: Callable[[Msg], str]) -> None:
        """Answer messages before the reader gets its turn: those for which `subject_of` names a subject.

        An empty message goes to that subject, and the reader does not see what was answered. It does while more than
        `ANSWER_BELOW` bytes are pending: then the answer is its own affair.
        """
        box.answers = subject_of

    def _answer(self, box: Mailbox, subject_of: Callable[[Msg], str], run: list[Msg]) -> list[Msg]:
        """Answer some of the messages that arrived; returns the others."""
        kept: list[Msg] = []
        for msg in run:
            subject = subject_of(msg)
            if not subject or box.load + MESSAGE_COST * len(kept) > ANSWER_BELOW:
                kept.append(msg)
                continue
            try:
                self._outgoing.answer(subject, b"")
            except RemoteProtocolError:  # the reader's, who fails by it
                kept.append(msg)
            else:
                self._effects.add(SendNow())
        return kept

    def pack(self, box: Mailbox, reply_prefix: str) -> None:
        """Deliver messages with such reply subjects in columns from now on."""
        if self._boxes.get(box.sid) is box:
            self._scanner.add(box.sid, Packer(box.sid, reply_prefix, partial(self._deliver_packed, box)).scan)

    def _deliver_packed(self, box: Mailbox, packed: Packed) -> None:
        if self._boxes.get(box.sid) is not box:  # it ended with the pack before, out of the same bytes
            return
        box.heard = self.now
        if not box.items:  # a PONG in the same chunk is behind it: readers of packs begin at the front
            box.sent_after = self.sent_after
        if box.add_packed(packed):
            self._remove(box)

    # The connection

    def wake_all(self) -> None:
        """The connection is lost: readers that depend on it look for that."""
        for box in list(self._boxes.values()):
            box.stir()

    def deny(self, error: Error, subject: str, queue: str) -> None:
        """End a subscription that the server rejected: its readers would wait for ever."""
        for box in [box for box in self._boxes.values() if (box.subject, box.queue) == (subject, queue)]:
            self._remove(box)
            box.end(error)

    def close(self, error: Error, *, is_ordered: bool) -> None:
        """End all of them, by the user's order or by an error: readers take what is here before they see it."""
        boxes, self._boxes = self._boxes, {}
        for box in boxes.values():
            self._scanner.remove(box.sid)
            if is_ordered:
                box.end(closing=error)
            else:
                box.end(error)

"""Consumers in the simulation: what is asked of them, what they deliver, and which promises that keeps or breaks.

Delivery state may go back to the last commit when the server crashes, so what a consumer does next is not
predicted. Checked are its promises: a delivery is a durable message of its filter with its exact content, new
messages come in order, never more often than `max_deliver`, with the right number still to come; a confirmed ack is
never redelivered; and in the end every message was delivered to a client that read it. A consumer's name is never
used twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slipstream.wire import Msg, matches, overlaps, parse_status
from tests.server.simulation.loop import SECOND
from tests.server.simulation.model import Entry, ModelStream, RejectedError
from tests.server.simulation.world import Check, Client, Op, ViolationError

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

ACK_PREFIX = "$JS.ACK."
BEFORE = 2  # states of a stream that a delivery may be from: it was encoded before the last commit


class Delivery(NamedTuple):
    """A delivered message, by its ack subject."""

    stream: str
    consumer: str
    times: int
    seq: int
    dseq: int
    time: int
    pending: int
    reply: str


class Watch:
    """What was seen of one consumer."""

    def __init__(self, name: str, stream: str, born: int, config: dict[str, Any], start: int) -> None:
        self.name, self.stream, self.born, self.config, self.start = name, stream, born, config, start
        self.has_begun = False  # since the server started
        # Messages that were not the last of their subject when it began (`last_per_subject`): not to be delivered.
        self.superseded: set[int] = set()
        self.is_deleted = False  # even if the deletion was lost later
        self.got: set[int] = set()  # read by a client
        self.acked: set[int] = set()  # the server got an ack
        self.confirmed: set[int] = set()  # and answered it
        self.exhausted: set[int] = set()  # delivered as often as they may be
        self.latest: dict[int, int] = {}  # the last consumer sequence of each
        self.used: set[int] = set()  # consumer sequences, since the server started
        self.firsts: dict[int, int] = {}  # and those of new messages, with their stream sequences

    def reopened(self) -> None:
        """Delivery state may be that of the last commit."""
        self.used.clear()
        self.firsts.clear()
        self.has_begun = False

    def began(self) -> str:
        """Its creation is confirmed, or it delivers."""
        self.has_begun = True
        return ""

    @property
    def filters(self) -> list[str]:
        return list(self.config.get("filter_subjects", ())) or [">"]

    def covers(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.filters)

    @property
    def is_last_per_subject(self) -> bool:
        return bool(self.config["deliver_policy"] == "last_per_subject")


def parse_delivery(message: Msg) -> Delivery | None:
    if not message.reply.startswith(ACK_PREFIX):
        return None
    tokens = message.reply.split(".")
    return Delivery(tokens[2], tokens[3], *map(int, tokens[4:]), message.reply)  # type: ignore[call-arg, arg-type]


class ConsumerLoad:
    """The consumers of all streams."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self.choices = workload.choices
        self.watches: dict[str, Watch] = {}
        self._names = 0
        self.unacked: dict[int, list[Delivery]] = {client.number: [] for client in self.world.clients}
        self.is_diligent = False  # every delivery is acked
        self.deliveries = 0
        self.world.received = self.delivered
        self.world.was_read = self.read
        self.world.was_lost = self.lost
        self.world.reasons.append(self._is_settled)
        self.world.after_restart.append(self._restarted)
        self.world.after_loss.append(self._group_lost)
        self.world.after_finish.append(self._shown)

    def _restarted(self) -> None:
        for watch in self.watches.values():
            watch.reopened()
        self._shown()

    def _shown(self) -> None:
        """Readers see another state: consumers that begin, begin with it."""
        for watch, stream in self._current():
            if watch.is_last_per_subject and not watch.has_begun:
                last = {entry.subject: seq for seq, entry in stream.messages.items()}
                watch.superseded.update(stream.messages.keys() - last.values())

    def _group_lost(self, storage: str) -> None:  # noqa: ARG002
        """A consumer whose deletion is lost is opened again, as after a restart."""
        for watch in self.watches.values():
            if watch.is_deleted or (watch.stream, watch.born) in self.workload.deleted:
                watch.reopened()
        self._shown()

    # Requests.

    def draw(self, client: Client, name: str) -> None:
        """Queue a request about the consumers of a stream."""
        pick, stream = self.choices, self.workload.stream(name)
        assert stream is not None
        own = list(stream.consumers)
        kind = pick.below(100)
        if not own or kind < 12:
            if len(own) < 3:
                self.world.request(client, self.create(name, client))
            return
        consumer = own[pick.below(len(own))]
        if kind < 45:
            self.world.request(client, self.pull(name, consumer))
        elif kind < 80:
            if self.unacked[client.number]:
                for _ in range(1 + pick.below(3)):
                    self.ack(client)
        elif kind < 93:
            self.world.request(client, self.info(name, consumer))
        elif kind < 96:
            self.world.request(client, self.delete(name, consumer))

    def create(self, name: str, client: Client) -> Op:
        pick, stream = self.choices, self.workload.stream(name)
        assert stream is not None
        prefix = self.workload.prefix(name)
        self._names += 1
        consumer = f"c{self._names}"
        config: dict[str, Any] = {
            "durable_name": consumer,
            "name": consumer,
            "ack_policy": ("explicit", "none", "all")[pick.below(3)],
            "deliver_policy": ("all", "new", "last_per_subject", "by_start_sequence")[pick.below(4)],
            "ack_wait": (1, 3)[pick.below(2)] * SECOND,
            "max_ack_pending": (1000, 3, 1)[pick.below(3)],
        }
        if stream.retention != "limits":
            config |= {"ack_policy": "explicit", "deliver_policy": "all"}
        if config["deliver_policy"] == "by_start_sequence":
            config["opt_start_seq"] = max(1, stream.last - 3 + pick.below(12))
        if config["ack_policy"] == "none":
            del config["ack_wait"], config["max_ack_pending"]
        else:
            if pick.chance(40):
                config["max_deliver"] = 2 + pick.below(2)
            if pick.chance(15) and "max_deliver" in config:
                config["backoff"] = [SECOND, 2 * SECOND]
                del config["ack_wait"]
        if pick.chance(50):
            tokens = ("x", "y", "z", "x.*", "*", "*.1")
            config["filter_subjects"] = [f"{prefix}.{pick.one_of(tokens)}"]
            other = f"{prefix}.{pick.one_of(tokens)}"
            if pick.chance(50) and not _within(other, config["filter_subjects"][0]):
                config["filter_subjects"].append(other)
        elif config["deliver_policy"] == "last_per_subject":
            config["filter_subjects"] = [f"{prefix}.>"]
        if pick.chance(40):
            config["deliver_subject"] = f"_PUSH.{client.number}"

        def run(now: int) -> Check:  # noqa: ARG001
            found = self.workload.named(op, name)
            if found is None:
                return _error
            mine = config.get("filter_subjects", [">"])
            others = [pattern for filters in found.consumers.values() for pattern in filters]
            if found.retention == "workqueue" and any(overlaps(one, other) for one in mine for other in others):
                return _error
            if found.retention == "workqueue" and (
                config["ack_policy"] != "explicit" or config["deliver_policy"] != "all"
            ):
                return _error
            start = {"new": found.last + 1, "by_start_sequence": config.get("opt_start_seq", 0)}
            watch = Watch(consumer, name, found.born, config, start.get(config["deliver_policy"], 0))
            self.watches[consumer] = watch
            found.consumers[consumer] = tuple(watch.filters)
            op.is_catalog = True
            return lambda message: _ok(message) or watch.began()

        body = msgspec.json.encode({"stream_name": name, "config": config, "action": "create"})
        subject = f"$JS.API.CONSUMER.CREATE.{name}.{consumer}"
        op = Op(f"create consumer of {name} {config}", subject, body, run)
        return op

    def delete(self, name: str, consumer: str) -> Op:
        def run(now: int) -> Check:  # noqa: ARG001
            found = self.workload.named(op, name)
            if found is None or consumer not in found.consumers:
                return _error
            del found.consumers[consumer]
            self.watches[consumer].is_deleted = True
            op.is_catalog = True
            return _ok

        op = Op(f"delete consumer {consumer} of {name}", f"$JS.API.CONSUMER.DELETE.{name}.{consumer}", b"", run)
        return op

    def pull(self, name: str, consumer: str) -> Op:
        pick = self.choices
        body: dict[str, Any] = {"batch": 1 + pick.below(8), "expires": (1, 3)[pick.below(2)] * SECOND}
        if pick.chance(30):
            body["no_wait"] = True
        return self._pull(name, consumer, body)

    def _pull(self, name: str, consumer: str, body: dict[str, Any]) -> Op:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}"
        return Op(f"pull {consumer} of {name} {body}", subject, msgspec.json.encode(body), lambda now: None)  # noqa: ARG005

    def info(self, name: str, consumer: str) -> Op:
        def run(now: int) -> Check:  # noqa: ARG001
            found, event = self.workload.named(op, name), self.world.event
            if found is None or consumer not in found.consumers:
                return _error
            born, visible = found.born, self.workload.visible(name)
            if visible is None or consumer not in visible.consumers:
                return _anything  # it has not begun yet
            return lambda message: self._check_info(consumer, name, born, event, message)

        op = Op(f"info of consumer {consumer}", f"$JS.API.CONSUMER.INFO.{name}.{consumer}", b"", run)
        return op

    def _check_info(self, consumer: str, name: str, born: int, event: int, message: Msg) -> str:
        current = self.workload.stream(name)
        is_gone = current is None or current.born != born or consumer not in current.consumers
        if b'"error"' in message.payload:
            return "" if is_gone else f"wrong answer: {message.payload!r}"
        info = msgspec.json.decode(message.payload)
        delivered, floor = info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]
        if floor > delivered:
            return f"consumers are exact: the ack floor {floor} is above {delivered}, what was delivered"
        watch = self.watches[consumer]
        states = self.workload.shown(name, born, event)
        if watch.is_last_per_subject or not states:
            return ""
        rights = [self._left(stream, watch, delivered) for stream in states]
        if info["num_pending"] not in rights:
            return f"num_pending is right: {info['num_pending']} after {delivered}, expected {rights[0]}"
        return ""

    def _left(self, stream: ModelStream, watch: Watch, seq: int) -> int:
        floor = max(seq, watch.start - 1)
        return sum(1 for at, entry in stream.messages.items() if at > floor and watch.covers(entry.subject))

    # Acks.

    def ack(self, client: Client, delivery: Delivery | None = None) -> None:
        """Queue an ack, a nak or the like."""
        pick, waiting = self.choices, self.unacked[client.number]
        kind = 9 if delivery is not None else pick.below(10)
        if delivery is None:
            if not waiting:
                return
            delivery = waiting.pop(pick.below(len(waiting)))
        body = (b"+ACK", b"+ACK", b"+TERM", b"-NAK", b'-NAK {"delay":1000000000}', b"+WPI", b"+ACK", b"")[min(kind, 7)]
        self.world.request(client, self._ack(delivery, body))

    def _ack(self, delivery: Delivery, body: bytes) -> Op:
        watch = self.watches[delivery.consumer]
        is_final = body in (b"+ACK", b"+TERM", b"")

        def run(now: int) -> Check | None:  # noqa: ARG001
            stream = self.workload.stream(watch.stream)
            if watch.config["ack_policy"] == "none" or stream is None or watch.name not in stream.consumers:
                return None
            op.storage = stream.config["storage"]
            is_latest = watch.latest.get(delivery.seq) == delivery.dseq
            covered = {delivery.seq}
            if watch.config["ack_policy"] == "all":
                covered = {seq for seq in watch.latest if seq <= delivery.seq}
            if is_final:
                watch.acked |= covered
            return lambda message: self._confirmed(watch, covered if is_final else set(), is_latest, message)

        op = Op(f"ack {delivery.consumer} {delivery.seq}/{delivery.dseq} {body!r}", delivery.reply, body, run)
        op.optional = True  # a message that the consumer does not know (any more) is not answered, as on nats-server
        op.is_deferred = is_final
        return op

    def _confirmed(self, watch: Watch, covered: set[int], is_latest: bool, message: Msg) -> str:
        if message.payload or message.header:
            status = parse_status(message.header)
            if status is not None and status.code == 503:  # the consumer is gone
                return ""
            return f"wrong answer: {message.header!r} {message.payload!r}"
        if watch.config["ack_policy"] == "explicit" or is_latest:
            watch.confirmed |= covered
        return ""

    # Deliveries.

    def delivered(self, client: Client, message: Msg) -> None:  # noqa: ARG002
        """The server writes a message of a consumer to a client."""
        delivery = parse_delivery(message)
        if delivery is None:
            return
        self.deliveries += 1
        watch = self.watches[delivery.consumer]
        watch.began()
        text = f"{delivery.consumer} delivers {delivery.seq}/{delivery.dseq} for the {delivery.times}. time"
        self.world.say(f"{text}, {delivery.pending} to come")
        states = self.workload.shown(watch.stream, watch.born, self.world.event - 1)[: BEFORE + 1]
        if not states:
            return  # the stream was deleted before the server wrote what it had encoded
        if self.world.file.visible_index > self.world.file.synced_index:
            raise ViolationError("no ack before its sync", f"{text}, and the disk does not have it")
        found = [stream for stream in states if _same(stream.messages.get(delivery.seq), delivery, message)]
        if not found:
            known = states[0].messages.get(delivery.seq)
            raise ViolationError("deliveries are exact", f"{text}: {message}, expected {known}")
        subject = found[0].messages[delivery.seq].subject
        if not watch.covers(subject) or delivery.seq < watch.start:
            raise ViolationError("deliveries are exact", f"{text}: {subject} is none of its messages")
        if delivery.seq in watch.confirmed:
            raise ViolationError("a confirmed ack is not redelivered", text)
        most = watch.config.get("max_deliver", 0)
        if 0 < most < delivery.times:
            raise ViolationError("max_deliver holds", text)
        if delivery.times == most:
            watch.exhausted.add(delivery.seq)
        if delivery.dseq in watch.used:
            raise ViolationError("deliveries are in order", f"{text}: that consumer sequence was used before")
        watch.used.add(delivery.dseq)
        watch.latest[delivery.seq] = delivery.dseq
        if watch.config["ack_policy"] == "none":
            watch.got.add(delivery.seq)
        if delivery.times > 1:
            return
        # What goes to several clients in one turn is not written in order; the numbers are.
        for dseq, seq in watch.firsts.items():
            if (dseq < delivery.dseq) != (seq < delivery.seq):
                raise ViolationError("deliveries are in order", f"{text} beside {seq}/{dseq}")
        watch.firsts[delivery.dseq] = delivery.seq
        rights = [self._left(stream, watch, delivery.seq) for stream in states]
        if not watch.is_last_per_subject and delivery.pending not in rights:
            raise ViolationError("num_pending is right", f"{text}, {delivery.pending} to come, expected {rights}")

    def lost(self, message: Msg) -> None:
        """A message was delivered to a connection that had been cut: a try that no client can have seen."""
        delivery = parse_delivery(message)
        if delivery is not None and delivery.times == self.watches[delivery.consumer].config.get("max_deliver", 0):
            self.watches[delivery.consumer].exhausted.add(delivery.seq)

    def read(self, client: Client, message: Msg) -> None:
        """A client reads a message."""
        delivery = parse_delivery(message)
        if delivery is None:
            return
        watch = self.watches[delivery.consumer]
        watch.got.add(delivery.seq)
        if watch.config["ack_policy"] == "none":
            return
        if self.is_diligent:
            self.ack(client, delivery)
        else:
            self.unacked[client.number].append(delivery)

    # Retention.

    def _is_settled(self, stream: ModelStream, entry: Entry, now: int) -> bool:  # noqa: ARG002
        """Whether a message may leave a work queue, or a stream that is kept by interest."""
        if self.workload.copies.lacks(stream, entry):
            return False
        if stream.retention == "workqueue":
            return any(entry.seq in watch.acked for watch in self.of(stream))
        if stream.retention == "interest":
            current = [self.watches[name] for name in stream.consumers]
            return all(
                entry.seq in watch.acked
                or watch.config["ack_policy"] == "none"
                or watch.config["deliver_policy"] != "all"
                for watch in current
                if watch.covers(entry.subject)
            )
        return False

    def of(self, stream: ModelStream) -> list[Watch]:
        """All consumers that the stream ever had."""
        return [watch for watch in self.watches.values() if (watch.stream, watch.born) == (stream.name, stream.born)]

    # The end.

    def drain(self) -> None:
        """Read and ack everything; then each consumer must have delivered all there is."""
        world = self.world
        self.is_diligent = True
        client = world.clients[0]
        for number in range(12):
            for watch, _ in self._current():
                if "deliver_subject" not in watch.config:
                    body = {"batch": 100, "expires": SECOND}
                    world.request(client, self._pull(watch.stream, watch.name, body))
            world.settle()
            world.rest(2)
            if number > 2 and not any(self._missing(watch, stream) for watch, stream in self._current()):
                break
        for watch, stream in self._current():
            if missing := self._missing(watch, stream):
                raise ViolationError("at least once", f"{watch.name} of {watch.stream} never delivered {missing[:5]}")
            left = self._unneeded(watch, stream)
            if left:
                raise ViolationError("settled messages leave", f"{watch.stream} still has {left[:5]}")

    def _current(self) -> list[tuple[Watch, ModelStream]]:
        found = []
        for states in (self.world.file, self.world.memory):
            for stream in states.visible.values():
                found += [(self.watches[name], stream) for name in stream.consumers]
        return found

    def _missing(self, watch: Watch, stream: ModelStream) -> list[int]:
        if watch.config["ack_policy"] == "none":  # at most once: what was on its way to a client that left is gone
            return []
        wanted = [
            entry for entry in stream.messages.values() if watch.covers(entry.subject) and entry.seq >= watch.start
        ]
        if watch.is_last_per_subject:
            # An older message may become the last of its subject later, when the last one is removed.
            last = {entry.subject: entry for entry in wanted}
            wanted = [entry for entry in last.values() if entry.seq not in watch.superseded]
        known = watch.got | watch.confirmed | watch.exhausted
        missing = [entry for entry in wanted if entry.seq not in known]
        return [entry.seq for entry in missing if not self.workload.schedules.is_fresh(stream, entry)]

    def _unneeded(self, watch: Watch, stream: ModelStream) -> list[int]:
        """Messages that all consumers have settled, and that are still there."""
        if stream.retention == "limits":
            return []
        own = [self.watches[name] for name in stream.consumers]
        return [
            entry.seq
            for entry in stream.messages.values()
            if watch.covers(entry.subject)
            and not self.workload.copies.lacks(stream, entry)
            and not self.workload.copies.wait_for(stream, entry)
            and all(entry.seq in other.confirmed for other in own if other.covers(entry.subject))
        ]


def _within(one: str, other: str) -> bool:
    """Whether the server may reject two filters beside each other."""
    return one == other or matches(one, other) or matches(other, one) or {one[-1], other[-1]} == {"*"}


def _same(entry: Entry | None, delivery: Delivery, message: Msg) -> bool:
    if entry is None:
        return False
    return (entry.time, entry.header, entry.payload) == (delivery.time, message.header, message.payload)


def _ok(message: Msg) -> str:
    return f"wrong answer: {message.payload!r}" if b'"error"' in message.payload or message.header else ""


def _anything(message: Msg) -> str:  # noqa: ARG001
    return ""


def _error(message: Msg) -> str:
    return "" if b'"error"' in message.payload or message.header else f"wrong answer: {message.payload!r}"


__all__ = ["ConsumerLoad", "RejectedError"]

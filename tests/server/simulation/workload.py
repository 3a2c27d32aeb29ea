"""What clients ask for: requests of every kind, drawn from the seed, each with what it does to the model.

A request is made when it is sent and applied when the server has its last byte; between the two the stream may have
been changed, deleted or made again, so `run` looks everything up in the model at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from slipstream.api import format_time
from slipstream.wire import Headers, Msg, parse_status
from tests.server.simulation.consumers import ConsumerLoad
from tests.server.simulation.copies import CopyLoad
from tests.server.simulation.fast_batches import FastLoad
from tests.server.simulation.loop import SECOND
from tests.server.simulation.model import Entry, ModelStream, RejectedError, State, headers_of
from tests.server.simulation.multi_last import MultiLast
from tests.server.simulation.replicas import ReplicaLoad
from tests.server.simulation.restores import RestoreLoad
from tests.server.simulation.schedules import ScheduleLoad
from tests.server.simulation.snapshots import SnapshotLoad
from tests.server.simulation.world import STORE_FAILED, Check, Client, Op, World, error_code

NAMES = ("A", "B", "C")
TOKENS = ("x", "y", "z", "x.1", "x.2")
BATCH_TIMEOUT = 10 * SECOND
REJECT_DELAY = SECOND // 2


class Workload:
    """The requests of all clients of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.choices = world.choices
        self._ids = self._numbers = self._batches = 0
        self.sent_ids: dict[str, list[tuple[str, str, bytes, bytes]]] = {}  # publishes to repeat
        self.batches: dict[tuple[str, str], tuple[list[tuple[str, bytes, bytes]], int]] = {}
        self.consumers = ConsumerLoad(self)
        self.copies = CopyLoad(self)
        self.replicas = ReplicaLoad(self)
        self.schedules = ScheduleLoad(self)
        self.fast = FastLoad(self)
        self.snapshots = SnapshotLoad(self)
        self.restores = RestoreLoad(self)
        self.deleted: set[tuple[str, int]] = set()  # even if the deletion was lost later
        world.after_restart.append(self.batches.clear)
        world.after_loss.append(self._drop_batches)
        world.arrivals.append(_is_marker)

    def _drop_batches(self, storage: str) -> None:
        """Staged messages are lost with a group."""
        names = {f"{stream.name}{stream.born}" for stream in self.world.states(storage).writer.values()}
        self.batches = {key: batch for key, batch in self.batches.items() if key[0] not in names}

    # Lookups.

    def shown(self, name: str, born: int, since: int) -> list[ModelStream]:
        """The states of a stream that readers saw since an event, the latest first."""
        found: list[ModelStream] = []
        for states in (self.world.file, self.world.memory):
            for event, state in reversed(states.shown):
                if name in state and state[name].born == born:
                    found.append(state[name])
                if event <= since:
                    break
        return found

    def stream(self, name: str) -> ModelStream | None:
        """A stream as the server's writer must see it."""
        world = self.world
        return world.file.writer.get(name) or world.memory.writer.get(name)

    def visible(self, name: str) -> ModelStream | None:
        """A stream as readers must see it."""
        stream = self.stream(name)
        if stream is None:
            return None
        found = self.world.states(stream.config["storage"]).visible.get(name)
        return found if found is not None and found.born == stream.born else None

    def at(self, subject: str) -> ModelStream | None:
        """The stream that stores a subject."""
        world = self.world
        for states in (world.file, world.memory):
            for stream in states.writer.values():
                if stream.covers(subject):
                    return stream
        return None

    def named(self, op: Op, name: str) -> ModelStream | None:
        """The stream that a request names, whose state the answer depends on."""
        stream = self.stream(name)
        op.storage = str(stream.config["storage"]) if stream is not None else ""
        op.is_absent = stream is None
        return stream

    def prefix(self, name: str) -> str:
        """How the subjects of a stream begin."""
        stream = self.stream(name)
        origins = self.copies.origins(stream) if stream is not None else []
        return origins[0] if origins else name

    # Requests.

    def draw(self, client: Client) -> None:
        """Queue one or more requests."""
        choices = self.choices
        if self.world.has_copies and choices.chance(12):
            self.copies.draw(client)
            return
        name = choices.one_of(NAMES)
        if self.stream(name) is None:
            kind = choices.below(10)
            if 3 <= kind < 8 and name in self.restores.saved:
                self.world.request(client, self.restores.draw(client, name))
            else:
                self.world.request(client, self.create(name) if kind < 8 else self.publish(name))
            return
        if self.world.has_consumers and choices.chance(30):
            self.consumers.draw(client, name)
            return
        kind = choices.below(100)
        if kind < 15 and self.stream(name).allow_msg_schedules:  # type: ignore[union-attr]
            self.world.request(client, self.schedules.draw(name))
        elif kind < 54:
            for _ in range(1 + choices.below(6)):
                self.world.request(client, self.publish(name))
        elif kind < 58 and (self.stream(name).allow_batched or choices.chance(20)):  # type: ignore[union-attr]
            self.fast.draw(client, name)
        elif kind < 61:
            self.batch(client, name)
        elif kind < 67:
            self.world.request(client, self.direct_get(name))
        elif kind < 76:
            self.world.request(client, self.multi_last(name))
        elif kind < 79:
            self.world.request(client, self.info(name) if choices.below(3) else self.snapshots.draw(client, name))
        elif kind < 85:
            self.world.request(client, self.purge(name))
        elif kind < 91:
            self.world.request(client, self.delete_message(name))
        elif kind < 97:
            self.world.request(client, self.update(name))
        else:
            self.world.request(client, self.delete(name))

    # Streams.

    def config(self, name: str) -> dict[str, Any]:
        """A configuration. 0 is the plainest choice."""
        pick = self.choices
        config: dict[str, Any] = {
            "name": name,
            "subjects": [f"{name}.>"],
            "storage": "memory" if pick.chance(15) else "file",
            "retention": "limits",
            "allow_direct": True,
            "duplicate_window": (120, 2, 10)[pick.below(3)] * SECOND,
            "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1,
            "discard": "old", "num_replicas": 1 + pick.below(2),
        }  # fmt: skip
        self._limits(config)
        if self.world.has_consumers and pick.chance(30):
            config["retention"] = pick.one_of(("interest", "workqueue"))
        elif pick.chance(15) and config["discard"] == "old":
            config["allow_msg_counter"] = True
            return config
        config["allow_rollup_hdrs"] = pick.chance(50)
        if config["discard"] == "old" and config["retention"] == "limits" and pick.chance(40):
            config |= {"allow_msg_schedules": True, "allow_rollup_hdrs": True}
        config["allow_msg_ttl"] = pick.chance(40)
        config["allow_atomic"] = pick.chance(50)
        config["allow_batched"] = pick.chance(40)
        config["deny_delete"] = pick.chance(10)
        if not config["allow_rollup_hdrs"]:
            config["deny_purge"] = pick.chance(10)
        elif config["allow_msg_ttl"] and pick.chance(40):
            config["subject_delete_marker_ttl"] = 1 * SECOND
        return config

    def _limits(self, config: dict[str, Any]) -> None:
        pick = self.choices
        if pick.chance(30):
            config["max_msgs"] = 1 + pick.below(20)
        if pick.chance(25):
            config["max_bytes"] = 100 + pick.below(1500)
        if pick.chance(30):
            config["max_msgs_per_subject"] = (1, 2, 1, 4)[pick.below(4)]
        if pick.chance(25):
            config["max_age"] = (5, 30, 1)[pick.below(3)] * SECOND
            config["duplicate_window"] = min(config["duplicate_window"], config["max_age"])
        if pick.chance(10):
            config["max_msg_size"] = 20
        if pick.chance(25) and not config.get("allow_msg_counter"):
            config["discard"] = "new"
            config["discard_new_per_subject"] = config["max_msgs_per_subject"] > 0 and pick.chance(50)

    def create(self, name: str) -> Op:
        config = self.config(name)

        def run(now: int) -> Check:
            if (known := self.stream(name)) is not None:
                op.storage = known.config["storage"]
                if known.config == config:  # made as it is: the answer is that of the first request
                    return lambda message: _unless_error(message) or ""
                return _errs(lambda: RejectedError())
            if self.restores.is_running(name):
                op.storage, op.is_absent = "", True
                return _errs(lambda: RejectedError())
            op.is_catalog = True
            self.world.born += 1
            stream = ModelStream(config, self.world.born, now)
            stream.is_copied = lambda subject: self.copies.takes(name, subject)
            self.world.states(config["storage"]).writer[name] = stream
            return lambda message: _unless_error(message) or ""

        body = msgspec.json.encode(config)
        op = Op(f"create {config}", f"$JS.API.STREAM.CREATE.{name}", body, run, storage=config["storage"])
        return op

    def update(self, name: str) -> Op:
        stream = self.stream(name)
        assert stream is not None
        config = dict(stream.config)
        config |= {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1}
        config |= {"discard": "old", "discard_new_per_subject": False}
        self._limits(config)
        if not config.get("allow_msg_counter") and self.choices.chance(20):
            # Below what the stream has, for which nothing may be deleted.
            config |= {"max_msgs": 1 + self.choices.below(3), "discard": "new"}
        config["num_replicas"] = 1 + self.choices.below(3)

        def run(now: int) -> Check:  # noqa: ARG001
            found = self.named(op, name)
            if found is None or _is_fixed(found.config, config):
                return _errs(lambda: RejectedError())
            op.is_catalog = _set_fields(config) != _set_fields(found.config)
            found.update(config)
            return lambda message: _unless_error(message) or ""

        body = msgspec.json.encode(config)
        op = Op(f"update {config}", f"$JS.API.STREAM.UPDATE.{name}", body, run)
        return op

    def delete(self, name: str) -> Op:
        def run(now: int) -> Check:  # noqa: ARG001
            found = self.named(op, name)
            if found is None:
                return _errs(lambda: RejectedError(10059))
            op.is_catalog = True
            self.deleted.add((name, found.born))
            self.restores.save(found)
            del self.world.states(found.config["storage"]).writer[name]
            return lambda message: _unless_error(message) or ""

        op = Op(f"delete {name}", f"$JS.API.STREAM.DELETE.{name}", b"", run)
        return op

    def purge(self, name: str) -> Op:
        pick, stream = self.choices, self.stream(name)
        assert stream is not None
        body: dict[str, Any] = {}
        if pick.chance(50):
            body["filter"] = f"{name}.{pick.one_of((*TOKENS, 'x.*', '>'))}"
        if pick.chance(40):
            body["seq"] = 1 + pick.below(stream.last + 5)
        elif pick.chance(40):
            body["keep"] = 1 + pick.below(5)

        def apply(found: ModelStream) -> dict[str, Any]:
            self.restores.save(found)
            return {"purged": found.purge(body.get("filter", ""), body.get("seq", 0), body.get("keep", 0))}

        return self._change(f"purge {name} {body}", f"$JS.API.STREAM.PURGE.{name}", body, name, apply)

    def delete_message(self, name: str) -> Op:
        stream = self.stream(name)
        assert stream is not None
        seq = stream.first + self.choices.below(max(stream.last - stream.first + 2, 1))
        body = {"seq": seq, "no_erase": bool(self.choices.below(2))}

        def apply(found: ModelStream) -> dict[str, Any]:
            found.delete(seq)
            return {"success": True}

        return self._change(f"remove {seq} of {name}", f"$JS.API.STREAM.MSG.DELETE.{name}", body, name, apply)

    def _change(
        self, text: str, subject: str, body: dict[str, Any], name: str, apply: Callable[[ModelStream], dict[str, Any]]
    ) -> Op:
        def run(now: int) -> Check:  # noqa: ARG001
            found = self.named(op, name)
            try:
                if found is None:
                    raise RejectedError(10059)
                expected = apply(found)
            except RejectedError as error:
                return _errs(lambda error=error: error)  # type: ignore[misc]
            return lambda message: _unless_error(message) or _fields(message, expected)

        op = Op(text, subject, msgspec.json.encode(body), run)
        return op

    # Publishing.

    def publish(self, name: str) -> Op:
        pick, stream = self.choices, self.stream(name)
        if self.sent_ids.get(name) and pick.chance(15):  # a client that did not hear, or forgot, repeats itself
            text, subject, header, payload = pick.one_of(self.sent_ids[name])
            return self.publish_op(f"again {text}", subject, header, payload)
        subject = f"{name}.{pick.one_of(TOKENS)}"
        self._numbers += 1
        payload = b"%d" % self._numbers + b"." * pick.below(30)
        headers: dict[str, str] = {}
        if pick.chance(5):
            headers["Nats-Expected-Stream"] = pick.one_of(NAMES)
        if pick.chance(10):
            last = stream.last if stream is not None else 0
            headers["Nats-Expected-Last-Sequence"] = str(max(last - pick.below(2), 0))
        if pick.chance(10):
            last = stream.last_of(subject) if stream is not None else 0
            headers["Nats-Expected-Last-Subject-Sequence"] = str(max(last - pick.below(2), 0))
        if pick.chance(12):
            headers["Nats-Rollup"] = pick.one_of(("sub", "all"))
        if pick.chance(15):
            headers["Nats-TTL"] = pick.one_of(("5", "1s", "never", "60s"))
        if stream is not None and stream.allow_msg_counter and pick.below(10):
            payload, headers = b"", {"Nats-Incr": pick.one_of(("+1", "-2", "10"))}
        if pick.chance(30):
            self._ids += 1
            headers["Nats-Msg-Id"] = f"id{self._ids}"
        if pick.chance(5):
            headers["Nats-Expected-Last-Msg-Id"] = stream.last_id or "none" if stream is not None else "none"
            if "Nats-Incr" in headers:
                del headers["Nats-Expected-Last-Msg-Id"]
        header = Headers(headers).encode() if headers else b""
        text = f"publish {subject} {headers or ''} {payload!r}"
        if "Nats-Msg-Id" in headers:
            self.sent_ids.setdefault(name, []).append((text, subject, header, payload))
        return self.publish_op(text, subject, header, payload)

    def publish_op(self, text: str, subject: str, header: bytes, payload: bytes) -> Op:
        def run(now: int) -> Check:
            stream = self.at(subject)
            if stream is None:
                return _no_responders
            op.storage = stream.config["storage"]
            try:
                stored = stream.publish(subject, header, payload, now)
            except RejectedError as error:
                return _errs(lambda error=error: error)  # type: ignore[misc]
            expected: dict[str, Any] = {"stream": stream.name, "seq": stored.seq}
            if stored.val is not None:
                expected["val"] = stored.val
            expected["duplicate"] = True if stored.duplicate else None
            return lambda message: _unless_error(message) or _fields(message, expected)

        op = Op(text, subject, payload, run, header=header)
        return op

    def content(self, name: str) -> tuple[str, bytes, bytes]:
        """Subject, header and payload of a plain message."""
        self._numbers += 1
        headers: dict[str, str] = {}
        if self.choices.chance(30):
            self._ids += 1
            headers["Nats-Msg-Id"] = f"id{max(1, self._ids - self.choices.below(3))}"
        if self.choices.chance(10):
            headers["Nats-Expected-Last-Sequence"] = str(self.choices.below(5))
        header = Headers(headers).encode() if headers else b""
        return f"{name}.{self.choices.one_of(TOKENS)}", header, b"%d" % self._numbers

    def batch(self, client: Client, name: str) -> None:
        """An atomic batch: all of it, or (a client that gives up) some of it."""
        pick = self.choices
        self._batches += 1
        batch_id, count = f"batch{self._batches}", 2 + pick.below(4)
        is_whole = pick.below(4) > 0
        for number in range(1, count + 1):
            if number == count and not is_whole:
                return
            self._numbers += 1
            headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number == count:
                headers["Nats-Batch-Commit"] = "1"
            if pick.chance(15):
                self._ids += 1
                headers["Nats-Msg-Id"] = f"id{self._ids}"
            if self.stream(name).allow_msg_counter:  # type: ignore[union-attr]
                headers["Nats-Incr"] = "+1"
            payload = b"" if "Nats-Incr" in headers else b"%d" % self._numbers
            self.world.request(client, self._part(name, batch_id, number, count, headers, payload))

    def _part(self, name: str, batch: str, number: int, count: int, headers: dict[str, str], payload: bytes) -> Op:
        subject = f"{name}.{self.choices.one_of(TOKENS)}"
        header = Headers(headers).encode()

        def run(now: int) -> Check:
            stream = self.at(subject)
            if stream is None:
                return _no_responders
            op.storage = stream.config["storage"]
            key = (f"{name}{stream.born}", batch)
            staged, since = self.batches.pop(key, ([], now))
            if len(header) + len(payload) > stream.max_msg_size > 0:
                if staged:
                    self.batches[key] = (staged, since)
                return _errs(lambda: RejectedError())
            if not stream.allow_atomic or len(staged) != number - 1 or now >= since + BATCH_TIMEOUT:
                return _errs(lambda: RejectedError())
            staged = [*staged, (subject, header, payload)]
            if number < count:
                self.batches[key] = (staged, now)
                op.storage = ""
                return lambda message: "" if not message.payload else "wrong answer: a staged message is not empty"
            return self._commit(stream, batch, staged, stream.stamp(now))

        op = Op(f"publish {subject} {headers} {payload!r}", subject, payload, run, header=header)
        return op

    def _commit(self, stream: ModelStream, batch: str, staged: list[tuple[str, bytes, bytes]], now: int) -> Check:
        """All messages of a batch, or none."""
        trial = stream.copy()
        try:
            trial.check_batch(staged, now)
        except RejectedError as error:
            return _errs(lambda error=error: error)  # type: ignore[misc]
        stream.append_batch(staged, now)
        expected = {"seq": stream.last, "batch": batch, "count": len(staged)}
        return lambda message: _unless_error(message) or _fields(message, expected)

    # Reads.

    def direct_get(self, name: str) -> Op:
        pick, stream = self.choices, self.stream(name)
        assert stream is not None
        last = stream.last
        subject = f"{self.prefix(name)}.{pick.one_of((*TOKENS, 'x.*', '>'))}"
        kind = pick.below(4)
        request: dict[str, Any]
        if kind == 0:
            request = {"last_by_subj": subject}
        elif kind == 1:
            request = {"seq": stream.first + pick.below(max(last - stream.first + 2, 1))}
        else:
            request = {"seq": max(1, last - pick.below(10)), "next_by_subj": subject}
        wanted = 0
        if pick.chance(50) and name in NAMES:  # a mirror is as of the sequence it looked at, not of its last one
            wanted = request["min_last_seq"] = max(0, last + 2 - pick.below(5))
        is_leader = pick.chance(25)
        if not is_leader and pick.chance(50):
            request["as_of"] = True  # the answer says which replica gave it

        def run(now: int) -> Check | None:
            found, event = self.visible(name), self.world.event
            writer = self.stream(name)
            if writer is None:  # nobody answers
                if is_leader:
                    return _errs(lambda: RejectedError(10059))
                if self.copies.mirror_of(name):
                    return lambda message: self._check_mirror(message, name, request)
                return _no_responders
            has_mirror = self.copies.mirror_of(name)  # its creation may be lost before the answer is sent
            is_there = found is not None and found.born == writer.born
            if not wanted or (is_there and found is not None and found.last >= wanted):
                right = _find(found, request) if is_there and found is not None else None
                held = dict(self.replicas.held(name, writer.born)) if not is_leader else {}
                return lambda message: (
                    self._check_mirror(message, name, request)
                    if self._is_of_mirror(message, name, has_mirror and not is_leader)
                    else self._check_replica(message, right, held, request)
                    if held
                    else self._check_read(message, right, is_leader=is_leader)
                )
            return lambda message: (
                self._check_mirror(message, name, request)
                if self._is_of_mirror(message, name, has_mirror and not is_leader)
                else self._check_waiting(name, writer.born, request, (now, event), message, is_leader)
            )

        verb = "MSG.GET" if is_leader else "GET"
        prefix = f"$JS.API.STREAM.{verb}" if is_leader else "$JS.API.DIRECT.GET"
        return Op(f"{verb} {name} {request}", f"{prefix}.{name}", msgspec.json.encode(request), run)

    def multi_last(self, name: str) -> Op:
        pick, stream = self.choices, self.stream(name)
        assert stream is not None
        patterns = [f"{self.prefix(name)}.{pick.one_of((*TOKENS, 'x.*', '>'))}" for _ in range(1 + pick.below(2))]
        if pick.chance(60):
            patterns = [f"{self.prefix(name)}.>"]
        request: dict[str, Any] = {"multi_last": patterns}
        if pick.chance(30):
            request["up_to_seq"] = 1 + pick.below(stream.last + 3)
        if pick.chance(20):
            request["seq"] = 1 + pick.below(stream.last + 1)
        if pick.chance(30):
            request["min_last_seq"] = max(0, stream.last + 2 - pick.below(5))
        return MultiLast(self, name, request).op()

    def _is_of_mirror(self, message: Msg, name: str, has_mirror: bool) -> bool:
        """Whether a mirror may have answered: messages say of which stream they are, rejections do not."""
        stream = headers_of(message.header).get("Nats-Stream") if message.header else None
        return stream != name and (has_mirror or stream is not None)

    def _check_mirror(self, message: Msg, name: str, request: dict[str, Any]) -> str:
        status = parse_status(message.header)
        if status is not None and status.code in (412, 503):  # it is behind, or does not know yet that it is not
            return ""
        return self.copies.check_answer(name, request, read_direct(message))

    def _check_replica(
        self, message: Msg, right: Entry | None, held: dict[str, ModelStream], request: dict[str, Any]
    ) -> str:
        """The answer of a replica that may be held."""
        responder = headers_of(message.header).get("Slipstream-Responder") if message.header else None
        able = {peer: state for peer, state in held.items() if state.last >= request.get("min_last_seq", 0)}
        rights = [_find(state, request) for peer, state in able.items() if responder in (None, peer)]
        if responder not in able:
            rights.append(right)
        wrong = [self._check_read(message, each, is_leader=False) for each in rights]
        if "" in wrong:
            return ""
        promise = "min_last_seq is exact" if "min_last_seq" in request else "reads are exact"
        return f"{promise}: {responder or 'a replica'} got {read_direct(message)}, expected {rights}"

    def _check_read(self, message: Msg, right: Entry | None, *, is_leader: bool) -> str:
        world = self.world
        if world.file.visible_index > world.file.synced_index:
            return "no ack before its sync: readers see a group that is not on the disk"
        got = _read_leader(message) if is_leader else read_direct(message)
        if got == right:
            return ""
        return f"reads are exact: got {got}, expected {right}"

    def _check_waiting(
        self, name: str, born: int, request: dict[str, Any], asked: tuple[int, int], message: Msg, is_leader: bool
    ) -> str:
        """The answer to a read that had to wait for a sequence."""
        wanted = request["min_last_seq"]
        status = parse_status(message.header)
        is_refused = error_code(message) == 10180 if is_leader else status is not None and status.code == 412
        states = [stream for stream in self.shown(name, born, asked[1]) if stream.last >= wanted]
        if is_refused:
            current = self.stream(name)
            is_deleted = current is None or current.born != born or (name, born) in self.deleted
            # What this event itself made visible came after the refusal, in the same turn of the server.
            if not is_deleted and any(stream.last >= wanted for stream in self.shown_before(name, born)):
                return f"min_last_seq is exact: refused, and sequence {wanted} is there"
            is_late = self.world.clock() - asked[0] >= REJECT_DELAY
            return "" if is_late or is_deleted else "min_last_seq is exact: refused at once"
        if not states:
            return f"min_last_seq is exact: answered before sequence {wanted} is there"
        wrong = [self._check_read(message, _find(stream, request), is_leader=is_leader) for stream in states]
        return "" if "" in wrong else wrong[0]

    def shown_before(self, name: str, born: int) -> list[ModelStream]:
        """What readers saw before this event."""
        for states in (self.world.file, self.world.memory):
            for event, state in reversed(states.shown):
                if event < self.world.event:
                    if name in state and state[name].born == born:
                        return [state[name]]
                    break
        return []

    def info(self, name: str) -> Op:
        def run(now: int) -> Check:  # noqa: ARG001
            found, event = self.named(op, name), self.world.event
            if found is None:
                return _errs(lambda: RejectedError(10059))
            born, failures = found.born, self.world.failures
            is_new = self.visible(name) is None  # made in a group that is not committed yet: readers find it empty
            return lambda message: (
                ""
                if error_code(message) == STORE_FAILED and self.world.failures > failures
                else self._check_info(name, born, event, message, is_new=is_new)
            )

        op = Op(f"info {name}", f"$JS.API.STREAM.INFO.{name}", b'{"subjects_filter":">"}', run)
        op.is_report = True
        return op

    def _check_info(self, name: str, born: int, event: int, message: Msg, *, is_new: bool) -> str:
        states, current = self.shown(name, born, event), self.stream(name)
        if error_code(message) == 10059 and (current is None or current.born != born):
            return ""  # deleted before it was answered
        if error := _unless_error(message):
            return error
        state = msgspec.json.decode(message.payload)["state"]
        given = tuple(state.get(field, 0) for field in ("messages", "bytes", "first_seq", "last_seq", "num_subjects"))
        if current is not None and current.born != born:  # the search for subjects went on in the stream made again
            states, is_new = states + self.shown(name, current.born, event), True
        if is_new and not any(given):
            return ""
        if any(stream.is_rough for stream in states):
            given = given[:4]
        expected = []
        for stream in states:
            count, size, first, last, subjects = stream.state()  # as nats-server: a new stream has no first sequence
            if given == (count, size, first if last else 0, last, subjects)[: len(given)]:
                if (state.get("subjects") or {}) != stream.counts:
                    return f"exact state: info counts {state.get('subjects')}, expected {stream.counts}"
                return ""
            expected.append(stream.state())
        return f"exact state: info says {given}, expected {expected}" if expected else ""


def _set_fields(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration sets: fields that are off may also be left out."""
    return {field: value for field, value in config.items() if value}


def _is_fixed(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether an update is rejected: between its making and its arrival the stream may have become another one."""
    if old["storage"] != new["storage"]:
        return True
    if old["retention"] != new["retention"] and "workqueue" in (old["retention"], new["retention"]):
        return True
    if bool(old.get("allow_msg_counter")) != bool(new.get("allow_msg_counter")):
        return True
    if new.get("allow_msg_schedules") and new["discard"] == "new":
        return True
    lost = ("allow_msg_schedules", "allow_msg_ttl", "deny_delete", "deny_purge")
    return any(old.get(field) and not new.get(field) for field in lost)


def _find(stream: ModelStream, request: dict[str, Any]) -> Entry | None:
    """The right answer to a single read."""
    if "last_by_subj" in request:
        found = stream.of(request["last_by_subj"])
        return stream.messages[found[-1]] if found else None
    if "next_by_subj" in request:
        found = [seq for seq in stream.of(request["next_by_subj"]) if seq >= request["seq"]]
        return stream.messages[found[0]] if found else None
    return stream.messages.get(request["seq"])


def read_direct(message: Msg) -> Entry | None:
    status = parse_status(message.header)
    if status is not None and status.code == 404:
        return None
    fields = headers_of(message.header)
    lines = message.header.split(b"\r\n")
    cut = next(at for at, line in enumerate(lines) if line.startswith(b"Nats-Stream:"))
    own = b"\r\n".join([*lines[:cut], b"", b""]) if cut > 1 else b""
    stamp = fields["Nats-Time-Stamp"]
    return Entry(int(fields["Nats-Sequence"]), _nanoseconds(stamp), fields["Nats-Subject"], own, message.payload)


def _read_leader(message: Msg) -> Entry | None:
    if error_code(message) == 10037:
        return None
    found = msgspec.json.decode(message.payload)["message"]
    import base64

    header = base64.b64decode(found.get("hdrs", ""))
    payload = base64.b64decode(found.get("data", ""))
    return Entry(found["seq"], _nanoseconds(found["time"]), found["subject"], header, payload)


def _nanoseconds(text: str) -> int:
    from slipstream.api import parse_time

    return parse_time(text)


def _is_marker(stream: ModelStream, entry: Entry) -> bool:
    """A delete marker in place of the last message of its subject, which has expired."""
    if not stream.subject_delete_marker_ttl or b"Nats-Marker-Reason" not in entry.header:
        return False
    ends = [stream.expires(stream.messages[seq]) for seq in stream.of(entry.subject)]
    return bool(ends) and all(0 < end <= entry.time for end in ends)


def _errs(error: Callable[[], RejectedError]) -> Check:
    """The answer must be an error, with that code if it is known."""

    def check(message: Msg) -> str:
        found, code = error_code(message), error().code
        if found and (not code or code == found):
            return ""
        return f"wrong answer: expected error {code or ''}, got {message.payload!r}"

    return check


def _no_responders(message: Msg) -> str:
    status = parse_status(message.header)
    is_right = status is not None and status.code == 503
    return "" if is_right else f"wrong answer: expected 503, got {message.header!r} {message.payload!r}"


def _unless_error(message: Msg) -> str:
    """What is wrong with a positive answer: that it is an error."""
    return f"wrong answer: {message.header!r} {message.payload!r}" if error_code(message) or message.header else ""


def _fields(message: Msg, expected: dict[str, Any]) -> str:
    body = msgspec.json.decode(message.payload)
    found = {name: body.get(name) for name in expected}
    return "" if found == expected else f"wrong answer: {found}, expected {expected}"


__all__ = ["State", "Workload", "format_time"]

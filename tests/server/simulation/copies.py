"""Mirrors and sources in the simulation: what they copy, and what mirrors answer for their upstreams.

The server stores copies by itself, so they are found by comparing (`World.arrivals`). Checked is that each is a message
that readers of the upstream saw, that none was passed over or taken twice, whatever was lost in between, and that a
copy is complete in the end. A mirror also answers Direct Gets for its upstream: with `min_last_seq` it must have every
message up to there that the upstream still has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.wire import Msg, matches
from tests.server.simulation.model import Entry, ModelStream, headers_of
from tests.server.simulation.world import Check, Client, Op, ViolationError, error_code

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

MIRROR, SOURCED = "M", "S"
ORIGIN = "Nats-Stream-Source"
UNKNOWN = 1 << 62
_DROPPED = (b"Nats-Stream-Source:", b"Nats-Expected-", b"Nats-Batch-")


class CopyLoad:
    """The mirrors and sources of a world: one stream of each kind."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self.choices = workload.choices
        self._seen: dict[str, set[Entry]] = {}  # what readers of a stream ever saw, while it had copies
        self.world.arrivals.append(self._is_copied)
        self.world.after_finish.append(self._note)
        self.world.after_restart.append(self._note)

    def streams(self, origin: str = "") -> list[ModelStream]:
        """The copies that the server's writer has; those of one stream."""
        found = []
        for states in (self.world.file, self.world.memory):
            found += [stream for stream in states.writer.values() if self.origins(stream)]
        return [stream for stream in found if not origin or origin in self.origins(stream)]

    def origins(self, stream: ModelStream) -> list[str]:
        """The names of the streams that a stream copies."""
        if stream.mirror:
            return [str(stream.mirror["name"])]
        return [str(source["name"]) for source in stream.sources or ()]

    def mirror_of(self, name: str) -> bool:
        return any(stream.mirror for stream in self.streams(name))

    def takes(self, name: str, subject: str) -> bool:
        """Whether a copy of a stream takes messages with that subject."""
        return any(_mapped(copy, name, subject) for copy in self.streams(name))

    def _note(self) -> None:
        for copy in self.streams():
            for name in self.origins(copy):
                for states in (self.world.file, self.world.memory):
                    if name in states.visible:
                        self._seen.setdefault(name, set()).update(states.visible[name].messages.values())

    # Requests.

    def draw(self, client: Client) -> None:
        """Queue a request about a copy."""
        pick, name = self.choices, self.choices.one_of((MIRROR, SOURCED))
        if self.workload.stream(name) is None:
            self.world.request(client, self.create(name))
            return
        kind = pick.below(100)
        if kind < 40 and self.world.has_consumers:
            self.workload.consumers.draw(client, name)
        elif kind < 70:
            self.world.request(client, self.workload.direct_get(name))
        elif kind < 85:
            self.world.request(client, self.workload.info(name))
        elif kind < 92:
            self.world.request(client, self.workload.delete_message(name))
        else:
            self.world.request(client, self.workload.delete(name))

    def create(self, name: str) -> Op:
        pick = self.choices
        config: dict[str, Any] = {
            "name": name, "storage": "memory" if pick.chance(15) else "file", "retention": "limits",
            "allow_direct": True, "num_replicas": 1 + pick.below(2), "duplicate_window": 2_000_000_000,
        }  # fmt: skip
        first = pick.one_of(("A", "B", "C"))
        if name == MIRROR:
            config["mirror"] = self._source(first)
        else:
            config["sources"] = [self._source(first)]
            if pick.chance(40):
                config["sources"].append(self._source({"A": "B", "B": "C", "C": "A"}[first]))
        if pick.chance(25):
            config["max_msgs"] = 1 + pick.below(20)
            config["discard"] = pick.one_of(("old", "new"))

        def run(now: int) -> Check:
            if (known := self.workload.stream(name)) is not None:
                op.storage = known.config["storage"]
                # A mirror takes `mirror_direct` from its upstream, which may have been deleted since: then it differs.
                return _anything if known.config == config else _error
            op.is_catalog = True
            self.world.born += 1
            stream = ModelStream(config, self.world.born, now)
            self.world.states(config["storage"]).writer[name] = stream
            self._note()
            return lambda message: f"wrong answer: {message.payload!r}" if error_code(message) else ""

        body = msgspec.json.encode(config)
        op = Op(f"create {config}", f"$JS.API.STREAM.CREATE.{name}", body, run, storage=config["storage"])
        return op

    def _source(self, origin: str) -> dict[str, Any]:
        source: dict[str, Any] = {"name": origin}
        kind = self.choices.below(10)
        if kind == 1:
            source["filter_subject"] = f"{origin}.{self.choices.one_of(('x.*', 'x', '>'))}"
        elif kind == 2:
            source["subject_transforms"] = [{"src": f"{origin}.x.*", "dest": "T.{{wildcard(1)}}.y"}]
        return source

    # What is copied.

    def _shown(self, name: str) -> list[ModelStream]:
        """The states of a stream that readers saw since the start, the latest first."""
        found = []
        for states in (self.world.file, self.world.memory):
            found += [state[name] for _, state in reversed(states.shown) if name in state]
        return found

    def _is_copied(self, stream: ModelStream, entry: Entry) -> bool:
        if stream.mirror:
            if not self._follows(stream, str(stream.mirror["name"]), stream.last, entry, entry.seq):
                raise ViolationError("copies are exact", f"{stream.name} takes {entry} after {stream.last}")
            return True
        if not stream.sources:
            return False
        name, number, _, _, subject, *identity = headers_of(entry.header)[ORIGIN].split(" ")
        key, seq = f"{name} {''.join(identity)}", int(number)
        position = stream.sourced.get(key, 0)
        if seq <= position:
            raise ViolationError("copies are exact", f"{stream.name} takes {key} {seq} after {position}")
        if _mapped(stream, name, subject) != entry.subject or not self._follows(stream, name, position, entry, seq):
            raise ViolationError("copies are exact", f"{stream.name} takes {entry} after {position}")
        stream.sourced[key] = seq
        return True

    def _follows(self, stream: ModelStream, name: str, position: int, entry: Entry, seq: int) -> bool:
        """Whether a message is the next one of a stream after a position, in a state that readers saw."""
        for state in self._shown(name):
            found = state.messages.get(seq)
            subject = _mapped(stream, name, found.subject) if found is not None else ""
            if found is None or not _is_same(entry, found._replace(subject=subject), is_mirror=bool(stream.mirror)):
                continue
            if stream.max_msgs > 0:  # what came in between may be gone again
                return True
            between = [state.messages[at] for at in range(position + 1, seq) if at in state.messages]
            between = [other for other in between if _mapped(stream, name, other.subject)]
            if not [other for other in between if stream.mirror or not _may_repeat(other)]:
                return True
        return False

    def lacks(self, stream: ModelStream, entry: Entry) -> bool:
        """Whether a copy of a stream has still to get a message: it must not leave before."""
        for copy in self.streams(stream.name):
            if not _mapped(copy, stream.name, entry.subject):
                continue
            if copy.config["storage"] != stream.config["storage"]:
                visible = self.world.states(copy.config["storage"]).visible.get(copy.name)
                if visible is None or visible.born != copy.born:
                    return True
                copy = visible
            if entry.seq > self._position(copy, stream.name) and (copy.mirror or not _may_repeat(entry)):
                return True
        return False

    def wait_for(self, stream: ModelStream, entry: Entry) -> bool:
        """Whether a message waits for a full copy that discards new messages."""
        return any(_is_full(copy) and _mapped(copy, stream.name, entry.subject) for copy in self.streams(stream.name))

    def _position(self, copy: ModelStream, name: str) -> int:
        if copy.mirror:
            return copy.last
        if copy.max_msgs > 0 and copy.discard != "new":  # what was taken last may be gone again
            return UNKNOWN
        return max((seq for key, seq in copy.sourced.items() if key.startswith(f"{name} ")), default=0)

    def check(self) -> None:
        """In the end copies lack nothing. One whose upstream was made again may wait until that is as far."""
        for copy in self.streams():
            for name in self.origins(copy):
                upstream = self.workload.stream(name)
                if upstream is None or _is_full(copy) or self._is_other(copy, name, upstream):
                    continue
                position = self._position(copy, name)
                missing = [
                    seq
                    for seq, entry in upstream.messages.items()
                    if seq > position
                    and not self.workload.schedules.is_fresh(upstream, entry)
                    and _mapped(copy, name, entry.subject)
                    and (copy.mirror or not _may_repeat(entry))
                ]
                if missing:
                    raise ViolationError("copies are complete", f"{copy.name} lacks {missing[:5]} of {name}")

    def _is_other(self, copy: ModelStream, name: str, upstream: ModelStream) -> bool:
        return any(deleted == name and born < upstream.born for deleted, born in self.workload.deleted) and bool(
            copy.last
        )

    # What mirrors answer for their upstreams.

    def check_answer(self, name: str, request: dict[str, Any], got: Entry | None) -> str:
        """The answer of a mirror to a Direct Get of its upstream."""
        if got is not None and got not in self._seen.get(name, ()):
            return f"reads are exact: a mirror of {name} has {got}"
        wanted, upstream = request.get("min_last_seq", 0), self.workload.visible(name)
        if not wanted or upstream is None:
            return ""
        for seq, entry in upstream.messages.items():
            if seq > wanted or got == entry:
                continue
            if "last_by_subj" in request:
                is_wrong = matches(request["last_by_subj"], entry.subject) and (got is None or got.seq < seq)
            elif "next_by_subj" in request:
                after = request["seq"] <= seq and (got is None or seq < got.seq)
                is_wrong = after and matches(request["next_by_subj"], entry.subject)
            else:
                is_wrong = seq == request["seq"]
            if is_wrong:
                return f"min_last_seq is exact: a mirror of {name} answers {got}, and there is {entry}"
        return ""


def _mapped(copy: ModelStream, name: str, subject: str) -> str:
    """The subject that a message of a stream gets in its copy; empty if it is not taken."""
    for source in [copy.mirror] if copy.mirror else copy.sources or ():
        if source["name"] != name:
            continue
        for transform in source.get("subject_transforms", ()):
            if not matches(transform["src"], subject):
                return ""
            return str(transform["dest"]).replace("{{wildcard(1)}}", subject.split(".")[2])
        return subject if matches(source.get("filter_subject", ">"), subject) else ""
    return ""


def _is_full(copy: ModelStream) -> bool:
    """Whether a copy takes no more messages."""
    return bool(copy.discard == "new" and 0 < copy.max_msgs <= len(copy.messages))


def _may_repeat(entry: Entry) -> bool:
    """Whether a stream may take a message for a duplicate."""
    return b"Nats-Msg-Id" in entry.header


def _is_same(copy: Entry, original: Entry, *, is_mirror: bool) -> bool:
    if is_mirror:
        return copy == original
    ours = [line for line in copy.header.split(b"\r\n") if line and not line.startswith(_DROPPED)]
    theirs = [line for line in original.header.split(b"\r\n") if line and not line.startswith(_DROPPED)]
    return (copy.subject, copy.payload, ours or [b"NATS/1.0"]) == (
        original.subject,
        original.payload,
        theirs or [b"NATS/1.0"],
    )


def _anything(message: Msg) -> str:  # noqa: ARG001
    return ""


def _error(message: Msg) -> str:
    return "" if error_code(message) else f"wrong answer: {message.payload!r}"

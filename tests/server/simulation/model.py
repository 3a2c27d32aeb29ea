"""A plain model of streams: a dictionary of messages per stream, and the rules that decide what is in it.

It has no groups, no indexes and no disk. The simulation applies every request to it at the moment the server gets
the request, in the same order, so it says exactly what the server's own (the writer's) view must be, and what the
server must answer. Copies of it, taken when a group is sealed, are the states that a crash or a reader may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from slipstream.api import parse_time
from slipstream.api.ttl import NEVER, time_to_live
from slipstream.wire import Headers, matches

SECOND = 1_000_000_000


class Entry(NamedTuple):
    """A stored message."""

    seq: int
    time: int
    subject: str
    header: bytes
    payload: bytes


class RejectedError(Exception):
    """The server must answer with an error; the argument is its code (0: any)."""

    @property
    def code(self) -> int:
        return int(self.args[0]) if self.args else 0


class Stored(NamedTuple):
    """The answer to a publish."""

    seq: int
    duplicate: bool = False
    val: str | None = None


def size_of(storage: str, entry: Entry) -> int:
    if storage == "memory":
        return 16 + len(entry.subject) + len(entry.header) + len(entry.payload)
    return 30 + len(entry.subject) + len(entry.payload) + (4 + len(entry.header) if entry.header else 0)


def headers_of(header: bytes) -> dict[str, str]:
    return dict(Headers.parse(header).items()) if header else {}


class ModelStream:
    """One stream."""

    def __init__(self, config: dict[str, Any], born: int, now: int, *, is_hidden: bool = False) -> None:
        """`is_hidden`: it is being restored."""
        self.is_hidden = is_hidden
        self.config = config
        self.born = born  # which creation of that name it is
        self.messages: dict[int, Entry] = {}
        self.last = 0
        self.bytes = 0
        self.counts: dict[str, int] = {}
        self.last_time = 0
        self.loaded = self.loaded_at = now  # the server's time when it was opened, and the stream's
        self.ids: dict[str, tuple[int, int]] = {}  # message id -> sequence, time
        self.last_id = ""
        self.consumers: dict[str, tuple[str, ...]] = {}  # name -> filters
        self.is_rough = False  # messages of a large purge are still counted among the subjects: see LogState
        self.sourced: dict[str, int] = {}  # of a stream with sources: the last sequence taken, by source
        # Whether another stream, which has it as mirror or source, takes messages with that subject.
        self.is_copied: Callable[[str], bool] = lambda subject: False  # noqa: ARG005
        self.due: dict[str, tuple[int, int]] = {}  # subject of a schedule -> its sequence, when it is due
        self.plans: dict[int, Entry] = {}  # schedules, also those that are gone
        self.now = now  # the server's time
        self.extra = 0  # how often messages came in that nobody published

    def copy(self) -> ModelStream:
        other = ModelStream.__new__(ModelStream)
        other.__dict__.update(self.__dict__)
        other.messages, other.counts, other.ids = dict(self.messages), dict(self.counts), dict(self.ids)
        other.consumers, other.sourced, other.due = dict(self.consumers), dict(self.sourced), dict(self.due)
        return other

    def revealed(self, config: dict[str, Any], born: int, now: int, *, trims: bool = True) -> ModelStream:
        """The stream that a restore has made, opened with its configuration."""
        other = self.copy()
        other.is_hidden, other.born = False, born
        other.config = config
        other.restarted(now)
        other.now, other.plans = now, {}
        if other.allow_msg_schedules:
            for entry in other.messages.values():
                if "Nats-Schedule" in (wanted := headers_of(entry.header)) and other.of(entry.subject)[0] == entry.seq:
                    other._schedule(entry, wanted, after=entry.time)
        if trims:
            other.update(config)
        return other

    def __getattr__(self, name: str) -> Any:
        """A field of the configuration that this stream does not set."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.config.get(name, 0)

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def first(self) -> int:
        return next(iter(self.messages), self.last + 1)

    def state(self) -> tuple[int, int, int, int, int]:
        """Messages, bytes, first and last sequence, subjects."""
        return len(self.messages), self.bytes, self.first, self.last, len(self.counts)

    def covers(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config.get("subjects", ()))

    # Messages.

    def put(self, entry: Entry) -> None:
        """Add a message."""
        self.messages[entry.seq] = entry
        self.last, self.last_time = entry.seq, entry.time
        self.bytes += size_of(self.config["storage"], entry)
        self.counts[entry.subject] = self.counts.get(entry.subject, 0) + 1

    def drop(self, seq: int) -> None:
        """Remove a message."""
        entry = self.messages.pop(seq)
        self.bytes -= size_of(self.config["storage"], entry)
        self.counts[entry.subject] -= 1
        if not self.counts[entry.subject]:
            del self.counts[entry.subject]

    def drop_all(self, seqs: Iterable[int]) -> int:
        gone = list(seqs)
        for seq in gone:
            self.drop(seq)
        return len(gone)

    def of(self, subject: str) -> list[int]:
        """Sequences of the messages that a subject or filter covers."""
        return [seq for seq, entry in self.messages.items() if matches(subject, entry.subject)]

    def last_of(self, subject: str) -> int:
        found = self.of(subject)
        return found[-1] if found else 0

    # Publishing.

    def publish(self, subject: str, header: bytes, payload: bytes, now: int) -> Stored:
        """Store a message, or raise what it is rejected with."""
        self.now = now
        now = self.stamp(now)
        wanted = headers_of(header)
        self._check_expected(wanted, subject)
        if "Nats-Schedule" in wanted:
            if not self.allow_msg_schedules or ("Nats-Schedule-TTL" in wanted and not self.allow_msg_ttl):
                raise RejectedError
            header, wanted["Nats-Rollup"] = header[:-2] + b"Nats-Rollup: sub\r\n\r\n", "sub"
        msg_id = wanted.get("Nats-Msg-Id", "")
        if msg_id and (known := self.find_id(msg_id, now)):
            return Stored(known, duplicate=True)
        self._check_rest(wanted)
        val = None
        if self.allow_msg_counter:
            if "Nats-Incr" not in wanted:
                raise RejectedError
            before = self.last_of(subject)
            total = _total(self.messages[before].payload) if before else 0
            val = str(total + int(wanted["Nats-Incr"]))
            payload = b'{"val":"%b"}' % val.encode()
        self._check_size(header, payload)
        entry = Entry(self.last + 1, now, subject, header, payload)
        self._check_capacity(entry, is_rollup="Nats-Rollup" in wanted)
        self.append(entry)
        return Stored(entry.seq, val=val)

    def _check_expected(self, wanted: dict[str, str], subject: str) -> None:
        if "Nats-Incr" in wanted and not self.allow_msg_counter:
            raise RejectedError
        if wanted.get("Nats-Expected-Stream", self.name) != self.name:
            raise RejectedError(10060)
        if "Nats-TTL" in wanted and not self.allow_msg_ttl:
            raise RejectedError
        expected = wanted.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None and int(expected) != self.last_of(subject):
            raise RejectedError(10071)
        expected = wanted.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != self.last:
            raise RejectedError(10071)

    def _check_rest(self, wanted: dict[str, str]) -> None:
        if wanted.get("Nats-Expected-Last-Msg-Id", self.last_id) != self.last_id:
            raise RejectedError(10070)
        if "Nats-Rollup" in wanted and (not self.allow_rollup_hdrs or self.deny_purge):
            raise RejectedError

    def _check_size(self, header: bytes, payload: bytes) -> None:
        if 0 < self.max_msg_size < len(header) + len(payload):
            raise RejectedError(10054)

    def _check_capacity(self, entry: Entry, *, is_rollup: bool) -> None:
        if self.config.get("discard") != "new":
            return
        limit, size = self.max_msgs_per_subject, size_of(self.config["storage"], entry)
        mine = self.of(entry.subject)
        replaces = 0 < limit <= len(mine)
        if replaces and self.discard_new_per_subject and not is_rollup:
            raise RejectedError
        if 0 < self.max_msgs <= len(self.messages) and not replaces:
            raise RejectedError
        if 0 < self.max_bytes < self.bytes + size:
            oldest = size_of(self.config["storage"], self.messages[mine[0]]) if replaces else 0
            if not replaces or oldest < size:
                raise RejectedError

    def append(self, entry: Entry) -> None:
        """Add a message and do what follows from it: rollups and limits."""
        wanted = headers_of(entry.header)
        self.put(entry)
        self.last_id = wanted.get("Nats-Msg-Id", "")
        if self.last_id and self.duplicate_window:
            self.ids[self.last_id] = (entry.seq, entry.time)
        if "Nats-Rollup" in wanted and self.allow_rollup_hdrs:
            scope = entry.subject if wanted["Nats-Rollup"] == "sub" else ">"
            self.drop_all(seq for seq in self.of(scope) if seq != entry.seq)
        if self.allow_msg_schedules:
            self._schedule(entry, wanted)
        self.trim(entry.subject)
        if self.retention == "interest" and entry.seq in self.messages and not self.is_wanted(entry.subject):
            self.drop(entry.seq)

    def _schedule(self, entry: Entry, wanted: dict[str, str], *, after: int = 0) -> None:
        """Note when a schedule is due, and that one was served. `after`: when one that is restored was stored."""
        pattern, scheduler = wanted.get("Nats-Schedule", ""), wanted.get("Nats-Scheduler", "")
        if pattern:
            self.plans[entry.seq] = entry
        if pattern.startswith("@at "):
            self.due[entry.subject] = (entry.seq, parse_time(pattern[4:]))
        elif pattern:
            interval = int(pattern.removeprefix("@every ").removesuffix("s")) * SECOND
            when = (after + SECOND // 2) // SECOND * SECOND + interval
            if when < self.now:
                when = (self.now + SECOND // 2) // SECOND * SECOND + interval
            self.due[entry.subject] = (entry.seq, when)
        elif not scheduler:
            self.due.pop(entry.subject, None)
        elif wanted["Nats-Schedule-Next"] == "purge":
            self.due.pop(scheduler, None)
            self.drop_all(self.of(scheduler))
        elif scheduler in self.due:
            self.due[scheduler] = (self.due[scheduler][0], parse_time(wanted["Nats-Schedule-Next"]))

    def is_wanted(self, subject: str) -> bool:
        """Whether a consumer covers a subject, or a copy takes all of them."""
        return self.is_copied(subject) or any(
            matches(pattern, subject) for filters in self.consumers.values() for pattern in filters
        )

    def check_batch(self, staged: list[tuple[str, bytes, bytes]], now: int) -> None:
        """Raise if one message of an atomic batch is rejected. Called on a copy: it is changed."""
        ids: set[str] = set()
        written: dict[str, int] = {}
        size = 0
        for number, (subject, header, payload) in enumerate(staged, 1):
            wanted = headers_of(header)
            if "Nats-Incr" in wanted and not self.allow_msg_counter:
                raise RejectedError
            msg_id = wanted.get("Nats-Msg-Id", "")
            if msg_id:
                if msg_id in ids or self.find_id(msg_id, now):
                    raise RejectedError
                ids.add(msg_id)
            if self.allow_msg_counter and "Nats-Incr" not in wanted:
                raise RejectedError
            written[subject] = written.get(subject, 0) + 1
            size += size_of(self.config["storage"], Entry(0, now, subject, header, payload))
            if self.config.get("discard") == "new":
                if 0 < self.max_msgs < len(self.messages) + number or 0 < self.max_bytes < self.bytes + size:
                    raise RejectedError
                count = self.counts.get(subject, 0) + written[subject]
                if self.discard_new_per_subject and count > self.max_msgs_per_subject:
                    raise RejectedError

    def append_batch(self, staged: list[tuple[str, bytes, bytes]], now: int) -> None:
        totals: dict[str, int] = {}
        for subject, header, payload in staged:
            if self.allow_msg_counter:
                before = self.last_of(subject)
                known = totals.get(subject, _total(self.messages[before].payload) if before else 0)
                totals[subject] = known + int(headers_of(header)["Nats-Incr"])
                payload = b'{"val":"%d"}' % totals[subject]
            self.append(Entry(self.last + 1, now, subject, header, payload))

    def trim(self, subject: str) -> None:
        """Remove the oldest messages until the limits hold."""
        if self.max_msgs_per_subject > 0:
            self.drop_all(self.of(subject)[: -self.max_msgs_per_subject])
        if self.config.get("discard") == "new":  # what was accepted stays, and the next ones are rejected
            return
        if self.max_msgs > 0:
            self.drop_all(list(self.messages)[: -self.max_msgs])
        while 0 < self.max_bytes < self.bytes:
            self.drop(self.first)

    def find_id(self, msg_id: str, now: int) -> int:
        """The sequence of the message with that id, if the window has it."""
        seq, time = self.ids.get(msg_id, (0, 0))
        return seq if seq and time > now - self.duplicate_window else 0

    def fleeting_markers(self, now: int) -> int:
        """How many delete markers may have been stored and removed at once: those that are larger than `max_bytes`, and
        those that no consumer and no copy of a stream with retention by interest takes."""
        return sum(1 for subject in self._ended(now) if self._is_fleeting(subject))

    def squeezed_markers(self, now: int) -> int:
        """How many delete markers may have been stored and removed in the same turn, by `max_bytes` for another."""
        is_limited = self.max_bytes > 0 and self.discard != "new"
        return len(self._ended(now)) if is_limited else 0

    @property
    def has_gaps(self) -> bool:
        """Whether messages that come in may be removed in the same turn for other reasons: limits and rollups hide
        what is copied and what schedules publish."""
        return bool(self.mirror or self.sources or self.allow_msg_schedules)

    def _ended(self, now: int) -> set[str]:
        """Subjects with expired messages, for which there may be delete markers."""
        if not self.subject_delete_marker_ttl:
            return set()
        return {entry.subject for entry in self.messages.values() if 0 < self.expires(entry) <= self.time_at(now)}

    def _is_fleeting(self, subject: str) -> bool:
        if self.retention == "interest" and not self.is_wanted(subject):
            return True
        header = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1s\r\nNats-Rollup: sub\r\n\r\n"
        size = size_of(self.config["storage"], Entry(0, 0, subject, header, b""))
        return bool(self.discard != "new" and 0 < self.max_bytes < size)

    def restarted(self, now: int) -> None:
        """What is derived from the messages is derived again: ids of messages that are gone are gone with them."""
        self.loaded, self.loaded_at = now, max(now, self.last_time)
        now = self.time_at(now)
        self.ids = {}
        for entry in self.messages.values():
            msg_id = headers_of(entry.header).get("Nats-Msg-Id", "") if entry.header else ""
            if msg_id and entry.time > now - self.duplicate_window and self.duplicate_window:
                self.ids[msg_id] = (entry.seq, entry.time)
        self.reverted()

    def reverted(self) -> None:
        """A group was lost, and this is the state before it."""
        last = self.messages.get(self.last)
        self.last_id = headers_of(last.header).get("Nats-Msg-Id", "") if last is not None and last.header else ""

    # Changes on request.

    def update(self, config: dict[str, Any]) -> None:
        self.config = config
        if self.max_msgs_per_subject > 0:
            for subject in list(self.counts):
                self.drop_all(self.of(subject)[: -self.max_msgs_per_subject])
        self.trim("")

    def purge(self, pattern: str, below: int, keep: int) -> int:
        if self.deny_purge or self.sealed:
            raise RejectedError
        below = below or self.last + 1
        victims = [seq for seq in self.of(pattern or ">") if seq < below]
        if keep:
            victims = victims[:-keep]
        count = self.drop_all(victims)
        if pattern in ("", ">") and not keep and below > self.last:
            self.last = below - 1
        return count

    def delete(self, seq: int) -> None:
        if self.deny_delete or self.sealed or seq not in self.messages:
            raise RejectedError
        self.drop(seq)

    # Time.

    def time_at(self, now: int) -> int:
        """The stream's time, which may be ahead of the server's after the clock was set back: it then goes on from the
        last message, a tenth slower, until the server's has caught up."""
        ahead = self.loaded_at - self.loaded
        if now >= self.loaded + 10 * ahead:
            return now
        return max(now, self.loaded_at + (now - self.loaded) * 9 // 10)

    def stamp(self, now: int) -> int:
        """The time of a message that is stored now."""
        return max(self.last_time, self.time_at(now))

    def expires(self, entry: Entry) -> int:
        """When a message expires; 0 if never."""
        moments = []
        ttl = time_to_live(entry.header) if self.allow_msg_ttl and entry.header else 0
        if ttl == NEVER:
            return 0
        if ttl:
            moments.append(entry.time + ttl * SECOND)
        if self.max_age:
            moments.append(entry.time + self.max_age)
        return min(moments) if moments else 0


def _total(payload: bytes) -> int:
    return int(payload[8:-2])


State = dict[str, ModelStream]


def hidden_key(name: str) -> str:
    """The key in a state of the stream that a restore fills."""
    return f"{name} (restore)"


def copied(state: State) -> State:
    return {name: stream.copy() for name, stream in state.items()}


def opened(state: State) -> State:
    """A copy without the streams of restores, which do not outlive the server or a lost group: it deletes them."""
    return {name: stream.copy() for name, stream in state.items() if not stream.is_hidden}


class GroupStates:
    """The states of one store's streams: as they are written, as they are on their way, as they are durable."""

    def __init__(self) -> None:
        self.writer: State = {}
        self.sealed: State = {}  # of the group that is being committed, or was last
        self.synced: State = {}  # on the disk for certain
        self.visible: State = {}  # to readers
        self.sealed_index = self.synced_index = self.visible_index = 0
        self.shown: list[tuple[int, State]] = [(0, {})]  # what readers saw, each from which event on
        self.reopened: set[tuple[str, int]] = set()  # streams whose deletion was lost with the last group that was

    def seal(self) -> None:
        self.sealed_index += 1
        self.sealed = copied(self.writer)

    def sync(self) -> None:
        self.synced, self.synced_index = self.sealed, self.sealed_index

    def finish(self, event: int) -> None:
        self.visible_index = self.sealed_index
        self.show(event, self.sealed)

    def show(self, event: int, state: State) -> None:
        """Readers see another state."""
        self.visible = state
        self.shown.append((event, state))

    def revert(self, now: int) -> None:
        """Everything that is not durable is gone. A stream whose deletion is lost is opened again."""
        kept = {name: stream.born for name, stream in self.writer.items()}
        self.writer = opened(self.synced)
        self.sealed, self.sealed_index = self.synced, self.synced_index
        self.reopened.clear()
        for name, stream in self.writer.items():
            if kept.get(name) == stream.born:
                stream.reverted()
            else:
                stream.restarted(now)
                self.synced[name] = stream.copy()
                self.reopened.add((name, stream.born))

    def restart(self, state: State, now: int) -> None:
        """The server started with this state."""
        self.writer = opened(state)
        for stream in self.writer.values():
            stream.restarted(now)
        self.synced = state | copied(self.writer)
        self.sealed = self.visible = self.synced
        self.sealed_index += 1
        self.synced_index = self.visible_index = self.sealed_index
        self.shown = [(0, self.visible)]

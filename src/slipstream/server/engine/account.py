"""One account: a router, streams and a JetStream API of its own. What happens in one account is not seen in another.

The stores and the work in chunks are shared by all accounts of a server. In a store, the streams of the default account
have their own names and those of others their account's in front (`account/stream`; no stream's name has a slash).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import msgspec

from slipstream.api import StreamConfig, StreamSource, encode_json
from slipstream.api.names import API_PREFIX
from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.api.dispatch import Api
from slipstream.server.engine.auth.account_limits import UNLIMITED, AccountLimits, check_bytes
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.consumers.ack_router import FLOW_PATTERN, AckRouter
from slipstream.server.engine.consumers.snapshot import imported
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.core.session import ClientSub
from slipstream.server.engine.journal import Journal, Source
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.reads.direct_get import PREFIX, QUEUE
from slipstream.server.engine.replication.ingest import Ingest, Remotes
from slipstream.server.engine.replication.mirror import Mirror, MirrorResponder
from slipstream.server.engine.replication.source import Sourcing
from slipstream.server.engine.services import Interested, Job, Target, Waiter
from slipstream.server.engine.snapshots.reader import SnapshotReader
from slipstream.server.engine.streams.atomic_batches import Load
from slipstream.server.engine.streams.features import with_level
from slipstream.server.engine.streams.stream import StoredStream, Stream
from slipstream.server.engine.timers import Timers


class House(Protocol):
    """The engine, as its accounts see it."""

    timers: Timers
    max_pending: int
    max_payload: int
    leader_name: str
    version: str
    domain: str
    batch_load: Load
    advisories: Advisories
    journals: tuple[Journal, ...]
    remotes: Remotes
    watchers: dict[Waiter, None]

    def journal_for(self, storage: str) -> Journal: ...

    def start(self, job: Job) -> bool: ...

    def wait(self, waiter: Waiter, count: int) -> bool: ...


def account_of(key: str) -> str:
    """The account of a stream, by its name in the store."""
    return key.rpartition("/")[0] or DEFAULT_ACCOUNT


class DomainGate:
    """The API under the name of its domain: requests go on as if they had been sent without it. So do messages for
    buckets, which clients that are told of a domain or a prefix send there (`$JS.hub.API.$KV.b.key`)."""

    def __init__(self, switch: AccountRouter, domain: str) -> None:
        self._switch = switch
        self._cut = len(f"$JS.{domain}.API")

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        rest = subject[self._cut + 1 :]
        plain = rest if rest.startswith(("$KV.", "$O.")) else f"{API_PREFIX}.{rest}"
        return self._switch.route(self._switch.router.match_once(plain), plain, reply, header, payload, None)


class Account:
    """The `host.Host` and `jsapi.Catalog` of its streams."""

    def __init__(
        self,
        house: House,
        name: str,
        switch: AccountRouter,
        *,
        jetstream: bool | None,
        limits: AccountLimits = UNLIMITED,
    ) -> None:
        """`jetstream` is None where the account has none because nobody has it here."""
        self.name = name
        self.limits = limits
        self.switch = switch
        self.streams: dict[str, Stream] = {}
        self.restores: dict[str, SnapshotReader] = {}  # by the name of the stream
        self.upstreams: Mapping[str, Stream] = self.streams
        self.remotes, self.watchers = house.remotes, house.watchers
        self._inflows: dict[Ingest, None] = {}
        self._deputies: dict[str, list[tuple[str, MirrorResponder]]] = {}
        self.timers, self.max_pending, self.max_payload = house.timers, house.max_pending, house.max_payload
        self.leader_name, self.version, self.domain = house.leader_name, house.version, house.domain
        self.batch_load, self.advisories = house.batch_load, house.advisories
        self._house = house
        self.journal_for, self.start, self.wait = house.journal_for, house.start, house.wait
        self._last_birth = 0
        self.api = Api(self, is_closed=not jetstream)
        self.desk = AckRouter()
        if jetstream is not None:
            switch.add(f"{API_PREFIX}.>", self.api)
        if jetstream:
            switch.hand_acks(self.desk)
            switch.add(FLOW_PATTERN, self.desk)
            if house.domain:
                switch.add(f"$JS.{house.domain}.API.>", DomainGate(switch, house.domain))

    # What its parts ask of it.

    @property
    def now(self) -> int:
        return self.switch.now

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:
        return self.switch.send(subject, header, payload)

    def token(self, size: int) -> str:
        return self.switch.token(size)

    def chance(self) -> float:
        return self.switch.chance()

    def sample(self, percent: int) -> bool:
        return self.switch.chance() * 100 < percent

    def audience(self, subject: str) -> int:
        return self.switch.audience(subject)

    def add(self, pattern: str, target: Target) -> None:
        self.switch.add(pattern, target)

    def discard(self, pattern: str, target: Target) -> None:
        self.switch.discard(pattern, target)

    def pass_on(self, to: str, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        return self.switch.pass_on(to, subject, reply, header, payload)

    def members(self, subject: str, queue: str) -> list[ClientSub]:
        return self.switch.members(subject, queue)

    def attend(self, subject: str, interested: Interested, yes: bool) -> None:
        self.switch.attend(subject, interested, yes)

    def listeners(self, subject: str) -> tuple[bool, bool]:
        return self.switch.listeners(subject)

    def sole_client(self, subject: str, *, limited: bool = False) -> ClientSub | None:
        return self.switch.sole_client(subject, limited=limited)

    def end(self, sub: ClientSub) -> None:
        self.switch.remove(sub)

    def push(self, sub: ClientSub, frames: bytes, count: int) -> None:
        self.switch.push_to(sub, frames, count, len(frames))

    def bounded(self, storage: str) -> bool:
        return self.limits.bytes_of(storage) >= 0

    def check_bytes(self, storage: str, size: int) -> None:
        if self.limits is not UNLIMITED:
            check_bytes(self.limits, storage, size, self.streams.values())

    def answer(self, journal: Journal | None, reply: str, payload: bytes, source: Source) -> None:
        if journal is None:
            journal = next((j for j in self._house.journals if j.catalog_unfinished), None)
        if journal is not None and journal.unfinished:
            journal.answers.append((reply, 0, source, payload))
        else:
            self.send(reply, b"", payload or source.ack(0)[0].encode())

    def request(self, subject: str, reply: str, payload: bytes) -> bool:
        """Publish from within the server, with a subject for answers."""
        return self.switch.route(self.switch.router.match_once(subject), subject, reply, b"", payload, None)

    def subscribe(self, pattern: str, target: Target) -> None:
        self.switch.add(pattern, target)

    def unsubscribe(self, pattern: str, target: Target) -> None:
        self.switch.discard(pattern, target)

    # Streams.

    def add_stream(self, config: StreamConfig, now: int) -> Stream:
        journal = self.journal_for(config.storage)
        key = self._key(config.name)
        created = self._birth(now)
        journal.store.create(key, encode_json(StoredStream(created, config.to_dict())))
        journal.catalog = True
        stream = Stream(self, journal, config, key=key, created=created, now=now)
        if config.first_seq > 1:
            stream.log.purge(below=config.first_seq)
        self._attach(stream)
        return stream

    def change_stream(self, stream: Stream, config: StreamConfig, now: int) -> None:
        self._detach(stream)
        was_mirror = stream.config.mirror is not None
        stream.configure(config)
        if was_mirror and config.mirror is None:  # promoted: it looks after duplicates itself from now on
            stream.restore(now)
        self._attach(stream)
        stream.journal.store.configure(stream.key, stream.stored())
        stream.journal.catalog = True
        stream.enforce(now)

    def _birth(self, now: int) -> int:
        """When a stream was made, never the same twice: sources know by it that one was made anew."""
        self._last_birth = max(now, self._last_birth + 1)
        return self._last_birth

    def delete_stream(self, stream: Stream) -> None:
        self._detach(stream)
        stream.stop()
        stream.journal.store.delete(stream.key)
        stream.journal.catalog = True

    # Out of a snapshot: the stream is in the store, and nowhere else before it is complete.

    def begin_restore(self, config: StreamConfig, now: int) -> tuple[Journal, StreamLog]:
        journal, key = self.journal_for(config.storage), self._key(config.name)
        return journal, journal.store.create(key, encode_json(StoredStream(now, config.to_dict(), restoring=True)))

    def complete_restore(self, config: StreamConfig, consumers: list[tuple[str, bytes]], now: int) -> dict[str, Any]:
        journal, key = self.journal_for(config.storage), self._key(config.name)
        log = journal.store.log(key)
        for name, body in consumers:
            for record, value in imported(name, body, last_seq=log.state.last_seq, now=now).items():
                log.keep(record, value)
        self.restores.pop(config.name, None)
        stream = Stream(self, journal, config, key=key, created=self._birth(now), now=now)
        journal.store.configure(key, stream.stored())
        journal.catalog = True
        self._attach(stream)
        stream.enforce(now)
        journal.after.append(stream.consumers.recount)
        return self.api.restored(stream, now)

    def drop_restore(self, config: StreamConfig) -> None:
        self.restores.pop(config.name, None)
        self.journal_for(config.storage).store.delete(self._key(config.name))

    def replace_peer(self, stream: Stream, peer: str, now: int) -> None:
        self._detach(stream)
        stream.replicas.replace(peer, now)
        self._attach(stream)

    def load(self, journal: Journal, now: int) -> None:
        """Make the streams those of the store: at the start, and after a group was lost."""
        kept: dict[str, StoredStream] = {
            key: msgspec.json.decode(data, type=StoredStream)
            for key, data in journal.store.streams()
            if account_of(key) == self.name
        }
        for restore in [each for each in self.restores.values() if self.journal_for(each.config.storage) is journal]:
            restore.lost(begun=self._key(restore.config.name) in kept)
        for key in [key for key, entry in kept.items() if entry.restoring]:
            del kept[key]
            if any(name == key for name, _ in journal.store.streams()):
                journal.store.delete(key)
        for stream in [stream for stream in self.streams.values() if stream.journal is journal]:
            self._detach(stream)
            entry = kept.get(stream.key)
            if entry is None or entry.created != stream.created or stream.log is not journal.store.log(stream.key):
                stream.stop()
            else:
                del kept[stream.key]
                stream.configure(with_level(StreamConfig.from_dict(entry.config)))
                stream.restore(now, lost=True)
                stream.positions = dict(entry.positions)
                for inflow in self.inflows(stream):
                    inflow.reset()
                self._attach(stream)
                if entry.thin:
                    stream.thin_out()
        for key, entry in kept.items():
            config = with_level(StreamConfig.from_dict(entry.config))
            stream = Stream(self, journal, config, key=key, created=entry.created, now=now)
            stream.positions = dict(entry.positions)
            self._attach(stream)
            if entry.thin:
                stream.thin_out()

    def _key(self, name: str) -> str:
        return name if self.name == DEFAULT_ACCOUNT else f"{self.name}/{name}"

    def _attach(self, stream: Stream) -> None:
        self.streams[stream.name] = stream
        for subject in stream.config.subjects:
            self.switch.add(subject, stream)
        self._connect(stream)
        for subject, peer in self._responders(stream):
            self.switch.add(subject, peer, QUEUE)

    def _detach(self, stream: Stream) -> None:
        del self.streams[stream.name]
        for subject in stream.config.subjects:
            self.switch.discard(subject, stream)
        for subject, peer in self._responders(stream):
            self.switch.discard(subject, peer, QUEUE)
        self._deputies.pop(stream.name, None)
        for inflow in self.inflows(stream):
            self._inflows.pop(inflow, None)
            if (upstream := self.streams.get(inflow.source.name)) is not None:
                upstream.takers.pop(inflow, None)
            inflow.stop()

    def inflows(self, stream: Stream) -> tuple[Ingest, ...]:
        """Where messages of other streams come in."""
        return cast("tuple[Ingest, ...]", stream.inflows)

    def _connect(self, stream: Stream) -> None:
        """Begin to take in what the configuration names; what was there before goes on where it was."""

        def known(source: StreamSource) -> Ingest | None:
            return next((inflow for inflow in self.inflows(stream) if inflow.source == source), None)

        config = stream.config
        if config.mirror is not None:
            mirror = known(config.mirror) or Mirror(self, stream, config.mirror)
            stream.inflows = (mirror,)
            if config.mirror_direct:
                assert isinstance(mirror, Mirror)
                self._deputies[stream.name] = [
                    (f"{PREFIX}{config.mirror.name}{rest}", deputy)
                    for peer in stream.replicas.peers
                    for deputy in (MirrorResponder(peer, config.mirror.name, mirror.may_answer),)
                    for rest in ("", ".>")
                ]
        else:
            stream.inflows = tuple(known(source) or Sourcing(self, stream, source) for source in config.sources)
        for inflow in self.inflows(stream):
            self._inflows[inflow] = None
            upstream = self.streams.get(inflow.source.name)
            if upstream is not None and not inflow.is_remote:
                upstream.takers[inflow] = None
            inflow.start()
        for inflow in self._inflows:
            if inflow.source.name == stream.name and not inflow.is_remote:
                stream.takers[inflow] = None
                inflow.release()

    def _responders(self, stream: Stream) -> Iterator[tuple[str, Target]]:
        """Who answers Direct Gets, on which subject."""
        if stream.config.allow_direct:
            for peer in stream.replicas.peers:
                yield f"{PREFIX}{stream.name}", peer
                yield f"{PREFIX}{stream.name}.>", peer
        yield from self._deputies.get(stream.name, ())

"""One account: its own router, streams and JetStream API. What happens in one account is not seen in another.

The stores, timers and jobs are shared by all accounts of a server. In a store, the streams of the default account have
their own names, and those of other accounts are prefixed with the account's (`account/stream`; no stream name contains
a slash).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import msgspec

from slipstream.api import StreamConfig, StreamSource, encode_json
from slipstream.api.names import API_PREFIX
from slipstream.errors import ErrorCode
from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.api.dispatch import Api
from slipstream.server.engine.auth.account_limits import UNLIMITED, AccountLimits, exceeds
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.consumers.ack_router import FLOW_PATTERN, AckRouter
from slipstream.server.engine.consumers.snapshot import imported
from slipstream.server.engine.core.routing import AccountRouter, Subscriber
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.jobs import AccountJobs
from slipstream.server.engine.journal import Journal, Source
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.reads.direct_get import PREFIX, QUEUE
from slipstream.server.engine.replication.ingest import Ingest, RemoteIngests
from slipstream.server.engine.replication.mirror import Mirror, MirrorResponder
from slipstream.server.engine.replication.source import SourceIngest, source_key
from slipstream.server.engine.services import CommitWaiters, SharedServices
from slipstream.server.engine.snapshots.reader import SnapshotReader
from slipstream.server.engine.streams.atomic_batches import BatchUsage
from slipstream.server.engine.streams.features import with_level
from slipstream.server.engine.streams.stored_stream import StoredStream
from slipstream.server.engine.streams.stream import MOST_FOR_ONE, Stream
from slipstream.server.engine.subject_index import SubjectIndex
from slipstream.server.engine.timers import Timers
from slipstream.wire import overlaps


def account_of(key: str) -> str:
    """The account of a stream, by its name in the store."""
    return key.rpartition("/")[0] or DEFAULT_ACCOUNT


class DomainSubjects:
    """The API under the name of its domain: requests are routed as if they had been sent without it. So are messages
    for buckets, which clients with a domain or a prefix publish there (`$JS.hub.API.$KV.b.key`)."""

    def __init__(self, router: AccountRouter, domain: str) -> None:
        self._router = router
        self._cut = len(f"$JS.{domain}.API")

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        rest = subject[self._cut + 1 :]
        plain = rest if rest.startswith(("$KV.", "$O.")) else f"{API_PREFIX}.{rest}"
        return self._router.request(plain, reply, header, payload)


class Account:
    """The `Services` of its parts, and the catalog of its streams."""

    def __init__(
        self,
        shared: SharedServices,
        name: str,
        router: AccountRouter,
        *,
        remote_ingests: RemoteIngests,
        jetstream: bool | None,
        limits: AccountLimits = UNLIMITED,
        resume: Callable[[Session], None],
    ) -> None:
        """`jetstream` is False where only this account has none, None where no account of the server has it. `resume`
        handles the input of a client that waited."""
        self.name = name
        self.limits = limits
        self.router = router
        self.streams: dict[str, Stream] = {}
        self.subjects: SubjectIndex = SubjectIndex()
        self.restores: dict[str, SnapshotReader] = {}  # by the name of the stream
        self.remote_ingests = remote_ingests
        self._ingests: dict[Ingest, None] = {}
        self._mirror_responders: dict[str, list[tuple[str, MirrorResponder]]] = {}
        self._shared = shared
        self.journals: Mapping[str, Journal] = shared.journals
        self.timers: Timers = shared.timers
        self.commit_waiters: CommitWaiters = shared.commit_waiters
        self.jobs: AccountJobs = AccountJobs(shared.jobs, shared.load, name, resume)
        router.defer = self.jobs.go_on
        router.resume = resume
        self.max_pending: int = shared.max_pending
        self.max_payload: int = shared.max_payload
        self.compat: bool = shared.compat
        self.leader_name: str = shared.server_name
        self.version: str = shared.version
        self.domain: str = shared.domain
        self.batch_usage: BatchUsage = shared.batch_usage
        self.advisories: Advisories = shared.advisories
        self._last_created = 0
        self.api: Api = Api(self, is_closed=not jetstream)
        self.ack_router: AckRouter = AckRouter()
        if jetstream is not None:
            router.add(f"{API_PREFIX}.>", self.api)
        if jetstream:
            router.route_acks(self.ack_router)
            router.add(FLOW_PATTERN, self.ack_router)
            if self.domain:
                router.add(f"$JS.{self.domain}.API.>", DomainSubjects(router, self.domain))

    # Limits, and answers that wait for the catalog.

    def is_bounded(self, storage: str) -> bool:
        return self.limits.bytes_of(storage) >= 0

    def check_bytes(self, storage: str, size: int) -> None:
        if self.limits is UNLIMITED:
            return
        left = MOST_FOR_ONE
        while exceeds(self.limits, storage, size, self.streams.values()):
            removed = 0
            for stream in self.streams.values():  # what rollups replaced goes when its place is needed
                if not removed and left > 0 and stream.config.storage == storage:
                    removed = stream.remove_replaced(min(left, 16))
            if not removed:
                raise ErrorCode.ACCOUNT_RESOURCES_EXCEEDED.error()
            left -= removed

    def answer(self, journal: Journal | None, reply: str, payload: bytes, source: Source) -> None:
        """Answer once the open group of the journal is durable; without a journal, once the catalog is."""
        if journal is None:
            journal = self._shared.uncommitted_catalog
        if journal is not None and journal.unfinished:
            journal.answers.append((reply, 0, source, payload, self.jobs.load.asker))
        else:
            self.router.send(reply, b"", payload or source.ack(0)[0].encode())

    # Streams.

    def add_stream(self, config: StreamConfig, now: int) -> Stream:
        journal = self.journals[config.storage]
        key = self._key(config.name)
        created = self._creation_time(now)
        journal.store.create(key, encode_json(StoredStream(created, config.to_dict())))
        journal.catalog = True
        stream = Stream(self, journal, config, key=key, created=created, now=now)
        if config.first_seq > 1:
            stream.log.purge(below=config.first_seq)
        self._attach(stream)
        return stream

    def change_stream(self, stream: Stream, config: StreamConfig, now: int) -> None:
        kept = frozenset(stream.config.subjects).intersection(config.subjects)
        self._detach(stream, but=kept)
        was_mirror = stream.config.mirror is not None
        stream.configure(config)
        if was_mirror and config.mirror is None:  # promoted: it detects duplicates itself from now on
            stream.promote()
            stream.restore(now)
        self._attach(stream, but=kept)
        stream.journal.store.configure(stream.key, stream.stored())
        stream.journal.catalog = True
        stream.enforce(now)

    def _creation_time(self, now: int) -> int:
        """The creation time of a new stream, unique in the account: sources tell by it that a stream was recreated."""
        self._last_created = max(now, self._last_created + 1)
        return self._last_created

    def delete_stream(self, stream: Stream) -> None:
        self._detach(stream)
        stream.stop()
        stream.journal.store.delete(stream.key)
        stream.journal.catalog = True
        stream.journal.after.append(stream.gone)

    # Restores: the stream is in the store and nowhere else until it is complete.

    def begin_restore(self, config: StreamConfig, now: int) -> tuple[Journal, StreamLog]:
        journal, key = self.journals[config.storage], self._key(config.name)
        return journal, journal.store.create(key, encode_json(StoredStream(now, config.to_dict(), restoring=True)))

    def complete_restore(self, config: StreamConfig, consumers: list[tuple[str, bytes]], now: int) -> dict[str, Any]:
        journal, key = self.journals[config.storage], self._key(config.name)
        log = journal.store.log(key)
        for name, body in consumers:
            for record, value in imported(name, body, last_seq=log.state.last_seq, now=now).items():
                log.keep(record, value)
        self.restores.pop(config.name, None)
        stream = Stream(self, journal, config, key=key, created=self._creation_time(now), now=now)
        journal.store.configure(key, stream.stored())
        journal.catalog = True
        self._attach(stream)
        stream.enforce(now)
        journal.after.append(stream.consumers.recount)
        return self.api.restored(stream, now)

    def drop_restore(self, config: StreamConfig) -> None:
        self.restores.pop(config.name, None)
        self.journals[config.storage].store.delete(self._key(config.name))

    def replace_peer(self, stream: Stream, peer: str, now: int) -> None:
        self._detach(stream)
        stream.replicas.replace(peer, now)
        self._attach(stream)

    def load(self, journal: Journal, now: int) -> None:
        """Bring the streams in line with the store: at the start, and after a group was lost."""
        stored: dict[str, StoredStream] = {
            key: msgspec.json.decode(data, type=StoredStream)
            for key, data in journal.store.streams()
            if account_of(key) == self.name
        }
        # 1. Restores do not survive: their chunks were lost with the group, or with the server.
        for restore in [each for each in self.restores.values() if self.journals[each.config.storage] is journal]:
            entry = stored.get(self._key(restore.config.name))
            restore.lost(begun=entry is not None and entry.restoring)  # or it is a stream whose deletion was lost
        for key in [key for key, entry in stored.items() if entry.restoring]:
            del stored[key]
            if any(name == key for name, _ in journal.store.streams()):
                journal.store.delete(key)
        # 2. After a lost group: streams that the store still has go back to their committed state, others are stopped.
        # All are detached before the first one is attached again: a mirror whose creation was lost must not follow it.
        kept: list[tuple[Stream, StoredStream]] = []
        for stream in [stream for stream in self.streams.values() if stream.journal is journal]:
            self._detach(stream)
            entry = stored.get(stream.key)
            if entry is None or entry.created != stream.created or stream.log is not journal.store.log(stream.key):
                stream.stop()
            else:
                del stored[stream.key]
                kept.append((stream, entry))
        for stream, entry in kept:
            stream.configure(with_level(StreamConfig.from_dict(entry.config)))
            stream.restore(now, lost=True)
            stream.positions, stream.fidelity = dict(entry.positions), entry.fidelity
            stream.resume_removals(entry.removals)  # before a mirror says what it has
            for ingest in self.ingests(stream):
                ingest.reset()
            self._attach(stream)
            if entry.trimming:
                stream.trim_subjects()
        # 3. All others are opened: every stream at the start, deleted ones whose deletion was lost.
        for key, entry in stored.items():
            config = with_level(StreamConfig.from_dict(entry.config))
            if self._is_replaced(config):
                journal.store.delete(key)
                journal.catalog = True
                continue
            stream = Stream(self, journal, config, key=key, created=entry.created, now=now)
            stream.positions, stream.fidelity = dict(entry.positions), entry.fidelity
            stream.resume_removals(entry.removals)  # before a mirror says what it has
            self._attach(stream)
            if entry.trimming:
                stream.trim_subjects()

    def unload(self) -> None:
        """Stop all streams and leave them in the stores; `load` opens them. Pull requests that wait are ended as by a
        server that shuts down: clients send them again."""
        for restore in list(self.restores.values()):
            restore.lost(begun=False)
        self.restores.clear()
        for stream in list(self.streams.values()):
            stream.consumers.retire()
            self._detach(stream)
            stream.stop()
        self._last_created = 0

    def reset(self) -> None:
        """Delete all streams."""
        for restore in list(self.restores.values()):
            restore.lost(begun=True)
            self.drop_restore(restore.config)
        for stream in list(self.streams.values()):
            self.delete_stream(stream)

    def _is_replaced(self, config: StreamConfig) -> bool:
        """Whether a stream of the other store has taken the place of one whose deletion was lost: it was created, and
        that was acknowledged, while the deletion was on its way to the disk."""
        return config.name in self.streams or any(
            overlaps(mine, theirs)
            for other in self.streams.values()
            if self.journals[config.storage] is not other.journal
            for mine in config.subjects
            for theirs in other.config.subjects
        )

    def _key(self, name: str) -> str:
        return name if self.name == DEFAULT_ACCOUNT else f"{self.name}/{name}"

    def _attach(self, stream: Stream, *, but: Collection[str] = ()) -> None:
        """Let the stream take part; `but`: subjects that `_detach` left to it."""
        self.streams[stream.name] = stream
        added = [subject for subject in stream.config.subjects if subject not in but]
        self.subjects.claim(stream.name, added)
        for subject in added:
            self.router.add(subject, stream)
        self._connect(stream)
        for subject, peer in self._responders(stream):
            self.router.add(subject, peer, QUEUE)

    def _detach(self, stream: Stream, *, but: Collection[str] = ()) -> None:
        del self.streams[stream.name]
        removed = [subject for subject in stream.config.subjects if subject not in but]
        self.subjects.release(stream.name, removed)
        for subject in removed:
            self.router.discard(subject, stream)
        for subject, peer in self._responders(stream):
            self.router.discard(subject, peer, QUEUE)
        self._mirror_responders.pop(stream.name, None)
        stream.downstream.clear()  # `_connect` finds those that are still there
        for ingest in self.ingests(stream):
            self._ingests.pop(ingest, None)
            if (upstream := self.streams.get(ingest.source.name)) is not None:
                upstream.downstream.pop(ingest, None)
            ingest.stop()

    def ingests(self, stream: Stream) -> tuple[Ingest, ...]:
        """The ingests of a mirror or of a stream with sources."""
        return cast("tuple[Ingest, ...]", stream.ingests)

    def _connect(self, stream: Stream) -> None:
        """Start the ingests that the configuration names; existing ones go on from their position."""

        config = stream.config
        known = {source_key(ingest.source): ingest for ingest in self.ingests(stream)}

        def existing(source: StreamSource) -> Ingest | None:
            ingest = known.get(source_key(source))
            return ingest if ingest is not None and ingest.source == source else None

        if config.mirror is not None:
            mirror = existing(config.mirror) or Mirror(self, stream, config.mirror)
            stream.ingests = (mirror,)
            if config.mirror_direct:
                assert isinstance(mirror, Mirror)
                self._mirror_responders[stream.name] = [
                    (f"{PREFIX}{config.mirror.name}{rest}", responder)
                    for peer in stream.replicas.peers
                    for responder in (MirrorResponder(self, peer, mirror),)
                    for rest in ("", ".>")
                ]
        else:
            stream.ingests = tuple(existing(source) or SourceIngest(self, stream, source) for source in config.sources)
        for ingest in self.ingests(stream):
            self._ingests[ingest] = None
            upstream = self.streams.get(ingest.source.name)
            if upstream is not None and not ingest.is_remote:
                upstream.downstream[ingest] = None
            ingest.start()
        for ingest in self._ingests:
            if ingest.source.name == stream.name and not ingest.is_remote:
                stream.downstream[ingest] = None
                ingest.release()

    def _responders(self, stream: Stream) -> Iterator[tuple[str, Subscriber]]:
        """The responders of Direct Get with their subjects."""
        if stream.config.allow_direct:
            for peer in stream.replicas.peers:
                yield f"{PREFIX}{stream.name}", peer
                yield f"{PREFIX}{stream.name}.>", peer
        yield from self._mirror_responders.get(stream.name, ())

"""One account: a router, streams and a JetStream API of its own. What happens in one account is not seen in another.

The stores and the work in chunks are shared by all accounts of a server. In a store, the streams of the default account
have their own names and those of others their account's in front (`account/stream`; no stream's name has a slash).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from slipstream.api import StreamConfig, encode_json
from slipstream.api.names import API_PREFIX
from slipstream.server.engine.direct import PREFIX, QUEUE
from slipstream.server.engine.host import Job, Target, Waiter
from slipstream.server.engine.journal import Journal, Source
from slipstream.server.engine.jsapi import Api
from slipstream.server.engine.session import ClientSub
from slipstream.server.engine.stream import Stored, Stream
from slipstream.server.engine.switch import Switch
from slipstream.server.engine.timers import Timers
from slipstream.server.engine.users import DEFAULT_ACCOUNT


class House(Protocol):
    """The engine, as its accounts see it."""

    timers: Timers
    max_pending: int
    leader_name: str
    journals: tuple[Journal, ...]

    def journal_for(self, storage: str) -> Journal: ...

    def start(self, job: Job) -> bool: ...

    def wait(self, waiter: Waiter, count: int) -> bool: ...


def account_of(key: str) -> str:
    """The account of a stream, by its name in the store."""
    return key.rpartition("/")[0] or DEFAULT_ACCOUNT


class Account:
    """The `host.Host` and `jsapi.Catalog` of its streams."""

    def __init__(self, house: House, name: str, switch: Switch, *, jetstream: bool) -> None:
        self.name = name
        self.switch = switch
        self.streams: dict[str, Stream] = {}
        self.timers, self.max_pending = house.timers, house.max_pending
        self.leader_name = house.leader_name
        self._house = house
        self.journal_for, self.start, self.wait = house.journal_for, house.start, house.wait
        self.api = Api(self)
        if jetstream:
            switch.add(f"{API_PREFIX}.>", self.api)

    # What its parts ask of it.

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:
        return self.switch.send(subject, header, payload)

    def listeners(self, subject: str) -> tuple[bool, bool]:
        return self.switch.listeners(subject)

    def sole_client(self, subject: str) -> ClientSub | None:
        return self.switch.sole_client(subject)

    def push(self, sub: ClientSub, frames: bytes, count: int) -> None:
        self.switch.push_to(sub, frames, count)

    def answer(self, journal: Journal | None, reply: str, payload: bytes, source: Source) -> None:
        if journal is None:
            journal = next((j for j in self._house.journals if j.catalog_unfinished), None)
        if journal is not None and journal.unfinished:
            journal.answers.append((reply, 0, source, payload))
        else:
            self.send(reply, b"", payload)

    # Streams.

    def add_stream(self, config: StreamConfig, now: int) -> Stream:
        journal = self.journal_for(config.storage)
        key = self._key(config.name)
        journal.store.create(key, encode_json(Stored(now, config.to_dict())))
        journal.catalog = True
        stream = Stream(self, journal, config, key=key, created=now, now=now)
        if config.first_seq > 1:
            stream.log.purge(below=config.first_seq)
        self._attach(stream)
        return stream

    def change_stream(self, stream: Stream, config: StreamConfig, now: int) -> None:
        self._detach(stream)
        stream.configure(config)
        self._attach(stream)
        stream.journal.store.configure(stream.key, stream.stored())
        stream.journal.catalog = True
        stream.enforce(now)

    def delete_stream(self, stream: Stream) -> None:
        self._detach(stream)
        stream.stop()
        stream.journal.store.delete(stream.key)
        stream.journal.catalog = True

    def replace_peer(self, stream: Stream, peer: str, now: int) -> None:
        self._detach(stream)
        stream.replicas.replace(peer, now)
        self._attach(stream)

    def load(self, journal: Journal, now: int) -> None:
        """Make the streams those of the store: at the start, and after a group was lost."""
        kept: dict[str, Stored] = {
            key: msgspec.json.decode(data, type=Stored)
            for key, data in journal.store.streams()
            if account_of(key) == self.name
        }
        for stream in [stream for stream in self.streams.values() if stream.journal is journal]:
            self._detach(stream)
            entry = kept.get(stream.key)
            if entry is None or entry.created != stream.created or stream.log is not journal.store.log(stream.key):
                stream.stop()
            else:
                del kept[stream.key]
                stream.configure(StreamConfig.from_dict(entry.config))
                stream.restore(now)
                self._attach(stream)
        for key, entry in kept.items():
            config = StreamConfig.from_dict(entry.config)
            self._attach(Stream(self, journal, config, key=key, created=entry.created, now=now))

    def _key(self, name: str) -> str:
        return name if self.name == DEFAULT_ACCOUNT else f"{self.name}/{name}"

    def _attach(self, stream: Stream) -> None:
        self.streams[stream.name] = stream
        for subject in stream.config.subjects:
            self.switch.add(subject, stream)
        for subject, peer in self._responders(stream):
            self.switch.add(subject, peer, QUEUE)

    def _detach(self, stream: Stream) -> None:
        del self.streams[stream.name]
        for subject in stream.config.subjects:
            self.switch.discard(subject, stream)
        for subject, peer in self._responders(stream):
            self.switch.discard(subject, peer, QUEUE)

    def _responders(self, stream: Stream) -> Iterator[tuple[str, Target]]:
        """Who answers Direct Gets, on which subject."""
        if stream.config.allow_direct:
            for peer in stream.replicas.peers:
                yield f"{PREFIX}{stream.name}", peer
                yield f"{PREFIX}{stream.name}.>", peer

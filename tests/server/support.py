"""An engine without sockets, in virtual time: wire bytes of clients go in, the events that they would see come out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from slipstream.server.engine.auth.authenticator import Verify, reject_signatures
from slipstream.server.engine.engine import Engine, Settings
from slipstream.server.engine.ports import Store
from slipstream.server.options import ServerOptions
from slipstream.server.server import engine_settings
from slipstream.server.store.groups import write_group
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Event, Headers, Msg, Parser, Side, parse_status, pub

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


class Client:
    """One connection to the engine of a rig."""

    def __init__(self, rig: Rig, cid: int) -> None:
        self.rig = rig
        self.cid = cid
        self.closed = False
        self.raw = b""
        self.events: list[Event] = []
        self.inbox = f"_INBOX.c{cid}."
        self._parser = Parser(Side.SERVER)
        self._to_server = Parser(Side.CLIENT, max_payload=rig.engine.settings.max_payload)
        self._asked = 0

    def send(self, data: bytes, *, settle: bool = True) -> Client:
        """Send bytes; unless told otherwise, everything that follows is carried out."""
        self.rig.engine.receive(self.cid, self._to_server.feed(data), self.rig.now)
        if settle:
            self.rig.settle()
        return self

    def feed(self, data: bytes) -> None:
        self.raw += data
        self.events += self._parser.feed(data)

    def take(self) -> list[Event]:
        """What the client has seen since it last looked."""
        events, self.events = self.events, []
        return events

    def messages(self) -> list[Msg]:
        return [event for event in self.take() if isinstance(event, Msg)]

    def answers(self) -> dict[str, Any]:
        """The JSON of what came since it last looked, by the last part of the reply subject."""
        return {each.subject.removeprefix(self.inbox): msgspec.json.decode(each.payload) for each in self.messages()}

    def ask(
        self, subject: str, body: bytes | dict[str, Any] = b"", header: Headers | None = None, *, settle: bool = True
    ) -> list[Msg]:
        """A request; every answer that comes at once."""
        self._asked += 1
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        reply = f"{self.inbox}{self._asked}"
        self.take()
        self.send(pub(subject, payload, reply, header.encode() if header is not None else b""), settle=settle)
        return [message for message in self.messages() if message.subject == reply]

    def api(self, subject: str, body: bytes | dict[str, Any] = b"") -> dict[str, Any]:
        """A request to the JetStream API; its answer."""
        (answer,) = self.ask(f"$JS.API.{subject}", body)
        decoded: dict[str, Any] = msgspec.json.decode(answer.payload)
        return decoded

    def create(self, name: str, **config: Any) -> dict[str, Any]:
        """A stream with Direct Get, unless told otherwise."""
        config = {"name": name, "subjects": [f"{name.lower()}.>"], "allow_direct": True, "storage": "memory"} | config
        return self.api(f"STREAM.CREATE.{name}", config)

    def publish(self, subject: str, payload: bytes = b"x", /, **headers: str) -> dict[str, Any]:
        """Publish to a stream; its ack. `Nats_Msg_Id="a"` is a header."""
        block = Headers({name.replace("_", "-"): value for name, value in headers.items()}) if headers else None
        (answer,) = self.ask(subject, payload, block)
        decoded: dict[str, Any] = msgspec.json.decode(answer.payload)
        return decoded

    def direct(self, stream: str, body: bytes | dict[str, Any] = b"") -> list[Msg]:
        return self.ask(f"$JS.API.DIRECT.GET.{stream}", body)


def make_settings(**changes: Any) -> Settings:
    """The settings of a server with the default options, and an id that is always the same."""
    settings = engine_settings(ServerOptions(port=4222), None)
    return replace(settings, **{"server_id": "SLIPSTREAM", "server_name": "slipstream", "slipstream": "", **changes})


class Rig:
    """An engine, its store, the time, and clients."""

    def __init__(
        self,
        *,
        store: Store | None = None,
        seed: int = 1,
        now: int = START,
        verify: Verify = reject_signatures,
        **settings: Any,
    ) -> None:
        self.now = now
        self.store: Store = store if store is not None else MemoryStore()
        self.engine = Engine(
            make_settings(**settings),
            file=self.store,
            memory=self.store,
            rng=random.Random(seed),
            now=now,
            verify=verify,
        )
        self._clients: dict[int, Client] = {}

    def client(self, hello: bytes = HELLO) -> Client:
        cid = len(self._clients) + 1
        self.engine.connect(cid, "127.0.0.1", self.now, nonce=f"nonce-{cid}" if self.engine.wants_nonces else "")
        client = self._clients[cid] = Client(self, cid)
        self.settle()
        if hello:
            client.send(hello + b"SUB %b* inbox\r\n" % client.inbox.encode())
            client.take()
        return client

    def commit(self) -> bool:
        """Carry the open group through; False if there was none."""
        done = False
        for journal in self.engine.journals:
            if journal.ready:
                batch = journal.seal()
                if batch.group is not None:
                    write_group(journal.store, batch.group)
                self.engine.committed(batch, self.now)
                done = True
        return done

    def flush(self) -> None:
        """Hand its output to every client."""
        for session in self.engine.take_output():
            client = self._clients[session.cid]
            client.feed(b"".join(session.out))
            session.out.clear()
            session.set_capacity(self.engine.settings.max_pending_bytes)
            if session.closed:
                client.closed = True

    def turn(self) -> int:
        """One turn, as the driver has it; its units of work."""
        self.engine.step(self.now)
        used = self.engine.jobs.used
        self.commit()
        self.flush()
        return used

    def settle(self) -> None:
        """Turns, until nothing is left to do."""
        while True:
            more = self.engine.step(self.now)
            more = self.commit() or more
            self.flush()
            if not more:
                return

    def wait(self, seconds: float) -> None:
        """Let time go by, stopping at every deadline on the way."""
        end = self.now + round(seconds * SECOND)
        while (deadline := self.engine.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.engine.tick(self.now)
            self.settle()
        self.now = end


def status(message: Msg) -> tuple[int, str]:
    """The inline status of a reply; (0, "") for an ordinary message."""
    found = parse_status(message.header)
    return (found.code, found.description) if found is not None else (0, "")


def headers(message: Msg) -> dict[str, str]:
    return dict(Headers.parse(message.header).items())


def sequences(messages: list[Msg]) -> list[int]:
    """Sequences of the messages of a batch, its end left out."""
    return [int(headers(message)["Nats-Sequence"]) for message in messages if not status(message)[0]]

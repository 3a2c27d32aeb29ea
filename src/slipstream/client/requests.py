"""Requests and where their replies go: one shared inbox, a token and a sink for each.

Invariants: a request is answered, failed or cancelled, never forgotten by the connection that carried it; a sink that
raises ends alone, and is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.client.events import BulkSink, ClientEvent, Effect, EventKind, ReplySink, Report, WindowSink
from slipstream.client.options import Options
from slipstream.client.outgoing import Draft, Outgoing
from slipstream.client.raw_columns import Packer
from slipstream.errors import Error
from slipstream.wire import Inbox, Msg, Parser, Side, sub

MAX_INCOMING = 65 * 1024 * 1024  # nats-server allows max_payload up to 64 MiB; a JetStream reply adds headers to that
INBOX_SID = b"1"


def new_parser() -> Parser:
    """For one connection."""
    return Parser(Side.SERVER, max_payload=MAX_INCOMING)


class Requests(Outgoing):
    """The part of a session that asks, and what it reports."""

    def __init__(self, options: Options, inbox: Inbox) -> None:
        super().__init__(options, inbox)
        self.last_error: Exception | None = None  # the last one reported, as `on_event` got it
        self._effects: list[Effect] = []
        self._parser = new_parser()
        self._is_inbox_used = False  # the server knows of our subscription to it
        self._in_msgs = 0
        self._sinks: dict[str, tuple[ReplySink, str]] = {}  # token -> where replies go, what was asked
        self._bulk: dict[str, BulkSink] = {}  # those of them that read for themselves,
        self._windows: dict[str, WindowSink] = {}  # and that have requests in blocks
        self._packers: dict[bytes, Packer] = {}  # sid -> who takes the messages of a subscription in packs

    def start(self, subject: str, payload: bytes, sink: ReplySink, header: bytes = b"") -> str:
        """Send a request whose replies go to `sink`; the token is for `cancel`."""
        if not self._is_inbox_used:
            self._use_inbox()
        token = self._ask(subject, payload, header)
        self._sinks[token] = (sink, subject)
        return token

    def _use_inbox(self) -> None:
        self.check()
        self._is_inbox_used = True
        if self._is_open:
            self._send(sub(self._inbox.wildcard, INBOX_SID))

    def start_bulk(self, subject: str, payload: bytes, sink: BulkSink) -> str:
        """The same for a sink that takes many replies at once."""
        token = self.start(subject, payload, sink)
        sink.attach(b"HMSG %b%b %b " % (self._inbox_base, token.encode(), INBOX_SID))
        self._bulk[token] = sink
        self._set_lane()
        return token

    def start_many(self, messages: Sequence[Draft], sink: WindowSink) -> None:
        """Send a block of requests; `sink` is told of their tokens before anything can be answered."""
        if not sink.token:
            self._open_window(sink)
        sink.sending(self._ask_many(messages), messages)

    def _open_window(self, sink: WindowSink) -> None:
        if not self._is_inbox_used:
            self._use_inbox()
        self._asked += 1
        sink.token = str(self._asked)
        sink.attach(b"MSG %b" % self._inbox_base)
        self._sinks[sink.token] = (sink, "")
        self._bulk[sink.token] = sink
        self._windows[sink.token] = sink
        self._set_lane()

    def _to_window(self, token: str, msg: Msg) -> None:
        """An answer to none of the single requests: to one of a block, or to nobody any more."""
        for name, window in list(self._windows.items()):
            try:
                if token.isdigit() and window.awaits(int(token)):
                    window.deliver(msg)
                    return
            except Exception as exc:  # as for every sink
                self._sink_failed(name, exc)

    def cancel(self, token: str) -> None:
        """Forget a request; replies that still come are dropped, and it is not sent if it was not yet."""
        self._sinks.pop(token, None)
        self._windows.pop(token, None)
        if self._kept:
            self._drop_request(token)
        if self._bulk.pop(token, None) is not None:
            self._set_lane()

    def _set_lane(self) -> None:
        """Received bytes are looked at before the parser does, while somebody wants to."""
        self._parser.lane = self._scan if self._is_open and (self._bulk or self._packers) else None

    def _scan(self, data: bytes) -> int:
        """Let those who want to take what is theirs from the front of `data`, in turns, until none takes anything."""
        pos, before = 0, -1
        while pos != before:
            before = pos
            for token, sink in list(self._bulk.items()):
                try:
                    pos, count = sink.scan(data, pos)
                except Exception as exc:  # as for `deliver`
                    self._sink_failed(token, exc)
                    continue
                self._in_msgs += count
            for packer in list(self._packers.values()):
                pos, count = packer.scan(data, pos)
                self._in_msgs += count
        return pos

    # Ends without an answer

    def _fail_requests(self, error: Error) -> None:
        """No reply will come any more."""
        sinks, self._sinks = self._sinks, {}
        self._bulk, self._windows = {}, {}
        for sink, _ in sinks.values():
            self._fail(sink, error)

    def _deny_requests(self, error: Error, subject: str = "") -> None:
        """The server did not take a request: whoever waits for its answer would wait until the timeout."""
        for token, (sink, asked) in list(self._sinks.items()):
            window = self._windows.get(token)
            if not subject or asked == subject or (window is not None and window.asks(subject)):
                self.cancel(token)
                self._fail(sink, error)

    def _sink_failed(self, token: str, exc: Exception) -> None:
        """A sink raised, which it must not: it gets no more, and its owner hears of it like everybody else."""
        sink, subject = self._sinks[token]
        self.cancel(token)
        error = Error(f"the reader of the replies to {subject!r} failed: {exc!r}")
        error.__cause__ = exc
        self._fail(sink, error)
        self._report(EventKind.ERROR, error)

    def _fail(self, sink: ReplySink, error: Error) -> None:
        try:
            sink.fail(error)
        except Exception as exc:  # as above
            self._report(EventKind.ERROR, exc)

    # What the user is told

    def _report(self, kind: EventKind, error: Exception | None) -> None:
        if error is not None:
            self.last_error = error
        self._effects.append(Report(ClientEvent(kind, str(self.server), error)))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

"""Requests that wait for replies: one shared inbox, and a token and a sink for each.

Invariants: a request is answered, failed or cancelled, never forgotten by the connection that carried it; a sink that
raises is removed and reported, and harms no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from slipstream.client.events import (
    BlockWindowSink,
    BulkSink,
    Effects,
    EventKind,
    ReplySink,
    SingleWindowSink,
    WindowSink,
)
from slipstream.client.outgoing import Draft, Outgoing
from slipstream.client.raw_scanner import RawScanner
from slipstream.errors import Error
from slipstream.wire import Inbox, Msg, sub

INBOX_SID = b"1"
_LONGEST_TOKEN = 18
E = TypeVar("E")


class ExpectedReplies(NamedTuple):
    """Where replies will arrive that another request brings about: the token is for `cancel`."""

    token: str
    subject: str


class Requests:
    """The requests of one client that have no answer yet."""

    def __init__(self, outgoing: Outgoing, inbox: Inbox, *, scanner: RawScanner, effects: Effects) -> None:
        self.sinks: dict[str, tuple[ReplySink, str]] = {}  # token -> where replies go, and the subject
        self.windows: dict[str, WindowSink] = {}  # those of them with requests in blocks
        self._outgoing = outgoing
        self._inbox = inbox
        self._scanner = scanner
        self._effects = effects
        self._is_subscribed = False  # to the inbox; the first request does that

    # Sending

    def start(self, subject: object, payload: object, sink: ReplySink, header: bytes = b"") -> str:
        """Send a request whose replies go to `sink`; the token is for `cancel`."""
        if not self._is_subscribed:
            self._subscribe()
        token = str(self._outgoing.request(subject, payload, header))
        self.sinks[token] = (sink, str(subject))
        return token

    def expect(self, sink: ReplySink) -> ExpectedReplies:
        """A subject of the inbox whose messages go to `sink`, without a request that asks for them."""
        if not self._is_subscribed:
            self._subscribe()
        token = self._outgoing.next_token()
        subject = self._outgoing.reply_prefix.decode() + token
        self.sinks[token] = (sink, subject)
        return ExpectedReplies(token, subject)

    def start_bulk(self, subject: object, payload: object, sink: BulkSink, header: bytes = b"") -> str:
        """As `start`, for a sink that takes many replies at once."""
        token = self.start(subject, payload, sink, header)
        sink.attach(b"HMSG %b%b %b " % (self._outgoing.reply_prefix, token.encode(), INBOX_SID))
        self._scanner.add(token, partial(self._scan, token, sink))
        return token

    def start_many(self, messages: Sequence[Draft], sink: BlockWindowSink) -> None:
        """Send a block of requests; `sink` gets their tokens before anything can be answered."""
        if not sink.token:
            self._open_window(sink)
        sink.sending(self._outgoing.request_block(messages), messages)

    def start_one(self, subject: object, payload: object, sink: SingleWindowSink[E], entry: E, header: bytes) -> int:
        """Send a request whose one answer goes to `sink`, which gets `entry` for it; returns its token."""
        if not sink.token:
            self._open_window(sink)
        token = self._outgoing.request(subject, payload, header)
        sink.register(token, entry)
        return token

    def _open_window(self, sink: WindowSink) -> None:
        if not self._is_subscribed:
            self._subscribe()
        sink.token = token = self._outgoing.next_token()
        sink.attach(b"MSG %b" % self._outgoing.reply_prefix)
        self.sinks[token] = (sink, "")
        self.windows[token] = sink
        self._scanner.add(token, partial(self._scan, token, sink))

    def _subscribe(self) -> None:
        self._outgoing.check()
        self._is_subscribed = True
        if self._outgoing.is_open:
            self.resubscribe()

    def resubscribe(self) -> None:
        """Tell the server of the inbox, if a request was made: each connection begins without subscriptions."""
        if self._is_subscribed:
            self._outgoing.send(sub(self._inbox.wildcard, INBOX_SID))

    # Replies

    def deliver_to_window(self, token: str, msg: Msg) -> None:
        """Deliver a reply whose token no single request has: one of a block may have it, or a cancelled request had."""
        if len(token) > _LONGEST_TOKEN or not (token.isascii() and token.isdigit()):
            return  # a peer made it up: `int` takes neither other digits nor thousands of them
        number = int(token)
        for name, window in list(self.windows.items()):
            try:
                if window.awaits(number):
                    window.deliver(msg)
                    return
            except Exception as exc:  # code that is not ours: the connection must not break
                self.sink_failed(name, exc)

    def _scan(self, token: str, sink: BulkSink, data: bytes, pos: int) -> tuple[int, int]:
        """Let a sink take its frames; see `RawScanner`."""
        try:
            return sink.scan(data, pos)
        except Exception as exc:  # as for `deliver`
            self.sink_failed(token, exc)
            return pos, 0

    def cancel(self, token: str) -> None:
        """Forget a request: later replies are dropped, and it is not sent if it was not yet."""
        self.sinks.pop(token, None)
        self.windows.pop(token, None)
        if self._outgoing.kept:
            self._outgoing.forget(token)
        if self._scanner.readers:
            self._scanner.remove(token)

    # Failures

    def fail_all(self, error: Error) -> None:
        """No reply will come any more."""
        sinks, self.sinks, self.windows = self.sinks, {}, {}
        for token in sinks:
            self._scanner.remove(token)
        for sink, _ in sinks.values():
            self._fail(sink, error)

    def deny(self, error: Error, subject: str) -> None:
        """Fail the requests to `subject`: the server rejected them, and their callers would wait for the timeout."""
        for token, (sink, asked) in list(self.sinks.items()):
            window = self.windows.get(token)
            if asked == subject or (window is not None and window.deny(error, subject)):
                self.cancel(token)
                self._fail(sink, error)

    def deny_inbox(self, error: Error, subject: str) -> None:
        """Fail all requests if `subject` is the inbox: the server rejected the subscription, no reply can arrive."""
        if subject != self._inbox.wildcard:
            return
        self._is_subscribed = False
        for token, (sink, _) in list(self.sinks.items()):
            self.cancel(token)
            self._fail(sink, error)

    def sink_failed(self, token: str, exc: Exception) -> None:
        """Remove a sink that raised, which it must not, and report it."""
        sink, subject = self.sinks[token]
        self.cancel(token)
        error = Error(f"the reader of the replies to {subject!r} failed: {exc!r}")
        error.__cause__ = exc
        self._fail(sink, error)
        self._effects.report(EventKind.ERROR, error)

    def _fail(self, sink: ReplySink, error: Error) -> None:
        try:
            sink.fail(error)
        except Exception as exc:  # as above
            self._effects.report(EventKind.ERROR, exc)

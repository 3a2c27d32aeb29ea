"""Restore of a snapshot: decodes chunks of nats-server's archive into the log of a stream that is not visible yet.

The stream becomes visible when the last chunk was taken and everything is durable, or not at all: after a failure or a
restart the partial stream is deleted. Each chunk is acknowledged when it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from slipstream.api import NOT_JSON, StreamConfig
from slipstream.api.snapshot.archive import CONSUMERS, END, STATE, ArchiveReader, Entry
from slipstream.api.snapshot.s2 import S2Reader
from slipstream.errors import ApiError, ErrorCode, StoreError
from slipstream.server.engine.auth.permissions import Rules
from slipstream.server.engine.auth.reply_targets import Targets
from slipstream.server.engine.journal import Journal, Source
from slipstream.server.engine.ports import StreamLog, expires_at
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer

STALLED = 5_000_000_000
MAX_STATE = 16 * 1024 * 1024  # bytes of the state and of a consumer


class RestoreState(msgspec.Struct):
    """The fields of `state.json` that are used."""

    first_seq: int = 0
    last_seq: int = 0
    consumer_count: int = 0


class RestoreCatalog(Services, Protocol):
    """The account, as restores see it."""

    def begin_restore(self, config: StreamConfig, now: int) -> tuple[Journal, StreamLog]: ...

    def complete_restore(self, config: StreamConfig, consumers: list[tuple[str, bytes]], now: int) -> dict[str, Any]:
        """Make the stream visible; the fields of the response that its create would have had."""

    def drop_restore(self, config: StreamConfig) -> None: ...

    def answer(self, journal: Journal | None, reply: str, payload: bytes, source: Source) -> None: ...


class SnapshotReader:
    """One running restore."""

    def __init__(
        self, catalog: RestoreCatalog, config: StreamConfig, response: Source,
        encode: Callable[[dict[str, Any]], bytes], *, subject: str, check: Callable[[], None],
        ended: Callable[[str, int], None], now: int, rules: Rules | None = None,
    ) -> None:  # fmt: skip
        """`response` and `encode` make the last response; `check` raises an ApiError if the stream cannot be created
        beside those that exist by then; `ended` is called with the error (or "") and the size.

        `rules` are those of the user who restores, if there are any.
        """
        self.config = config
        self._rules = rules
        self._catalog, self._response, self._encode = catalog, response, encode
        self._subject, self._check, self._ended = subject, check, ended
        self._frames, self._archive = S2Reader(), ArchiveReader()
        self._state: RestoreState | None = None
        self._consumers: list[tuple[str, bytes]] = []
        self._complete = False
        self._bytes = 0
        self._journal: Journal | None = None
        self._log: StreamLog | None = None
        self._timer: Timer | None = None
        self._reply = ""  # of the last, empty chunk
        catalog.router.add(subject, self)
        self._watch(now)

    @property
    def reply_port(self) -> Any:
        return self._response.reply_port

    def ack(self, seq: int) -> tuple[str, int]:  # noqa: ARG002
        """The acknowledgement of a chunk is empty."""
        return "", 0

    def failure(self, error: ApiError) -> bytes:
        return self._response.failure(_failed(error.description))

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """Take a chunk; an empty one is the end."""
        self._watch(now)
        try:
            if not reply:
                raise ValueError(f"restore for stream {self.config.name!r} requires reply subject for each chunk")
            if payload:
                self._bytes += len(payload)
                for entry in self._archive.feed(self._frames.feed(payload)):
                    self._take(entry, now)
                self._catalog.answer(self._journal, reply, b"", self)
            else:
                self._finish(reply, now)
        except ApiError as exc:
            self._fail(exc, reply)
        except (ValueError, StoreError) as exc:
            self._fail(_failed(str(exc)), reply)
        return True

    def lost(self, *, begun: bool) -> None:
        """A group was lost; the journal answers its chunks. `begun`: the store has the partial stream."""
        if not begun:
            self._log = None
        self._stop("the store failed")
        if self._reply:
            self._catalog.answer(
                self._journal, self._reply, self._response.failure(_failed("the store failed")), self._response
            )

    def _take(self, entry: Entry, now: int) -> None:
        if self._complete:
            raise ValueError("the snapshot has data after its end")
        if self._state is None:
            self._begin(entry, now)
        elif len(self._consumers) < self._state.consumer_count:
            if not entry.name.startswith(CONSUMERS) or entry.seq or len(entry.payload) > MAX_STATE:
                raise ValueError(f"expected consumer, found {entry.name!r}")
            self._check_targets(Targets.of_consumer, entry.payload)
            self._consumers.append((entry.name.removeprefix(CONSUMERS), entry.payload))
        elif entry == END:
            self._complete = True
        else:
            self._append(entry, now)

    def _check_targets(self, targets_of: Callable[[bytes], Targets], data: bytes) -> None:
        """Raise an ApiError if the server would publish where the user may not."""
        if self._rules is not None:
            targets_of(data).check(self._rules, self._catalog.router.is_served)

    def _begin(self, entry: Entry, now: int) -> None:
        if entry.name != STATE or len(entry.payload) > MAX_STATE:
            raise ValueError("expected state.json first")
        try:
            state = msgspec.json.decode(entry.payload, type=RestoreState)
        except NOT_JSON as exc:
            raise ValueError(f"error in state.json: {exc}") from exc
        if not 0 <= state.first_seq <= state.last_seq + 1 < 2**63 or not 0 <= state.consumer_count < 2**20:
            raise ValueError("error in state.json: sequences that cannot be")
        self._state = state
        self._journal, self._log = self._catalog.begin_restore(self.config, now)
        self._log.skip(max(state.first_seq, 1))

    def _append(self, entry: Entry, now: int) -> None:
        assert self._log is not None
        if not entry.seq:
            raise ValueError("expected message sequence")
        if entry.seq <= self._log.state.last_seq or entry.seq >= 2**63:
            raise ValueError(f"message sequence {entry.seq} out of order")
        most = self.config.max_msg_size
        if 0 < most < len(entry.header) + len(entry.payload):
            raise ValueError(f"message sequence {entry.seq} exceeds maximum message size")
        self._check_targets(Targets.of_message, entry.header)
        self._log.skip(entry.seq)
        if 0 < expires_at(entry.time, entry.header) <= now:
            self._log.skip(entry.seq + 1)  # expired already: its sequence stays a gap
        else:
            self._log.append(entry.time, entry.name, entry.header, entry.payload)

    def _finish(self, reply: str, now: int) -> None:
        if not self._complete or not self._frames.between_frames or self._log is None or self._state is None:
            raise ValueError("backup was truncated")
        self._log.skip(self._state.last_seq + 1)
        assert self._journal is not None
        self._reply = reply
        self._catalog.router.discard(self._subject, self)
        if self._timer is not None:
            self._timer.cancel()
        # A consumer's state refers to messages: the stream is opened after all of them are durable.
        self._journal.after.append(lambda: self._complete_at(now))

    def _complete_at(self, now: int) -> None:
        """All messages are durable: the stream can be opened, with its consumers and its duplicate window."""
        if self._log is None:
            return  # abandoned in the meantime
        try:
            self._check()
            info = self._catalog.complete_restore(self.config, self._consumers, now)
        except ApiError as exc:
            self._fail(exc, self._reply)
        except (ValueError, StoreError) as exc:
            self._fail(_failed(str(exc)), self._reply)
        else:
            self._close()
            self._ended("", self._bytes)
            self._catalog.answer(self._journal, self._reply, self._encode(info), self._response)

    def _fail(self, error: ApiError, reply: str) -> None:
        journal = self._journal
        self._stop(error.description)
        if reply:
            self._catalog.answer(journal, reply, self._response.failure(error), self._response)

    def _stop(self, reason: str) -> None:
        begun = self._log is not None
        self._close()
        if begun:
            self._catalog.drop_restore(self.config)
        self._ended(reason, self._bytes)

    def _close(self) -> None:
        self._catalog.router.discard(self._subject, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log = None

    def _watch(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        name = self.config.name
        self._timer = self._catalog.timers.at(
            now + STALLED, lambda _: self._stop(f"restore for stream {name!r} is stalled")
        )


def _failed(text: str) -> ApiError:
    return ErrorCode.STREAM_RESTORE.error(err=text)

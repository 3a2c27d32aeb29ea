"""The identity and the known configuration of one consumer, shared by everything that reads from it.

`cached_info` is as old as the last request for it. Readers that run for long ask for it again on the side (`refresh`),
since a consumer can be edited. Every limit that is derived from it has a default for the case that it is not known. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.client._async.client import Client
from slipstream.client._async.clock import uptime
from slipstream.errors import AuthorizationError, Error, StatusError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.consume.prefetch import AckRules
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration

REFRESH = 60.0  # seconds: so old may the known configuration get while messages are read,
REFRESH_ON_REDELIVERY = 1.0  # and so old if messages are redelivered


class ConsumerHandle:
    """One consumer: where its pull requests go, and what its configuration allows."""

    __slots__ = (
        "_may_refresh", "_refresh", "_refreshed_at", "_rules", "_rules_of", "cached_info", "client", "context", "name",
        "next_subject", "stream",
    )  # fmt: skip

    def __init__(self, context: JetStreamContext, stream: str, name: str, info: ConsumerInfo | None) -> None:
        self.context: JetStreamContext = context
        self.client: Client = context.client
        self.stream: str = stream
        self.name: str = name
        self.next_subject: str = context.consumer_api.next_subject(stream, name)
        self.cached_info = info
        self._rules: AckRules | None = None
        self._rules_of = info
        self._refresh = ""  # the token of the last request
        self._refreshed_at = uptime()
        self._may_refresh = True

    def __str__(self) -> str:
        return f"consumer {self.name!r} of stream {self.stream!r}"

    def named(self, error: Error) -> Error:
        """The same error; a status that the server sent names this consumer from now on."""
        return error.about(stream=self.stream, consumer=self.name) if isinstance(error, StatusError) else error

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Ask the server for configuration and state."""
        call = self.context.consumer_api.info(self.stream, self.name)
        self.cached_info = await self.context.run(call, timeout=timeout)
        return self.cached_info

    @property
    def max_batch(self) -> int:
        """How many messages one pull request may ask for; 0 for any number."""
        return self.cached_info.config.max_batch if self.cached_info is not None else 0

    @property
    def max_bytes(self) -> int:
        """How many bytes one pull request may ask for; 0 for any number."""
        return self.cached_info.config.max_bytes if self.cached_info is not None else 0

    @property
    def max_expires(self) -> float:
        """How many seconds a pull request may last."""
        seconds = self.cached_info.config.max_expires.total_seconds() if self.cached_info is not None else 0.0
        return seconds or math.inf

    @property
    def wants_acks(self) -> bool:
        """Whether messages are to be acknowledged; assumed where the configuration is not known."""
        return self.cached_info is None or self.cached_info.config.ack_policy != AckPolicy.NONE

    @property
    def max_ack_pending(self) -> int:
        """How many messages may wait for their acks; 0 for any number."""
        info = self.cached_info
        return max(info.config.max_ack_pending, 0) if info is not None and self.wants_acks else 0

    @property
    def ack_rules(self) -> AckRules:
        """Until when a message may be handed over, by what is known of the configuration now."""
        if self._rules is None or self._rules_of is not self.cached_info:
            info = self._rules_of = self.cached_info
            self._rules = AckRules(info.config if info is not None else None)
        return self._rules

    @property
    def max_waiting(self) -> int:
        """How many pull requests may wait at the server; 0 for its own default."""
        return self.cached_info.config.max_waiting if self.cached_info is not None else 0

    def mark(self, *, sent_after: float = -math.inf) -> None:
        """Have `client.sent_after` moved, if that is due: called before each request and while a reader waits.

        What the reader waits for is sent after `sent_after` in any case: its inbox was made then.
        """
        rules, client = self.ack_rules, self.client
        if rules.has_deadline and uptime() - max(client.sent_after, sent_after) >= rules.look_every:
            client.mark(interval=rules.look_every)

    def refresh(self, now: float, *, is_redelivering: bool) -> None:
        """Ask for the info, without waiting for it, if the last is long ago: the consumer may have been edited.

        A redelivery may be the effect of an `ack_wait` that is shorter than the one known here. `now` is by `uptime`.
        """
        if now - self._refreshed_at < (REFRESH_ON_REDELIVERY if is_redelivering else REFRESH) or not self._may_refresh:
            return
        self._refreshed_at = now
        self.client.cancel(self._refresh)
        call = self.context.consumer_api.info(self.stream, self.name)
        self._refresh = self.client.start(call.subject, call.payload, _InfoSink(self, call.decode))

    def is_refreshed(self, info: ConsumerInfo) -> None:
        """The answer to `refresh`."""
        self.cached_info = info

    def cannot_refresh(self, error: Error) -> None:
        """There is no answer to `refresh`: not now, or because the program may not ask."""
        self._may_refresh = self._may_refresh and not isinstance(error, AuthorizationError)


class _InfoSink:
    """A `ReplySink` for the info that a reader has asked for on the side."""

    __slots__ = ("_consumer", "_decode")

    def __init__(self, consumer: ConsumerHandle, decode: Callable[[Msg], ConsumerInfo]) -> None:
        self._consumer = consumer
        self._decode = decode

    def deliver(self, msg: Msg) -> bool:
        """Take it; there is no second one."""
        with suppress(Error):  # no leader, or no consumer: its reader finds that out by itself
            self._consumer.is_refreshed(self._decode(msg))
        return True

    def fail(self, error: Error) -> None:
        """The connection is gone, or the request was denied."""
        self._consumer.cannot_refresh(error)

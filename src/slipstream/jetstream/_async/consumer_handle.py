"""The identity and the known configuration of one consumer, shared by everything that reads from it.

`cached_info` is as old as the last request for it, and None where it was never asked for: a program may be allowed to
pull from a consumer and not to see its info. Every limit that is derived from it has a default for that case. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import math

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.errors import Error, StatusError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.consume.prefetch import DEFAULT_ACK_WAIT, AckDeadline


class ConsumerHandle:
    """One consumer: where its pull requests go, and what its configuration allows."""

    __slots__ = ("_deadline", "_deadline_of", "cached_info", "client", "context", "name", "next_subject", "stream")

    def __init__(self, context: JetStreamContext, stream: str, name: str, info: ConsumerInfo | None) -> None:
        self.context = context
        self.client = context.client
        self.stream = stream
        self.name = name
        self.next_subject = context.consumer_api.next_subject(stream, name)
        self.cached_info = info
        self._deadline: AckDeadline | None = None
        self._deadline_of = info

    def __str__(self) -> str:
        return f"consumer {self.name!r} of stream {self.stream!r}"

    def named(self, error: Error) -> Error:
        """The same error; a status that the server sent names this consumer from now on."""
        return error.about(stream=self.stream, consumer=self.name) if isinstance(error, StatusError) else error

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
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
    def ack_wait(self) -> float:
        """After how many seconds the server redelivers a message that was not acknowledged; never, without acks."""
        if not self.wants_acks:
            return math.inf
        if self.cached_info is None:
            return DEFAULT_ACK_WAIT
        config = self.cached_info.config
        waits = config.backoff or (config.ack_wait,)  # the first is for the first delivery, the next for the next
        return min((wait.total_seconds() for wait in waits if wait), default=DEFAULT_ACK_WAIT)

    @property
    def ack_deadline(self) -> AckDeadline:
        """Until when a message may be handed over."""
        if self._deadline is None or self._deadline_of is not self.cached_info:
            self._deadline, self._deadline_of = AckDeadline(self.ack_wait), self.cached_info
        return self._deadline

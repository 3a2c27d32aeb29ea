"""Consumers that have seen a sequence, over the asyncio client: created by servers that keep it, or proven.

A server that keeps `min_last_seq` holds the deliveries of a consumer back itself. On released servers a consumer is
proven by its placement (`consume.placement`), which works for consumers that can be made again: ordered ones. Others
can be promised only where a stream has one copy. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.api import ConsumerConfig, ConsumerInfo, GetRequest, StreamInfo
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    Error,
    InvalidJsonError,
    MessageNotFoundError,
    MinLastSequenceError,
    MinLastSequenceUnsupportedError,
    NoRespondersError,
    RequestTimeoutError,
    StaleReadError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.consume.placement import Leader, has_one_copy, leader_of, starts_behind
from slipstream.jetstream.consumer_requests import check_config
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.jetstream.requests import MAX_SEQ, Call


async def server_keeps_min(context: JetStreamContext, stream: str, *, timeout: float | None = None) -> bool:
    """Whether servers here keep `min_last_seq`; found out once per connection, by what they do.

    A stream without Direct Get is asked the document's way, for a sequence that no stream reaches: such a Message Get
    is rejected late by servers that keep it, and answered or rejected as malformed by all others.
    """
    known = context.server_keeps_min
    if known is not None:
        return known
    try:
        keeps = await context.run(context.api.probe_min_last_seq(stream), timeout=timeout)
    except DirectGetNotAllowedError:
        keeps = False
        try:
            request = GetRequest(seq=1, min_last_seq=MAX_SEQ)
            await context.run(context.api.message_get(stream, request), timeout=timeout)
        except MinLastSequenceError:
            keeps = True
        except (InvalidJsonError, MessageNotFoundError):
            pass
    context.server_keeps_min = keeps
    return keeps


async def leader_with(
    context: JetStreamContext,
    stream: str,
    wanted: Callable[[], int],
    *,
    check: Callable[[StreamInfo], None] | None = None,
    timeout: float,
) -> Leader:
    """The stream's leader once it has the wanted sequence; raises StaleReadError when the time is up.

    `check` may reject the stream, before it is waited for. What is wanted may fall meanwhile: a session has seen less
    of a stream that was made again.
    """
    policy, session = RetryPolicy(timeout, context.client.now), context.session
    while True:
        reason: Error
        mark = 0 if session is None else session.mark(stream)
        try:
            info = await context.run(context.api.stream_info(stream), timeout=policy.for_one_try())
        except (RequestTimeoutError, NoRespondersError, ConnectionLostError) as error:
            reason = error
            if isinstance(error, RequestTimeoutError) and policy.silent():  # our server may be the one that is cut off
                context.leave_server(error)
        except ApiError as error:
            if error.code < 500:
                raise
            reason = error
        else:
            policy.heard()
            if check is not None:
                check(info)
            # Not what a deposed leader says of an older stream.
            is_current = session is None or session.learn(stream, info, mark)
            leader = leader_of(info) if is_current else None
            least = wanted()
            if leader is not None and leader.last_seq >= least:
                return leader
            has = "it has no leader" if leader is None else f"its leader is at {leader.last_seq}"
            text = f"stream {stream!r}: {has}, sequence {least} is needed"
            reason = StaleReadError(text, stream=stream, min_last_seq=least)
        pause = policy.next_pause(reason)
        if pause is None:
            raise policy.why(reason)
        await context.client.sleep(pause)


async def create_consumer(
    context: JetStreamContext,
    stream: str,
    config: ConsumerConfig,
    request: Callable[[ConsumerConfig], Call[ConsumerInfo]],
    *,
    timeout: float | None = None,
) -> ConsumerInfo:
    """Create a consumer by that request; one with `min_last_seq` only where it can be promised.

    On servers that do not keep `min_last_seq` that is a stream with one copy: the consumer is created once the copy has
    the sequence, and there is no other copy that it could ever read. Raises MinLastSequenceUnsupportedError elsewhere,
    and StaleReadError if the sequence is not there in time.
    """
    check_config(config)
    return await context.run(request(await keep_min(context, stream, config, timeout=timeout)), timeout=timeout)


async def keep_min(
    context: JetStreamContext, stream: str, config: ConsumerConfig, *, timeout: float | None
) -> ConsumerConfig:
    """A configuration whose `min_last_seq` is left to the server, or 0 after it was kept in the server's place."""
    wanted = config.min_last_seq
    if wanted and not await server_keeps_min(context, stream, timeout=timeout):
        limit = context.timeout if timeout is None else timeout
        config = config.replace(min_last_seq=0)
        if not starts_behind(config, wanted):
            await leader_with(context, stream, lambda: wanted, check=_check_copies, timeout=limit)
    return config


def _check_copies(info: StreamInfo) -> None:
    """Reject a stream of which consumers may read another copy than the leader's."""
    if not has_one_copy(info):
        kind = "is a mirror" if info.config.mirror is not None else f"has {info.config.num_replicas} replicas"
        raise MinLastSequenceUnsupportedError(info.config.name, f"the stream {kind}")

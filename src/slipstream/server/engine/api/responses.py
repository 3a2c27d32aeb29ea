"""Reports of the API about streams and accounts, with nats-server's fields in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.api import StreamState, format_time
from slipstream.api.times import ZERO
from slipstream.server.engine.ports import LogState
from slipstream.server.engine.streams.stream import Stream

MAX_SUBJECTS = 100_000
MAX_DELETED = 100_000


def stream_state(
    stream: Stream,
    *,
    subjects: dict[str, int] | None = None,
    gaps: Sequence[int] = (),
    state: LogState | None = None,
) -> dict[str, Any]:
    """The state of a stream: the committed one, unless another one is given."""
    state = state if state is not None else stream.log.committed
    deleted = state.last_seq - state.first_seq + 1 - state.messages if state.messages else 0
    return StreamState(
        messages=state.messages,
        bytes=state.bytes,
        first_seq=state.first_seq if state.last_seq else 0,
        first_ts=state.first_time if state.messages else ZERO,
        last_seq=state.last_seq,
        last_ts=state.last_time or ZERO,
        num_subjects=state.subjects,
        subjects=subjects or {},
        num_deleted=deleted,
        deleted=tuple(gaps),
        consumer_count=len(stream.consumers),
    ).to_dict()


def stream_info(
    stream: Stream,
    now: int,
    *,
    subjects: dict[str, int] | None = None,
    gaps: Sequence[int] = (),
    state: LogState | None = None,
    metadata: dict[str, str] | None = None,
    domain: str = "",
) -> dict[str, Any]:
    """Configuration and state, as create, update, info and list report them. `metadata`: what the server adds; `state`
    is that of the log, if not the committed one."""
    config = stream.config.to_dict()
    if metadata is not None:
        config["metadata"] = dict(sorted((config["metadata"] | metadata).items()))
    info: dict[str, Any] = {
        "config": config,
        "created": format_time(stream.created),
        "state": stream_state(stream, subjects=subjects, gaps=gaps, state=state),
    }
    if domain:
        info["domain"] = domain
    if len(stream.replicas.peers) > 1:
        info["cluster"] = stream.replicas.info(now)
    if stream.config.mirror is not None:
        info["mirror"] = stream.ingests[0].info(now)
    elif stream.ingests:
        info["sources"] = [ingest.info(now) for ingest in stream.ingests]
    return info | {"ts": format_time(now)}

"""Reports of the API about streams and accounts, with nats-server's fields in its order."""

from __future__ import annotations

from itertools import islice
from typing import Any

from slipstream.api import StreamState, format_time
from slipstream.api.times import ZERO
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.streams.stream import Stream

MAX_SUBJECTS = 100_000
MAX_DELETED = 100_000


def stream_state(
    stream: Stream, *, subjects: dict[str, int] | None = None, details: bool = False, unfinished: bool = False
) -> dict[str, Any]:
    """The state of a stream: the committed one, or the one that is committed when the response to a change is sent."""
    state = stream.log.state if unfinished else stream.log.committed
    deleted = state.last_seq - state.first_seq + 1 - state.messages if state.messages else 0
    gaps = _gaps(stream) if details and deleted else ()
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
        deleted=gaps,
        consumer_count=len(stream.consumers),
    ).to_dict()


def stream_info(
    stream: Stream,
    now: int,
    *,
    subjects: dict[str, int] | None = None,
    details: bool = False,
    unfinished: bool = False,
    metadata: dict[str, str] | None = None,
    domain: str = "",
) -> dict[str, Any]:
    """Configuration and state, as create, update, info and list report them. `metadata`: what the server adds."""
    config = stream.config.to_dict()
    if metadata is not None:
        config["metadata"] = dict(sorted((config["metadata"] | metadata).items()))
    info: dict[str, Any] = {
        "config": config,
        "created": format_time(stream.created),
        "state": stream_state(stream, subjects=subjects, details=details, unfinished=unfinished),
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


def subject_page(stream: Stream, pattern: str, offset: int) -> tuple[int, dict[str, int]]:
    """The number of matching subjects, and one page of them with their message counts."""
    page: dict[str, int] = {}
    total = 0
    for subject, count in stream.log.subjects(pattern):
        if total >= offset and len(page) < MAX_SUBJECTS:
            page[subject] = count
        total += 1
    return total, page


def _gaps(stream: Stream) -> tuple[int, ...]:
    """Deleted sequences between the first and the last message, at most `MAX_DELETED`."""

    def missing() -> Any:
        state = stream.log.committed
        seq = state.first_seq
        while seq <= state.last_seq:
            try:
                records = stream.log.scan("", seq, limit=1024)
            except CorruptRecordError as exc:  # damaged, not deleted
                yield from range(seq, exc.seq)
                seq = max(seq, exc.seq) + 1
                continue
            for record in records:
                yield from range(seq, record.seq)
                seq = record.seq + 1
            if not records:
                yield from range(seq, state.last_seq + 1)
                return

    return tuple(islice(missing(), MAX_DELETED))

"""Pages of messages, by Direct Get alone: no consumer is created, and a work queue keeps its messages.

Forwards a page is one request for each message. Backwards there is no such request: `before` looks at windows of
sequences that grow while they are empty and shrink where they are full, so that a page costs in proportion to itself
and not to the stream, also for a filter that matches one message in a million.

Reads are trusted (`least` is the last sequence of the stream): a replica that is behind leaves no holes in a page.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from slipstream import MessageNotFoundError, Stream
from slipstream.jetstream.reads.direct_get import StoredMessage

PAGE = 50
LONGEST = 64 * 1024  # bytes of a payload that are sent to the page
DENSE = 4 * PAGE  # sequences in a window that is read whole


async def after(
    stream: Stream, seq: int, subject: str, *, least: int, limit: int = PAGE, below: int = 0
) -> list[dict[str, Any]]:
    """Up to `limit` messages at or after a sequence, as `shown`; `below` a sequence, unless it is 0.

    Each is cut as soon as it is read: a page of messages of a megabyte would take 50 times that much otherwise.
    """
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        try:
            message = await stream.get_next(subject or ">", seq=max(seq, 1), min_last_seq=least, timeout=5)
        except MessageNotFoundError:
            break
        if below and message.seq >= below:
            break
        found.append(shown(message))
        seq = message.seq + 1
    return found


async def before(
    stream: Stream, seq: int, subject: str, *, first: int, least: int, limit: int = PAGE
) -> list[dict[str, Any]]:
    """Up to `limit` messages before a sequence, in their order, as `shown`."""
    found: list[dict[str, Any]] = []
    window = limit
    while seq > first and len(found) < limit:
        start = max(first, seq - window)
        if seq - start <= DENSE:
            found[:0] = await after(stream, start, subject, least=least, limit=DENSE, below=seq)
            seq, window = start, window * 4
        elif not await after(stream, start, subject, least=least, limit=1, below=seq):
            seq, window = start, window * 4
        else:
            window = max(limit, window // 4)
    return found[-limit:]


async def first_at(stream: Stream, moment: datetime, subject: str, *, least: int) -> int:
    """The sequence of the first message at or after a time; 0 if there is none."""
    async for message in stream.read(start_time=moment, subject=subject, min_last_seq=least):
        # nats-server 2.15.1 answers a time after the year 2262 with the first message of the stream.
        return message.seq if message.timestamp >= moment else 0
    return 0


def shown(message: StoredMessage) -> dict[str, Any]:
    """A message as the page gets it: text where it is text, else hexadecimal; long payloads are cut."""
    data = message.data[:LONGEST]
    try:
        text: str | None = data.decode() if len(message.data) <= LONGEST else data.decode(errors="ignore")
    except UnicodeDecodeError:
        text = None
    return {
        "seq": message.seq,
        "subject": message.subject,
        "time": message.time // 1_000_000,
        "size": len(message.data),
        "headers": list(message.headers.items()) if message.header else [],
        "text": text,
        "hex": None if text is not None else data[:4096].hex(),
        "cut": len(message.data) > LONGEST,
    }

"""The TTL of a message: the header `Nats-TTL`, as nats-server reads it."""

from __future__ import annotations

from functools import lru_cache

from slipstream.api.times import SECOND, parse_duration

_LINE = b"\r\nNats-TTL:"
NEVER = -1


def time_to_live(header: bytes) -> int:
    """Seconds that a message is to be kept, by its header; 0: not said; -1: for ever. Raises ValueError."""
    at = header.find(_LINE)
    if at < 0:
        return 0
    begin = at + len(_LINE)
    return parse_ttl(header[begin : header.find(b"\r\n", begin)].decode(errors="replace").strip())


@lru_cache(maxsize=1024)
def parse_ttl(text: str) -> int:
    """A time to live as nats-server reads it: whole seconds, a duration of at least one, or `never`."""
    if not text:
        return 0
    if text.lower() == "never":
        return NEVER
    if text.isascii() and text.isdigit() and 0 < int(text) < 2**63:
        return int(text)
    seconds = parse_duration(text) // SECOND
    if seconds < 1:
        raise ValueError(f"time to live must be at least 1 second, got {text!r}")
    return seconds


def expires_at(time: int, header: bytes) -> int:
    """When a message that was stored at `time` expires by its header, in nanoseconds since the epoch; 0: never."""
    try:
        seconds = time_to_live(header)
    except ValueError:
        return 0
    when = time + seconds * SECOND
    return when if seconds > 0 and when < 2**63 else 0

"""Inboxes of consumers: their bounds, the names and pauses derived from them, and replies that are not waited for."""

from __future__ import annotations

from zlib import crc32

from slipstream.client.backoff import Backoff
from slipstream.errors import Error
from slipstream.wire import Msg

# What may be pending in an inbox. Pull requests and flow control bound it first; beyond this there is a gap, which is
# repaired.
MAX_MSGS = 4_000_000
MAX_BYTES = 512 * 1024 * 1024

DRAIN_TIMEOUT = 30.0

_BACKOFF = Backoff(first=0.05, longest=5.0)


class Ignored:
    """A `ReplySink` for a request whose reply changes nothing."""

    def deliver(self, msg: Msg) -> bool:  # noqa: ARG002 -- the name is the protocol's
        """Take it; there is no second one."""
        return True

    def fail(self, error: Error) -> None:
        """Ignore it."""


def consumer_name(inbox: str) -> str:
    """A name that is as unique as the inbox."""
    return "_".join(inbox.split(".")[-2:])


def retry_pause(failures: int, inbox: str) -> float:
    """Seconds to wait after `failures` failures.

    The jitter is derived from the inbox: consumers that failed together must not retry together.
    """
    return _BACKOFF.after(failures, crc32(f"{inbox}.{failures}".encode()) / 2**32)

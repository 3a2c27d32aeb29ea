"""Interface of a stream to its consumers, as the modules of this package use it.

The registry and the retention of a stream work on this protocol; `streams.stream.Stream` implements it and owns the
registry. So consumers can be read, and tested, without the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from slipstream.api import StreamConfig
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.services import UpstreamState


class ParentStream(Protocol):
    """The stream that consumers read from."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> StreamConfig: ...

    @property
    def log(self) -> StreamLog: ...

    @property
    def journal(self) -> Journal: ...

    def as_of(self) -> int:
        """The sequence as of which the leader's data is that of the stream."""

    @property
    def downstream(self) -> Mapping[UpstreamState, None]:
        """The mirrors and sources of other streams that read from this one."""

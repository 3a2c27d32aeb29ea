"""The clock that ages of messages are measured by, the same one in both drivers."""

from __future__ import annotations

from slipstream.client._sync.clock import uptime

__all__ = ["uptime"]

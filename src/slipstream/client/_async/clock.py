"""The clock of ages: the same one for both drivers."""

from __future__ import annotations

from slipstream.client._sync.clock import uptime

__all__ = ["uptime"]

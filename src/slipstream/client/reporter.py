"""Reporter of events and of errors that no call can raise: to the user's handler, or to the log."""

from __future__ import annotations

import logging

from slipstream.client.events import ClientEvent, Connected, EventHandler, EventKind

log = logging.getLogger("slipstream.client")

_WARNINGS = (
    EventKind.CONNECT_FAILED, EventKind.DISCONNECTED, EventKind.LAME_DUCK, EventKind.SERVER_SHUTDOWN, EventKind.ERROR,
)  # fmt: skip


class Reporter:
    """Hands events to `on_event`; without a handler they are logged."""

    def __init__(self, on_event: EventHandler | None) -> None:
        self._on_event = on_event

    def report(self, event: ClientEvent | Connected) -> None:
        """Report an event; a handler that raises must not harm the connection. The first connection is logged."""
        if isinstance(event, Connected):
            log.info("%s: connected: %s", event.server, event.detail)
            return
        if self._on_event is None:
            level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
            more = event.error or event.detail
            log.log(level, "%s: %s%s", event.server, event.kind, f": {more}" if more else "")
            return
        try:
            self._on_event(event)
        except Exception:  # the user's code
            log.exception("on_event failed for %s", event.kind)

    def callback_failed(self, server: str, what: str, error: Exception) -> None:
        """Report an exception of the user's code: always with its traceback in the log."""
        log.error("%s failed", what, exc_info=error)
        if self._on_event is not None:
            self.report(ClientEvent(EventKind.ERROR, server, error))

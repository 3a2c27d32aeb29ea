"""Log of the process, in nats-server's format: `[pid] 2006/01/02 15:04:05.000000 [INF] text`."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import time

from slipstream.errors import UsageError
from slipstream.server.process.options import ProcessOptions
from slipstream.server.process.trace import TRACE

_LETTERS = {TRACE: "TRC", logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}


class LineFormatter(logging.Formatter):
    """One line per record: control characters in text that a client chose are escaped, so it cannot forge a line."""

    def __init__(self, *, with_time: bool, utc: bool) -> None:
        super().__init__()
        self._with_time = with_time
        self._zone = time.gmtime if utc else time.localtime

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        clock = ""
        if self._with_time:
            micros = round((record.created % 1) * 1e6) % 1_000_000
            clock = f"{time.strftime('%Y/%m/%d %H:%M:%S', self._zone(record.created))}.{micros:06d} "
        return f"[{os.getpid()}] {clock}[{_LETTERS.get(record.levelno, 'FTL')}] {text}"


def set_up(options: ProcessOptions) -> None:
    """Send the log to stderr or to the log file."""
    use(open_handler(options), options)


def open_handler(options: ProcessOptions) -> logging.Handler:
    """The target of the log; a UsageError if it cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if options.log_file:
        try:
            if options.log_size_limit:
                handler = logging.handlers.RotatingFileHandler(
                    options.log_file, maxBytes=options.log_size_limit, backupCount=options.log_max_num or 1
                )
            else:
                handler = logging.handlers.WatchedFileHandler(options.log_file)  # reopened when it is moved away
        except OSError as exc:
            raise UsageError(f"cannot write the log to {options.log_file!r}: {exc}") from exc
    handler.setFormatter(LineFormatter(with_time=options.log_time, utc=options.log_utc))
    return handler


def use(handler: logging.Handler, options: ProcessOptions) -> None:
    """Log to `handler` alone from here on."""
    take_down()
    logger = logging.getLogger("slipstream")
    logger.setLevel(TRACE if options.server.trace else logging.DEBUG if options.debug else logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    _used.append(handler)


def take_down() -> None:
    """Stop logging."""
    while _used:
        handler = _used.pop()
        logging.getLogger("slipstream").removeHandler(handler)
        handler.close()


_used: list[logging.Handler] = []

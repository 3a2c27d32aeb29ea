"""What Spark says of a failed query becomes the line that tells why, and whether it may pass by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

from slipstream.errors import Error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Names in the text of an exception from a task or from the driver: a server was away, nothing is wrong with the query.
_PASSING = (
    "ConnectionLostError",
    "ConnectionClosedError",
    "failed to connect back",  # a Python worker, because the machine was busy
    "exited unexpectedly",  # a Python worker
    "java.io.EOFException",
    "java.net.SocketException",
    "Broken pipe",  # to a Python worker that is gone
    "RequestTimeoutError",
    "StaleReadError",
    "NoRespondersError",
)
_STOPPED = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled")
_OURS = ("slipstream.errors.", "slipstream.spark.", "ConnectionRefusedError")
_CAUSE = "Caused by: "
_CALLING = "An error occurred while calling"  # Py4J's first line; the second one is Java's
_DEPTH = 20

Write = Callable[["DataFrame", int], None]


class BatchFailedError(Error):
    """A micro-batch could not be written; the text is the line that says why."""


def is_passing(text: str) -> bool:
    """Whether a failure is nothing but a server or a worker that was away."""
    return any(name in text for name in _PASSING)


def telling_line(text: str) -> str:
    """The line of an exception that says what is wrong, with the error's class: ours where there is one, else one that
    tells of something passing, else the innermost cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if ": " in line and line.removeprefix(_CAUSE).startswith(_OURS):
            return line.removeprefix(_CAUSE)
    for line in reversed(lines):
        if is_passing(line) and not line.startswith("at "):
            return line.removeprefix(_CAUSE)
    for line in reversed(lines):
        if line.startswith(_CAUSE):
            return line.removeprefix(_CAUSE)
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "no reason was given"


def reason_of(text: str) -> str:
    """The same for people to read: without the class where the error is ours."""
    line = telling_line(text)
    head, _, rest = line.partition(": ")
    return rest if rest and head.startswith(_OURS) else line


def failure_of(query: StreamingQuery) -> str:
    """All that Spark knows of the failure of a query: its text, and the causes, some of which have no text but a class.
    Empty if it has not failed."""
    error = query.exception()
    if error is None:
        return ""
    lines = [str(error)]
    java = getattr(query, "_jsq", None)  # not there over Spark Connect, whose text has the causes
    cause = java.exception().get().getCause() if java is not None else None
    while cause is not None and len(lines) < _DEPTH:
        lines.append(_CAUSE + str(cause.toString()).split("\n", 1)[0])
        cause = cause.getCause()
    return "\n".join(lines)


def told_shortly(write: Write) -> Write:
    """A function for `foreachBatch` whose errors are short.

    Spark searches the text of such an error with an expression that recurses for each character: the text of a failed
    job, which is long, can end the query with a StackOverflowError instead of the reason.
    """

    @wraps(write)
    def told(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Exception as error:
            text = str(error)
            if any(name in text for name in _STOPPED):  # by whoever stops the query: Spark looks for that
                raise
            raise BatchFailedError(f"batch {batch_id}: {telling_line(text)}") from None

    return told

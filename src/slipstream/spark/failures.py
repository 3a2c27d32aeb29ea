"""Reasons of failed queries: the telling line of Spark's exceptions, and whether the failure is transient."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

from slipstream.errors import Error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# In the text of an exception of a task or of the driver: a server or worker was unreachable, the query itself is fine.
_TRANSIENT = (
    "ConnectionLostError",
    "ConnectionClosedError",
    "failed to connect back",  # a Python worker, because the machine was busy
    "exited unexpectedly",  # a Python worker
    "java.io.EOFException",
    "java.net.SocketException",
    "Broken pipe",  # to a Python worker that has exited
    "RequestTimeoutError",
    "StaleReadError",
    "NoRespondersError",
)
# Of these: a server. It may be away for as long as it likes, whereas a worker that dies again and again has a reason.
_OUTAGES = (
    *("ConnectionLostError", "ConnectionClosedError", "RequestTimeoutError", "StaleReadError", "NoRespondersError"),
)
_MISFITS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_STATE_SCHEMA",
    "sources in the checkpoint offsets and now there are",
)
_HANDSHAKE = "SocketAuthHelper"
_STOPPED = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled")
_OURS = ("slipstream.errors.", "slipstream.spark.", "ConnectionRefusedError")
_CAUSE = "Caused by: "
_CALLING = "An error occurred while calling"  # Py4J's first line; the second one is Java's
_INTERRUPTED = f"py4j.protocol.Py4JJavaError: {_CALLING} save: java.lang.InterruptedException"  # as Spark looks for it
_DEPTH = 20
_FRAMES = 8

Write = Callable[["DataFrame", int], None]


class BatchStoppedError(Error):
    """A micro-batch was interrupted because its query is being stopped."""


class BatchFailedError(Error):
    """A micro-batch could not be written; the text is the line that says why."""


def is_transient(text: str) -> bool:
    """Whether the only reason of a failure is a server or worker that was unreachable."""
    # Spark reads a length from a new connection of a Python worker before it knows who is there: a stray or broken one
    # makes it ask for gigabytes. Nothing of the query is lost by that.
    is_handshake = "java.lang.OutOfMemoryError" in text and _HANDSHAKE in text
    return is_handshake or any(name in text for name in _TRANSIENT)


def is_outage(text: str) -> bool:
    """Whether the reason of a failure is a server that was unreachable."""
    return any(name in text for name in _OUTAGES)


def is_misfit(text: str) -> bool:
    """Whether a query cannot continue from its checkpoint, because the SQL behind it was changed."""
    return any(name in text for name in _MISFITS)


def is_stopped(text: str) -> bool:
    """Whether a job ended because its query is being stopped."""
    return any(name in text for name in _STOPPED)


def telling_line(text: str) -> str:
    """The line of an exception that tells the reason, with the error's class: one of our errors if there is one, else a
    transient failure, else the innermost cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if ": " in line and line.removeprefix(_CAUSE).startswith(_OURS):
            return line.removeprefix(_CAUSE)
    for line in reversed(lines):
        if is_transient(line) and not line.startswith("at "):
            return line.removeprefix(_CAUSE)
    for line in reversed(lines):
        if line.startswith(_CAUSE):
            return line.removeprefix(_CAUSE)
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "unknown reason"


def reason_of(text: str) -> str:
    """The telling line for users: without the class if the error is one of ours."""
    line = telling_line(text)
    head, _, rest = line.partition(": ")
    return rest if rest and head.startswith(_OURS) else line


def failure_of(query: StreamingQuery) -> str:
    """The text of the exception of a failed query, and of its causes, some of which have only a class. Empty if it has
    not failed."""
    error = query.exception()
    if error is None:
        return ""
    lines = [str(error)]
    java = getattr(query, "_jsq", None)  # missing in Spark Connect, whose text has the causes
    cause = java.exception().get().getCause() if java is not None else None
    while cause is not None and len(lines) < _DEPTH:
        lines.append(_CAUSE + str(cause.toString()).split("\n", 1)[0])
        if "OutOfMemoryError" in lines[-1]:  # whose text does not tell where
            lines += [f"at {frame.toString()}" for frame in list(cause.getStackTrace())[:_FRAMES]]
        cause = cause.getCause()
    return "\n".join(lines)


def with_short_errors(write: Write) -> Write:
    """Shorten the errors of a function for `foreachBatch` to the telling line.

    Spark searches the text of such an error with a regular expression that recurses for each character: the long text
    of a failed job can end the query with a StackOverflowError instead of the reason. It looks for the words of an
    interruption, by which it knows that the query was stopped and has not failed: the short error has them too.
    """

    @wraps(write)
    def wrapped(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except Exception as error:
            text = str(error)
            if is_stopped(text):
                raise BatchStoppedError(_INTERRUPTED) from None
            raise BatchFailedError(f"batch {batch_id}: {telling_line(text)}") from None

    return wrapped

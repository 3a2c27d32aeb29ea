"""Exit codes of the command line: one table, for every command.

| code | meaning |
|---|---|
| 0 | done |
| 1 | rejected by the server, or failed |
| 2 | wrong usage |
| 3 | not found |
| 4 | no connection |
| 5 | no answer in time |
| 130 | interrupted (128 + SIGINT, as shells count) |
"""

from __future__ import annotations

from argparse import ArgumentTypeError

from slipstream.errors import (
    ApiError,
    AuthorizationError,
    BucketNotFoundError,
    ConnectionLostError,
    KeyNotFoundError,
    MessageNotFoundError,
    NoRespondersError,
    ObjectNotFoundError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
)

OK, FAILED, USAGE, NOT_FOUND, NO_CONNECTION, NO_ANSWER, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
_NOT_FOUND = (
    BucketNotFoundError, KeyNotFoundError, MessageNotFoundError, ObjectNotFoundError, StreamNotFoundError,
)  # fmt: skip


def exit_code(error: Exception) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, _NOT_FOUND) or (isinstance(error, ApiError) and error.code == 404):
        return NOT_FOUND
    if isinstance(error, UsageError | ArgumentTypeError):
        return USAGE
    if isinstance(error, ConnectionLostError | AuthorizationError):
        return NO_CONNECTION
    if isinstance(error, RequestTimeoutError | NoRespondersError):
        return NO_ANSWER
    return FAILED

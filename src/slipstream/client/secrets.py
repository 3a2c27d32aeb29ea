"""Reader of secrets from arguments, files, functions and the environment, once per connection attempt.

Invariant: an error names the argument, the file or the variable, never its contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slipstream.client.auth import Login, Secret, credentials_login, key_login
from slipstream.client.options import ClientOptions
from slipstream.errors import CredentialsError

MAX_SIZE = 64 * 1024  # of a file; credentials are 1 to 2 KiB


def from_env(name: str) -> Callable[[], str]:
    """The secret in the environment variable `name`, for `password`, `token`, `nkey` or `credentials`."""

    def read() -> str:
        value = os.environ.get(name)
        if not value:
            raise CredentialsError(f"the environment variable {name} is {'not set' if value is None else 'empty'}")
        return value

    return read


def read_login(options: ClientOptions) -> Login:
    """The login of the next connection. Raises CredentialsError."""
    if options.credentials is not None:
        source = options.credentials
        if isinstance(source, str):
            source = Path(source)
        return credentials_login(_read(source, "credentials"), _name(source, "credentials"))
    if options.nkey:
        return key_login(_read(options.nkey, "nkey"), _name(options.nkey, "nkey"))
    return Login(
        user=_read(options.user, "user"),
        password=_read(options.password, "password"),
        token=_read(options.token, "token"),
    )


def _name(source: Secret, what: str) -> str:
    return f"{what} {os.fspath(source)}" if not isinstance(source, str) and hasattr(source, "__fspath__") else what


def _read(source: Secret, what: str) -> str:
    if isinstance(source, str):
        return source
    if callable(source):
        return _call(source, what)
    if not isinstance(source, os.PathLike):
        kind = type(source).__name__
        raise CredentialsError(f"{what} must be a string, a path of a file, or a function, got {kind}")
    try:
        with Path(source).open("rb") as file:
            data = file.read(MAX_SIZE + 1)
        if len(data) > MAX_SIZE:
            raise CredentialsError(f"{_name(source, what)}: must have at most {MAX_SIZE} bytes")
        text = data.decode().rstrip("\r\n")
    except OSError as exc:
        raise CredentialsError(f"{_name(source, what)}: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise CredentialsError(f"{_name(source, what)}: must be text in UTF-8") from None
    if not text:
        raise CredentialsError(f"{_name(source, what)}: the file is empty")
    return text


def _call(source: Callable[[], str], what: str) -> str:
    try:
        text = source()
    except CredentialsError:
        raise
    except Exception as exc:  # the user's code
        raise CredentialsError(f"the function for {what} failed: {type(exc).__name__}") from exc
    if not isinstance(text, str):
        raise CredentialsError(f"the function for {what} must return str, not {type(text).__name__}")
    return text

"""Connections of drivers and executors, each for one piece of work; `RetryingConnection` waits out an outage.

Every process opens its own: a client cannot be sent to another process, and Spark's Python workers are forked. Secrets
are read here, where they are used: from a credentials file, a context file (of the `nats` command) or the environment
of this process. They are never part of what Spark ships, prints or stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from slipstream.errors import Error
from slipstream.facade import Context, Contexts
from slipstream.facade._sync.client import JetStream, connect
from slipstream.spark.option_reader import DEFAULT_SERVER, Connection, secrets_of
from slipstream.spark.retries import RetryPolicy

T = TypeVar("T")

_LOGINS = frozenset(("user", "token", "nkey", "credentials"))


def connect_jetstream(connection: Connection, environ: Mapping[str, str], *, reconnect: bool = True) -> JetStream:
    """Connect with the secrets of this process; the caller closes the client."""
    context = read_context(connection.context, environ) if connection.context else Context(name="")
    arguments: dict[str, Any] = {"servers": DEFAULT_SERVER, **context.arguments()}
    if connection.credentials:
        arguments["credentials"] = Path(connection.credentials).expanduser()
    elif not _LOGINS.intersection(arguments):
        arguments |= secrets_of(environ)._asdict()
    if connection.servers:
        arguments["servers"] = list(connection.servers)
    has_api = connection.api_prefix or connection.domain
    prefix = connection.api_prefix if has_api else context.jetstream_api_prefix
    domain = connection.domain if has_api or prefix else context.jetstream_domain
    client = connect(**arguments, name="slipstream-spark", timeout=connection.timeout, reconnect=reconnect)
    return client.jetstream(prefix=prefix, domain=domain, timeout=connection.timeout)


def read_context(name: str, environ: Mapping[str, str]) -> Context:
    """A context of the `nats` command on this machine."""
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
    return Contexts(Path(home, "nats")).load(name)


@contextmanager
def open_jetstream(
    connection: Connection, environ: Mapping[str, str], *, reconnect: bool = True
) -> Iterator[JetStream]:
    """Connect, and close the client in the end, whatever happens."""
    js = connect_jetstream(connection, environ, reconnect=reconnect)
    with js.client:
        yield js


class RetryingConnection:
    """A connection that is opened when it is needed, and opened again after an outage.

    `retry_for` is how long an outage is waited for; without it, as long as the option says. With `reconnect=False`
    the client itself never reconnects: what was sent on a lost connection is then never sent again behind the back of
    the caller, who learns of the loss by another call of `work`.
    """

    def __init__(
        self,
        connection: Connection,
        environ: Mapping[str, str],
        *,
        reconnect: bool = True,
        retry_for: float | None = None,
    ) -> None:
        self._connection, self._environ, self._reconnect = connection, environ, reconnect
        self._retries = RetryPolicy(connection.retry_for if retry_for is None else retry_for)
        self._open: JetStream | None = None

    def jetstream(self) -> JetStream:
        """The open connection, or a new one."""
        if self._open is None:
            self._open = connect_jetstream(self._connection, self._environ, reconnect=self._reconnect)
        return self._open

    def run(self, work: Callable[[JetStream], T]) -> T:
        """The result of `work`, which is called again after an outage."""
        while True:
            try:
                result = work(self.jetstream())
            except Error as error:
                self.failed(error)
            else:
                self.succeeded()
                return result

    def failed(self, error: Error) -> None:
        """Close the connection and wait; raises the error if it is no outage, or if the time is up."""
        self.close()
        self._retries.failed(error)

    def succeeded(self) -> None:
        """The server has answered: the next failure begins another outage."""
        self._retries.succeeded()

    def close(self) -> None:
        """Close the connection, if there is one."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

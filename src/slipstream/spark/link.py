"""A `Connection` becomes an open client for as long as a piece of work lasts.

Drivers and executors open their own: a client cannot travel between processes, and Spark's Python workers are forked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from slipstream.facade.blocking import Client, JetStream, connect
from slipstream.spark.options import Connection, secrets_of


def open_client(connection: Connection, environ: Mapping[str, str]) -> Client:
    """A client with the secrets of this process's environment; the caller closes it."""
    secrets = secrets_of(environ)
    return connect(
        connection.servers,
        name="slipstream-spark",
        user=secrets.user,
        password=secrets.password,
        token=secrets.token,
        timeout=connection.timeout,
    )


def jetstream(client: Client, connection: Connection) -> JetStream:
    """JetStream where the connection's options say it is."""
    return client.jetstream(prefix=connection.api_prefix, domain=connection.domain, timeout=connection.timeout)


@contextmanager
def open_jetstream(connection: Connection, environ: Mapping[str, str]) -> Iterator[JetStream]:
    """JetStream over a client that is closed in the end, whatever happens."""
    with open_client(connection, environ) as client:
        yield jetstream(client, connection)

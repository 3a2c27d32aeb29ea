"""Connections of drivers and executors, each for one piece of work.

Every process opens its own: a client cannot be sent to another process, and Spark's Python workers are forked. Secrets
are read here, where they are used: from a credentials file, a context file (of the `nats` command) or the environment
of this process. They are never part of what Spark ships, prints or stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.facade import Context, Contexts
from slipstream.facade._sync.client import JetStream, connect
from slipstream.spark.option_reader import DEFAULT_SERVER, Connection, secrets_of

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

"""A `Connection` becomes an open client for as long as a piece of work lasts.

Drivers and executors open their own: a client cannot travel between processes, and Spark's Python workers are forked.
Secrets are read here, where they are used: from a credentials file, a context file (those of the `nats` command) or
the environment of this process. They are never part of what Spark ships, prints or stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.errors import CredentialsError, UsageError
from slipstream.facade.blocking import Client, JetStream, connect
from slipstream.spark.given import DEFAULT_SERVER, Connection, secrets_of

_CONTEXT_FIELDS = ("url", "user", "password", "token", "creds", "nkey", "ca", "cert", "key")


def open_client(connection: Connection, environ: Mapping[str, str], *, reconnect: bool = True) -> Client:
    """A client with the secrets of this process; the caller closes it."""
    context = read_context(connection.context, environ) if connection.context else {}
    servers: list[str] | str = list(connection.servers) or context.get("url", "") or DEFAULT_SERVER
    login: dict[str, Any] = {}
    if connection.credentials or context.get("creds"):
        login["credentials"] = Path(connection.credentials or context["creds"]).expanduser()
    elif context.get("nkey"):
        login["nkey"] = Path(context["nkey"]).expanduser()
    elif context.get("token") or context.get("user"):
        login = {name: context[name] for name in ("user", "password", "token") if context.get(name)}
    else:
        login = secrets_of(environ)._asdict()
    for field, argument in (("ca", "tls_ca"), ("cert", "tls_cert"), ("key", "tls_key")):
        if context.get(field):
            login[argument] = Path(context[field]).expanduser()
    return connect(servers, name="slipstream-spark", timeout=connection.timeout, reconnect=reconnect, **login)


def read_context(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The context of that name, as the `nats` command keeps it; raises without repeating what is in the file."""
    if not name.isprintable() or "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"bad context name {name!r}: a name without slashes is allowed")
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    file = Path(home, "nats", "context", f"{name}.json")
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no context {name!r}: {file} is not there, on this machine") from None
    except (OSError, ValueError) as error:
        raise CredentialsError(f"the context file {file} cannot be read: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise CredentialsError(f"the context file {file} does not hold a JSON object")
    return {field: str(found[field]) for field in _CONTEXT_FIELDS if found.get(field)}


def jetstream(client: Client, connection: Connection) -> JetStream:
    """JetStream where the connection's options say it is."""
    return client.jetstream(prefix=connection.api_prefix, domain=connection.domain, timeout=connection.timeout)


@contextmanager
def open_jetstream(
    connection: Connection, environ: Mapping[str, str], *, reconnect: bool = True
) -> Iterator[JetStream]:
    """JetStream over a client that is closed in the end, whatever happens."""
    with open_client(connection, environ, reconnect=reconnect) as client:
        yield jetstream(client, connection)

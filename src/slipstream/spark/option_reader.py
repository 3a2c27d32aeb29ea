"""Reader of the string options that Spark passes to a format; every value is checked.

An error names the option and what it must be, never the value of an unknown option, which may be a secret. Secrets are
not options, since Spark prints those; they come from a credentials file, a context file or the environment of the
driver and the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.wire import check_filter, is_valid_subject

DEFAULT_SERVER = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT = 10.0
DEFAULT_RETRY_FOR = 60.0

CONNECTION = ("servers", "context", "credentials", "apiPrefix", "domain", "timeout", "retryFor")
# Spark passes these along with ours: the argument of load() and save(), options of a streaming query, and properties
# of a table (CREATE TABLE), which repeat each option with "option." before its name.
_SPARKS_OWN = frozenset(
    (
        *("path", "checkpointlocation", "queryname", "outputmode"),
        *("provider", "owner", "comment", "location", "external", "is_managed_location", "collation", "table_type"),
    )
)
_TABLE_OPTION = "option."
_SECRETS = frozenset(("user", "username", "password", "token", "secret", "nkey", "seed", "jwt"))
_SECRET_ADVICE = (
    "Spark prints options, so secrets are not read from them: name a file by the option credentials or context, or "
    "set NATS_USER and NATS_PASSWORD, or NATS_TOKEN, in the environment of the driver and the executors"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach the servers, without any secret. Without `servers`: those of the context, or the default address.

    `retry_for` is how long tasks and streaming queries wait for a server that is away; `plan_retry_for` the same for
    the planning of a batch read or write, where a wrong address is more likely than an outage: it does not wait,
    unless the user has set the option.
    """

    servers: tuple[str, ...] = ()
    context: str = ""
    credentials: str = ""
    api_prefix: str = ""
    domain: str = ""
    timeout: float = DEFAULT_TIMEOUT
    retry_for: float = DEFAULT_RETRY_FOR
    plan_retry_for: float = 0.0


class Secrets(NamedTuple):
    """Credentials out of the environment."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "Secrets(...)"


def secrets_of(environ: Mapping[str, str]) -> Secrets:
    """The credentials in `NATS_USER`, `NATS_PASSWORD` and `NATS_TOKEN`; a token and a user are mutually exclusive."""
    found = Secrets(environ.get("NATS_USER", ""), environ.get("NATS_PASSWORD", ""), environ.get("NATS_TOKEN", ""))
    if found.token and (found.user or found.password):
        raise UsageError("NATS_TOKEN and NATS_USER or NATS_PASSWORD are mutually exclusive, and both are set")
    return found


class OptionReader:
    """The options of one format. Names are compared without regard to case, as in Spark's own map."""

    def __init__(self, fmt: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.format = fmt
        lowered = {name.lower(): value for name, value in options.items()}
        self._values = {name: value for name, value in lowered.items() if not name.startswith(_TABLE_OPTION)}
        allowed = {name.lower() for name in known}
        unknown = sorted(set(self._values) - allowed - _SPARKS_OWN)
        if not unknown:
            return
        if any(name in _SECRETS for name in unknown):
            raise UsageError(f"{fmt} has no option {unknown[0]!r}: {_SECRET_ADVICE}")
        plural = "s" if len(unknown) > 1 else ""
        names = ", ".join(map(repr, unknown))
        lowered_known = {name.lower(): name for name in known}  # Spark passes names in lower case
        near = [lowered_known[one] for name in unknown for one in get_close_matches(name, lowered_known, 1)]
        hint = f"did you mean {', '.join(near)}? It has" if near else "it has"
        raise UsageError(f"{fmt} has no option{plural} {names}; {hint} {', '.join(known)}")

    def has(self, name: str) -> bool:
        """Whether the user set it."""
        return name.lower() in self._values

    def bad(self, name: str, expected: str) -> UsageError:
        """The error for a value that is not what the option must be."""
        return UsageError(f"{self.format} option {name!r} must be {expected}, got {self._values.get(name.lower())!r}")

    def invalid(self, name: str, error: Exception) -> UsageError:
        """The error for a value that another check has rejected."""
        return UsageError(f"{self.format} option {name!r}: {error}")

    def exclusive(self, name: str, other: str) -> UsageError:
        """The error for two options of which only one may be set."""
        return UsageError(f"{self.format} options {name!r} and {other!r} are mutually exclusive")

    def text(self, name: str, default: str = "") -> str:
        """A string, which must not be empty if it is set."""
        value = self._values.get(name.lower(), default)
        if name.lower() in self._values and not value.strip():
            raise UsageError(f"{self.format} option {name!r} must not be empty")
        return value.strip()

    def named(self, name: str, check: Callable[[str], str]) -> str:
        """The stream or bucket to read or write, from the option or the argument of load() or save()."""
        option, path = self._values.get(name, ""), self._values.get("path", "")
        if option and path and option != path:
            raise UsageError(
                f"{self.format} option {name!r} and the argument of load() or save() must be equal if both are set, "
                f"got {option!r} and {path!r}"
            )
        if not option and not path:
            raise UsageError(
                f"{self.format} needs the option {name!r}, or the {name}'s name as argument of load() or save() "
                "(a table created with a list of columns loses its options: leave the list out)"
            )
        try:
            return check(option or path)
        except UsageError as error:
            raise self.invalid(name, error) from error

    def whole(self, name: str, default: int = 0, *, least: int = 1) -> int:
        """A whole number."""
        value = self.text(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) < 2**63):
            raise self.bad(name, f"a whole number of at least {least}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise self.bad(name, "'true' or 'false'")
        return value == "true" if value else default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """One of several words."""
        value = self.text(name, default).lower()
        if value not in allowed:
            raise self.bad(name, f"{', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}")
        return value

    def seconds(self, name: str, default: float, *, or_zero: bool = False) -> float:
        """A time span; 0 only where the option has a meaning for it."""
        value = self.text(name)
        try:
            number = float(value) if value else default
        except ValueError:
            number = -1.0
        if not 0 < number < 1e6 and not (or_zero and number == 0):
            raise self.bad(name, "a number of seconds, 0 or more" if or_zero else "a number of seconds above 0")
        return number

    def filters(self, name: str) -> tuple[str, ...]:
        """Subject filters with commas between them."""
        text = self.text(name)
        found = tuple(one.strip() for one in text.split(",")) if text else ()
        for one in found:
            try:
                check_filter(one)
            except UsageError as error:
                raise self.invalid(name, error) from error
        return found

    def subject(self, name: str) -> str:
        """A subject to publish to; empty if the option is not set."""
        text = self.text(name)
        if text and not is_valid_subject(text):
            raise self.bad(name, "a subject without wildcards")
        return text

    def words(self, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Some of the allowed words, in the order of the option; empty if it is not set."""
        text = self.text(name)
        found = tuple(one.strip() for one in text.split(",")) if text else ()
        if len(set(found)) < len(found) or any(one not in allowed for one in found):
            raise self.bad(name, f"some of {', '.join(allowed)}, each at most once, separated by commas")
        return found

    def connection(self) -> Connection:
        """The options that every format has."""
        text = self.text("servers")
        servers = tuple(one.strip() for one in text.split(",")) if text else ()
        if any("@" in one for one in servers):  # not repeated in the message: it holds the secret
            raise UsageError(
                f"{self.format} option 'servers' must be nats://host:port, without user info. {_SECRET_ADVICE}"
            )
        if not all(servers):
            raise self.bad("servers", "URLs such as nats://host:port, separated by commas")
        prefix, domain = self.text("apiPrefix"), self.text("domain")
        if prefix and domain:
            raise self.exclusive("domain", "apiPrefix")
        context, credentials = self.text("context"), self.text("credentials")
        if context and credentials:
            raise self.exclusive("credentials", "context")
        retry_for = self.seconds("retryFor", DEFAULT_RETRY_FOR, or_zero=True)
        return Connection(
            servers=servers,
            context=context,
            credentials=credentials,
            api_prefix=prefix,
            domain=domain,
            timeout=self.seconds("timeout", DEFAULT_TIMEOUT),
            retry_for=retry_for,
            plan_retry_for=retry_for if self.has("retryFor") else 0.0,
        )

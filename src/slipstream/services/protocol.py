"""Names, subjects and headers of the NATS services protocol (ADR-32). Pure.

A service instance has an id of its own and answers three verbs (PING, INFO, STATS), each on three subjects: that of all
services, that of its name, and that of its id. Requests go to the subjects of its endpoints, by default in the queue
group "q", so that the instances of a service share them. Errors travel in two headers of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from traceback import format_exception_only
from typing import Any, NamedTuple

from slipstream.errors import UsageError
from slipstream.wire import Headers, check_filter, check_subject
from slipstream.wire.service_errors import ERROR_CODE_HEADER, ERROR_HEADER

PREFIX = "$SRV"
QUEUE_GROUP = "q"

_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRE_RELEASE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD = r"[0-9A-Za-z-]+"
_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE_RELEASE}(?:\.{_PRE_RELEASE})*)?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)
_MAX_DESCRIPTION = 1024  # characters of an error's description: a header is no place for a stack trace


class Verb(StrEnum):
    """What a service is asked for discovery."""

    PING = "PING"
    INFO = "INFO"
    STATS = "STATS"


class ServiceConfig(NamedTuple):
    """A service as its program declares it. Made by `service_config`, which checks it."""

    name: str
    version: str
    description: str
    metadata: Mapping[str, str]
    queue_group: str
    prefix: str


class EndpointConfig(NamedTuple):
    """An endpoint with its full subject. Made by `Scope.endpoint`, which checks it."""

    name: str
    subject: str
    queue_group: str
    metadata: Mapping[str, str]


class Scope(NamedTuple):
    """What a service or a group passes on to its endpoints: a prefix of subjects, and a queue group ("": none)."""

    prefix: str
    queue_group: str

    def group(self, name: str, queue_group: str | None) -> Scope:
        """The scope of a group inside this one."""
        if name:
            check_filter(name)
            if ">" in name.split("."):
                raise UsageError(f"name of a group must be a subject without '>', got {name!r}")
        return Scope(_joined(self.prefix, name), self._queue_group(queue_group))

    def endpoint(
        self, name: str, *, subject: str, queue_group: str | None, metadata: Mapping[str, str] | None
    ) -> EndpointConfig:
        """An endpoint inside this scope."""
        check_name("an endpoint", name)
        full = check_filter(_joined(self.prefix, subject or name))
        return EndpointConfig(name, full, self._queue_group(queue_group), check_metadata("endpoint", name, metadata))

    def _queue_group(self, queue_group: str | None) -> str:
        """The queue group of something inside: its own, or that of the scope if it says nothing."""
        if queue_group is None:
            return self.queue_group
        return check_subject(queue_group) if queue_group else ""


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def service_config(
    name: str,
    version: str,
    *,
    description: str,
    metadata: Mapping[str, str] | None,
    queue_group: str | None,
    prefix: str,
) -> ServiceConfig:
    """A service as declared; raises UsageError if a part of it is not as the protocol wants it."""
    check_name("a service", name)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise UsageError(f"version of service {name!r} must be a semantic version such as 1.0.0, got {version!r}")
    if not isinstance(description, str):
        raise UsageError(f"description of service {name!r} must be a string, got {description!r}")
    queue = QUEUE_GROUP if queue_group is None else queue_group
    if queue:
        check_subject(queue)
    return ServiceConfig(
        name, version, description, check_metadata("service", name, metadata), queue, check_subject(prefix)
    )


def check_name(what: str, name: str) -> str:
    """Return the name of a service or an endpoint; raise UsageError if it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"name of {what} must be letters, digits, '-' and '_', got {name!r}")
    return name


def check_metadata(what: str, name: str, metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """A copy, since metadata never changes; raises UsageError unless it maps strings to strings."""
    copy = dict(metadata or {})
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in copy.items()):
        raise UsageError(f"metadata of {what} {name!r} must map strings to strings, got {metadata!r}")
    return copy


def control_subject(verb: Verb, name: str = "", instance: str = "", *, prefix: str = PREFIX) -> str:
    """The subject of a verb: of all services, of those with a name, or of one instance."""
    check_subject(prefix)
    if instance and not name:
        raise UsageError(f"name of the service must be set for instance {instance!r}: their subject contains both")
    parts = [check_name("a service", name)] if name else []
    if instance:
        parts.append(check_subject(instance))
    return ".".join([prefix, verb, *parts])


def error_headers(code: int, description: str, headers: Any = None) -> Headers:
    """The headers of an error reply, after those of the caller."""
    if isinstance(code, bool) or not isinstance(code, int) or code < 0:
        raise UsageError(f"code of a service error must be a number of at least 0, got {code!r}")
    block = Headers(headers)
    block.set(ERROR_HEADER, one_line(description))
    block.set(ERROR_CODE_HEADER, str(code))
    return block


def one_line(text: str) -> str:
    """A text that a header can carry: without line breaks, and not too long."""
    line = " ".join(text.replace("\0", " ").split()).encode("utf-8", "replace").decode()
    return line if len(line) <= _MAX_DESCRIPTION else line[: _MAX_DESCRIPTION - 1] + "…"


def describe(error: BaseException) -> str:
    """An exception in one line, its type first; also one whose text cannot be made."""
    return one_line("".join(format_exception_only(error)))

"""Subjects that a request names for the server to publish to: replies, deliver subjects, republishing, schedules.

The server publishes there on behalf of the requester, and it may publish anywhere. Without a check, a user who may only
pull could name `$JS.API.STREAM.DELETE.ORDERS` as the reply, and the status of an empty pull would delete the stream. So
a user with permissions may name a subject that a part of the server listens on (a stream, the API) only if the user may
publish to it. Users without permissions may publish everywhere, and are not checked.

The check is made when the request arrives. A consumer, a stream or a waiting pull keeps what it was given then, when
the permissions of its creator change later, or a stream with that subject is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

from slipstream.api.names import SCHEDULE_TARGET
from slipstream.errors import ErrorCode
from slipstream.server.engine.auth.permissions import Rules

INBOX: Final = "_INBOX."  # for answers: a stream of all subjects, which records them, must not end all requests
RESERVED = ("$JS.", "$SYS.", "$SLIPSTREAM.")
_CALL = re.compile(r"\{\{[^}]*\}\}|\$\d+")  # of a mapping
_TARGET = SCHEDULE_TARGET.lower().encode() + b":"
_LEAD = _TARGET[:-1]


def is_reserved(subject: str) -> bool:
    """Whether messages on a subject are requests to the server, at any time."""
    return subject.startswith(RESERVED)


def schedule_targets(header: bytes) -> list[str]:
    """The subjects that a schedule may publish to, from the headers of its message: one of them is its target."""
    lines = header.split(b"\r\n") if _LEAD in header.lower() else ()
    return [
        line[len(_TARGET) :].strip().decode(errors="replace")
        for line in lines
        if line[: len(_TARGET)].lower() == _TARGET
    ]


class Targets:
    """The subjects that the body of a request names."""

    def __init__(self, kind: str, payload: bytes) -> None:
        """`kind` is the type of the response; a body that cannot be read names none, and is rejected later."""
        self.deliver: str = ""
        self.republish: str = ""
        self.scheduled: list[str] = []
        try:
            body = msgspec.json.decode(payload) if payload else {}
        except msgspec.MsgspecError:
            return
        if kind == "stream_snapshot_response":
            self.deliver = _text(body, "deliver_subject")
        elif kind == "consumer_create_response":
            self.deliver = _text(_field(body, "config"), "deliver_subject")
        elif kind in ("stream_create_response", "stream_update_response", "stream_restore_response"):
            config = _field(body, "config") if kind == "stream_restore_response" else body
            self.republish = _pattern(_text(_field(config, "republish"), "dest"))

    @classmethod
    def of_consumer(cls, entry: bytes) -> Self:
        """The subject that a consumer in a snapshot delivers to."""
        return cls("consumer_create_response", entry)

    @classmethod
    def of_message(cls, header: bytes) -> Self:
        """The subjects of a schedule in a snapshot."""
        found = cls("", b"")
        found.scheduled = schedule_targets(header)
        return found

    def check(self, rules: Rules, is_served: Callable[[str], bool]) -> None:
        """Raise an ApiError if the user with these rules may not have the server publish there."""
        for target in self.scheduled:
            if not rules.may_publish(target):
                raise ErrorCode.STREAM_RESTORE.error(err=_refusal(target), status=403)
        if self.deliver and is_served(self.deliver) and not rules.may_publish(self.deliver):
            raise ErrorCode.CONSUMER_CREATE.error(err=_refusal(self.deliver), status=403)
        if self.republish and not rules.may_publish_all(self.republish):
            raise ErrorCode.STREAM_INVALID_CONFIG.error(err=_refusal(self.republish), status=403)


def _refusal(subject: str) -> str:
    return f"no permission to have the server publish to {subject!r}"


def _pattern(dest: str) -> str:
    """Every subject that a mapping can give: its calls, such as `{{partition(3,1)}}`, are wildcards."""
    return ".".join("*" if "*" in token else token for token in _CALL.sub("*", dest).split("."))


def _field(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, dict) else None


def _text(body: Any, name: str) -> str:
    found = _field(body, name)
    return found if isinstance(found, str) else ""

"""Permissions of users: which subjects a connection may publish to, subscribe to, and receive messages on.

`Rules` belong to a user, a `Grant` to one of its connections: the reply subjects that a connection may publish to
(`allow_responses`) are its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.api.times import nanoseconds
from slipstream.server.engine.auth.users import Permissions, Responses, split_queue
from slipstream.wire import SubjectSet, has_wildcard, is_valid_filter, subset_of

CACHE = 4096
MAX_REPLIES = 4096  # reply subjects; beyond that, expired ones are dropped


class Rules:
    """The permissions of one user."""

    def __init__(self, permissions: Permissions) -> None:
        self.permissions = permissions
        self.responses: Responses | None = permissions.responses
        allow = permissions.publish
        if allow is None and self.responses is not None:
            allow = ()
        self._publish = SubjectSet(allow) if allow is not None else None
        self._publish_deny = SubjectSet(permissions.publish_deny)
        self._subscribe = _Entries(permissions.subscribe) if permissions.subscribe is not None else None
        self._subscribe_deny = _Entries(permissions.subscribe_deny)
        self._may: dict[str, bool] = {}
        self._denied: dict[tuple[str, str], bool] = {}

    def report(self) -> dict[str, Any]:
        """The permissions in nats-server's JSON, for their user."""
        own = self.permissions
        sides = {
            "publish": {"allow": own.publish, "deny": own.publish_deny},
            "subscribe": {"allow": own.subscribe, "deny": own.subscribe_deny},
        }
        found: dict[str, Any] = {
            side: {name: list(entries) for name, entries in lists.items() if entries} for side, lists in sides.items()
        }
        if (limits := own.responses) is not None:
            ttl = nanoseconds(limits.expires, "expires") if limits.expires is not None else -1
            found["responses"] = {"max": limits.max_msgs or -1, "ttl": ttl}
        return found

    def may_publish(self, subject: str) -> bool:
        """Whether the lists permit it."""
        known = self._may.get(subject)
        if known is None:
            known = self._publish is None or _covers(self._publish, subject)
            known = known and not _covers(self._publish_deny, subject)
            if len(self._may) >= CACHE:
                self._may.clear()
            self._may[subject] = known
        return known

    def may_publish_all(self, pattern: str) -> bool:
        """Whether the lists permit every subject that matches a pattern."""
        return self.may_publish(pattern) and self._publish_deny.overlapping(pattern) is None

    def may_subscribe(self, subject: str, queue: str) -> bool:
        if self._subscribe is not None:
            plain, queues = self._subscribe.covering(subject)
            # For a member of a queue group, entries that name queue groups take precedence.
            if not (_names(queue, queues) if queue and queues else plain):
                return False
        return not self._refuses(subject, queue)

    def needs_guard(self, subject: str, queue: str) -> bool:
        """Whether a permitted subscription could match a denied subject."""
        return bool(queue or has_wildcard(subject)) and self._subscribe_deny.overlap(subject)

    def denies(self, subject: str, queue: str) -> bool:
        """Whether messages on a subject must not be delivered to a subscription in that queue group."""
        key = (subject, queue)
        known = self._denied.get(key)
        if known is None:
            if len(self._denied) >= CACHE:
                self._denied.clear()
            known = self._denied[key] = self._refuses(subject, queue)
        return known

    def _refuses(self, subject: str, queue: str) -> bool:
        plain, queues = self._subscribe_deny.covering(subject)
        return plain or bool(queue and queues and _names(queue, queues))


def _covers(entries: SubjectSet, subject: str) -> bool:
    """Whether an entry covers a subject; an invalid subject is covered by none."""
    return next(entries.all_covering(subject), None) is not None and is_valid_filter(subject)


class _Entries:
    """A list of subjects that may name a queue group; looking one up does not depend on its length."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._queues: dict[str, list[str]] = {}  # by subject; an empty one: no queue group
        for subject, queue in map(split_queue, entries):
            self._queues.setdefault(subject, []).append(queue)
        self._set = SubjectSet(self._queues)

    def covering(self, subject: str) -> tuple[bool, list[str]]:
        """Whether an entry without queue group covers a subject, and the queue groups of those with one."""
        if not is_valid_filter(subject):
            return False, []
        hits = [queue for entry in self._set.all_covering(subject) for queue in self._queues[entry]]
        return "" in hits, [queue for queue in hits if queue]

    def overlap(self, pattern: str) -> bool:
        """Whether an entry shares a subject with a filter."""
        return self._set.overlapping(pattern) is not None


def _names(queue: str, wanted: list[str]) -> bool:
    return any(queue == name or (has_wildcard(name) and subset_of(queue, name)) for name in wanted)


def quoted(text: str) -> str:
    """As nats-server writes names in its errors."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Grant:
    """The permissions of one connection."""

    __slots__ = ("_expires", "_max_msgs", "_replies", "_swept", "rules")

    def __init__(self, rules: Rules) -> None:
        self.rules: Rules = rules
        responses = rules.responses
        self._max_msgs = responses.max_msgs if responses is not None else 0
        expires = responses.expires if responses is not None else None
        self._expires = None if expires is None else nanoseconds(expires)
        self._replies: dict[str, tuple[int, int]] = {}  # subject -> since when, how many answers
        self._swept = 0

    def may_publish(self, subject: str, now: int) -> bool:
        """Whether it may publish to a subject; responses are counted."""
        if self.rules.may_publish(subject):
            return True
        expected = self._replies.get(subject)
        if expected is None:
            return False
        since, count = expected
        if self._over(since, count, now):
            del self._replies[subject]
            return False
        self._replies[subject] = since, count + 1
        return True

    def _over(self, since: int, count: int, now: int) -> bool:
        if self._max_msgs is not None and count >= self._max_msgs:
            return True
        return self._expires is not None and now - since > self._expires

    def expect(self, reply: str, now: int) -> None:
        """A message with a reply subject was delivered to the connection: it may respond."""
        if self.rules.responses is None or self.rules.may_publish(reply):
            return
        self._replies[reply] = now, 0
        self._swept += 1
        if self._swept > MAX_REPLIES:
            self._swept = 0
            for subject, (since, count) in list(self._replies.items()):
                if self._over(since, count, now):
                    del self._replies[subject]
            # A client that receives requests and never responds must not fill memory, whatever the expiry.
            for subject in list(self._replies)[: max(0, len(self._replies) - MAX_REPLIES)]:
                del self._replies[subject]

    def needs_guard(self, subject: str, queue: str) -> bool:
        """Whether the messages of a subscription must be checked one by one."""
        return self.rules.responses is not None or self.rules.needs_guard(subject, queue)

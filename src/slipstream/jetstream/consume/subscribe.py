"""The subscribe workflow: checks of a wanted subscription against an existing consumer, or the consumer to create.

Pure. Every mistake that can be detected has an error of its own, raised before anything is changed on the server.
"""

from __future__ import annotations

import dataclasses

from slipstream.api import AckPolicy, ConsumerConfig, ConsumerInfo
from slipstream.errors import (
    ConfigMismatchError,
    DuplicateSubscriptionError,
    FilterMismatchError,
    NoDeliverGroupError,
    NothingToSubscribeError,
    PullAckPolicyError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    SubscribeError,
)
from slipstream.jetstream.requests import check_name
from slipstream.wire import check_filter, check_subject

# Not compared with an existing consumer: names and subjects have checks of their own; the deliver subject may differ.
_NOT_COMPARED = frozenset((
    "unknown", "durable_name", "name", "deliver_subject", "deliver_group", "filter_subject", "filter_subjects",
))  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription as the program requested it."""

    subject: str = ""
    stream: str = ""
    consumer: str = ""  # an existing one, to be bound
    durable: str = ""  # to be bound, or created
    queue: str = ""
    is_pull: bool = False
    config: ConsumerConfig | None = None

    def __post_init__(self) -> None:
        for what in ("stream", "consumer", "durable"):
            if value := getattr(self, what):
                check_name(value, what)
        if self.subject:
            check_filter(self.subject)
        if self.queue:
            check_subject(self.queue)
        self._check_consistent()

    def _check_consistent(self) -> None:
        config = self.config or ConsumerConfig()
        if not self.subject and not self.stream:
            raise NothingToSubscribeError("subject or stream must be set")
        if self.consumer and self.durable and self.consumer != self.durable:
            raise SubscribeError(
                f"consumer and durable are mutually exclusive, got {self.consumer!r} and {self.durable!r}"
            )
        named = config.durable_name or config.name
        if self.durable and named and named != self.durable:
            raise SubscribeError(f"durable and the name in config must be equal, got {self.durable!r} and {named!r}")
        if self.queue:
            _reject_status_over_queue(config, f"queue {self.queue!r}")
            if config.deliver_group and config.deliver_group != self.queue:
                raise QueueMismatchError(
                    f"queue and deliver_group must be equal, got {self.queue!r} and {config.deliver_group!r}"
                )
        if self.is_pull:
            if config.ack_policy != AckPolicy.EXPLICIT:
                raise PullAckPolicyError(
                    f"ack_policy of a pull subscription must be {AckPolicy.EXPLICIT}, got {config.ack_policy!r}"
                )
            if config.deliver_subject:
                raise PushConsumerError(
                    f"deliver_subject of a pull subscription must be empty, got {config.deliver_subject!r}"
                )
        if self.subject and config.filter_subject and config.filter_subject != self.subject:
            raise FilterMismatchError(
                f"subject and filter_subject must be equal, got {self.subject!r} and {config.filter_subject!r}"
            )

    @property
    def name(self) -> str:
        """The name of the consumer to look up; empty if an ephemeral one is to be created.

        A queue without a durable is its own: members that each created an ephemeral consumer would all get everything.
        """
        config = self.config or ConsumerConfig()
        return self.consumer or self.durable or config.durable_name or config.name or self.group

    @property
    def must_exist(self) -> bool:
        """Whether the consumer may not be created."""
        return bool(self.consumer)

    @property
    def group(self) -> str:
        """The queue group, from `queue` or from `config`."""
        return self.queue or (self.config.deliver_group if self.config is not None else "")

    def new_config(self, deliver_subject: str) -> ConsumerConfig:
        """The consumer to create; `deliver_subject` is for push, unless the program chose one."""
        config = self.config or ConsumerConfig()
        filters = {} if config.filter_subjects or not self.subject else {"filter_subject": self.subject}
        is_named = bool(config.name) and not (self.durable or config.durable_name)  # an ephemeral one
        config = config.replace(durable_name="" if is_named else self.name, **filters)
        if self.is_pull:
            return config
        return config.replace(deliver_subject=config.deliver_subject or deliver_subject, deliver_group=self.group)


def check_existing(wanted: Wanted, info: ConsumerInfo) -> None:
    """Raise the error that keeps the subscription from being bound to an existing consumer."""
    config = info.config
    what = f"consumer {info.name!r}"
    if wanted.is_pull and config.deliver_subject:
        raise PushConsumerError(f"{what} is a push consumer to {config.deliver_subject!r}: use `subscribe`")
    if not wanted.is_pull and not config.deliver_subject:
        raise PullConsumerError(f"{what} is a pull consumer: use `pull_subscribe`")
    filters = {config.filter_subject} if config.filter_subject else set(config.filter_subjects)
    if wanted.subject and filters and filters != {wanted.subject}:
        listed = ", ".join(sorted(filters))
        raise FilterMismatchError(f"subject must be equal to the filter of {what} ({listed}), got {wanted.subject!r}")
    if not wanted.is_pull:
        _check_group(wanted, info, what)
    _check_config(wanted, config, what)


def _check_group(wanted: Wanted, info: ConsumerInfo, what: str) -> None:
    queue, group = wanted.group, info.config.deliver_group
    if not queue and group:
        raise QueueRequiredError(f"{what} has the deliver group {group!r}: subscribe with queue={group!r}")
    if queue and not group:
        raise NoDeliverGroupError(f"{what} has no deliver group: it cannot be shared by queue {queue!r}")
    if queue and queue != group:
        raise QueueMismatchError(f"queue must be the deliver group of {what}, {group!r}, got {queue!r}")
    if queue:
        _reject_status_over_queue(info.config, what)
    elif info.push_bound:
        raise DuplicateSubscriptionError(f"{what} is already bound to a subscription")


def _reject_status_over_queue(config: ConsumerConfig, what: str) -> None:
    """Reject statuses for a queue group: each would go to one member at random."""
    if config.idle_heartbeat:
        raise QueueHeartbeatError(f"{what}: idle heartbeats are not supported over queues")
    if config.flow_control:
        raise QueueFlowControlError(f"{what}: flow control is not supported over queues")


def _check_config(wanted: Wanted, existing: ConsumerConfig, what: str) -> None:
    """Reject settings that differ from the existing consumer: it is not updated, so they would be ignored."""
    if wanted.config is None:
        return
    default = ConsumerConfig()
    differing = [
        field.name
        for field in dataclasses.fields(ConsumerConfig)
        if field.name not in _NOT_COMPARED
        and getattr(wanted.config, field.name) != getattr(default, field.name)
        and getattr(wanted.config, field.name) != getattr(existing, field.name)
    ]
    if wanted.config.filter_subjects and set(wanted.config.filter_subjects) != set(existing.filter_subjects):
        differing.append("filter_subjects")
    if differing:
        shown = ", ".join(
            f"{name} is {getattr(existing, name)!r}, not {getattr(wanted.config, name)!r}" for name in differing
        )
        raise ConfigMismatchError(
            f"{what} is configured differently and was not updated: {shown}", fields=tuple(differing)
        )

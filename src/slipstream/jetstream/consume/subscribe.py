"""What a program wants to subscribe to becomes checks against what is there, and the consumer to create if it is not.

Pure. Every mistake that can be seen has an error of its own, and is seen before anything is changed on the server.
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

# What is not compared with an existing consumer: names and subjects have checks of their own, and a deliver subject is
# the one thing that may change.
_NOT_COMPARED = frozenset((
    "unknown", "durable_name", "name", "deliver_subject", "deliver_group", "filter_subject", "filter_subjects",
))  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription as the program asked for it."""

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
            raise NothingToSubscribeError("neither a subject nor a stream is given: one of them is needed")
        if self.consumer and self.durable and self.consumer != self.durable:
            raise SubscribeError(f"consumer {self.consumer!r} and durable {self.durable!r}: one of them is allowed")
        named = config.durable_name or config.name
        if self.durable and named and named != self.durable:
            raise SubscribeError(f"durable {self.durable!r} and the configuration's {named!r} differ")
        if self.queue:
            _refuse_status_over_queue(config, f"queue {self.queue!r}")
            if config.deliver_group and config.deliver_group != self.queue:
                raise QueueMismatchError(f"queue {self.queue!r} and deliver_group {config.deliver_group!r} differ")
        if self.is_pull:
            if config.ack_policy != AckPolicy.EXPLICIT:
                raise PullAckPolicyError(
                    f"ack_policy {config.ack_policy!r}: a pull subscription needs {AckPolicy.EXPLICIT}"
                )
            if config.deliver_subject:
                raise PushConsumerError(f"deliver_subject {config.deliver_subject!r}: a pull subscription has none")
        if self.subject and config.filter_subject and config.filter_subject != self.subject:
            raise FilterMismatchError(f"subject {self.subject!r} and filter_subject {config.filter_subject!r} differ")

    @property
    def name(self) -> str:
        """The consumer to look for; empty if a nameless one is to be created.

        A queue without one is its own durable: members that each made an ephemeral consumer would all get everything.
        """
        config = self.config or ConsumerConfig()
        return self.consumer or self.durable or config.durable_name or config.name or self.group

    @property
    def must_exist(self) -> bool:
        """Whether nothing may be created."""
        return bool(self.consumer)

    @property
    def group(self) -> str:
        """The queue group, however it was given."""
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
    """Raise the error for whatever keeps the subscription from being bound to a consumer that exists."""
    config = info.config
    what = f"consumer {info.name!r}"
    if wanted.is_pull and config.deliver_subject:
        raise PushConsumerError(f"{what} is a push consumer, to {config.deliver_subject!r}: it cannot be pulled from")
    if not wanted.is_pull and not config.deliver_subject:
        raise PullConsumerError(f"{what} is a pull consumer: `pull_subscribe` is required")
    filters = {config.filter_subject} if config.filter_subject else set(config.filter_subjects)
    if wanted.subject and filters and filters != {wanted.subject}:
        listed = ", ".join(sorted(filters))
        raise FilterMismatchError(f"subject {wanted.subject!r} does not match the filter of {what}: {listed}")
    if not wanted.is_pull:
        _check_group(wanted, info, what)
    _check_config(wanted, config, what)


def _check_group(wanted: Wanted, info: ConsumerInfo, what: str) -> None:
    queue, group = wanted.group, info.config.deliver_group
    if not queue and group:
        raise QueueRequiredError(f"{what} was created for the queue group {group!r}: subscribe as a member of it")
    if queue and not group:
        raise NoDeliverGroupError(f"{what} was created without a deliver group: queue {queue!r} cannot share it")
    if queue and queue != group:
        raise QueueMismatchError(f"{what} was created for another queue group, {group!r}, not for {queue!r}")
    if queue:
        _refuse_status_over_queue(info.config, what)
    elif info.push_bound:
        raise DuplicateSubscriptionError(f"{what} is bound to a subscription already")


def _refuse_status_over_queue(config: ConsumerConfig, what: str) -> None:
    """The members of a group get messages in turn: statuses would go to any one of them."""
    if config.idle_heartbeat:
        raise QueueHeartbeatError(f"{what}: idle heartbeats are not supported over queues")
    if config.flow_control:
        raise QueueFlowControlError(f"{what}: flow control is not supported over queues")


def _check_config(wanted: Wanted, existing: ConsumerConfig, what: str) -> None:
    """What the program set and the consumer has not is not applied, and must not be thought to be."""
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
            f"{name}: wanted {getattr(wanted.config, name)!r}, it has {getattr(existing, name)!r}" for name in differing
        )
        raise ConfigMismatchError(
            f"{what} is configured otherwise, and is not changed: {shown}", fields=tuple(differing)
        )

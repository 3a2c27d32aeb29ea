"""The subscribe workflow: checks of a wanted subscription against an existing consumer, or the consumer to create.

Pure. Every mistake that can be detected has an error of its own, raised before anything is changed on the server.

What is compared with an existing consumer is what the program set, also where that equals a default
(`ConsumerConfig.fields_set`): the consumer is not updated, so anything else would be ignored. Left open are

- fields at a value that leaves the choice to the server or to this library (`_OPEN_AT_ZERO`);
- `name`, by which the consumer was found;
- the deliver group of a push consumer and, where there is a subject, filters that are empty: these have checks and
  errors of their own;
- metadata that the program did not set: the keys of servers, and the mark of the subscription that created it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from slipstream.api import AckPolicy, ConsumerConfig, ConsumerInfo, PriorityPolicy, names
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
from slipstream.jetstream.consumer_requests import check_config
from slipstream.jetstream.requests import check_name
from slipstream.wire import check_filter, check_subject

# At 0 or "" the server fills these in, or this library does; whatever an existing consumer has is then as wanted.
_OPEN_AT_ZERO = frozenset((
    "durable_name", "deliver_subject", "ack_wait", "max_deliver", "max_waiting", "max_ack_pending", "max_batch",
    "inactive_threshold", "num_replicas", "priority_timeout", "min_last_seq",
))  # fmt: skip
_FILTERS = frozenset(("filter_subject", "filter_subjects"))
_SERVER_METADATA = "_nats."  # a prefix that is reserved for servers


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
        check_config(config)
        if not self.subject and not self.stream:
            raise NothingToSubscribeError("subject or stream must be set")
        if self.consumer and self.durable and self.consumer != self.durable:
            raise SubscribeError(
                f"consumer and durable are mutually exclusive, got {self.consumer!r} and {self.durable!r}"
            )
        named = config.durable_name or config.name
        for argument in ("consumer", "durable"):
            if (value := getattr(self, argument)) and named and named != value:
                raise SubscribeError(f"{argument} and the name in config must be equal, got {value!r} and {named!r}")
        if self.queue and config.deliver_group and config.deliver_group != self.queue:
            raise QueueMismatchError(
                f"queue and deliver_group must be equal, got {self.queue!r} and {config.deliver_group!r}"
            )
        if self.group:
            _reject_status_over_queue(config, f"queue {self.group!r}")
        if self.is_pull:
            if config.ack_policy != AckPolicy.EXPLICIT:
                raise PullAckPolicyError(
                    f"ack_policy of a pull subscription must be {AckPolicy.EXPLICIT}, got {config.ack_policy!r}"
                )
            if config.deliver_subject:
                raise PushConsumerError(
                    f"deliver_subject of a pull subscription must be empty, got {config.deliver_subject!r}"
                )
        filters = _filters(config)
        if self.subject and filters and filters != {self.subject}:
            raise FilterMismatchError(
                f"subject must be equal to the filter in config ({_listed(filters)}), got {self.subject!r}; "
                "for several filters leave out subject and set stream"
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

    def new_config(self, inbox: str) -> ConsumerConfig:
        """The consumer to create. `inbox` is a subject that no other program has: where a push consumer delivers,
        unless the program chose a subject.

        A server answers a second create of the same configuration as it answers the first, so that each of two
        programs that race would take itself for the owner. Configurations that could be the same are marked with the
        inbox: the second create is then rejected, and that program binds to the consumer.
        """
        config = self.config or ConsumerConfig()
        filters = {} if config.filter_subjects or not self.subject else {"filter_subject": self.subject}
        is_named = bool(config.name) and not (self.durable or config.durable_name)  # an ephemeral one
        config = config.replace(durable_name="" if is_named else self.name, **filters)
        if not self.is_pull:
            config = config.replace(deliver_subject=config.deliver_subject or inbox, deliver_group=self.group)
        if self.name and config.deliver_subject != inbox:
            config = config.replace(metadata={**config.metadata, names.OWNER: inbox})
        return config


def check_existing(wanted: Wanted, info: ConsumerInfo) -> None:
    """Raise the error that keeps the subscription from being bound to an existing consumer."""
    config = info.config
    what = f"consumer {info.name!r}"
    if wanted.is_pull and config.deliver_subject:
        raise PushConsumerError(f"{what} is a push consumer to {config.deliver_subject!r}: use `subscribe`")
    if not wanted.is_pull and not config.deliver_subject:
        raise PullConsumerError(f"{what} is a pull consumer: use `pull_subscribe`")
    filters = _filters(config)
    if wanted.subject and filters and filters != {wanted.subject}:
        raise FilterMismatchError(
            f"subject must be equal to the filter of {what} ({_listed(filters)}), got {wanted.subject!r}"
        )
    if not wanted.is_pull:
        _check_group(wanted, info, what)
    if wanted.config is not None:
        _check_config(wanted, wanted.config, config, what)


def _filters(config: ConsumerConfig) -> set[str]:
    return {config.filter_subject} if config.filter_subject else set(config.filter_subjects)


def _listed(filters: set[str]) -> str:
    return ", ".join(sorted(filters))


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


def _check_config(wanted: Wanted, given: ConsumerConfig, existing: ConsumerConfig, what: str) -> None:
    """Reject settings that differ from the existing consumer's."""
    asked, found = _comparable(given), _comparable(existing)
    open_at_zero = _OPEN_AT_ZERO | _FILTERS if wanted.subject else _OPEN_AT_ZERO
    differing = [
        name
        for name, value in asked.items()
        if (name in given.fields_set or name in given.unknown)
        and (value or name not in open_at_zero)
        and value != found.get(name)
        and (wanted.is_pull or name != "deliver_group")
    ]
    if differing:
        shown = ", ".join(f"{name} is {found.get(name)!r}, not {asked[name]!r}" for name in differing)
        raise ConfigMismatchError(
            f"{what} is configured differently and was not updated: {shown}", fields=tuple(differing)
        )


def _comparable(config: ConsumerConfig) -> dict[str, Any]:
    """The fields of a configuration as the server reports them, without what servers and this library add."""
    config = ConsumerConfig.from_dict(config.to_dict())  # seconds and datetimes as the server's units, lists as tuples
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    fields |= fields.pop("unknown")
    del fields["name"]
    fields |= dict.fromkeys(_FILTERS, sorted(_filters(config)))
    fields["max_deliver"] = max(config.max_deliver, -1)
    if config.backoff:
        fields["ack_wait"] = config.backoff[0]
    if config.priority_policy == PriorityPolicy.NONE:
        fields["priority_policy"] = ""
    fields["metadata"] = {
        key: value
        for key, value in config.metadata.items()
        if key != names.OWNER and not key.startswith(_SERVER_METADATA)
    }
    return fields

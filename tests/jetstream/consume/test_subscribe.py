"""The subscribe workflow: every mistake has its own error; what is created is what was asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream.api import ConsumerConfig, ConsumerInfo
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
    UsageError,
)
from slipstream.jetstream.consume.subscribe import Wanted, check_existing
from tests.consumer_fields import FIELDS, PULL, PUSH, default_of

BEAT = timedelta(seconds=5)


@pytest.mark.spec("SW-01", "SW-24")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"subject": "a", "queue": "q", "config": ConsumerConfig(idle_heartbeat=BEAT)}, QueueHeartbeatError),
        ({"subject": "a", "queue": "q", "config": ConsumerConfig(flow_control=True)}, QueueFlowControlError),
        ({"subject": "a", "config": ConsumerConfig(deliver_group="q", idle_heartbeat=BEAT)}, QueueHeartbeatError),
        ({"subject": "a", "config": ConsumerConfig(deliver_group="q", flow_control=True)}, QueueFlowControlError),
        ({}, NothingToSubscribeError),
        ({"durable": "d"}, NothingToSubscribeError),
        ({"subject": "a", "is_pull": True, "config": ConsumerConfig(ack_policy="none")}, PullAckPolicyError),
        ({"subject": "a", "is_pull": True, "config": ConsumerConfig(ack_policy="all")}, PullAckPolicyError),
    ],
)
def test_misconfiguration_is_rejected_before_any_request(
    arguments: dict[str, Any], error: type[SubscribeError]
) -> None:
    with pytest.raises(error):
        Wanted(**arguments)


@pytest.mark.spec("SW-24")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"subject": "a", "is_pull": True, "config": ConsumerConfig(deliver_subject="x")}, PushConsumerError),
        ({"subject": "a", "config": ConsumerConfig(filter_subject="b")}, FilterMismatchError),
        ({"subject": "a", "config": ConsumerConfig(filter_subjects=("b", "c"))}, FilterMismatchError),
        ({"subject": "a", "config": ConsumerConfig(filter_subjects=("a", "c"))}, FilterMismatchError),
        ({"subject": "a", "config": ConsumerConfig(filter_subject="b", filter_subjects=("a",))}, UsageError),
        ({"subject": "a", "consumer": "d", "config": ConsumerConfig(durable_name="e")}, SubscribeError),
        ({"subject": "a", "queue": "q", "config": ConsumerConfig(deliver_group="r")}, QueueMismatchError),
        ({"subject": "a", "durable": "d", "config": ConsumerConfig(durable_name="e")}, SubscribeError),
        ({"subject": "a", "durable": "d", "consumer": "e"}, SubscribeError),
        ({"subject": "a..b"}, UsageError),
        ({"subject": "a", "queue": "q x"}, UsageError),
        ({"stream": "a.b"}, UsageError),
        ({"stream": "a", "durable": "a.b"}, UsageError),
    ],
)
def test_contradictory_arguments_are_rejected(arguments: dict[str, Any], error: type[UsageError]) -> None:
    with pytest.raises(error):
        Wanted(**arguments)


def test_name_of_the_consumer_to_look_up() -> None:
    assert Wanted("a").name == ""
    assert Wanted("a", durable="d").name == "d"
    assert Wanted("a", consumer="c").name == "c"
    assert Wanted("a", queue="q").name == "q"
    assert Wanted("a", queue="q", durable="d").name == "d"
    assert Wanted("a", queue="q", consumer="c").name == "c"
    assert Wanted("a", config=ConsumerConfig(durable_name="d")).name == "d"
    assert Wanted("a", config=ConsumerConfig(deliver_group="g")).name == "g"
    assert Wanted("a", consumer="c").must_exist
    assert not Wanted("a", durable="c").must_exist


def test_configuration_of_the_consumer_to_create() -> None:
    push = Wanted("a.*", queue="q", config=ConsumerConfig(ack_wait=BEAT)).new_config("_INBOX.1")
    assert (push.filter_subject, push.deliver_subject, push.deliver_group) == ("a.*", "_INBOX.1", "q")
    assert (push.durable_name, push.ack_policy, push.ack_wait) == ("q", "explicit", BEAT)
    chosen = Wanted("a", config=ConsumerConfig(deliver_subject="to.me")).new_config("_INBOX.1")
    assert (chosen.deliver_subject, chosen.durable_name) == ("to.me", "")
    pull = Wanted("a", durable="d", is_pull=True).new_config("")
    assert (pull.deliver_subject, pull.durable_name, pull.filter_subject) == ("", "d", "a")
    named = Wanted("a", config=ConsumerConfig(name="n")).new_config("_INBOX.1")
    assert (named.name, named.durable_name) == ("n", "")
    one = Wanted("a", config=ConsumerConfig(filter_subjects=("a",))).new_config("x")
    assert (one.filter_subject, one.filter_subjects) == ("", ("a",))
    several = Wanted(stream="S", config=ConsumerConfig(filter_subjects=("a", "b"))).new_config("x")
    assert (several.filter_subject, several.filter_subjects) == ("", ("a", "b"))


@pytest.mark.spec("SW-23")
def test_configurations_of_two_programs_that_race_differ() -> None:
    """Else a server would accept both: each program would take the consumer for its own."""
    for wanted in (
        Wanted("a", durable="d", is_pull=True),
        Wanted("a", durable="d", is_pull=True, config=ConsumerConfig(metadata={"a": "b"})),
        Wanted("a", config=ConsumerConfig(name="n"), is_pull=True),
        Wanted("a", durable="d"),
        Wanted("a", queue="q"),
        Wanted("a", queue="q", config=ConsumerConfig(deliver_subject="to.us")),
    ):
        one, two = wanted.new_config("_INBOX.1"), wanted.new_config("_INBOX.2")
        assert one.to_json() != two.to_json()
        check_existing(wanted, ConsumerInfo(name=wanted.name, config=one))  # and each is what the other one wants
    assert Wanted("a").new_config("_INBOX.1").metadata == {}
    assert Wanted("a", is_pull=True).new_config("_INBOX.1").metadata == {}  # each has a name of its own


def existing(*, bound: bool = False, **fields: Any) -> ConsumerInfo:
    config = ConsumerConfig(**{"durable_name": "d", "deliver_subject": "x", "filter_subject": "a"} | fields)
    return ConsumerInfo(name="d", config=config, push_bound=bound)


@pytest.mark.parametrize(
    ("wanted", "info", "error"),
    [
        (Wanted("a", durable="d"), existing(bound=True), DuplicateSubscriptionError),
        (Wanted("a", durable="d"), existing(deliver_group="q"), QueueRequiredError),
        (Wanted("a", durable="d", queue="r"), existing(deliver_group="q"), QueueMismatchError),
        (Wanted("a", durable="d", queue="r"), existing(), NoDeliverGroupError),
        (Wanted("a", durable="d", queue="r"), existing(bound=True), NoDeliverGroupError),
        (Wanted("b", durable="d"), existing(), FilterMismatchError),
        (Wanted("a", durable="d"), existing(filter_subject="", filter_subjects=("a", "b")), FilterMismatchError),
        (Wanted("a", durable="d", is_pull=True), existing(), PushConsumerError),
        (Wanted("a", durable="d"), existing(deliver_subject=""), PullConsumerError),
        (Wanted("a", queue="q"), existing(deliver_group="q", flow_control=True), QueueFlowControlError),
        (Wanted("a", queue="q"), existing(deliver_group="q", idle_heartbeat=BEAT), QueueHeartbeatError),
        (Wanted("a", durable="d", config=ConsumerConfig(max_deliver=3)), existing(), ConfigMismatchError),
        (Wanted("a", durable="d", config=ConsumerConfig(ack_policy="none")), existing(), ConfigMismatchError),
        (
            Wanted(stream="S", durable="d", config=ConsumerConfig(filter_subjects=("a", "c"))),
            existing(filter_subject="", filter_subjects=("a", "b")),
            ConfigMismatchError,
        ),
    ],
)
def test_subscription_that_differs_from_the_existing_consumer_is_rejected(
    wanted: Wanted, info: ConsumerInfo, error: type[SubscribeError]
) -> None:
    with pytest.raises(error) as caught:
        check_existing(wanted, info)
    assert type(caught.value) is error
    assert "'d'" in str(caught.value)


@pytest.mark.spec("SW-19")
@pytest.mark.parametrize(
    ("wanted", "info"),
    [
        (Wanted("a", durable="d"), existing()),
        (Wanted(stream="S", consumer="d"), existing()),
        (Wanted("a", queue="q"), existing(deliver_group="q", bound=True)),
        (Wanted("a", durable="d", is_pull=True), existing(deliver_subject="")),
        (Wanted("b", durable="d"), existing(filter_subject="")),
        (Wanted("a", durable="d", config=ConsumerConfig(max_deliver=3, deliver_subject="x")), existing(max_deliver=3)),
        (Wanted("a", durable="d", config=ConsumerConfig(deliver_subject="", filter_subject="")), existing()),
        (Wanted("a", durable="d", config=ConsumerConfig(filter_subjects=("a",))), existing()),
        (Wanted("a", durable="d", config=ConsumerConfig(max_deliver=-7)), existing(max_deliver=-1)),
        (Wanted("a", durable="d", config=ConsumerConfig(priority_policy="none")), existing()),
        (
            Wanted("a", durable="d", config=ConsumerConfig(ack_wait=BEAT, backoff=(BEAT / 5,))),
            existing(ack_wait=BEAT / 5, backoff=(BEAT / 5,)),
        ),
        (
            Wanted("a", durable="d", config=ConsumerConfig(ack_wait=5, backoff=[1, 2], max_expires=0.5)),
            existing(ack_wait=BEAT / 5, backoff=(BEAT / 5, BEAT * 2 / 5), max_expires=BEAT / 10),
        ),
        (
            Wanted("a", durable="d", config=ConsumerConfig(opt_start_time=datetime(1970, 1, 2, tzinfo=UTC))),
            existing(opt_start_time=86_400 * 10**9),
        ),
        (
            Wanted("a", durable="d", config=ConsumerConfig(metadata={"a": "b"})),
            existing(metadata={"a": "b", "_nats.level": "5", "_nats.ver": "2.15.1", "slipstream.owner": "_INBOX.1"}),
        ),
        (Wanted("a", durable="d", config=ConsumerConfig(metadata={})), existing(metadata={"_nats.level": "5"})),
        (
            Wanted(stream="S", durable="d", config=ConsumerConfig(filter_subjects=("b", "a"))),
            existing(filter_subject="", filter_subjects=("a", "b")),
        ),
    ],
)
def test_compatible_consumer_is_accepted(wanted: Wanted, info: ConsumerInfo) -> None:
    check_existing(wanted, info)


def refusal(kind: str, fields: dict[str, Any], info: ConsumerInfo) -> SubscribeError | None:
    try:
        check_existing(
            Wanted(stream="S", durable="d", is_pull=kind == PULL, config=ConsumerConfig(**fields)),
            info,
        )
    except SubscribeError as error:
        return error
    return None


@pytest.mark.spec("SW-20")
@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind in (PUSH, PULL) for field in FIELDS if (kind, field) != (PULL, "deliver_subject")],
)
def test_each_field_that_was_set_is_compared_also_at_its_default(kind: str, field: str) -> None:
    """The consumer has one value; the program asked for that one, for another one, or for the default explicitly."""
    about, default = FIELDS[field], default_of(field)
    info = existing(
        **{"deliver_subject": "x" if kind == PUSH else "", "filter_subject": ""} | about.also | {field: about.value}
    )
    same, other = (refusal(kind, about.also | {field: value}, info) for value in (about.value, about.other))
    explicit = refusal(kind, {field: default}, info)
    if (kind, field) == (PULL, "ack_policy"):
        assert (type(same), type(other)) == (PullAckPolicyError, PullAckPolicyError)
    elif (kind, field) == (PUSH, "deliver_group"):
        assert (type(same), type(other)) == (type(None), QueueMismatchError)
        assert type(explicit) is QueueRequiredError
        return
    else:
        assert same is None
        assert isinstance(other, ConfigMismatchError)
        assert other.fields == (("a_newer_field",) if field == "unknown" else (field,))
    if about.is_open or field == "unknown":
        assert explicit is None
    else:
        assert isinstance(explicit, ConfigMismatchError)
        assert explicit.fields == (field,)


@pytest.mark.spec("SW-20")
def test_durable_name_is_compared_and_a_default_that_was_not_set_is_not() -> None:
    named = existing(durable_name="", name="d")
    with pytest.raises(ConfigMismatchError) as caught:
        check_existing(Wanted("a", config=ConsumerConfig(durable_name="d")), named)
    assert caught.value.fields == ("durable_name",)
    check_existing(Wanted("a", config=ConsumerConfig(name="d")), named)
    everything = {name: about.value for name, about in FIELDS.items() if about.kinds and name != "deliver_group"}
    check_existing(Wanted(stream="S", durable="d", config=ConsumerConfig()), existing(**everything))


def test_a_mismatch_names_every_field() -> None:
    wanted = Wanted("a", durable="d", config=ConsumerConfig(max_deliver=3, ack_wait=BEAT))
    with pytest.raises(ConfigMismatchError, match="max_deliver is 0, not 3") as caught:
        check_existing(wanted, existing())
    assert caught.value.fields == ("ack_wait", "max_deliver")

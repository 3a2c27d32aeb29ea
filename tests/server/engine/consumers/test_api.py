"""The consumer API: create, update, info, and every error with its code."""

# ruff: noqa: E501 -- tables of texts

from __future__ import annotations

import gc
from typing import Any

import pytest

from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import AccountOptions
from slipstream.server.engine.consumers.consumer import Consumer
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.wire import Headers, pub
from tests.server.engine.consumers.kit import SECOND, Bench, seqs
from tests.server.support import Rig


@pytest.fixture
def bench() -> Bench:
    return Bench(Rig())


def refused(answer: dict[str, Any]) -> tuple[int, int, str]:
    error = answer["error"]
    return error["code"], error["err_code"], error["description"]


def test_an_unnamed_ephemeral_is_named_by_the_server(bench: Bench) -> None:
    info = bench.request("CREATE.S", {})
    assert info["type"] == "io.nats.jetstream.api.v1.consumer_create_response"
    assert (info["config"]["ack_policy"], info["config"]["inactive_threshold"]) == ("none", 5 * SECOND)
    assert "name" not in info["config"]
    assert bench.info(info["name"])["name"] == info["name"]


def test_a_consumer_may_be_named_and_filtered_in_the_subject(bench: Bench) -> None:
    info = bench.request("CREATE.S.c.s.a", {"filter_subject": "s.a"})
    assert (info["name"], info["config"]["name"]) == ("c", "c")
    assert bench.request("DURABLE.CREATE.S.d", {"durable_name": "d"})["config"]["durable_name"] == "d"


MISMATCHES: list[tuple[str, dict[str, Any], tuple[int, int, str]]] = [
    ("CREATE.S", {"durable_name": "x"}, (400, 10020, "consumer expected to be ephemeral but a durable name was set in request")),
    ("DURABLE.CREATE.S.d", {}, (400, 10018, "consumer expected to be durable but a durable name was not set")),
    ("DURABLE.CREATE.S.d", {"durable_name": "e"}, (400, 10017, "consumer name in subject does not match durable name in request")),
    ("DURABLE.CREATE.S", {"durable_name": "e"}, (400, 10016, "consumer expected to be durable but no durable name set in subject")),
    ("CREATE.S.d", {"durable_name": "e"}, (400, 10017, "consumer name in subject does not match durable name in request")),
    ("CREATE.S.d.s.a", {"filter_subject": "s.b"}, (400, 10131, "Consumer create request did not match filtered subject from create subject")),
    ("CREATE.S.d.s.a", {"filter_subjects": ["s.a"]}, (400, 10137, "consumer with multiple subject filters cannot use subject based API")),
    ("CREATE.S.a/b", {}, (400, 10127, "Consumer name can not contain path separators")),
    ("CREATE.X.d", {}, (400, 10056, "stream name in subject does not match request")),
]  # fmt: skip


@pytest.mark.parametrize(("subject", "config", "wanted"), MISMATCHES, ids=str)
def test_subject_and_body_must_agree(
    bench: Bench, subject: str, config: dict[str, Any], wanted: tuple[int, int, str]
) -> None:
    assert refused(bench.request(subject, config)) == wanted


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"deliver_subject": "d.*"}, 10079, "consumer deliver subject has wildcards"),
    ({"deliver_subject": "d..e"}, 10112, "invalid push consumer deliver subject"),
    ({"deliver_subject": "s.x"}, 10081, "consumer deliver subject forms a cycle"),
    ({"deliver_subject": "d", "max_waiting": 5}, 10080, "consumer in push mode can not set max waiting"),
    ({"deliver_subject": "d", "max_ack_pending": 5, "ack_policy": "none"}, 10082, "consumer requires ack policy for max ack pending"),
    ({"deliver_subject": "d", "idle_heartbeat": 1000}, 10083, "consumer idle heartbeat needs to be >= 100ms"),
    ({"rate_limit_bps": 5}, 10086, "consumer in pull mode can not have rate limit set"),
    ({"idle_heartbeat": SECOND}, 10088, "consumer idle heartbeat requires a push based consumer"),
    ({"flow_control": True}, 10089, "consumer flow control requires a push based consumer"),
    ({"max_expires": 1000}, 10115, "consumer max request expires needs to be >= 1ms"),
    ({"deliver_subject": "d", "flow_control": True}, 10108, "consumer with flow control also needs heartbeats"),
    ({"backoff": [1, 2, 3], "max_deliver": 2}, 10116, "max deliver is required to be > length of backoff values"),
    ({"backoff": [-1]}, 10184, "consumer backoff needs to be positive"),
    ({"ack_wait": -1000}, 10183, "consumer ack wait needs to be positive"),
    ({"description": "x" * 5000}, 10107, "consumer description is too long, maximum allowed is 4096"),
    ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
    ({"direct": True}, 10090, "consumer direct requires a push based consumer"),
    ({"filter_subject": "s.a", "filter_subjects": ["s.b"]}, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    ({"filter_subjects": ["s.a", ""]}, 10139, "consumer filter in FilterSubjects cannot be empty"),
    ({"filter_subjects": ["s.a", "s.*"]}, 10138, "consumer subject filters cannot overlap"),
    ({"opt_start_seq": 5}, 10094, "consumer delivery policy is deliver all, but optional start sequence is also set"),
    ({"opt_start_time": "2024-01-01T00:00:00Z"}, 10094, "consumer delivery policy is deliver all, but optional start time is also set"),
    ({"deliver_policy": "last", "opt_start_seq": 5}, 10094, "consumer delivery policy is deliver last, but optional start sequence is also set"),
    ({"deliver_policy": "by_start_sequence"}, 10094, "consumer delivery policy is deliver by start sequence, but optional start sequence is not set"),
    ({"deliver_policy": "by_start_time"}, 10094, "consumer delivery policy is deliver by start time, but optional start time is not set"),
    ({"deliver_policy": "last_per_subject"}, 10094, "consumer delivery policy is deliver last per subject, but optional filter subject is not set"),
    ({"sample_freq": "often"}, 10095, 'failed to parse consumer sampling configuration: strconv.Atoi: parsing "often": invalid syntax'),
    ({"metadata": {"k": "v" * 131072}}, 10135, "consumer metadata exceeds maximum size of 128KB"),
    ({"priority_groups": ["g"]}, 10196, "consumer can not have priority groups when policy is none"),
    ({"priority_timeout": 5}, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
    ({"priority_policy": "overflow"}, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    ({"priority_policy": "overflow", "priority_groups": [""]}, 10161, "Group name cannot be an empty string"),
    ({"deliver_subject": "d", "priority_policy": "overflow", "priority_groups": ["g"]}, 10178, "priority groups can not be used with push consumers"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "code", "text"), BAD, ids=str)
def test_an_invalid_configuration_is_rejected(bench: Bench, config: dict[str, Any], code: int, text: str) -> None:
    assert refused(bench.create(**config)) == (400, code, text)
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"stream_name":"S","config":{"ack_policy":"some"}}', 'invalid JSON: can not unmarshal "\\"some\\""'),
        (b'{"stream_name":"S","config":{"nope":1}}', 'invalid JSON: json: unknown field "nope"'),
        (b'{"stream_name":"S","nope":1}', 'invalid JSON: json: unknown field "nope"'),
        (b'{"stream_name":"S","action":"make"}', 'invalid JSON: unknown consumer action: "make"'),
    ],
)
def test_a_malformed_create_body_is_rejected(bench: Bench, body: bytes, text: str) -> None:
    assert refused(bench.client.api("CONSUMER.CREATE.S.c", body)) == (400, 10025, text)


def test_create_rejects_changes_and_update_requires_a_consumer(bench: Bench) -> None:
    config = {"durable_name": "c", "ack_policy": "explicit"}
    assert refused(bench.request("CREATE.S.c", config, action="update")) == (400, 10149, "consumer does not exist")
    assert "error" not in bench.request("CREATE.S.c", config, action="create")
    assert "error" not in bench.request("CREATE.S.c", config, action="create")
    other = config | {"description": "another"}
    assert refused(bench.request("CREATE.S.c", other, action="create")) == (400, 10148, "consumer already exists")
    assert bench.request("CREATE.S.c", other, action="update")["config"]["description"] == "another"
    assert bench.request("CREATE.S.c", config)["config"].get("description") is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({"ack_policy": "all"}, "ack policy can not be updated"),
        ({"replay_policy": "original"}, "replay policy can not be updated"),
        ({"mem_storage": True}, "storage type can not be updated"),
        ({"max_waiting": 5}, "max waiting can not be updated"),
        ({"deliver_subject": "d"}, "can not update pull consumer to push based"),
    ],
    ids=str,
)
def test_fixed_settings_cannot_be_updated(bench: Bench, change: dict[str, Any], text: str) -> None:
    bench.create()
    assert refused(bench.create(**change)) == (500, 10012, text)


def test_changed_filters_recount_num_pending(bench: Bench) -> None:
    bench.fill("s.a", "s.b", "s.b")
    assert bench.create(filter_subject="s.a")["num_pending"] == 1
    assert bench.create(filter_subject="s.b")["num_pending"] == 2
    assert seqs(bench.pull(5, no_wait=True)) == [2, 3]


def test_limits_can_be_raised_while_it_runs(bench: Bench) -> None:
    bench.fill(*["s.a"] * 4)
    bench.create(max_ack_pending=1)
    bench.ask_for(5)
    assert seqs(bench.client.messages()) == [1]
    bench.client.send(b"")
    bench.create(max_ack_pending=3)
    bench.rig.settle()
    assert bench.info()["num_ack_pending"] == 3


def test_a_stream_bounds_its_consumers() -> None:
    bench = Bench(Rig(), max_consumers=1, consumer_limits={"max_ack_pending": 50, "inactive_threshold": 60 * SECOND})
    assert refused(bench.create(max_ack_pending=51))[1:] == (
        10121,
        "consumer max ack pending exceeds system limit of 50",
    )
    assert refused(bench.create(inactive_threshold=61 * SECOND))[1:] == (
        10153, "consumer inactive threshold exceeds system limit of 1m0s",
    )  # fmt: skip
    config = bench.create()["config"]
    assert (config["max_ack_pending"], config["inactive_threshold"]) == (50, 60 * SECOND)
    assert refused(bench.create("d")) == (400, 10026, "maximum consumers limit reached")


def test_pedantic_requests_are_not_corrected(bench: Bench) -> None:
    config = {"durable_name": "c", "max_deliver": -5}
    assert bench.request("CREATE.S.c", config, pedantic=True)["error"]["err_code"] == 10157
    assert bench.request("CREATE.S.c", config)["config"]["max_deliver"] == -1


def test_names_and_lists_come_in_pages(bench: Bench) -> None:
    for i in range(5):
        bench.create(f"c{i}")
    names = bench.client.api("CONSUMER.NAMES.S", {"offset": 3})
    assert (names["total"], names["offset"], names["limit"], names["consumers"]) == (5, 3, 1024, ["c3", "c4"])
    listed = bench.client.api("CONSUMER.LIST.S", {"offset": 4})
    assert [info["name"] for info in listed["consumers"]] == ["c4"]
    assert listed["limit"] == 256
    assert bench.client.api("CONSUMER.NAMES.S", {"offset": 99})["consumers"] == []
    assert bench.client.api("CONSUMER.NAMES.X")["error"]["err_code"] == 10059


def test_a_missing_consumer_or_stream_is_not_found(bench: Bench) -> None:
    for verb in ("INFO", "DELETE", "PAUSE"):
        assert refused(bench.client.api(f"CONSUMER.{verb}.S.nobody")) == (404, 10014, "consumer not found")
        assert refused(bench.client.api(f"CONSUMER.{verb}.X.nobody")) == (404, 10059, "stream not found")
    assert refused(bench.request("CREATE.X.c", {}, stream_name="X")) == (404, 10059, "stream not found")


def test_info_and_delete_take_no_body(bench: Bench) -> None:
    bench.create()
    for verb in ("INFO", "DELETE"):
        assert bench.client.api(f"CONSUMER.{verb}.S.c", {"x": 1})["error"]["err_code"] == 10038


def test_consumers_are_counted(bench: Bench) -> None:
    bench.create("a")
    bench.create("b")
    assert bench.client.api("STREAM.INFO.S")["state"]["consumer_count"] == 2
    assert bench.client.api("INFO")["consumers"] == 2
    bench.client.api("CONSUMER.DELETE.S.a")
    assert bench.client.api("STREAM.INFO.S")["state"]["consumer_count"] == 1


def test_a_deleted_stream_deletes_its_consumers(bench: Bench) -> None:
    bench.create()
    bench.fill("s.a")
    (message,) = bench.pull()
    bench.client.api("STREAM.DELETE.S")
    assert bench.client.ask(message.reply, b"+ACK")[0].header.startswith(b"NATS/1.0 503")
    bench.client.create("S")
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 0


def test_an_unused_pull_consumer_is_deleted_after_its_threshold(bench: Bench) -> None:
    bench.create(inactive_threshold=10 * SECOND)
    bench.rig.wait(9)
    bench.pull(1, no_wait=True)
    bench.rig.wait(9.5)
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 1
    bench.rig.wait(2)
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 0


def test_a_waiting_pull_keeps_a_consumer_in_use(bench: Bench) -> None:
    bench.create("e", durable_name="", inactive_threshold=SECOND)
    bench.ask_for(1, "e")
    bench.rig.wait(60)
    assert bench.client.api("CONSUMER.NAMES.S")["total"] == 1


def test_a_pull_that_requires_a_higher_api_level_is_rejected(bench: Bench) -> None:
    bench.create()
    header = Headers({"Nats-Required-Api-Level": "99"}).encode()
    bench.client.take()
    bench.client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b"", "_INBOX.c1.z", header))
    assert bench.client.messages()[0].header.startswith(b"NATS/1.0 412 Required Api Level")


def test_pausing_a_paused_consumer_again_with_no_time_resumes_it(bench: Bench) -> None:
    bench.create()
    bench.client.api("CONSUMER.PAUSE.S.c", {"pause_until": "2040-01-01T00:00:00Z"})
    bench.fill("s.a")
    assert bench.pull() == []
    answer = bench.client.api("CONSUMER.PAUSE.S.c", {})
    assert (answer["paused"], answer["pause_until"]) == (False, "0001-01-01T00:00:00Z")
    assert bench.info()["num_ack_pending"] == 1
    assert "pause_until" not in bench.info()["config"]


def test_an_update_leaves_a_pause_alone(bench: Bench) -> None:
    bench.create(pause_until="2040-01-01T00:00:00Z")
    assert bench.create(description="new")["config"]["pause_until"] == "2040-01-01T00:00:00Z"


def test_an_account_bounds_its_consumers() -> None:
    limits = AccountLimits(max_consumers=2, max_ack_pending=100)
    bench = Bench(Rig(accounts=(AccountOptions(name="$G", jetstream=limits),)))
    assert bench.create("a")["config"]["max_ack_pending"] == 100
    assert refused(bench.create("b", max_ack_pending=101))[1] == 10121
    bench.create("b")
    assert refused(bench.create("c")) == (400, 10026, "maximum consumers limit reached")


@pytest.mark.parametrize("config", [{}, {"deliver_subject": "d"}], ids=["pull", "push"])
def test_a_deleted_consumer_is_freed_without_the_garbage_collector(bench: Bench, config: dict[str, Any]) -> None:
    """Watches and key listings make short-lived consumers, and the process of a server collects garbage seldom."""
    bench.client.send(b"SUB d 9\r\n")
    bench.fill("s.a", "s.b")
    gc.collect()
    before = _count_consumers()
    gc.disable()
    try:
        bench.create(inactive_threshold=SECOND, **config)
        assert config or seqs(bench.pull(2)) == [1, 2]
        bench.rig.settle()
        assert bench.info()["num_ack_pending"] == 2
        assert bench.client.api("CONSUMER.DELETE.S.c")["success"]
        bench.rig.settle()
        assert _count_consumers() == before
    finally:
        gc.enable()


def _count_consumers() -> int:
    return sum(isinstance(item, Consumer | DeliveryState) for item in gc.get_objects())

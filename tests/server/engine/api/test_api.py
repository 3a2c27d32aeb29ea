"""The JetStream API: the catalog, reports, errors, in nats-server's words. The engine alone."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.server.engine.api import responses
from slipstream.wire import Headers, pub
from tests.server.support import Client, Rig, sequences

TYPE = "io.nats.jetstream.api.v1."


@pytest.fixture
def client() -> Client:
    return Rig(server_name="peer").client()


def test_create_answers_with_the_whole_configuration_in_nats_servers_order(client: Client) -> None:
    answer = client.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b.b"], "storage": "memory"})
    assert answer["type"] == TYPE + "stream_create_response"
    assert list(answer) == ["type", "config", "created", "state", "ts", "did_create"]
    assert answer["config"] == {
        "name": "B", "subjects": ["b.b"], "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
        "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1, "discard": "old", "storage": "memory",
        "num_replicas": 1, "duplicate_window": 120_000_000_000, "compression": "none", "allow_direct": False,
        "mirror_direct": False, "sealed": False, "deny_delete": False, "deny_purge": False, "allow_rollup_hdrs": False,
        "consumer_limits": {}, "allow_msg_ttl": False,
        "metadata": {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1"},
    }  # fmt: skip
    assert answer["state"] == {
        "messages": 0, "bytes": 0, "first_seq": 0, "first_ts": "0001-01-01T00:00:00Z", "last_seq": 0,
        "last_ts": "0001-01-01T00:00:00Z", "consumer_count": 0,
    }  # fmt: skip
    assert answer["created"] == "2023-11-14T22:13:20Z"


def test_the_same_create_twice_is_the_same_answer_and_another_is_refused(client: Client) -> None:
    first = client.create("S", max_msgs=5)
    client.rig.wait(1)
    second = client.create("S", max_msgs=5)
    assert second["created"] == first["created"]
    assert second["config"] == first["config"]
    error = client.create("S", max_msgs=6)["error"]
    assert error["err_code"] == 10058


@pytest.mark.parametrize(
    ("config", "err_code", "text"),
    [
        ({"name": "C"}, 10056, "stream name in subject does not match request"),
        ({"foo": 1}, 10025, 'invalid JSON: json: unknown field "foo"'),
        ({"storage": "zz"}, 10025, 'invalid JSON: can not unmarshal "\\"zz\\""'),
        ({"subjects": ["x..y"]}, 10052, "invalid subject"),
        ({"subjects": ["x", "x"]}, 10052, "duplicate subjects detected"),
        ({"subjects": ["x.*", "x.y"]}, 10052, 'subject "x.*" overlaps with "x.y"'),
        ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack to be true"),
        ({"subjects": ["$JS.API.>"]}, 10052, "subjects that overlap with jetstream api require no-ack to be true"),
        ({"subjects": ["$SYS.x"]}, 10052, "subjects that overlap with system api require no-ack to be true"),
        ({"subjects": ["taken.x"]}, 10065, "subjects overlap with an existing stream"),
        ({"num_replicas": 7}, 10052, "maximum replicas is 5"),
        ({"max_age": 5000}, 10052, "max age needs to be >= 100ms"),
        ({"max_age": 1_000_000_000, "duplicate_window": 2_000_000_000}, 10052,
         "duplicates window can not be larger then max age"),
        ({"max_age": -1000}, 10052, "max age can not be negative"),
        ({"duplicate_window": -1000}, 10052, "duplicates window can not be negative"),
        ({"duplicate_window": 1000}, 10052, "duplicates window needs to be >= 100ms"),
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"placement": {"preferred": "x"}}, 10052, "preferred server not permitted in placement"),
        ({"metadata": {"a": "x" * 200_000}}, 10052, "stream metadata exceeds maximum size of 131072 bytes"),
        ({"discard": "new", "discard_new_per_subject": True}, 10052,
         "discard new per subject requires max msgs per subject > 0"),
        ({"sealed": True}, 10052, "stream configuration for create can not be sealed"),
        ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
        ({"deny_purge": True, "allow_rollup_hdrs": True}, 10052, "roll-ups require the purge permission"),
        ({"discard_new_per_subject": True}, 10052, "discard new per subject requires discard new policy to be set"),
        ({"description": "x" * 5000}, 10052, "stream description is too long, maximum allowed is 4096"),
    ],
)  # fmt: skip
def test_a_bad_configuration_gets_nats_servers_error(
    client: Client, config: dict[str, object], err_code: int, text: str
) -> None:
    client.create("TAKEN")
    answer = client.api("STREAM.CREATE.S", {"name": "S"} | config)
    assert answer["type"] == TYPE + "stream_create_response"
    assert (answer["error"]["err_code"], answer["error"]["description"]) == (err_code, text)
    assert client.api("STREAM.NAMES")["streams"] == ["TAKEN"]


@pytest.mark.parametrize("name", ["a.b", "a*", "a>", "a b", "", "x" * 256])
def test_a_bad_stream_name_is_refused(client: Client, name: str) -> None:
    answers = client.ask("$JS.API.STREAM.CREATE." + (name or "x").replace(" ", "_"), {"name": name})
    assert not answers or b'"error"' in answers[0].payload
    assert client.api("STREAM.NAMES")["streams"] is None


def test_bodies_that_are_no_json_are_refused(client: Client) -> None:
    client.create("S")
    assert client.api("STREAM.MSG.GET.S", {"start_time": "soon"})["error"]["err_code"] == 10025
    assert client.api("STREAM.MSG.GET.S", {"seq": -1})["error"]["err_code"] == 10025
    assert client.api("STREAM.DELETE.S", b"{nojson")["error"]["err_code"] == 10038
    assert client.api("STREAM.CREATE.a/b", {"name": "a/b"})["error"]["err_code"] == 10128
    assert client.api("STREAM.CREATE.S", b"nojson")["error"]["err_code"] == 10025
    assert client.api("STREAM.CREATE.S", b"[1]")["error"]["err_code"] == 10025
    assert client.api("STREAM.CREATE.S", b'{"name":5}')["error"]["err_code"] == 10025
    assert client.api("STREAM.MSG.GET.S", b"nojson")["error"]["err_code"] == 10025
    assert client.api("STREAM.INFO.S", b'{"foo":1}')["error"]["err_code"] == 10025
    assert client.api("STREAM.PURGE.S", b'{"foo":1}')["error"]["err_code"] == 10025


def test_update_changes_the_fields_that_may_change(client: Client) -> None:
    client.create("S")
    for n in range(6):
        client.publish(f"s.{n % 2}")
    base = {"name": "S", "subjects": ["s.>", "other"], "storage": "memory", "allow_direct": True}
    answer = client.api("STREAM.UPDATE.S", base | {"max_msgs": 4})
    assert answer["type"] == TYPE + "stream_update_response"
    assert answer["config"]["max_msgs"] == 4
    assert sequences(client.direct("S", {"seq": 1, "batch": 9})) == [3, 4, 5, 6]
    assert client.publish("other")["seq"] == 7
    client.api("STREAM.UPDATE.S", base | {"max_msgs_per_subject": 1})
    assert sequences(client.direct("S", {"seq": 1, "batch": 9})) == [5, 6, 7]
    client.api("STREAM.UPDATE.S", base | {"subjects": ["s.>"]})
    (nobody,) = client.ask("other", b"x")
    assert nobody.header.startswith(b"NATS/1.0 503")


def test_update_rejects_changes_of_fixed_fields(client: Client) -> None:
    client.create("S", deny_delete=True)
    client.create("T")
    base = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True, "deny_delete": True}

    def refusal(**changes: object) -> tuple[int, str]:
        error = client.api("STREAM.UPDATE.S", base | changes)["error"]
        return error["err_code"], error["description"]

    assert refusal(storage="file") == (10052, "stream configuration update can not change storage type")
    assert refusal(deny_delete=False) == (10052, "stream configuration update can not cancel deny message deletes")
    assert refusal(subjects=["t.x"])[0] == 10065
    assert refusal(name="Z")[0] == 10056
    assert client.api("STREAM.UPDATE.NONE", {"name": "NONE"})["error"]["err_code"] == 10059


def test_a_sealed_stream_is_read_only(client: Client) -> None:
    client.create("S")
    client.publish("s.1")
    base = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True}
    config = client.api("STREAM.UPDATE.S", base | {"sealed": True})["config"]
    assert (config["discard"], config["deny_delete"], config["deny_purge"]) == ("new", True, True)
    assert client.publish("s.1")["error"]["err_code"] == 10109
    assert client.api("STREAM.PURGE.S")["error"]["err_code"] == 10109
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 1})["error"]["err_code"] == 10109
    assert sequences(client.direct("S", {"seq": 1, "batch": 9})) == [1]


def test_info_reports_state_subjects_and_holes(client: Client) -> None:
    client.create("S")
    for n in range(6):
        client.publish(f"s.{n % 3}")
        client.rig.wait(1)
    client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    client.api("STREAM.MSG.DELETE.S", {"seq": 5})
    answer = client.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": "s.*"})
    assert list(answer) == ["type", "total", "offset", "limit", "config", "created", "state", "cluster", "ts"]
    assert (answer["total"], answer["offset"], answer["limit"]) == (2, 0, 100_000)
    assert answer["cluster"] == {"leader": "peer"}
    state = answer["state"]
    assert state["messages"] == 4
    assert state["first_ts"] == "2023-11-14T22:13:20Z"
    assert state["last_ts"] == "2023-11-14T22:13:25Z"
    assert state["num_subjects"] == 2
    assert state["subjects"] == {"s.0": 2, "s.2": 2}
    assert (state["num_deleted"], state["deleted"]) == (2, [2, 5])
    plain = client.api("STREAM.INFO.S")
    assert (plain["total"], plain["limit"]) == (0, 0)
    assert "subjects" not in plain["state"]
    assert client.api("STREAM.INFO.NONE") == {
        "type": TYPE + "stream_info_response",
        "error": {"code": 404, "err_code": 10059, "description": "stream not found"},
        "total": 0,
        "offset": 0,
        "limit": 0,
    }


def test_subjects_of_info_come_in_pages(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr(responses, "MAX_SUBJECTS", 3)
    client.create("S")
    for n in range(7):
        client.publish(f"s.{n}")
    seen: list[str] = []
    while len(seen) < 7:
        answer = client.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": len(seen)})
        assert answer["total"] == 7
        seen += answer["state"]["subjects"]
    assert seen == [f"s.{n}" for n in range(7)]


def test_names_and_list_can_be_chosen_by_subject(client: Client) -> None:
    assert client.api("STREAM.NAMES") == {
        "type": TYPE + "stream_names_response", "total": 0, "offset": 0, "limit": 1024, "streams": None,
    }  # fmt: skip
    client.create("B")
    client.create("A")
    assert client.api("STREAM.NAMES")["streams"] == ["A", "B"]
    assert client.api("STREAM.NAMES", {"subject": "b.x"})["streams"] == ["B"]
    assert client.api("STREAM.NAMES", {"subject": "zz"})["streams"] is None
    assert client.api("STREAM.NAMES", {"offset": 1})["streams"] == ["B"]
    page = client.api("STREAM.LIST", {"offset": 5})
    assert (page["total"], page["offset"], page["limit"], page["streams"]) == (2, 2, 256, [])
    assert [info["config"]["name"] for info in client.api("STREAM.LIST")["streams"]] == ["A", "B"]


def test_requests_without_a_reply_are_carried_out_and_not_answered(client: Client) -> None:
    client.create("S", placement={})
    client.publish("s.1")
    client.take()
    client.send(b'PUB $JS.API.STREAM.MSG.GET.S 9\r\n{"seq":1}\r\nPUB $JS.API.DIRECT.GET.S 9\r\n{"seq":1}\r\n')
    client.send(b"PUB $JS.API.STREAM.PURGE.S 0\r\n\r\n")
    assert client.take() == []
    answer = client.api("STREAM.INFO.S", {"subjects_filter": "none"})
    assert (answer["total"], answer["state"]["messages"]) == (0, 0)


def test_an_update_that_changes_nothing_is_answered_like_any(client: Client) -> None:
    client.create("S")
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True}
    assert client.api("STREAM.UPDATE.S", config)["config"]["name"] == "S"


def test_delete_forgets_a_stream_and_its_messages(client: Client) -> None:
    client.create("S")
    client.publish("s.1")
    assert client.api("STREAM.DELETE.S", {"x": 1})["error"]["err_code"] == 10038
    assert client.api("STREAM.DELETE.S") == {"type": TYPE + "stream_delete_response", "success": True}
    assert client.api("STREAM.DELETE.S")["error"]["err_code"] == 10059
    (nobody,) = client.ask("s.1", b"x")
    assert nobody.header.startswith(b"NATS/1.0 503")
    client.create("S")
    assert client.publish("s.1")["seq"] == 1


def test_purge_takes_a_filter_a_sequence_or_a_number_to_keep(client: Client) -> None:
    client.create("S")
    for n in range(8):
        client.publish(f"s.{n % 2}")

    def left() -> list[int]:
        return sequences(client.direct("S", {"seq": 1, "batch": 99}))

    answer = client.api("STREAM.PURGE.S", {"filter": "s.0", "keep": 2})
    assert answer == {"type": TYPE + "stream_purge_response", "success": True, "purged": 2}
    assert left() == [2, 4, 5, 6, 7, 8]
    assert client.api("STREAM.PURGE.S", {"seq": 5})["purged"] == 2
    assert left() == [5, 6, 7, 8]
    assert client.api("STREAM.PURGE.S", {"seq": 7, "keep": 1})["error"]["err_code"] == 10003
    assert client.api("STREAM.PURGE.S")["purged"] == 4
    state = client.api("STREAM.INFO.S")["state"]
    assert (state["first_seq"], state["last_seq"]) == (9, 8)
    client.create("D", deny_purge=True, deny_delete=True)
    client.publish("d.1")
    assert client.api("STREAM.PURGE.D")["error"]["err_code"] == 10110
    assert client.api("STREAM.MSG.DELETE.D", {"seq": 1})["error"]["err_code"] == 10057


def test_a_message_is_deleted_once(client: Client) -> None:
    client.create("S", storage="file")
    client.publish("s.1")
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 1}) == {
        "type": TYPE + "stream_msg_delete_response",
        "success": True,
    }
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 1})["error"]["description"] == "no message found"
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 2})["error"]["description"] == "stream store EOF"
    assert client.api("STREAM.MSG.DELETE.S")["error"]["err_code"] == 10003


def test_account_info_counts_streams_bytes_and_requests(client: Client) -> None:
    client.create("S", max_bytes=1000)
    client.publish("s.1")
    answer = client.api("INFO")
    assert answer["type"] == TYPE + "account_info_response"
    assert (answer["streams"], answer["memory"], answer["storage"]) == (1, 34, 0)
    assert answer["reserved_memory"] == 1000
    assert answer["api"]["total"] == 1
    assert answer["api"]["errors"] == 0
    client.api("STREAM.INFO.NONE")
    assert client.api("INFO")["api"]["errors"] == 1


def test_unknown_api_subjects_are_taken_and_not_answered(client: Client) -> None:
    for subject in ("NOSUCH", "STREAM.INFO", "STREAM.INFO.A.B", "STREAM.CREATE"):
        assert client.ask(f"$JS.API.{subject}", b"") == []


def test_unknown_streams_and_messages_are_not_found_errors(client: Client) -> None:
    client.create("S")
    assert client.api("CONSUMER.INFO.S.c")["error"]["err_code"] == 10014
    assert client.api("CONSUMER.NAMES.S")["consumers"] == []
    assert client.api("CONSUMER.LIST.S")["consumers"] == []
    (nobody,) = client.ask("$JS.API.CONSUMER.MSG.NEXT.S.c", b"")
    assert nobody.header.startswith(b"NATS/1.0 503")
    assert client.api("STREAM.LEADER.STEPDOWN.S")["error"]["err_code"] == 10010
    assert client.api("STREAM.SNAPSHOT.S", {})["error"]["err_code"] == 10003


def test_a_required_api_level_that_is_not_there_is_refused(client: Client) -> None:
    (answer,) = client.ask("$JS.API.INFO", b"", Headers({"Nats-Required-Api-Level": "9"}))
    assert b'"err_code":10185' in answer.payload
    (answer,) = client.ask("$JS.API.INFO", b"", Headers({"Nats-Required-Api-Level": "0"}))
    assert b'"error"' not in answer.payload


def test_without_jetstream_the_api_has_no_responders() -> None:
    plain = Rig(jetstream=False).client()
    (nobody,) = plain.ask("$JS.API.INFO", b"")
    assert nobody.header.startswith(b"NATS/1.0 503")


@pytest.mark.parametrize("verb", ["STREAM.CREATE.S", "STREAM.INFO.S", "STREAM.MSG.GET.S", "STREAM.PURGE.S", "INFO"])
@pytest.mark.parametrize("body", [b'{"name":"\xff"}', b'{"a":' * 100_000, b"[" * 100_000, b'{"name":', b"\xff", b"{}x"])
def test_no_body_of_a_request_cuts_its_client_off(client: Client, verb: str, body: bytes) -> None:
    client.create("S")
    client.ask(f"$JS.API.{verb}", body)
    assert not client.closed
    assert client.api("STREAM.INFO.S")["config"]["name"] == "S"


def test_a_header_block_that_is_none_does_not_cut_its_client_off(client: Client) -> None:
    client.create("S")
    block = b"Nats-Required-Api-Level: 1\r\n\r\n"
    client.send(b"HPUB $JS.API.STREAM.INFO.S x %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert not client.closed
    assert client.api("STREAM.INFO.S")["config"]["name"] == "S"


def test_an_update_response_has_the_state_after_it(client: Client) -> None:
    client.create("S")
    for n in range(5):
        client.publish("s.1", b"%d" % n)
    state = client.api("STREAM.UPDATE.S", client.api("STREAM.INFO.S")["config"] | {"max_msgs": 2})["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (2, 4, 5)
    state = client.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f"], "first_seq": 100})["state"]
    assert (state["first_seq"], state["last_seq"]) == (100, 99)


@pytest.mark.parametrize(
    "field", [{"first_seq": -1}, {"first_seq": 2**63}, {"max_age": 2**63}, {"max_msgs": 2**63}, {"max_bytes": 10**30}]
)
def test_numbers_that_fit_no_field_are_refused(client: Client, field: dict[str, int]) -> None:
    error = client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **field})["error"]
    assert error["err_code"] == 10025
    assert next(iter(field)) in error["description"]


def test_a_message_that_was_deleted_is_not_found_again(client: Client) -> None:
    client.create("S", storage="file")
    for _ in range(3):
        client.publish("s.1")
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 2})["success"]
    error = client.api("STREAM.MSG.DELETE.S", {"seq": 2})["error"]
    assert (error["code"], error["err_code"], error["description"]) == (400, 10043, "sequence 2 not found")
    for seq, text in ((99, "stream store EOF"), (0, "no message found")):
        error = client.api("STREAM.MSG.DELETE.S", {"seq": seq})["error"]
        assert (error["err_code"], error["description"]) == (10057, text)
    assert client.api("STREAM.MSG.DELETE.S", {"seq": 2**70})["error"]["err_code"] == 10025
    assert client.api("STREAM.PURGE.S", {"seq": 2**70})["error"]["err_code"] == 10025


def test_in_a_stream_in_memory_every_missing_sequence_is_named(client: Client) -> None:
    client.create("S")
    for seq in (0, 1, 99):
        error = client.api("STREAM.MSG.DELETE.S", {"seq": seq})["error"]
        assert (error["code"], error["err_code"], error["description"]) == (400, 10043, f"sequence {seq} not found")


def test_null_fields_of_a_request_count_as_missing(client: Client) -> None:
    """As Go reads it: clients write every field that they know, with null for those that they do not use."""
    assert "error" not in client.create("S", mirror=None, subject_transform=None, max_age=None)
    client.publish("s.1")
    requests: dict[str, dict[str, Any]] = {
        "STREAM.INFO.S": {"deleted_details": None, "subjects_filter": None, "offset": None},
        "STREAM.NAMES": {"subject": None, "offset": None},
        "STREAM.LIST": {"subject": None, "offset": None},
        "STREAM.MSG.GET.S": {"seq": 1, "last_by_subj": None, "next_by_subj": None},
        "STREAM.PURGE.S": {"filter": None, "seq": 1, "keep": None},
        "CONSUMER.CREATE.S": {
            "stream_name": "S", "action": None, "pedantic": None,
            "config": {"durable_name": None, "name": "c", "ack_policy": "explicit", "backoff": None},
        },
        "CONSUMER.NAMES.S": {"offset": None},
        "CONSUMER.PAUSE.S.c": {"pause_until": None},
        "STREAM.MSG.DELETE.S": {"seq": 1, "no_erase": None},
    }  # fmt: skip
    for verb, body in requests.items():
        answer = client.api(verb, body)
        assert "error" not in answer, (verb, answer)
    client.publish("s.1")
    (got,) = client.direct("S", {"seq": 2, "last_by_subj": None, "batch": None, "multi_last": None})
    assert got.payload == b"x"
    pull = b'{"batch":1,"expires":null,"no_wait":null,"group":null}'
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", pull, f"{client.inbox}pull"))
    assert [message.subject for message in client.messages()] == ["s.1"]
    assert client.api("STREAM.INFO.S", {"subjects_filter": 5})["error"]["err_code"] == 10025


@pytest.mark.parametrize("value", [[1], {"a": 1}, 7, None])
def test_a_choice_that_is_no_text_is_refused(value: object) -> None:
    client = Rig().client()
    answer = client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "retention": value})
    assert value is None or answer["error"]["err_code"] == 10025
    client.create("T")
    config = {"durable_name": "c", "deliver_policy": value}
    answer = client.api("CONSUMER.CREATE.T.c", {"stream_name": "T", "config": config})
    assert value is None or answer["error"]["err_code"] == 10025
    assert not client.closed

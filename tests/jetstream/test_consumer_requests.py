"""Requests for consumers: where they go, what they carry, and how their answers are read."""

from __future__ import annotations

import json

import pytest

from slipstream.api import ConsumerConfig
from slipstream.errors import ConsumerNotFoundError, NoRespondersError, RemoteProtocolError, UsageError
from slipstream.jetstream.consumer_requests import Action, ConsumerApi, Pause
from slipstream.jetstream.requests import Page
from slipstream.wire import Msg
from slipstream.wire.headers import status_block

API = ConsumerApi()


def answer(body: object) -> Msg:
    return Msg("_INBOX.1", b"1", "", b"", json.dumps(body).encode())


def test_name_and_filter_are_part_of_the_subject() -> None:
    call = API.create("S", ConsumerConfig(durable_name="d", filter_subject="a.b"), Action.CREATE)
    assert call.subject == "$JS.API.CONSUMER.CREATE.S.d.a.b"
    wild = API.create("S", ConsumerConfig(durable_name="d", filter_subject="a.*"), Action.CREATE)
    assert wild.subject == "$JS.API.CONSUMER.CREATE.S.d"
    body = json.loads(call.payload)
    assert (body["stream_name"], body["action"], body["config"]["durable_name"]) == ("S", "create", "d")
    call = API.create("S", ConsumerConfig(name="n", filter_subjects=("a", "b")), Action.CREATE_OR_UPDATE)
    assert call.subject == "$JS.API.CONSUMER.CREATE.S.n"
    assert "action" not in json.loads(call.payload)
    assert API.create("S", ConsumerConfig(), Action.UPDATE).subject == "$JS.API.CONSUMER.CREATE.S"


def test_the_documented_subjects_tell_durable_from_ephemeral() -> None:
    durable = API.create_as_documented("S", ConsumerConfig(durable_name="d", filter_subject="a"))
    assert durable.subject == "$JS.API.CONSUMER.DURABLE.CREATE.S.d"
    assert API.create_as_documented("S", ConsumerConfig(filter_subject="a")).subject == "$JS.API.CONSUMER.CREATE.S"


def test_subjects_and_bodies_of_all_other_requests() -> None:
    assert API.info("S", "c").subject == "$JS.API.CONSUMER.INFO.S.c"
    assert API.delete("S", "c").subject == "$JS.API.CONSUMER.DELETE.S.c"
    assert API.next_subject("S", "c") == "$JS.API.CONSUMER.MSG.NEXT.S.c"
    assert API.names("S", offset=3).payload == b'{"offset":3}'
    assert API.list("S").subject == "$JS.API.CONSUMER.LIST.S"
    assert API.streams_of("a.b").payload == b'{"subject":"a.b"}'
    assert ConsumerApi("$JS.hub.API").info("S", "c").subject == "$JS.hub.API.CONSUMER.INFO.S.c"
    assert API.pause("S", "c", 10**18).payload == b'{"pause_until":"2001-09-09T01:46:40Z"}'
    assert API.pause("S", "c", 0).payload == b""


def test_answers_are_decoded() -> None:
    found = API.info("S", "c").decode(answer({"type": "x", "name": "c", "num_pending": 5, "config": {"ack_wait": 10}}))
    assert (found.name, found.num_pending) == ("c", 5)
    assert API.names("S").decode(answer({"consumers": ["a", "b"], "total": 7})) == Page(["a", "b"], 7)
    assert API.names("S").decode(answer({"consumers": None, "total": 0})) == Page([], 0)
    assert API.list("S").decode(answer({"consumers": [{"name": "a"}], "total": 1})).items[0].name == "a"
    assert API.streams_of("a").decode(answer({"streams": ["X"]})) == ("X",)
    assert API.streams_of("a").decode(answer({"streams": None})) == ()
    API.delete("S", "c").decode(answer({"success": True}))
    paused = API.pause("S", "c", 1).decode(answer({"paused": True, "pause_until": "2001-09-09T01:46:40Z"}))
    assert paused == Pause(True, 10**18)
    assert API.pause("S", "c", 0).decode(answer({"paused": False})) == Pause(False, 0)


def test_error_answers_are_raised() -> None:
    error = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
    with pytest.raises(ConsumerNotFoundError):
        API.info("S", "c").decode(answer(error))
    with pytest.raises(NoRespondersError):
        API.info("S", "c").decode(Msg("_INBOX.1", b"1", "", status_block(503, ""), b""))
    for call in (API.names("S"), API.list("S")):
        with pytest.raises(RemoteProtocolError):
            call.decode(answer({"consumers": [1], "total": 1}))
    with pytest.raises(RemoteProtocolError):
        API.info("S", "c").decode(answer({"num_pending": "many"}))
    with pytest.raises(RemoteProtocolError):
        API.delete("S", "c").decode(answer({}))


@pytest.mark.parametrize(
    "config",
    [
        ConsumerConfig(name="a.b"),
        ConsumerConfig(durable_name="a b"),
        ConsumerConfig(name="a", durable_name="b"),
        ConsumerConfig(filter_subject="a", filter_subjects=("b",)),
        ConsumerConfig(filter_subject="a..b"),
        ConsumerConfig(filter_subjects=("a", "b c")),
    ],
)
def test_configuration_that_cannot_be_sent_is_rejected_before_it_is_sent(config: ConsumerConfig) -> None:
    with pytest.raises(UsageError):
        API.create("S", config, Action.CREATE)
    with pytest.raises(UsageError):
        API.create_as_documented("S", config)

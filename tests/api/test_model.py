"""Configurations and reports: nothing is lost on the way through, wrong values name their field."""

from __future__ import annotations

import copy
import json
import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api import (
    ConsumerLimits,
    Discard,
    ExternalStream,
    Placement,
    PubAck,
    Republish,
    Retention,
    Storage,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamState,
    SubjectTransform,
    decode_pub_ack,
    decode_response,
    parse_time,
)
from slipstream.api.model import NANOS, JsonModel, via
from slipstream.wire import Msg, Parser, Side, encode
from tests.servers import real_server

# What nats-server 2.15.1 answered to a configuration with nearly everything in it.
FULL = json.loads(
    r"""{"type":"io.nats.jetstream.api.v1.stream_create_response","config":{"name":"FULL","description":"all of it",
    "subjects":["full.*","other.\u003e"],"retention":"limits","max_consumers":7,"max_msgs":1000,"max_bytes":1048576,
    "max_age":3600000000001,"max_msgs_per_subject":5,"max_msg_size":4096,"discard":"new","storage":"file",
    "num_replicas":1,"duplicate_window":60000000500,"placement":{"tags":["a"]},"sources":[{"name":"ORIGIN",
    "opt_start_time":"2024-02-03T04:05:06.000000007Z","filter_subject":"origin.a"},{"name":"ORIGIN","opt_start_seq":3,
    "subject_transforms":[{"src":"origin.b","dest":"full.b"}]},{"name":"FAR","external":{"api":"$JS.far.API",
    "deliver":"d.far"}}],"compression":"s2","first_seq":100,"subject_transform":{"src":"full.*",
    "dest":"stored.{{wildcard(1)}}"},"republish":{"src":"\u003e","dest":"again.\u003e","headers_only":true},
    "allow_direct":true,"mirror_direct":false,"discard_new_per_subject":true,"sealed":false,"deny_delete":true,
    "deny_purge":false,"allow_rollup_hdrs":true,"consumer_limits":{"inactive_threshold":30000000001,
    "max_ack_pending":500},"allow_msg_ttl":true,"subject_delete_marker_ttl":1000000000,"allow_atomic":true,
    "allow_batched":true,"metadata":{"_nats.level":"5","_nats.req.level":"4","_nats.ver":"2.15.1","owner":"me"}},
    "created":"2026-11-15T08:22:05.71152424Z","state":{"messages":0,"bytes":0,"first_seq":100,
    "first_ts":"0001-01-01T00:00:00Z","last_seq":99,"last_ts":"0001-01-01T00:00:00Z","consumer_count":0},
    "sources":[{"name":"ORIGIN","lag":0,"active":-1,"filter_subject":"origin.a"},{"name":"ORIGIN","lag":0,"active":-1,
    "subject_transforms":[{"src":"origin.b","dest":"full.b"}]},{"name":"FAR","external":{"api":"$JS.far.API",
    "deliver":"d.far"},"lag":0,"active":-1}],"ts":"2026-11-15T08:22:05.712682354Z","did_create":true}"""
)
MIRROR = json.loads(
    """{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,"config":{"name":"MIRROR",
    "retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,
    "max_msg_size":-1,"discard":"old","storage":"memory","num_replicas":1,"mirror":{"name":"ORIGIN"},
    "compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,
    "deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"metadata":{
    "_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}},"created":"2026-11-15T08:22:06.215338687Z",
    "state":{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,
    "last_ts":"0001-01-01T00:00:00Z","consumer_count":0},"cluster":{"leader":"NDRB"},"mirror":{"name":"ORIGIN","lag":0,
    "active":354888824},"ts":"2026-11-15T08:22:06.717258503Z"}"""
)


@pytest.mark.parametrize("answer", [FULL, MIRROR], ids=["full", "mirror"])
def test_an_answer_of_nats_server_survives_to_the_letter(answer: dict[str, Any]) -> None:
    info = StreamInfo.from_dict(answer)
    assert json.loads(info.to_json()) == answer
    assert StreamInfo.from_json(info.to_json()) == info
    assert json.loads(info.config.to_json()) == answer["config"]


def test_an_answer_of_nats_server_is_understood() -> None:
    info = StreamInfo.from_dict(FULL)
    config = info.config
    assert config == StreamConfig(
        name="FULL", description="all of it", subjects=("full.*", "other.>"), max_consumers=7, max_msgs=1000,
        max_bytes=1048576, max_age=timedelta(seconds=3600, microseconds=1), max_msgs_per_subject=5, max_msg_size=4096,
        discard=Discard.NEW, duplicate_window=timedelta(seconds=60, microseconds=1), placement=Placement(tags=("a",)),
        sources=(
            StreamSource(name="ORIGIN", opt_start_time=parse_time("2024-02-03T04:05:06.000000007Z"),
                         filter_subject="origin.a"),
            StreamSource(name="ORIGIN", opt_start_seq=3,
                         subject_transforms=(SubjectTransform(src="origin.b", dest="full.b"),)),
            StreamSource(name="FAR", external=ExternalStream(api="$JS.far.API", deliver="d.far")),
        ),
        compression="s2", first_seq=100,
        subject_transform=SubjectTransform(src="full.*", dest="stored.{{wildcard(1)}}"),
        republish=Republish(src=">", dest="again.>", headers_only=True), allow_direct=True,
        discard_new_per_subject=True, deny_delete=True, allow_rollup_hdrs=True,
        consumer_limits=ConsumerLimits(inactive_threshold=timedelta(seconds=30, microseconds=1), max_ack_pending=500),
        allow_msg_ttl=True, subject_delete_marker_ttl=timedelta(seconds=1), allow_atomic=True, allow_batched=True,
        metadata={"_nats.level": "5", "_nats.req.level": "4", "_nats.ver": "2.15.1", "owner": "me"},
    )  # fmt: skip
    assert config.unknown == {}
    assert info.state == StreamState(first_seq=100, last_seq=99)
    assert info.created == parse_time("2026-11-15T08:22:05.71152424Z")
    assert info.unknown == {"type": FULL["type"], "did_create": True}
    assert (config.retention, config.storage) == (Retention.LIMITS, Storage.FILE)


# --- what we do not know ---------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_extra = st.dictionaries(st.sampled_from(("x", "zz", "unknown", "Name", "")), _json, max_size=3)


@given(_extra, _extra, _extra, _extra, _extra)
def test_unknown_fields_survive_at_every_level(
    top: dict[str, Any], config: dict[str, Any], source: dict[str, Any], external: dict[str, Any], state: dict[str, Any]
) -> None:
    answer: dict[str, Any] = copy.deepcopy(FULL)
    answer.update(top)
    answer["config"].update(config)
    answer["config"]["sources"][2].update(source)
    answer["config"]["sources"][2]["external"].update(external)
    answer["config"]["consumer_limits"].update(external)
    answer["state"].update(state)
    info = StreamInfo.from_dict(answer)
    assert json.loads(info.to_json()) == answer
    changed = json.loads(info.config.replace(description="changed").to_json())
    assert changed == {**answer["config"], "description": "changed"}


@given(st.integers(-(2**63), 2**63 - 1))
def test_nanoseconds_survive_a_read_modify_write(nanos: int) -> None:
    # A timedelta ends at microseconds: what was read is written out again as long as nobody replaces it.
    fields = {
        "name": "S",
        "max_age": nanos,
        "duplicate_window": nanos,
        "consumer_limits": {"inactive_threshold": nanos},
    }
    config = StreamConfig.from_dict(fields).replace(description="changed")
    for again in (config, pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        written = again.to_dict()
        assert written["max_age"] == nanos
        assert written.get("duplicate_window", 0) == nanos
        assert written["consumer_limits"].get("inactive_threshold", 0) == nanos
    assert abs(config.max_age // timedelta(microseconds=1) * 1000 - nanos) < 1000
    assert bool(config.max_age) is bool(nanos)  # 0 is "forever": a short time must not become it
    assert config.replace(max_age=timedelta(hours=1)).to_dict()["max_age"] == 3600 * 10**9


@given(st.timedeltas(timedelta(0), timedelta(days=100_000)))
def test_a_timedelta_is_exact_on_the_wire(age: timedelta) -> None:
    assert StreamConfig.from_json(StreamConfig(name="S", max_age=age).to_json()).max_age == age


def test_a_null_is_an_absent_field() -> None:
    nulls = dict.fromkeys(
        (
            "subjects",
            "placement",
            "mirror",
            "sources",
            "metadata",
            "max_age",
            "max_msgs",
            "retention",
            "consumer_limits",
        )
    )
    assert StreamConfig.from_dict({"name": "S", **nulls}) == StreamConfig("S", allow_direct=False)
    assert StreamSource.from_dict({"opt_start_time": None, "subject_transforms": None}) == StreamSource()
    assert StreamInfo.from_dict({"created": None, "state": None, "cluster": None}) == StreamInfo()


def test_fields_at_their_default_are_left_out_unless_the_server_needs_them() -> None:
    written = StreamConfig(name="S").to_dict()
    assert written["max_age"] == 0
    assert written["max_msgs"] == -1
    assert written["consumer_limits"] == {}
    assert written["allow_direct"] is True
    assert written["mirror_direct"] is False
    assert not {"description", "subjects", "duplicate_window", "placement", "mirror", "sources", "metadata"} & set(
        written
    )
    assert StreamState().to_dict()["first_ts"] == "0001-01-01T00:00:00Z"


# --- wrong values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"name": 5}, "StreamConfig.name"),
        ({"name": "S", "max_msgs": "5"}, "StreamConfig.max_msgs"),
        ({"name": "S", "max_msgs": True}, "StreamConfig.max_msgs"),
        ({"name": "S", "max_msgs": 1.5}, "StreamConfig.max_msgs"),
        ({"name": "S", "allow_direct": 1}, "StreamConfig.allow_direct"),
        ({"name": "S", "subjects": "a"}, "StreamConfig.subjects"),
        ({"name": "S", "subjects": ["a", 5]}, "StreamConfig.subjects"),
        ({"name": "S", "metadata": {"a": 1}}, "StreamConfig.metadata"),
        ({"name": "S", "max_age": "1h"}, "StreamConfig.max_age"),
        ({"name": "S", "max_age": True}, "StreamConfig.max_age"),
        ({"name": "S", "max_age": 1.5}, "StreamConfig.max_age"),
        ({"name": "S", "max_age": 10**40}, "StreamConfig.max_age"),
        ({"name": "S", "max_age": 10**40 + 1}, "StreamConfig.max_age"),
        ({"name": "S", "placement": []}, "StreamConfig.placement"),
        ({"name": "S", "placement": {"tags": 5}}, "StreamConfig.placement: bad value for Placement.tags"),
        ({"name": "S", "sources": {}}, "StreamConfig.sources"),
        ({"name": "S", "sources": ""}, "StreamConfig.sources"),
        ({"name": "S", "sources": 0}, "StreamConfig.sources"),
        ({"name": "S", "sources": [5]}, "StreamConfig.sources: expected an object for StreamSource"),
        ({"name": "S", "sources": [{"opt_start_time": 5}]}, "bad value for StreamSource.opt_start_time: time must be"),
        ({"name": "S", "mirror": {"external": {"api": []}}}, "ExternalStream.api"),
        ({}, "StreamConfig must have its required fields: .*name"),
    ],
)
def test_a_wrong_type_names_its_field(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        StreamConfig.from_dict(fields)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"null", b'{"name":"\xff"}', b"[" * 100_000])
def test_what_is_no_object_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="StreamConfig"):
        StreamConfig.from_json(data)


def test_a_model_of_ones_own() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Nap(JsonModel):
        length: timedelta = via(NANOS, default=timedelta(0))  # noqa: RUF009 -- a dataclasses.field

    assert Nap.from_json(b'{"length":5000000000,"dream":"yes"}').to_json() == b'{"length":5000000000,"dream":"yes"}'
    assert repr(Nap.from_dict({"x": 1})) == f"{Nap.__qualname__}(length=datetime.timedelta(0))"


# --- the real server -------------------------------------------------------------------------------------------------


class RawClient:
    """A socket, the parser and the encoder, nothing else."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._parser = Parser(Side.SERVER)
        self._socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n' + encode.sub("inbox.>", b"1"))

    def request(self, subject: str, payload: bytes) -> Msg:
        self._socket.sendall(encode.pub(subject, payload, "inbox.1"))
        while True:
            data = self._socket.recv(65_536)
            assert data, "the server closed the connection"
            for event in self._parser.feed(data):
                if isinstance(event, Msg):
                    return event

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with real_server() as url:
        client = RawClient(url)
        yield client
        client.close()


def test_nats_server_takes_our_configurations(client: RawClient) -> None:
    plain = StreamConfig(name="PLAIN", subjects=("plain.>",), storage=Storage.MEMORY, max_age=timedelta(hours=1))
    rich = StreamConfig.from_dict(FULL["config"]).replace(
        name="RICH", placement=None, sources=(), metadata={"owner": "me"}, storage=Storage.MEMORY, compression="none"
    )
    for config in (plain, rich):
        answer = client.request(f"$JS.API.STREAM.CREATE.{config.name}", config.to_json())
        info = StreamInfo.from_dict(decode_response(answer.payload))
        added = {name: text for name, text in info.config.metadata.items() if not name.startswith("_nats.")}
        got = info.config.replace(metadata=added)
        assert got == config.replace(duplicate_window=got.duplicate_window)
        assert info.config.unknown == {}
        again = client.request(f"$JS.API.STREAM.UPDATE.{config.name}", info.config.replace(description="x").to_json())
        assert StreamInfo.from_dict(decode_response(again.payload)).config == info.config.replace(description="x")


def test_nats_server_sends_more_than_max_payload_for_the_largest_message(client: RawClient) -> None:
    config = StreamConfig(name="BIG", subjects=("big",), storage=Storage.MEMORY, allow_direct=True)
    decode_response(client.request("$JS.API.STREAM.CREATE.BIG", config.to_json()).payload)
    largest = b"x" * 1024 * 1024
    assert decode_pub_ack(client.request("big", largest).payload) == PubAck("BIG", 1)
    found = client.request("$JS.API.DIRECT.GET.BIG.big", b"")
    assert found.payload == largest
    assert len(found.header) > 50

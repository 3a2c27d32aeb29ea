"""Limits of accounts, the domain, advisories: what is refused, what is reported, what is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from tests.server.support import Client, Rig


def limited(**limits: Any) -> Client:
    return Rig(limits={DEFAULT_ACCOUNT: AccountLimits(**limits)}).client()


def error(answer: dict[str, Any]) -> tuple[int, int, str]:
    found = answer["error"]
    return found["code"], found["err_code"], found["description"]


def test_account_info_shows_the_limits() -> None:
    shown = limited(max_storage=5, max_streams=3).api("INFO")["limits"]
    assert shown == {
        "max_memory": -1, "max_storage": 5, "max_streams": 3, "max_consumers": -1, "max_ack_pending": -1,
        "memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": False,
    }  # fmt: skip


def test_one_stream_too_many_is_refused() -> None:
    client = limited(max_streams=1)
    client.create("A")
    assert error(client.create("B")) == (400, 10027, "maximum number of streams reached")
    assert "error" not in client.create("A")
    client.api("STREAM.DELETE.A")
    assert "error" not in client.create("B")


def test_bytes_must_be_said_and_stay_below_the_limit_of_a_stream() -> None:
    client = limited(max_bytes_required=True, memory_max_stream_bytes=1000)
    assert error(client.create("A")) == (400, 10113, "account requires a stream config to have max bytes set")
    too_large = (400, 10122, "stream max bytes exceeds account limit max stream bytes")
    assert error(client.create("A", max_bytes=1001)) == too_large
    assert "error" not in client.create("A", max_bytes=1000)


def test_reserved_bytes_are_counted_for_each_storage() -> None:
    client = limited(max_memory=1000, max_storage=500)
    client.create("A", max_bytes=600)
    assert error(client.create("B", max_bytes=401)) == (500, 10028, "insufficient memory resources available")
    assert "error" not in client.create("B", max_bytes=400)
    full = error(client.create("C", storage="file", max_bytes=501))
    assert full == (500, 10047, "insufficient storage resources available")
    config = {"name": "A", "subjects": ["a.>"], "storage": "memory", "max_bytes": 601, "allow_direct": True}
    assert error(client.api("STREAM.UPDATE.A", config))[1] == 10028
    assert client.api("STREAM.UPDATE.A", config | {"max_bytes": 600})["config"]["max_bytes"] == 600


def test_an_account_that_is_full_takes_no_more_messages() -> None:
    client = limited(max_memory=100)
    client.create("A")
    client.create("F", storage="file")
    assert client.publish("a.1", b"x" * 50)["seq"] == 1
    assert error(client.publish("a.1", b"x" * 50)) == (400, 10002, "resource limits exceeded for account")
    assert client.publish("f.1", b"x" * 500)["seq"] == 1
    client.api("STREAM.PURGE.A")
    assert client.publish("a.1", b"x" * 50)["seq"] == 2
    assert client.api("INFO")["memory"] > 0


def test_too_many_consumers_for_the_account_are_refused_with_the_stream() -> None:
    assert error(limited(max_consumers=5).create("A", max_consumers=6))[1] == 10026


def test_the_api_is_answered_under_its_domain() -> None:
    client = Rig(domain="hub").client()
    answer = client.create("S")
    assert list(answer) == ["type", "config", "created", "state", "ts", "did_create"]
    assert client.publish("s.1") == {"stream": "S", "domain": "hub", "seq": 1}
    assert client.publish("s.1", Nats_Msg_Id="a")["domain"] == "hub"
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "domain": "hub", "seq": 2, "duplicate": True}
    (info,) = client.ask("$JS.hub.API.STREAM.INFO.S")
    assert msgspec.json.decode(info.payload)["domain"] == "hub"
    (account,) = client.ask("$JS.hub.API.INFO")
    assert msgspec.json.decode(account.payload)["domain"] == "hub"
    (message,) = client.ask("$JS.hub.API.DIRECT.GET.S", {"seq": 1})
    assert message.payload == b"x"
    (nobody,) = client.ask("$JS.other.API.STREAM.INFO.S")
    assert nobody.header.startswith(b"NATS/1.0 503")


def test_streams_are_announced_once_they_are_durable() -> None:
    client = Rig(domain="hub").client()
    client.send(b"SUB $JS.EVENT.ADVISORY.STREAM.> 5\r\n")
    client.take()
    body = msgspec.json.encode({"name": "S", "subjects": ["s"]})
    client.send(b"PUB $JS.API.STREAM.CREATE.S %d\r\n%b\r\n" % (len(body), body), settle=False)
    client.rig.flush()
    assert client.messages() == []
    client.rig.settle()
    (told,) = client.messages()
    advisory = msgspec.json.decode(told.payload)
    assert told.subject == "$JS.EVENT.ADVISORY.STREAM.CREATED.S"
    assert (advisory["type"], advisory["action"], advisory["stream"], advisory["domain"]) == (
        "io.nats.jetstream.advisory.v1.stream_action", "create", "S", "hub",
    )  # fmt: skip


@pytest.mark.parametrize("lost", [True, False])
def test_messages_of_a_lost_group_are_not_republished(lost: bool) -> None:
    client = Rig().client()
    client.create("S", republish={"src": ">", "dest": "again.>"})
    client.send(b"SUB again.> 5\r\n")
    client.take()
    client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    if lost:
        (journal,) = client.rig.engine.journals
        client.rig.engine.failed(journal, OSError("full"), client.rig.now)
    client.rig.settle()
    assert len(client.messages()) == (0 if lost else 1)


def test_buckets_are_written_under_the_domain_too() -> None:
    """Clients that are told of a domain send values to `$JS.hub.API.$KV.…`."""
    client = Rig(domain="hub").client()
    client.create("KV_b", subjects=["$KV.b.>"])
    client.create("OBJ_o", subjects=["$O.o.C.>", "$O.o.M.>"])
    assert client.publish("$JS.hub.API.$KV.b.key", b"v")["seq"] == 1
    assert client.publish("$JS.hub.API.$O.o.C.chunk", b"v")["stream"] == "OBJ_o"
    (message,) = client.direct("KV_b", {"seq": 1})
    assert b"Nats-Subject: $KV.b.key" in message.header

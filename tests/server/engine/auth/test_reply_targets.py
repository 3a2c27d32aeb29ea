"""What a request names for the server to publish to is checked against the rights of the requester."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.api.snapshot.archive import CONSUMERS, END, STATE, Entry, encode_entry
from slipstream.api.snapshot.archive import MAGIC as ARCHIVE
from slipstream.api.snapshot.s2 import S2Writer
from slipstream.server import Permissions, User
from slipstream.server.engine.auth.reply_targets import Targets, schedule_targets
from slipstream.wire import Err, Headers, pub
from tests.server.support import HELLO, Client, Rig

READER = Permissions(
    publish=("$JS.API.CONSUMER.MSG.NEXT.ORD.lim", "$JS.API.DIRECT.GET.ORD", "$JS.API.STREAM.INFO.ORD", "svc", "mine.>"),
    subscribe=("_INBOX.>", "deliver.>", "mine.>"),
)
MAKER = Permissions(publish=("$JS.API.>", "made.>"), publish_deny=("made.not.>", "$JS.API.STREAM.DELETE.>"))
BYPASS = Permissions(publish=("plan.>",))
RESTORER = Permissions(publish=("$JS.API.STREAM.RESTORE.>", "$JS.SNAPSHOT.RESTORE.>", "r.>"))


def hello(user: str) -> bytes:
    return HELLO.replace(b"{", b'{"user":"%b","pass":"p",' % user.encode(), 1)


@pytest.fixture
def rig() -> Rig:
    users = tuple(
        User(name=name, password="p", permissions=rights)
        for name, rights in {
            "admin": None,
            "reader": READER,
            "maker": MAKER,
            "planner": BYPASS,
            "restorer": RESTORER,
        }.items()
    )
    rig = Rig(users=users)
    admin = rig.client(hello("admin"))
    admin.create("ORD", subjects=["ord.>"])
    admin.create("VICT", subjects=["vict.>"])
    admin.create("MINE", subjects=["mine.>"])
    admin.create("PLAN", subjects=["plan.>", "paid.>"], allow_msg_schedules=True)
    admin.api("CONSUMER.DURABLE.CREATE.ORD.lim", {"stream_name": "ORD", "config": {"durable_name": "lim"}})
    for _ in range(3):
        admin.publish("ord.1", b"")
    rig.admin = admin  # type: ignore[attr-defined]
    return rig


def admin_of(rig: Rig) -> Client:
    found: Client = rig.admin  # type: ignore[attr-defined]
    return found


def refusals(client: Client) -> list[str]:
    return [event.text for event in client.take() if isinstance(event, Err)]


def messages(rig: Rig, stream: str) -> int:
    found: int = admin_of(rig).api(f"STREAM.INFO.{stream}")["state"]["messages"]
    return found


ATTACKS = ("$JS.API.STREAM.DELETE.VICT", "$JS.API.STREAM.PURGE.VICT", "vict.forged", "$SYS.REQ.x", "$JS.FC.x", "$JS.x")


@pytest.mark.parametrize("target", ATTACKS)
@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("$JS.API.CONSUMER.MSG.NEXT.ORD.lim", b""),
        ("$JS.API.CONSUMER.MSG.NEXT.ORD.lim", b'{"batch":5,"no_wait":true}'),
        ("$JS.API.DIRECT.GET.ORD", b'{"seq":1}'),
        ("$JS.API.DIRECT.GET.ORD", b'{"seq":1,"batch":3}'),
        ("$JS.API.STREAM.INFO.ORD", b""),
        ("mine.1", b"published, with an ack"),
        ("svc", b"to a client, who would answer"),
    ],
)
def test_a_reply_subject_gives_no_right_that_the_requester_lacks(
    rig: Rig, subject: str, body: bytes, target: str
) -> None:
    helper = rig.client(hello("admin")).send(b"SUB svc 9\r\n")
    admin_of(rig).publish("vict.1", b"keep me")
    reader = rig.client(hello("reader"))
    reader.send(pub(subject, body, target))
    assert refusals(reader) == [f'Permissions Violation for Publish with Reply of "{target}"']
    assert helper.messages() == []
    assert messages(rig, "VICT") == 1
    assert messages(rig, "MINE") == 0  # the message with that reply was not carried out at all


def test_replies_that_the_requester_may_publish_to_or_only_clients_receive_are_allowed(rig: Rig) -> None:
    reader = rig.client(hello("reader"))
    for reply in ("_INBOX.c2.x", "deliver.here", "nobody.listens"):
        reader.send(pub("$JS.API.STREAM.INFO.ORD", b"", reply))
    assert refusals(reader) == []
    reader.send(pub("$JS.API.DIRECT.GET.ORD", b'{"seq":1}', "mine.copy"))  # into a stream, where it may publish
    assert refusals(reader) == []
    assert messages(rig, "MINE") == 1


def test_a_stream_of_all_subjects_does_not_end_the_requests_of_restricted_users(rig: Rig) -> None:
    admin = admin_of(rig)
    assert "error" not in admin.create("TAP", subjects=["_INBOX.>"])
    reader = rig.client(hello("reader"))
    (answer,) = reader.ask("$JS.API.STREAM.INFO.ORD")
    assert b"stream_info_response" in answer.payload


def test_users_without_permissions_may_name_any_subject(rig: Rig) -> None:
    admin = admin_of(rig)
    admin.send(pub("$JS.API.DIRECT.GET.ORD", b'{"seq":1}', "vict.copy"))
    assert refusals(admin) == []
    assert messages(rig, "VICT") == 1


@pytest.mark.parametrize(
    ("deliver", "ok"),
    [
        ("$JS.API.STREAM.DELETE.VICT", False),
        ("$SYS.REQ.x", False),
        ("vict.copy", False),
        ("made.copy", True),
        ("deliver.me", True),
        ("_INBOX.x.y", True),
    ],
)
def test_a_deliver_subject_is_checked_against_the_rights_of_the_creator(rig: Rig, deliver: str, ok: bool) -> None:
    maker = rig.client(hello("maker"))
    config = {"name": "push", "deliver_subject": deliver, "ack_policy": "none"}
    answer = maker.api("CONSUMER.CREATE.ORD.push", {"stream_name": "ORD", "config": config})
    snapshot = maker.api("STREAM.SNAPSHOT.ORD", {"deliver_subject": deliver})
    if ok:
        assert "error" not in answer
        assert "error" not in snapshot
    else:
        text = f"no permission to have the server publish to '{deliver}'"
        assert (answer["error"]["code"], answer["error"]["description"]) == (403, text)
        assert snapshot["error"]["description"] == text


@pytest.mark.parametrize(
    ("dest", "ok"),
    [
        ("$JS.API.STREAM.DELETE.{{wildcard(1)}}", False),
        ("$JS.API.STREAM.>", False),  # covers what is denied
        ("vict.{{wildcard(1)}}", False),
        ("made.{{wildcard(1)}}", True),
        ("made.{{partition(3,1)}}.x", False),  # may be made.not
        ("other.{{wildcard(1)}}", False),
        (">", False),
    ],
)
@pytest.mark.parametrize("verb", ["CREATE", "UPDATE", "RESTORE"])
def test_republishing_needs_the_right_to_publish_there(rig: Rig, verb: str, dest: str, ok: bool) -> None:
    if verb == "UPDATE":
        admin_of(rig).create("NEW", subjects=["new.*"])
    config: dict[str, Any] = {"name": "NEW", "subjects": ["new.*"], "storage": "memory"}
    config["republish"] = {"src": "new.*", "dest": dest}
    body = {"config": config, "state": {}} if verb == "RESTORE" else config
    answer = rig.client(hello("maker")).api(f"STREAM.{verb}.NEW", body)
    refused = "no permission to have the server publish to" in answer.get("error", {}).get("description", "")
    assert refused == (not ok), answer


def test_a_schedule_publishes_only_where_its_publisher_may(rig: Rig) -> None:
    """The stream has both subjects; the planner may publish to one."""
    planner = rig.client(hello("planner"))
    for target, refused in (("paid.1", True), ("plan.done", False)):
        header = Headers({"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": target}).encode()
        planner.send(pub("plan.later", b"x", "", header))
        expected = [f'Permissions Violation for Publish to "{target}"'] if refused else []
        assert refusals(planner) == expected
    assert messages(rig, "PLAN") == 1


def test_targets_of_requests_that_cannot_be_read_are_none() -> None:
    for kind in ("stream_snapshot_response", "consumer_create_response", "stream_create_response"):
        for payload in (b"", b"{", b"[]", b'{"config":3}', b'{"republish":{"dest":5}}', b'{"deliver_subject":{}}'):
            found = Targets(kind, payload)
            assert (found.deliver, found.republish) == ("", "")
    assert schedule_targets(b"NATS/1.0\r\nnats-schedule-target:  a.b \r\n\r\n") == ["a.b"]
    assert schedule_targets(b"NATS/1.0\r\nX: Nats-Schedule-Target: a\r\n\r\n") == []
    assert not Targets.of_consumer(b"{").deliver
    assert not Targets.of_message(b"").scheduled


@pytest.mark.parametrize("names", [("nats-schedule-target", "Nats-Schedule-Target"), ("Nats-Schedule-Target",) * 2])
def test_every_target_header_of_a_schedule_is_checked(rig: Rig, names: tuple[str, str]) -> None:
    """Which of two headers is the target is the stream's business; neither gives a right."""
    planner = rig.client(hello("planner"))
    for first, second in (("plan.ok", "paid.1"), ("paid.1", "plan.ok")):
        lines = ["NATS/1.0", "Nats-Schedule: @at 2030-01-01T00:00:00Z", f"{names[0]}: {first}", f"{names[1]}: {second}"]
        planner.send(pub("plan.later", b"x", "", "\r\n".join([*lines, "", ""]).encode()))
        assert refusals(planner) == ['Permissions Violation for Publish to "paid.1"']
    assert messages(rig, "PLAN") == 0


SCHEDULE = "NATS/1.0\r\nNats-Schedule: @at 2030-01-01T00:00:00Z\r\nNats-Schedule-Target: %s\r\n\r\n"


@pytest.mark.parametrize(
    ("kind", "target", "is_refused"),
    [
        ("consumer", "vict.forged", True),
        ("schedule", "vict.forged", True),
        ("consumer", "free", False),
        ("schedule", "r.2", False),
    ],
)
def test_a_restored_snapshot_publishes_only_where_the_user_may(
    rig: Rig, kind: str, target: str, is_refused: bool
) -> None:
    """No request names the push consumer and the schedule that are inside the snapshot."""
    config = {"name": "c", "durable_name": "c", "deliver_subject": target, "ack_policy": "none"}
    nothing = {"consumer_seq": 0, "stream_seq": 0}
    consumer = {"config": config, "state": {"delivered": nothing, "ack_floor": nothing}}
    state = msgspec.json.encode({"first_seq": 1, "last_seq": 1, "consumer_count": int(kind == "consumer")})
    header = (SCHEDULE % target).encode() if kind == "schedule" else b""
    entries = [Entry(STATE, payload=state), Entry("r.1", 1, 1, header, b"x"), END]
    if kind == "consumer":
        entries.insert(1, Entry(f"{CONSUMERS}c", payload=msgspec.json.encode(consumer)))
    user = rig.client(hello("restorer"))
    stream = {"name": "R", "subjects": ["r.>"], "allow_msg_schedules": True}
    to = user.api("STREAM.RESTORE.R", {"config": stream, "state": {}})["deliver_subject"]
    data = S2Writer().frames(ARCHIVE + b"".join(map(encode_entry, entries)))
    answer = user.ask(to, data)[-1].payload or user.ask(to, b"")[-1].payload
    assert (b"no permission to have the server publish to 'vict.forged'" in answer) == is_refused, answer
    assert ("R" in admin_of(rig).api("STREAM.NAMES")["streams"]) == (not is_refused), answer

"""Audit advisories in virtual time: what they wait for, what they show, who hears them."""

from __future__ import annotations

import json
from typing import Any

from slipstream.server.engine.api.audit import AUDIT_SUBJECT, MAX_SHOWN
from slipstream.server.engine.auth.users import Permissions, User
from slipstream.wire import Msg, pub
from tests.server.support import Client, Rig


def advisories(client: Client) -> list[dict[str, Any]]:
    found = [message for message in client.messages() if isinstance(message, Msg) and message.subject == AUDIT_SUBJECT]
    return [json.loads(message.payload) for message in found]


def test_an_advisory_waits_for_the_commit_and_follows_the_response() -> None:
    rig = Rig()
    client = rig.client()
    client.send(b"SUB $JS.EVENT.ADVISORY.API 2\r\n")
    client.take()
    body = b'{"name":"S","storage":"memory"}'
    client.send(pub("$JS.API.STREAM.CREATE.S", body, f"{client.inbox}1"), settle=False)
    assert client.messages() == []
    rig.settle()
    response, advisory = client.messages()
    assert response.subject == f"{client.inbox}1"
    assert json.loads(advisory.payload)["response"] == bytes(response.payload).decode()


def test_a_report_that_is_made_late_is_made_once() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    client.send(b"SUB $JS.EVENT.ADVISORY.API 2\r\n")
    client.take()
    client.send(pub("$JS.API.STREAM.INFO.S", b"", f"{client.inbox}1"))
    response, advisory = client.messages()
    assert json.loads(advisory.payload)["response"] == bytes(response.payload).decode()
    client.send(pub("$JS.API.STREAM.INFO.S", b""))
    (alone,) = advisories(client)
    assert json.loads(alone["response"])["config"]["name"] == "S"


def test_a_lost_group_is_audited_with_the_error_and_counted_once() -> None:
    rig = Rig()
    client = rig.client()
    client.send(b"SUB $JS.EVENT.ADVISORY.API 2\r\n")
    client.take()
    before = rig.engine.account().api.errors
    client.send(pub("$JS.API.STREAM.CREATE.S", b'{"name":"S","storage":"memory"}', f"{client.inbox}1"), settle=False)
    (journal,) = rig.engine.journals
    journal.seal()
    rig.engine.failed(journal, OSError("disk full"), rig.now)
    rig.settle()
    _, advisory = client.messages()
    assert "disk full" in json.loads(advisory.payload)["response"]
    assert rig.engine.account().api.errors == before + 1


def test_long_requests_and_responses_are_cut() -> None:
    rig = Rig()
    client = rig.client()
    client.send(b"SUB $JS.EVENT.ADVISORY.API 2\r\n")
    client.send(pub("$JS.API.STREAM.CREATE.S", b'"%b"' % ("é" * 400_000).encode()))
    (advisory,) = advisories(client)
    assert len(advisory["request"]) == MAX_SHOWN
    subjects = [f"{'s' * 60}.{i}" for i in range(2000)]
    client.send(pub("$JS.API.STREAM.CREATE.S", json.dumps({"name": "S", "subjects": subjects}).encode()))
    (advisory,) = advisories(client)
    assert len(advisory["response"]) == MAX_SHOWN


def test_only_permitted_subscribers_hear_and_a_token_is_not_shown() -> None:
    denied = Permissions(subscribe_deny=("$JS.EVENT.>",))
    rig = Rig(users=(User(token="s3cret"), User(name="u", password="p", permissions=denied)))
    hello = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,%b}\r\n'
    by_token = rig.client(hello % b'"auth_token":"s3cret"')
    limited = rig.client(hello % b'"user":"u","pass":"p"')
    for client in (by_token, limited):
        client.send(b"SUB $JS.> 2\r\n")
        client.take()
    by_token.send(pub("$JS.API.STREAM.NAMES", b""))
    (advisory,) = advisories(by_token)
    assert advisory["client"]["user"] == "[REDACTED]"
    assert "s3cret" not in json.dumps(advisory)
    assert advisories(limited) == []


def test_requests_of_a_domain_are_audited() -> None:
    rig = Rig(domain="hub")
    client = rig.client()
    client.send(b"SUB $JS.EVENT.ADVISORY.API 2\r\n")
    client.send(pub("$JS.hub.API.STREAM.NAMES", b""))
    (advisory,) = advisories(client)
    assert (advisory["subject"], advisory["domain"]) == ("$JS.API.STREAM.NAMES", "hub")
    assert advisory["client"]["id"] == client.cid

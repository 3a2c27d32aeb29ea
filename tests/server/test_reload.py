"""Reload of an embedded server: whole or not at all, from any thread, with streams and accounts that come and go."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slipstream
from slipstream.errors import AuthorizationError, UsageError
from slipstream.server import AccountLimits, AccountOptions, Permissions, Server, User
from slipstream.server.options import ServerOptions, options_of
from slipstream.server.process import logs
from slipstream.server.process.options import ProcessOptions
from slipstream.server.reload import RELOADABLE
from tests.client.certificates import Pki

A = User(name="a", password="pw", account="A")
B = User(name="b", password="pw", account="B")


def test_every_reloadable_option_exists() -> None:
    assert {option.name for option in options_of(ServerOptions)} >= RELOADABLE


@contextlib.contextmanager
def changing(**options: Any) -> Iterator[tuple[Server, Any]]:
    with Server(**options) as server:
        yield server, lambda **changes: server.reload(dataclasses.replace(server.options, **changes))


def test_an_account_that_is_added_has_streams_and_limits() -> None:
    with changing(users=(A,)) as (server, change):
        limits = AccountOptions(name="B", jetstream=AccountLimits(max_streams=1))
        change(users=(A, B), accounts=(limits,))
        with slipstream.connect_blocking(server.url, user="b", password="pw") as client:
            js = client.jetstream()
            js.create_stream("S", subjects=["s"])
            js.publish("s", b"x")
            with pytest.raises(slipstream.errors.ApiError, match="maximum number of streams reached"):
                js.create_stream("T")
            change(accounts=(dataclasses.replace(limits, jetstream=AccountLimits(max_streams=2)),))
            js.create_stream("T")
            request = client.request("$SYS.REQ.USER.INFO", b"")
            assert json.loads(request.data)["data"]["account"] == "B"


def test_an_account_with_streams_is_not_removed() -> None:
    with changing(users=(A, B)) as (server, change):
        with slipstream.connect_blocking(server.url, user="b", password="pw") as client:
            client.jetstream().create_stream("S", subjects=["s"])
            with pytest.raises(UsageError, match="account 'B' has streams and cannot be removed by a reload"):
                change(users=(A,))
            client.jetstream().delete_stream("S")
            change(users=(A,))
        with pytest.raises(AuthorizationError):
            slipstream.connect_blocking(server.url, user="b", password="pw")
        change(users=(A, B))  # and back
        with slipstream.connect_blocking(server.url, user="b", password="pw") as client:
            assert list(client.jetstream().stream_names()) == []


def test_what_cannot_change_is_named_and_nothing_is_applied() -> None:
    with changing(users=(A,)) as (server, change):
        with pytest.raises(UsageError, match="a reload cannot change port, domain; restart the server"):
            change(users=(), port=4333, domain="hub")
        with pytest.raises(UsageError, match="no_auth_user 'x' is not among the users"):
            change(users=(B,), no_auth_user="x")
        with pytest.raises(UsageError, match="cannot load the TLS certificates"):
            change(users=(), tls_cert="missing.pem", tls_key="missing.pem")
        with pytest.raises(UsageError, match="JetStream of account 'A' cannot be turned on or off by a reload"):
            change(accounts=(AccountOptions(name="A", jetstream=None),))
        with slipstream.connect_blocking(server.url, user="a", password="pw"):
            pass


def test_a_stopped_server_is_not_reloaded() -> None:
    with pytest.raises(UsageError, match="the server is not running"):
        Server().reload(ServerOptions())


def test_permissions_of_a_responder_change_while_it_is_subscribed() -> None:
    responder = User(name="r", password="pw", permissions=Permissions(subscribe=("svc",), publish=("_INBOX.>",)))
    caller = User(name="u", password="pw")
    with (
        changing(users=(caller, responder)) as (server, change),
        slipstream.connect_blocking(server.url, user="r", password="pw") as service,
        slipstream.connect_blocking(server.url, user="u", password="pw") as client,
    ):
        sub = service.subscribe("svc")
        service.flush()
        denied = Permissions(subscribe=("svc",), subscribe_deny=("svc.secret",), publish=("nothing",))
        change(users=(caller, dataclasses.replace(responder, permissions=denied)))
        client.publish("svc", b"still delivered", reply="_INBOX.x.1")
        assert sub.next(timeout=10).data == b"still delivered"
        heard = client.subscribe("_INBOX.x.1")
        client.flush()
        service.publish("_INBOX.x.1", b"not permitted any more")
        service.flush()
        client.publish("_INBOX.x.1", b"end")
        assert heard.next(timeout=10).data == b"end"


def test_certificates_are_read_again(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, second = (Pki(folder) for folder in folders)
    for tls_first in (False, True):
        with changing(tls_cert=first.server[0], tls_key=first.server[1], tls_first=tls_first) as (server, change):
            assert _certificate(server.port, tls_first) == _der(first.server[0])
            change(tls_cert=second.server[0], tls_key=second.server[1])
            assert _certificate(server.port, tls_first) == _der(second.server[0])


def _der(path: str | Path) -> bytes:
    end = "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text().partition(end)[0] + end)


def _certificate(port: int, tls_first: bool) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        if not tls_first:
            while not plain.recv(1):
                pass
            plain.recv(65536)
        with context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True) or b""


def test_the_log_moves_to_another_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    logger = logging.getLogger("slipstream.server")
    try:
        logs.set_up(ProcessOptions(log_file=str(one)))
        logger.info("first")
        changed = ProcessOptions(log_file=str(two), debug=True)
        logs.use(logs.open_handler(changed), changed)
        logger.debug("second")
        with pytest.raises(UsageError, match="cannot write the log"):
            logs.open_handler(ProcessOptions(log_file=str(tmp_path / "none" / "log")))
        logger.info("third")
    finally:
        logs.take_down()
        logging.getLogger("slipstream").propagate = True
        logging.getLogger("slipstream").setLevel(logging.NOTSET)
    assert [line.split()[-1] for line in one.read_text().splitlines()] == ["first"]
    assert [line.split()[-1] for line in two.read_text().splitlines()] == ["second", "third"]

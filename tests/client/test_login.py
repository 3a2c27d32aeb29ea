"""Who we are: by text, file, function and environment; on real servers with nkeys and JWTs; and shown nowhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slipstream
from slipstream.client.auth import Login, credentials_login, key_login
from slipstream.client.options import ClientOptions
from slipstream.client.secrets import MAX_SIZE, from_env, read_login
from slipstream.errors import AuthorizationError, ConnectionLostError, CredentialsError, UsageError
from slipstream.wire import ServerInfo
from slipstream.wire.nkeys import Kind, decode_signature, public_key, verify
from tests.client.conftest import RealServer
from tests.client.logins import Operator, credentials, new_key
from tests.client.support import Driver, FakeServer, Peer, eventually

MakeServer = Callable[..., RealServer]
USER = new_key(Kind.USER)
JWT = "aaa.bbb.ccc"


def options(**settings: Any) -> ClientOptions:
    return ClientOptions("one", **settings)


# The texts


@pytest.mark.parametrize(
    "text",
    [
        USER.seed,
        f"  {USER.seed}\n",
        f"# my key\r\n{USER.seed}\r\n# ends",
        f"-----BEGIN USER NKEY SEED-----\n{USER.seed}\n------END USER NKEY SEED------\n",
        credentials(JWT, USER.seed),
    ],
    ids=["alone", "with white space", "with comments", "framed", "in credentials"],
)
def test_a_seed_is_found_in_its_file(text: str) -> None:
    login = key_login(text, "nkey")
    assert login.key is not None
    assert login.key.public_key == USER.public_key


def test_credentials_hold_a_jwt_and_its_seed() -> None:
    for text in (credentials(JWT, USER.seed), credentials(JWT, USER.seed).replace("\n", "\r\n")):
        login = credentials_login(text, "file")
        assert login.jwt == JWT
        assert login.key is not None
        assert login.key.seed == USER.seed
        assert USER.seed not in repr(login)
        assert JWT not in repr(login)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.creds: there must be one block 'BEGIN NATS USER JWT', got 0"),
        (JWT, "c.creds: there must be one block"),
        (credentials(JWT, USER.seed) * 2, "c.creds: there must be one block .* got 2"),
        (credentials("only.two", USER.seed), "c.creds: the block .* must hold a JWT"),
        (
            credentials(JWT, USER.seed).replace("NKEY SEED", "NKEY"),
            "c.creds: expected one block 'BEGIN USER NKEY SEED', got 0",
        ),
        (credentials(JWT, USER.seed[:-1]), "c.creds: an nkey seed must"),
        (credentials(JWT, new_key(Kind.ACCOUNT).seed), "c.creds: the seed must be for USER"),
    ],
)
def test_credentials_that_cannot_be_used_say_why(text: str, message: str) -> None:
    with pytest.raises(CredentialsError, match=message) as caught:
        credentials_login(text, "c.creds")
    assert USER.seed[2:20] not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_a_nonce_is_signed_and_a_server_without_one_is_not_for_nkeys() -> None:
    login = Login(key=USER)
    signature = login.signature(ServerInfo(nonce="n0nce"), "s")

    assert signature is not None
    assert verify(public_key(USER.public_key), decode_signature(signature), b"n0nce")
    with pytest.raises(ConnectionLostError, match="nats://s sent no nonce"):
        login.signature(ServerInfo(), "nats://s")
    assert Login(key=USER, jwt=JWT).signature(ServerInfo(), "s") is None
    assert Login(user="u").signature(ServerInfo(nonce="n0nce"), "s") is None


# The sources


def test_a_secret_comes_from_a_text_a_file_a_function_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("from file\n")
    monkeypatch.setenv("THE_USER", "from env")
    login = read_login(options(user=slipstream.from_env("THE_USER"), password=file))
    assert (login.user, login.password) == ("from env", "from file")
    assert read_login(options(token=lambda: "made")).token == "made"
    assert read_login(options(token="plain")).token == "plain"
    file.write_text(USER.seed + "\n")
    for source in (USER.seed, file, lambda: USER.seed):
        key = read_login(options(nkey=source)).key
        assert key is not None
        assert key.public_key == USER.public_key
    file.write_text(credentials(JWT, USER.seed))
    for given in (file, str(file), file.read_text):
        assert read_login(options(credentials=given)).jwt == JWT


def failing() -> str:
    raise RuntimeError("vault is shut")


def nothing() -> Any:
    return None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"token": Path("/nowhere/token")}, "token /nowhere/token: No such file"),
        ({"credentials": "/nowhere/c.creds"}, r"credentials /nowhere/c\.creds: No such file"),
        ({"token": from_env("NO_SUCH_VARIABLE")}, "environment variable NO_SUCH_VARIABLE is not set"),
        ({"token": from_env("EMPTY_VARIABLE")}, "environment variable EMPTY_VARIABLE is empty"),
        ({"password": failing}, "the function for password failed: RuntimeError"),
        ({"nkey": nothing}, "the function for nkey must return str, not NoneType"),
        ({"nkey": "hunter2"}, "^nkey: an nkey seed must"),
    ],
)
def test_a_source_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str) -> None:
    monkeypatch.setenv("EMPTY_VARIABLE", "")
    with pytest.raises(CredentialsError, match=message) as caught:
        read_login(options(**given))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\xff\xfe", "must be text"), (b"x" * (MAX_SIZE + 1), "at most 65536 bytes")],
)
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(CredentialsError, match=f"token {file}: .*{message}"):
        read_login(options(token=file))


@pytest.mark.parametrize(
    "given", [{"token": "t", "user": "u"}, {"nkey": USER.seed, "credentials": "c"}, {"token": "t", "nkey": USER.seed}]
)
def test_only_one_way_to_log_in_is_allowed(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected one way to log in"):
        options(**given)


# The drivers


def test_what_the_caller_must_mend_is_raised_before_any_server_is_asked(driver: Driver, nats_url: str) -> None:
    with pytest.raises(CredentialsError, match="nkey: an nkey seed must"):
        driver.connect([nats_url, nats_url.replace("127.0.0.1", "localhost")], nkey="SUNONSENSE")


def config_file(tmp_path: Path, text: str) -> tuple[str, str]:
    file = tmp_path / "server.conf"
    file.write_text(text)
    return "-c", str(file)


def test_a_real_server_takes_the_right_nkey_and_no_other(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(*config_file(tmp_path, f"authorization {{ users: [{{ nkey: {USER.public_key} }}] }}"))
    file = tmp_path / "user.nk"
    file.write_text(USER.seed)
    for source in (USER.seed, file):
        with driver.connect(server.url, nkey=source) as nc:
            nc.flush()
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        driver.connect(server.url, nkey=new_key(Kind.USER).seed)
    with driver.connect(server.url, nkey=file, reconnect_wait=0.02, on_event=lambda _: None) as nc:
        sub = nc.subscribe("a")
        server.stop()
        eventually(lambda: not nc.is_connected)
        server.start()  # with another nonce to sign
        nc.publish("a", b"again")
        assert sub.next(timeout=8).data == b"again"


def test_a_server_without_nkeys_says_so(driver: Driver, nats_url: str) -> None:
    with pytest.raises(ConnectionLostError, match="nkeys are not enabled there"):
        driver.connect(nats_url, nkey=USER.seed)
    with driver.connect(nats_url, credentials=lambda: credentials(JWT, USER.seed)) as nc:
        nc.flush()


def test_a_real_server_in_operator_mode_takes_credentials_and_its_permissions(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    operator = Operator()
    server = make_server(*config_file(tmp_path, operator.config))
    file = tmp_path / "user.creds"
    file.write_text(operator.user(pub={"deny": ["secret"]}))
    with driver.connect(server.url, credentials=str(file), on_event=lambda _: None) as nc:
        nc.flush()
        with pytest.raises(AuthorizationError, match="secret"):
            nc.request("secret")
    for wrong in (Operator().user(), credentials(operator.user().split("\n")[1], USER.seed)):
        file.write_text(wrong)
        with pytest.raises(AuthorizationError, match="Authorization Violation"):
            driver.connect(server.url, credentials=file)


@pytest.mark.steady
def test_credentials_are_read_again_when_they_have_expired(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    operator = Operator()
    server = make_server(*config_file(tmp_path, operator.config))
    file = tmp_path / "user.creds"
    file.write_text(operator.user(exp=int(time.time()) + 2))
    events: list[Any] = []
    with driver.connect(server.url, credentials=file, reconnect_wait=0.01, on_event=events.append) as nc:
        sub = nc.subscribe("a")
        file.write_text(operator.user())
        eventually(lambda: nc.is_connected and nc.stats.reconnects == 1)
        nc.publish("a", b"after")
        assert sub.next().data == b"after"
    assert "User Authentication Expired" in str(events[0].error)


def test_a_file_that_is_gone_at_a_reconnect_is_tried_again(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    said: list[bytes] = []
    gone = threading.Event()

    def first(peer: Peer) -> None:
        said.append(peer.greet())
        gone.wait(10)

    def second(peer: Peer) -> None:
        said.append(peer.greet())
        peer.until_closed()

    with FakeServer(first, second) as server:
        options = {"reconnect_wait": 0.01, "reconnect_max_wait": 0.02, "on_event": lambda _: None}
        with driver.connect(server.url, token=file, **options) as nc:
            file.unlink()
            gone.set()
            eventually(lambda: not nc.is_connected)
            eventually(lambda: nc._session._failed > 1)
            file.write_text("second")
            eventually(lambda: nc.is_connected)
    assert b'"auth_token":"first"' in said[0]
    assert b'"auth_token":"second"' in said[1]


def test_secrets_are_shown_nowhere(driver: Driver, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(credentials(JWT, USER.seed))

    def refuse(peer: Peer) -> None:
        peer.send(b'INFO {"nonce":"abc"}\r\n')
        assert JWT.encode() in peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Authorization Violation'\r\n")

    caplog.set_level(logging.DEBUG)
    with FakeServer(refuse) as server, pytest.raises(AuthorizationError) as caught:
        driver.connect(server.url, credentials=file)
    assert USER.seed not in f"{caught.value!r} {caplog.text}"
    assert JWT not in f"{caught.value!r} {caplog.text}"
    shown = repr(options(nkey=USER.seed)) + repr(options(user="u", password="hunter2")) + repr(read_login(options()))
    assert USER.seed not in shown
    assert "hunter2" not in shown

"""Nkeys: a nonce in INFO, its signature in CONNECT; on the engine, on sockets, and beside the real server."""

from __future__ import annotations

import base64
import binascii
import json
import socket
from collections.abc import Iterator

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from slipstream.errors import UsageError
from slipstream.server import Permissions, Server, User
from slipstream.wire import Err, Event, Pong
from slipstream.wire.nkeys import Kind, decode_signature, verify
from tests.server.support import Rig
from tests.servers import real_server


def encode(prefix: int, key: bytes) -> str:
    raw = bytes([prefix]) + key
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode()


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
NKEY = encode(Kind.USER, KEY.public_key().public_bytes_raw())
OTHER_NKEY = encode(Kind.USER, OTHER.public_key().public_bytes_raw())


def hello(nonce: str, *, key: Ed25519PrivateKey = KEY, nkey: str = NKEY, sig: str | None = None) -> bytes:
    made = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
    options = {"verbose": False, "nkey": nkey, "sig": made if sig is None else sig}
    return b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode()


def answer(rig: Rig, line: bytes) -> list[Event]:
    client = rig.client(b"")
    assert msgspec.json.decode(client.raw[5:])["nonce"] == f"nonce-{client.cid}"
    client.take()
    client.send(line)
    return client.take()


def test_only_the_owner_of_an_nkey_is_authenticated() -> None:
    users = (User(nkey=NKEY, permissions=Permissions(publish=("a",))), User(name="joe", password="pw"))
    rig = Rig(users=users, verify=verify)
    assert answer(rig, hello("nonce-1")) == [Pong()]
    refused = [Err("Authorization Violation")]
    assert answer(rig, hello("nonce-1")) == refused  # signed for another connection
    assert answer(rig, hello("nonce-3", key=OTHER)) == refused
    assert answer(rig, hello("nonce-4", key=OTHER, nkey=OTHER_NKEY)) == refused
    assert answer(rig, hello("nonce-5", sig="")) == refused
    assert answer(rig, hello("nonce-6", sig="????")) == refused
    assert answer(rig, hello("nonce-7", sig="AAAA")) == refused
    assert answer(rig, b'CONNECT {"verbose":false,"user":"joe","pass":"pw"}\r\nPING\r\n') == [Pong()]
    assert answer(rig, hello("nonce-9") + b"PUB b 1\r\nx\r\n")[1:] == [Err('Permissions Violation for Publish to "b"')]


def test_an_engine_without_a_verifier_or_keys_lets_no_nkey_in() -> None:
    assert answer(Rig(users=(User(nkey=NKEY),)), hello("nonce-1")) == [Err("Authorization Violation")]
    client = Rig(users=(User(token="t"),)).client(b"")
    assert b"nonce" not in client.raw
    client.take()
    client.send(hello(""))
    assert client.take() == [Err("Authorization Violation")]


def test_a_signature_is_read_in_either_alphabet() -> None:
    raw = bytes(range(192, 256))
    for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw), base64.b64encode(raw).rstrip(b"=")):
        assert decode_signature(text.decode()) == raw
    assert decode_signature("é") == b""


@pytest.mark.parametrize("nkey", ["U", NKEY[:-1] + "A", "é" * 56, encode(0, bytes(32)), NKEY.lower()])
def test_an_invalid_public_key_of_a_user_is_rejected(nkey: str) -> None:
    with pytest.raises(UsageError, match="nkey"):
        User(nkey=nkey)
    with pytest.raises(UsageError, match="2 of them"):
        User(nkey=NKEY, token="t")


@pytest.fixture(params=["ours", "real"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "ours":
        with Server(users=[User(nkey=NKEY)]) as server:
            yield server.port
    else:
        with real_server(config=f"authorization {{ users = [ {{nkey: {NKEY}}} ] }}", jetstream=False) as url:
            yield int(url.rpartition(":")[2])


def test_nonces_differ_and_a_signed_one_lets_in_on_our_server_and_the_real_one(port: int) -> None:
    nonces = set()
    for key, expected in ((KEY, b"PONG\r\n"), (OTHER, b"-ERR 'Authorization Violation'\r\n")):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rb") as file:
            info = json.loads(file.readline()[5:])
            assert info["auth_required"]
            nonces.add(info["nonce"])
            sock.sendall(hello(info["nonce"], key=key))
            assert file.readline() == expected
    assert len(nonces) == 2

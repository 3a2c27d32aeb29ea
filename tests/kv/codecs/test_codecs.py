"""Codecs: pure round trips, what they refuse, and buckets through them, stacked, filtered and watched."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from slipstream import BucketConfig
from slipstream.errors import CodecError, DecryptionError, KeyNotFoundError, UsageError
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv.codecs import Base64Keys, Base64Values, Codec, Compressed, Json, MessagePack, PathKeys
from slipstream.kv.codecs.encryption import Encrypted, Keyring
from slipstream.kv.keys import check_key, check_pattern

TOKENS = st.text(min_size=1, max_size=8).filter(lambda text: "." not in text and "/" not in text)
KEY = b"k" * 32
OTHER = b"o" * 32


async def bucket(name: str = "b", history: int = 1) -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket=name, history=history))


@given(st.lists(TOKENS.filter(lambda text: text.isprintable()), min_size=1, max_size=4))
def test_any_text_is_a_key_in_base64(tokens: list[str]) -> None:
    codec, key = Base64Keys(), ".".join(tokens)
    assert check_key(codec.encode_key(key))
    assert codec.decode_key(codec.encode_key(key)) == key


def test_base64_keys_are_written_as_other_clients_write_them() -> None:
    assert Base64Keys().encode_key("user.jöe smith") == "dXNlcg.asO2ZSBzbWl0aA"
    assert Base64Keys().encode_filter("user.*") == "dXNlcg.*"
    assert Base64Values().encode_value("k", b"\xff\xfe") == b"__4"
    assert Base64Values().decode_value("k", b"__4") == b"\xff\xfe"
    for bad in ("a", "dXNlcg==", "!!", "dXNlch"):
        with pytest.raises(CodecError):
            Base64Keys().decode_key(bad)
    with pytest.raises(UsageError, match="non-empty tokens"):
        Base64Keys().encode_key("a..b")


@given(st.lists(TOKENS, min_size=1, max_size=4), st.booleans())
def test_any_path_is_a_key(parts: list[str], is_absolute: bool) -> None:
    codec, key = PathKeys(), "/" * is_absolute + "/".join(parts)
    assert check_key(codec.encode_key(key))
    assert codec.decode_key(codec.encode_key(key)) == key


def test_paths_are_written_as_other_clients_write_them() -> None:
    codec = PathKeys()
    assert codec.encode_key("/users/123") == "_root_.users.123"
    assert codec.encode_key("users/123") == "users.123"
    assert codec.encode_filter("/users/*") == "_root_.users.*"
    assert codec.encode_filter("/>") == "_root_.>"
    assert codec.encode_key("/etc/my.conf") == "_root_.etc.my=2Econf"
    for key in ("_root_/x", "_kv/x", "a=b", "ä/.."):
        assert codec.decode_key(codec.encode_key(key)) == key
    for bad in ("", "/", "a//b", "a/"):
        with pytest.raises(UsageError, match="key must be a path"):
            codec.encode_key(bad)
    for stored in ("a=2", "a=2e", "=5Fab", "=FF"):
        with pytest.raises(CodecError):
            codec.decode_key(stored)


@dataclass
class Order:
    id: int
    lines: list[str]


@pytest.mark.parametrize("codec", [Json(Order), MessagePack(Order)])
def test_values_of_a_type(codec: Codec[Order]) -> None:
    order = Order(7, ["a", "b"])
    assert codec.decode_value("k", codec.encode_value("k", order)) == order
    with pytest.raises(CodecError, match="key 'k' is not the"):
        codec.decode_value("k", b"\xc1")
    with pytest.raises(UsageError, match="cannot be encoded"):
        codec.encode_value("k", object())  # type: ignore[arg-type]


def test_json_of_another_shape_is_refused() -> None:
    with pytest.raises(CodecError, match="Expected"):
        Json(Order).decode_value("k", b'{"id":"x"}')
    assert Json().decode_value("k", b'{"a":[1]}') == {"a": [1]}


@given(st.binary(max_size=2000))
def test_compression_is_undone(value: bytes) -> None:
    codec = Compressed()
    assert codec.decode_value("k", codec.encode_value("k", value)) == value


def test_what_compression_refuses() -> None:
    codec = Compressed(max_size=100)
    packed = Compressed().encode_value("k", b"x" * 10_000)
    assert len(packed) < 100
    with pytest.raises(CodecError, match="more than 100 bytes"):
        codec.decode_value("k", packed)
    with pytest.raises(UsageError, match="at most 100 bytes, got 101"):
        codec.encode_value("k", b"x" * 101)
    small = Compressed().encode_value("k", b"x" * 50)
    for bad in (b"", b"\x02abc", small[:-1], small + b"x", b"\x01abc"):
        with pytest.raises(CodecError):
            codec.decode_value("k", bad)
    with pytest.raises(UsageError, match="level"):
        Compressed(level=10)


async def test_codecs_are_stacked_and_each_is_a_bucket() -> None:
    raw = await bucket(history=3)
    kv = raw.with_codec(Base64Keys()).with_codec(Compressed()).with_codec(Json(Order))
    order = Order(1, ["x" * 500])
    first = await kv.put("café.no 1", order)
    assert (await kv.get("café.no 1", min_last_revision=first)).value == order
    stored = await raw.get("Y2Fmw6k.bm8gMQ")
    assert stored.value[:1] == b"\x01"
    second = await kv.update("café.no 1", Order(2, []), last=first)
    assert [entry.value.id for entry in await kv.history("café.no 1")] == [1, 2]
    assert (await kv.get("café.no 1", revision=first)).value == order
    async with kv.writer() as writer:
        await writer.put("tea.1", order)
    assert await kv.keys("café.*") == ["café.no 1"]
    assert await kv.keys() == ["café.no 1", "tea.1"]
    assert list(await kv.snapshot("café.>", revision=second)) == ["café.no 1"]
    async with await kv.watch("café.>") as watch:
        assert [entry.value for entry in await watch.initial()] == [Order(2, [])]
        await kv.delete("café.no 1")
        entry = await watch.next(timeout=5)
        assert entry is not None
        assert (entry.key, entry.is_deleted) == ("café.no 1", True)
    with pytest.raises(KeyNotFoundError):
        await kv.get("café.no 1")
    await kv.create("café.no 1", order)
    assert await kv.purge_range(">") == 2
    assert [key async for key in kv.iter_keys()] == []
    with pytest.raises(UsageError, match="value must be bytes"):
        await raw.with_codec(Compressed()).put("k", "text")  # type: ignore[arg-type]


async def test_a_key_that_the_codec_did_not_write_is_an_error_not_a_wrong_key() -> None:
    raw = await bucket()
    await raw.put("plain/key", b"1")
    with pytest.raises(CodecError):
        await raw.with_codec(Base64Keys()).keys()


async def test_a_codec_of_ones_own() -> None:
    class Upper(Codec[str]):
        def encode_value(self, key: str, value: str) -> bytes:
            return f"{key}:{value}".upper().encode()

        def decode_value(self, key: str, data: bytes) -> str:
            return data.decode().removeprefix(f"{key}:".upper()).lower()

    kv = (await bucket()).with_codec(Upper())
    await kv.put("a", "hello")
    assert (await kv.get("a")).value == "hello"


async def test_paths_in_a_bucket() -> None:
    kv = (await bucket()).with_codec(PathKeys())
    for key in ("/etc/app/a.conf", "/etc/app/b.conf", "/var/x", "rel/y"):
        await kv.put(key, key.encode())
    assert await kv.keys("/etc/>") == ["/etc/app/a.conf", "/etc/app/b.conf"]
    assert await kv.keys("/*/*/b.conf") == ["/etc/app/b.conf"]
    assert len(await kv.keys()) == 4
    with pytest.raises(UsageError):
        await kv.put("/etc/", b"")


# Encryption


def ring(**keys: bytes) -> Keyring:
    return Keyring(keys or {"k1": KEY})


def test_a_value_is_bound_to_its_key_and_context() -> None:
    codec = Encrypted(ring(), context="orders")
    sealed = codec.encode_value("a.b", b"secret")
    assert b"secret" not in sealed
    assert sealed != codec.encode_value("a.b", b"secret")
    assert codec.decode_value("a.b", sealed) == b"secret"
    for key, other in (("a.c", codec), ("a.b", Encrypted(ring(), context="other"))):
        with pytest.raises(DecryptionError, match="written for another key or context"):
            other.decode_value(key, sealed)
    with pytest.raises(DecryptionError, match="no key 'k1'"):
        Encrypted(ring(k2=KEY), context="orders").decode_value("a.b", sealed)
    with pytest.raises(DecryptionError):
        Encrypted(ring(k1=OTHER), context="orders").decode_value("a.b", sealed)


def test_a_changed_bit_anywhere_is_found() -> None:
    codec = Encrypted(ring(), context="c")
    sealed = codec.encode_value("k", b"value")
    for at in range(len(sealed)):
        broken = bytearray(sealed)
        broken[at] ^= 1
        with pytest.raises(CodecError):
            codec.decode_value("k", bytes(broken))
    for cut in range(len(sealed)):
        with pytest.raises(CodecError):
            codec.decode_value("k", sealed[:cut])


@given(st.lists(TOKENS, min_size=1, max_size=3))
def test_key_tokens_are_hidden_and_found_again(tokens: list[str]) -> None:
    codec, key = Encrypted(ring(), context="c"), ".".join(tokens)
    stored = codec.encode_key(key)
    assert check_key(stored)
    assert stored == codec.encode_key(key)
    assert codec.decode_key(stored) == key
    assert check_pattern(codec.encode_filter(f"{tokens[0]}.>" if not {"*", ">"} & set(tokens[0]) else "x.>"))


def test_a_key_token_is_bound_to_its_place_and_context() -> None:
    codec = Encrypted(ring(), context="c")
    first, second = codec.encode_key("a.b").split(".")
    assert codec.encode_filter("*.b") == f"*.{second}"
    for bad in (f"{second}.{first}", "plain", "k1!!", first[:-1]):
        with pytest.raises(CodecError):
            codec.decode_key(bad)
    with pytest.raises(DecryptionError):
        Encrypted(ring(), context="d").decode_key(first)


def test_another_program_can_read_the_written_format() -> None:
    """Only what docs/design/kv-encryption.md says, and a library for the ciphers."""
    codec = Encrypted(Keyring({"2026": KEY}), context="orders")
    sealed, stored = codec.encode_value("a.b", b"secret"), codec.encode_key("a.b")

    def derive(info: bytes, salt: bytes, size: int) -> bytes:
        return HKDF(algorithm=hashes.SHA256(), length=size, salt=salt, info=info).derive(KEY)

    assert sealed[:6] == b"\x01\x042026"
    head, salt, nonce, rest = sealed[:34], sealed[6:22], sealed[22:34], sealed[34:]
    bound = b"".join(len(part).to_bytes(4, "big") + part for part in (head, b"orders", b"a.b"))
    assert AESGCM(derive(b"slipstream kv 1 value", salt, 32)).decrypt(nonce, rest, bound) == b"secret"

    siv = AESSIV(derive(b"slipstream kv 1 token", b"", 64))
    tokens = []
    for place, token in enumerate(stored.split(".")):
        assert token[:2] == "k1"
        text = token[2:] + "=" * (-len(token[2:]) % 4)
        tokens.append(siv.decrypt(base64.urlsafe_b64decode(text), [b"orders", str(place).encode()]))
    assert tokens == [b"a", b"b"]


@pytest.mark.parametrize("keys", [{}, {"a": b"short"}, {"": KEY}, {"x" * 256: KEY}])
def test_bad_keyrings_are_refused(keys: dict[str, bytes]) -> None:
    with pytest.raises(UsageError):
        Keyring(keys)


def test_a_keyring_shows_no_keys() -> None:
    assert repr(Keyring({"a": KEY})) == "<Keyring ['a']>"
    with pytest.raises(DecryptionError):
        Keyring({"a": KEY}, primary="b")
    with pytest.raises(UsageError, match="context"):
        Encrypted(ring(), context="")


async def test_an_encrypted_bucket_hides_keys_and_values_and_can_be_searched() -> None:
    raw = await bucket()
    kv = raw.with_codec(Encrypted(ring(), context="b")).with_codec(Json[Any]())
    await kv.put("users.alice", {"card": "4111"})
    await kv.put("users.bob", {"card": "4222"})
    await kv.put("orders.1", {})
    for entry in (await raw.get_range()).values():
        assert b"4111" not in entry.value
        assert "alice" not in entry.key
    assert sorted(await kv.keys("users.*")) == ["users.alice", "users.bob"]
    assert (await kv.get("users.bob")).value == {"card": "4222"}
    stored = [await raw.get(key) for key in await raw.keys()]
    await raw.put(stored[0].key, stored[1].value)  # somebody swaps two values
    with pytest.raises(DecryptionError):
        await kv.get("users.alice")


async def test_keys_are_rotated() -> None:
    raw = await bucket()
    old = Encrypted(Keyring({"old": KEY}), context="b")
    await raw.with_codec(old).put("a", b"1")
    await raw.with_codec(old).put("b", b"2")
    both = Encrypted(Keyring({"old": KEY, "new": OTHER}), context="b")
    kv = raw.with_codec(both)
    assert (await kv.get("a")).value == b"1"
    await kv.put("b", b"3")
    assert await reencrypt(raw, both) == 1
    assert await reencrypt(raw, both) == 0
    assert {entry.value for entry in (await kv.get_range()).values()} == {b"1", b"3"}
    assert all(Encrypted.key_name(entry.value) == "new" for entry in (await raw.get_range()).values())
    with pytest.raises(DecryptionError):
        await raw.with_codec(old).get("a")


async def test_a_value_that_cannot_be_decoded_costs_a_watch_nothing_else() -> None:
    plain = await bucket()
    for key, value in (("a", b"1"), ("b", b"not json"), ("c", b"3"), ("d", b"4")):
        await plain.put(key, value)
    watch = await plain.with_codec(Json(int)).watch()
    seen: list[object] = []
    while None not in seen:
        try:
            entry = await watch.next(timeout=5)
            seen.append(entry and (entry.key, entry.value))
        except CodecError as error:
            seen.append(type(error))
    assert seen == [("a", 1), CodecError, ("c", 3), ("d", 4), None]
    await watch.close()

"""The encryption codec: authentication, deterministic key tokens, the documented format."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CodecError, DecryptionError, UsageError
from slipstream.kv import codecs, encryption
from slipstream.kv.codecs.encryption import Encrypted, Keyring
from slipstream.kv.keys import check_key, check_pattern

TOKENS = st.text(min_size=1, max_size=8).filter(lambda text: "." not in text and "/" not in text)
KEY = b"k" * 32
OTHER = b"o" * 32


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


def test_a_flipped_bit_or_a_truncation_is_detected() -> None:
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
def test_key_tokens_are_encrypted_deterministically(tokens: list[str]) -> None:
    codec, key = Encrypted(ring(), context="c"), ".".join(tokens)
    stored = codec.encode_key(key)
    assert check_key(stored)
    assert stored == codec.encode_key(key)
    assert codec.decode_key(stored) == key
    assert check_pattern(codec.encode_filter(f"{tokens[0]}.>" if not {"*", ">"} & set(tokens[0]) else "x.>"))


def test_a_key_token_is_bound_to_its_index_and_context() -> None:
    codec = Encrypted(ring(), context="c")
    first, second = codec.encode_key("a.b").split(".")
    assert codec.encode_filter("*.b") == f"*.{second}"
    for bad in (f"{second}.{first}", "plain", "k1!!", first[:-1]):
        with pytest.raises(CodecError):
            codec.decode_key(bad)
    with pytest.raises(DecryptionError):
        Encrypted(ring(), context="d").decode_key(first)


def test_another_program_can_read_the_documented_format() -> None:
    """With docs/design/kv-encryption.md and a library for the ciphers alone."""
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
    for index, token in enumerate(stored.split(".")):
        assert token[:2] == "k1"
        text = token[2:] + "=" * (-len(token[2:]) % 4)
        tokens.append(siv.decrypt(base64.urlsafe_b64decode(text), [b"orders", str(index).encode()]))
    assert tokens == [b"a", b"b"]


@pytest.mark.parametrize("keys", [{}, {"a": b"short"}, {"": KEY}, {"x" * 256: KEY}])
def test_bad_keyrings_are_rejected(keys: dict[str, bytes]) -> None:
    with pytest.raises(UsageError):
        Keyring(keys)


def test_the_repr_of_a_keyring_shows_no_keys() -> None:
    assert repr(Keyring({"a": KEY})) == "<Keyring ['a']>"
    with pytest.raises(DecryptionError):
        Keyring({"a": KEY}, primary="b")
    with pytest.raises(UsageError, match="context"):
        Encrypted(ring(), context="")


def test_the_codec_is_exported_by_its_documented_modules() -> None:
    assert codecs.Encrypted is encryption.Encrypted is Encrypted
    assert codecs.Keyring is encryption.Keyring is Keyring


def test_keys_and_values_of_version_0_1_are_read() -> None:
    stored = "k1wsJptcynyD34BY0zEzDHoooOhFb3.k1CAaG6BwA4Bo8DUXBuX1lJeiuiRGy"
    value = bytes.fromhex(
        "0104323032370a21a400b5908b62bb5dc49857ee8625b265cc22daa8c95d027eee833d39c469664fdf767bc523f97de8527561ac42f420a6"
    )
    codec = Encrypted(Keyring({"2027": OTHER, "2026": KEY}, primary="2027", tokens="2026"), context="orders")
    assert codec.encode_key("users.alice") == stored
    assert codec.decode_key(stored) == "users.alice"
    assert codec.decode_value("users.alice", value) == b"secret"
    for cut in range(len(value)):
        with pytest.raises(DecryptionError):
            codec.decode_value("users.alice", value[:cut])


def test_a_key_is_foreign_unless_all_its_tokens_look_encrypted() -> None:
    codec = Encrypted(ring(), context="c")
    good = codec.encode_key("a")
    for foreign in ("plain", "k1", "k1AAAA", f"{good}.plain", "k1!!", "k1" + "A" * 21):
        with pytest.raises(CodecError) as caught:
            codec.decode_key(foreign)
        assert not isinstance(caught.value, DecryptionError)
    for other in (f"{good}.{good}", "k1" + "A" * 23, Encrypted(ring(k1=OTHER), context="c").encode_key("a")):
        with pytest.raises(DecryptionError, match="lacks its key"):
            codec.decode_key(other)

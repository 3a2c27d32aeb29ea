"""Codecs of keys: round trips, the forms of other clients, and rejected keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CodecError, UsageError
from slipstream.kv.codecs import Base64Keys, PathKeys
from slipstream.kv.keys import check_key

TOKENS = st.text(min_size=1, max_size=8).filter(lambda text: "." not in text and "/" not in text)


@given(st.lists(TOKENS.filter(lambda text: text.isprintable()), min_size=1, max_size=4))
def test_any_text_is_a_key_in_base64(tokens: list[str]) -> None:
    codec, key = Base64Keys(), ".".join(tokens)
    assert check_key(codec.encode_key(key))
    assert codec.decode_key(codec.encode_key(key)) == key


def test_base64_keys_are_compatible_with_other_clients() -> None:
    assert Base64Keys().encode_key("user.jöe smith") == "dXNlcg.asO2ZSBzbWl0aA"
    assert Base64Keys().encode_filter("user.*") == "dXNlcg.*"
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


def test_path_keys_are_compatible_with_other_clients() -> None:
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

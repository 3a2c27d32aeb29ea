"""Codecs of keys: round trips, the forms of other clients, and rejected keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CodecError, UsageError
from slipstream.kv.codecs import Base64Keys, EscapedPathKeys, PathKeys
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


ORBIT = [  # what the path codec of synadia-io/orbit.go (kvcodec) returns: a path, its stored form, the path decoded
    ("/etc/app.conf", "_root_.etc.app.conf", "/etc/app/conf"),
    ("/", "_root_", "/"),
    ("/a=b", "_root_.a=b", "/a=b"),
    ("/a=2E", "_root_.a=2E", "/a=2E"),
    ("/a/b", "_root_.a.b", "/a/b"),
    ("/a/b/", "_root_.a.b", "/a/b"),
    ("/a/", "_root_.a", "/a"),
    ("a", "a", "a"),
    ("a/b", "a.b", "a/b"),
    ("a/b/", "a.b", "a/b"),
    ("a.b", "a.b", "a/b"),
    ("_root_", "_root_", "/"),
    ("_root_/a", "_root_.a", "/a"),
    ("_root_x/a", "_root_x.a", "_root_x/a"),
    ("/_root_", "_root_._root_", "/_root_"),
    ("a/_root_/b", "a._root_.b", "a/_root_/b"),
    ("/-_=/Z9", "_root_.-_=.Z9", "/-_=/Z9"),
    ("/users/*", "_root_.users.*", "/users/*"),
    ("/>", "_root_.>", "/>"),
    ("users/*/x", "users.*.x", "users/*/x"),
]


@pytest.mark.spec("KV-45")
@pytest.mark.parametrize(("path", "stored", "decoded"), ORBIT, ids=[path for path, _, _ in ORBIT])
def test_path_keys_are_those_of_other_clients_byte_for_byte(path: str, stored: str, decoded: str) -> None:
    codec = PathKeys()
    assert codec.encode_key(path) == codec.encode_filter(path) == stored
    assert codec.decode_key(stored) == codec.canonical_key(path) == decoded
    assert codec.encode_key(decoded) == stored


PARTS = st.text("abzAZ09-_=", min_size=1, max_size=6)


@pytest.mark.spec("KV-45")
@given(st.lists(PARTS, min_size=1, max_size=4).filter(lambda parts: parts[0] != "_root_"), st.booleans())
def test_a_path_without_dots_round_trips_as_a_path_key(parts: list[str], is_absolute: bool) -> None:
    codec, key = PathKeys(), "/" * is_absolute + "/".join(parts)
    stored = codec.encode_key(key)
    assert stored == ".".join(["_root_"] * is_absolute + parts)
    assert codec.decode_key(stored) == codec.canonical_key(key) == key
    assert codec.encode_key(key + "/") == codec.encode_key(key.replace("/", ".").replace(".", "/", 1)) == stored


@given(st.text("ab./_", max_size=12))
def test_a_path_key_is_rejected_or_its_canonical_form_is_the_same_key(path: str) -> None:
    codec = PathKeys()
    try:
        stored = codec.encode_key(path)
    except UsageError:
        assert path in ("", "//") or {"//", "..", "./", "/."} & {path[at : at + 2] for at in range(len(path))} or (
            path[0] == "." or path[-1] == "."
        )  # fmt: skip
        return
    assert codec.encode_key(codec.decode_key(stored)) == stored


def test_a_stored_key_with_a_slash_is_no_path_key() -> None:
    with pytest.raises(CodecError, match="not a path-style key"):
        PathKeys().decode_key("a/b")
    for bad in ("", "//", "a//b", "a//", ".a", "/."):
        with pytest.raises(UsageError, match="without empty parts"):
            PathKeys().encode_key(bad)


@given(st.lists(TOKENS, min_size=1, max_size=4), st.booleans())
def test_any_path_is_an_escaped_key(parts: list[str], is_absolute: bool) -> None:
    codec, key = EscapedPathKeys(), "/" * is_absolute + "/".join(parts)
    assert check_key(codec.encode_key(key))
    assert codec.decode_key(codec.encode_key(key)) == key


def test_escaped_path_keys_are_those_of_version_0_1() -> None:
    codec = EscapedPathKeys()
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

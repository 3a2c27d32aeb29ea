"""Records, digests and the stream configuration of an object bucket."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta

import pytest

from slipstream.errors import RemoteProtocolError, UsageError
from slipstream.objects.info import (
    ObjectInfo,
    ObjectStoreConfig,
    Subjects,
    digest_text,
    header_lists,
    read_record,
    same_digest,
)


def test_a_digest_is_recognized_in_the_forms_of_other_clients() -> None:
    digest = hashlib.sha256(b"x").digest()
    text = digest_text(digest)
    assert text.startswith("SHA-256=")
    for form in (text, text.rstrip("="), text.replace("SHA", "sha")):
        assert same_digest(form, digest)
    for form in (digest_text(hashlib.sha256(b"y").digest()), "", text.removeprefix("SHA-256="), "MD5" + text[7:]):
        assert not same_digest(form, digest)


def test_a_record_round_trips_without_its_sequence_and_time() -> None:
    info = ObjectInfo(name="a", bucket="b", nuid="n", size=3, chunks=1, digest="SHA-256=x", sequence=9, mtime=5)
    assert b"sequence" not in info.record()
    assert b'"mtime":"0001-01-01T00:00:00Z"' in info.record()
    assert read_record(info.record(), seq=9, time=5) == info
    assert read_record(b'{"name":"a","mtime":"whatever"}', seq=1, time=2) == replace(
        ObjectInfo(name="a"), sequence=1, mtime=2
    )


def test_a_malformed_record_raises() -> None:
    with pytest.raises(RemoteProtocolError, match="malformed object record at sequence 4"):
        read_record(b"not json", seq=4, time=1)


def test_a_bucket_is_a_stream_that_rejects_chunks_when_full() -> None:
    config = ObjectStoreConfig(bucket="b", max_bytes=100).stream_config()
    assert (config.name, config.subjects) == ("OBJ_b", ("$O.b.C.>", "$O.b.M.>"))
    assert (config.discard, config.max_bytes, config.allow_direct) == ("new", 100, True)
    with pytest.raises(UsageError, match="ttl must be 0"):
        ObjectStoreConfig(bucket="b", ttl=timedelta(seconds=-1)).stream_config()


def test_a_record_is_stored_under_the_encoded_name() -> None:
    assert Subjects("b").record("a b") == "$O.b.M.YSBi"
    with pytest.raises(UsageError, match="object name must be a non-empty string"):
        Subjects("b").record("")


def test_a_header_value_is_a_list_of_strings() -> None:
    assert header_lists({"a": "text", "b": ["1", "2"]}) == {"a": ["text"], "b": ["1", "2"]}

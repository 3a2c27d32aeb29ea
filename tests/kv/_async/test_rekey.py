"""Key rotation of an encrypted bucket."""

from __future__ import annotations

import pytest

from slipstream import BucketConfig
from slipstream.errors import DecryptionError
from slipstream.kv._async.key_value import open_local_key_value
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv.codecs import Encrypted, Keyring

KEY = b"k" * 32
OTHER = b"o" * 32


async def test_reencrypt_moves_every_value_to_the_primary_key() -> None:
    raw = await open_local_key_value(config=BucketConfig(bucket="b"))
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

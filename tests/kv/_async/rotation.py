"""Keyrings before, during and after a rotation of keys, and what every backend keeps in one."""

from __future__ import annotations

from datetime import timedelta

from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv.codecs import Encrypted, Keyring

OLD = b"o" * 32
NEW = b"n" * 32
RINGS = {"old key first": {"2026": OLD, "2027": NEW}, "new key first": {"2027": NEW, "2026": OLD}}


def before(context: str) -> Encrypted:
    return Encrypted(Keyring({"2026": OLD}), context=context)


def moving(context: str, keys: dict[str, bytes] | None = None) -> Encrypted:
    ring = Keyring(keys or RINGS["old key first"], primary="2027", tokens=("2027", "2026"))
    return Encrypted(ring, context=context)


def after(context: str) -> Encrypted:
    return Encrypted(Keyring({"2027": NEW}), context=context)


async def check_ttls_are_kept(raw: KeyValue[bytes], context: str) -> None:
    kv = raw.with_codec(before(context))
    await kv.put("session.1", b"token", ttl=timedelta(minutes=10))
    await kv.put("session.2", b"token", ttl=timedelta(hours=2))
    await kv.put("stays", b"1")
    await kv.purge("purged", ttl=timedelta(hours=1))
    old = {moving(context).decode_key(key): entry for key, entry in (await raw.get_range()).items()}
    assert await reencrypt(raw, moving(context)) == 4
    kv = raw.with_codec(after(context))
    for key in ("session.1", "session.2"):
        expires = (await kv.get(key)).expires
        assert 0 < expires <= old[key].expires
        assert old[key].expires - expires < 60 * 10**9  # not much shorter either
    assert (await kv.get("stays")).expires == 0
    [mark] = await kv.history("purged")
    assert (mark.operation, mark.expires > 0) == (Operation.PURGE, True)

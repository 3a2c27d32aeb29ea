"""Encrypted values of a bucket become values under the newest key. Over asyncio.

A module of its own, so that a program without encryption need not load a cipher. The blocking twin is generated from
this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.errors import WrongLastSequenceError
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.codecs.encryption import Encrypted


async def reencrypt(kv: KeyValue[bytes], codec: Encrypted, *, timeout: float | None = None) -> int:
    """Write every newest value that is not under the primary key again with it; returns how many.

    `kv` is the bucket without the codec. A value that changes meanwhile is left: its writer used a current key, or
    the next call finds it. History keeps what it has; purge it or let it go before an old key is taken out.
    """
    storage, done = kv.storage, 0
    async for entries in storage.latest((">",), timeout=timeout):
        for entry in entries:
            if entry.is_deleted or codec.is_current(entry.value):
                continue
            key = codec.decode_key(entry.key)
            fresh = codec.encode_value(key, codec.decode_value(key, entry.value))
            try:
                await storage.append(entry.key, fresh, last=entry.revision, timeout=timeout)
            except WrongLastSequenceError:
                continue
            done += 1
    return done

"""Key rotation over asyncio: re-encrypts the values of a bucket with the primary key.

A module of its own, so that programs without encryption need not load a cipher. The blocking twin is generated from
this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.errors import WrongLastSequenceError
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.codecs.encryption import Encrypted


async def reencrypt(kv: KeyValue[bytes], codec: Encrypted, *, timeout: float | None = None) -> int:
    """Re-encrypt every newest value that is not under the primary key; returns how many.

    `kv` is the bucket without the codec. A value that changes meanwhile is skipped: its writer used a current key, or
    the next call finds it. Older entries of the history stay as they are: purge them, or wait until they are gone,
    before removing an old key from the ring.
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

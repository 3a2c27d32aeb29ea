"""The blocking bucket has the interface of the asyncio one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream import BucketConfig, connect_blocking
from slipstream.errors import ReadOnlyError
from slipstream.kv.codecs import Json

SECOND = timedelta(seconds=1)


@pytest.mark.spec("KV-30")
@pytest.mark.steady
def test_the_blocking_bucket_has_the_same_interface(any_server: str, fresh: str) -> None:
    from slipstream.kv._async import key_value as aio
    from slipstream.kv._sync import key_value as blocking

    public = [name for name in vars(aio.KeyValue) if not name.startswith("_")]
    assert public == [name for name in vars(blocking.KeyValue) if not name.startswith("_")]
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        kv = js.create_key_value(BucketConfig(bucket=fresh, history=3))
        assert fresh in list(js.key_values())
        first = kv.create("a.b", b"1")
        second = kv.update("a.b", b"2", last=first)
        assert kv.get("a.b", min_last_revision=second).value == b"2"
        assert [entry.value for entry in kv.history("a.b")] == [b"1", b"2"]
        with kv.writer() as writer:
            for n in range(100):
                writer.put(f"k.{n}", b"x")
        assert len(kv.keys("k.*")) == 100
        assert len(list(kv.iter_keys())) == 101
        with kv.watch("a.>") as watch:
            assert [entry.key for entry in watch.initial()] == ["a.b"]
            kv.delete("a.b")
            entry = watch.next(timeout=5)
            assert entry is not None
            assert entry.is_deleted
        assert kv.delete_range("k.*") == 100
        assert kv.snapshot() == {}
        assert len(kv.snapshot(revision=second)) == 1
        assert kv.purge_deletes(older_than=timedelta(0)) == 101
        with pytest.raises(ReadOnlyError):
            kv.read_only().put("a", b"")
        typed = kv.with_codec(Json(list[int]))
        typed.put("j", [1, 2])
        assert typed.get("j").value == [1, 2]
        cached = kv.cached()
        assert cached.get("j").value == b"[1,2]"
        assert cached.stats.hits == 1
        cached.close()
        with kv.lock("lock", ttl=SECOND) as lock:
            assert lock.token > 0
        assert kv.status().history == 3
        js.update_key_value(BucketConfig(bucket=fresh, history=4))
        assert js.key_value(fresh).status().history == 4
        js.delete_key_value(fresh)

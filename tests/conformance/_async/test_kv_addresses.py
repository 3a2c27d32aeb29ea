"""Buckets at other addresses: custom streams and subjects, domains, and accounts that import them."""

from __future__ import annotations

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.errors import BucketNotFoundError, UsageError
from slipstream.kv.bucket import BucketSource
from tests.servers import real_server

ACCOUNTS = """
accounts: {
  A: {
    jetstream: enabled
    users: [{user: a, password: a}]
    exports: [{service: "$JS.API.>", response: stream}, {service: "$KV.>"}]
  }
  B: {
    users: [{user: b, password: b}]
    imports: [
      {service: {account: A, subject: "$JS.API.>"}, to: "from.a.API.>"}
      {service: {account: A, subject: "$KV.>"}, to: "from.a.kv.>"}
    ]
  }
}
"""


@pytest.mark.spec("KV-16", on="C N")
async def test_a_bucket_with_its_own_stream_and_subjects(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket="settings", history=2, stream=f"{fresh}_CFG", subject_prefix=f"{fresh}.cfg")
        kv = await js.create_key_value(config)
        revision = await kv.put("a.b", b"1")
        message = await js.stream(f"{fresh}_CFG").get(revision)
        assert message.subject == f"{fresh}.cfg.a.b"
        again = await js.key_value("settings", stream=f"{fresh}_CFG")
        assert (await again.get("a.b")).value == b"1"
        assert await again.keys() == ["a.b"]
        async with await again.watch("a.*") as watch:
            assert [entry.key for entry in await watch.initial()] == ["a.b"]
        await again.destroy()
        with pytest.raises(BucketNotFoundError):
            await js.key_value("settings", stream=f"{fresh}_CFG")
    # Below another API prefix (`$JS.<domain>.API`) reads and writes go there: on a real server with a domain.
    with real_server(config="jetstream { domain: hub }") as url:
        async with connect(url) as nc:
            js = nc.jetstream(domain="hub")
            kv = await js.create_key_value(BucketConfig(bucket="b"))
            assert kv.storage.address.put_prefix == "$JS.hub.API.$KV.b."  # type: ignore[attr-defined]
            await kv.put("k", b"1")
            assert (await kv.get("k")).value == b"1"
            assert await kv.keys() == ["k"]
            assert (await (await nc.jetstream().key_value("b")).get("k")).value == b"1"
    # A bucket of another account, imported under other subjects.
    with real_server(config=ACCOUNTS) as url:
        async with connect(url, user="a", password="a") as owner, connect(url, user="b", password="b") as guest:
            theirs = await owner.jetstream().create_key_value(BucketConfig(bucket="cfg", history=3))
            js = guest.jetstream(prefix="from.a.API")
            kv = await js.key_value("cfg", put_prefix="from.a.kv.cfg")
            revision = await kv.put("x", b"guest")
            assert (await theirs.get("x", min_last_revision=revision)).value == b"guest"
            assert (await kv.get("x")).revision == revision
            assert [entry.value for entry in await kv.history("x")] == [b"guest"]


async def test_a_mirror_of_a_bucket_with_its_own_stream_and_subjects(any_server: str, fresh: str) -> None:
    name = fresh.upper()
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh, stream=name, subject_prefix=f"{fresh}.cfg"))
        origin = BucketSource(bucket=fresh, stream=name, subject_prefix=f"{fresh}.cfg")
        config = BucketConfig(bucket=f"{fresh}m", mirror=origin)
        for make in (js.create_key_value, js.update_key_value):
            mirror = await make(config)
            revision = await mirror.put("a.b", b"1")  # goes to the origin
            entry = await mirror.get("a.b", min_last_revision=revision)
            assert (entry.value, entry.revision) == (b"1", revision)
            assert entry.stream in (f"KV_{fresh}m", name)  # the origin proves what the mirror does not have yet
            assert await mirror.keys(min_last_revision=revision) == ["a.b"]


async def test_a_stream_with_several_subjects_needs_a_subject_prefix(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.a.>", f"{fresh}.b.>"), allow_direct=True))
        with pytest.raises(UsageError, match="pass subject_prefix"):
            await js.key_value("b", stream=fresh)
        kv = await js.key_value("b", stream=fresh, subject_prefix=f"{fresh}.b")
        await kv.put("k", b"1")
        assert await kv.keys() == ["k"]

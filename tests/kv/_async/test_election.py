"""Elections and membership on the SQLite backend."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from slipstream import BucketConfig
from slipstream.kv._async.election import Election
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.sqlite_storage import open_sqlite
from slipstream.kv.lease import Record, encode_record
from tests._async.concurrency import spawn

SECOND = timedelta(seconds=1)


async def bucket() -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket="b", value_ttl=True))


async def test_an_election_has_one_leader_and_a_growing_term() -> None:
    kv = await bucket()
    one = kv.election("e", name="one", data=b"host1", ttl=10 * SECOND)
    two = kv.election("e", name="two", data=b"host2", ttl=10 * SECOND)
    assert await one.leader() is None
    seen = two.observe()
    assert await anext(seen) is None
    term = await one.campaign(timeout=5)
    assert one.is_leader
    assert not two.is_leader
    leader = await anext(seen)
    assert leader == await two.leader() == ("one", b"host1", term)
    await one.lease.renew()
    assert await two.leader() == ("one", b"host1", term)
    campaign = spawn(partial(two.campaign, timeout=5))
    await one.resign()
    next_term = await campaign.result()
    assert next_term > term
    assert two.check() == next_term
    while (leader := await anext(seen)) is None:  # the vacancy in between may be seen or not
        pass
    assert leader == ("two", b"host2", next_term)
    await seen.aclose()  # type: ignore[attr-defined]
    await two.resign()


class Clocks:
    """The server's clock and that of a program, which go on together when they are moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def wall_ns(self) -> int:
        return int(self.seconds * 1e9)

    def __call__(self) -> float:
        return self.seconds


async def test_a_dead_leader_is_reported_within_its_lease() -> None:
    clocks = Clocks()
    storage = await open_sqlite(config=BucketConfig(bucket="b"), now=clocks.wall_ns)
    record = encode_record(Record(owner="o", ttl=1.0, name="dead"))
    election = Election(storage, "e", name="second", ttl=1, now=clocks)
    seen = election.observe()
    assert await anext(seen) is None
    term = await storage.append("e", record)  # elected, and never heard of again
    assert await anext(seen) == ("dead", b"", term) == await election.leader()
    clocks.seconds += 1.2
    assert await anext(seen) is None
    assert await election.leader() is None
    assert await anext(Election(storage, "e", now=clocks).observe()) is None
    term = await storage.append("e", record)  # it was only slow
    assert await anext(seen) == ("dead", b"", term) == await election.leader()
    await seen.aclose()  # type: ignore[attr-defined]


@pytest.mark.steady
async def test_members_join_change_and_leave() -> None:
    kv = await bucket()
    group = kv.members("svc.web", ttl=3 * SECOND)  # much longer than a busy machine stands still
    changes = group.watch()
    a = await group.join("a", b"10.0.0.1")
    assert (await anext(changes))[0] == "joined"
    b = await group.join("b", b"10.0.0.2")
    change = await anext(changes)
    assert (change.kind, change.member.name, change.member.data) == ("joined", "b", b"10.0.0.2")
    assert {name: member.data for name, member in (await group.members()).items()} == {
        "a": b"10.0.0.1",
        "b": b"10.0.0.2",
    }
    await b.renew(b"10.0.0.9")
    change = await anext(changes)
    assert (change.kind, change.member.data) == ("updated", b"10.0.0.9")
    await a.release()
    change = await anext(changes)
    assert (change.kind, change.member.name) == ("left", "a")
    b._stop.set()  # it dies: its lease is not renewed any more
    change = await anext(changes)
    assert (change.kind, change.member.name) == ("left", "b")
    assert await group.members() == {}
    await changes.aclose()  # type: ignore[attr-defined]


@pytest.mark.spec("KV-44")
async def test_a_key_without_a_lease_below_a_set_is_left_out_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    kv = await open_local_key_value(config=BucketConfig(bucket="b"))
    group = kv.members("svc", ttl=30 * SECOND)
    await kv.put("svc.readme", b"not a lease")
    lease = await group.join("a", b"1")
    assert list(await group.members()) == ["a"]
    changes = group.watch()
    assert (await anext(changes)).member.name == "a"
    await kv.put("svc.readme", b"still not")
    other = await group.join("b", b"2")
    assert (await anext(changes)).member.name == "b"
    await changes.aclose()  # type: ignore[attr-defined]
    assert list(group.foreign.keys) == ["svc.readme"]
    assert [record.levelname for record in caplog.records if record.name == "slipstream.kv"] == ["WARNING"]
    for held in (lease, other):
        await held.release()
    await kv.close()

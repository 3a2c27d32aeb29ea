"""A stream whose last message is in the future, since the machine's clock was a day ahead and was put right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.server.engine.streams.stream_time import StreamTime
from slipstream.wire import Headers
from tests.server.support import SECOND, START, Client, Rig

DAY = 86_400 * SECOND


def after_the_jump(**config: object) -> tuple[Rig, Client]:
    """A stream with a message, of which the server was started again a day earlier."""
    ahead = Rig(now=START + DAY)
    client = ahead.client()
    client.create("S", **config)
    client.publish("s.old", b"", Nats_Msg_Id="old")
    right = Rig(store=ahead.store, now=START)
    return right, right.client()


def seqs(client: Client) -> list[int]:
    state = client.api("STREAM.INFO.S", {"deleted_details": True})["state"]
    gone = state.get("deleted") or []
    return (
        [seq for seq in range(state["first_seq"], state["last_seq"] + 1) if seq not in gone]
        if state["messages"]
        else []
    )


@pytest.mark.parametrize("config", [{"max_age": 5 * SECOND}, {"max_age": 5 * SECOND, "allow_msg_ttl": True}])
def test_messages_expire_by_max_age_whatever_the_clock_was(config: dict[str, object]) -> None:
    rig, client = after_the_jump(**config)
    client.publish("s.new")
    assert seqs(client) == [1, 2]
    rig.wait(4.9)
    assert seqs(client) == [1, 2]
    rig.wait(0.7)  # a tenth more at most
    assert seqs(client) == []
    for n in range(20):
        client.publish(f"s.{n}")
        rig.wait(1)
    assert 4 <= len(seqs(client)) <= 6
    rig.wait(6)
    assert seqs(client) == []


def test_a_lifetime_ends_whatever_the_clock_was() -> None:
    rig, client = after_the_jump(allow_msg_ttl=True)
    client.publish("s.new", b"", Nats_TTL="3s")
    rig.wait(2.9)
    assert seqs(client) == [1, 2]
    rig.wait(0.5)
    assert seqs(client) == [1]


def test_the_duplicate_window_ends_whatever_the_clock_was() -> None:
    rig, client = after_the_jump(duplicate_window=SECOND)
    assert client.publish("s.1", b"", Nats_Msg_Id="old")["duplicate"]
    first = client.publish("s.1", b"", Nats_Msg_Id="a")
    assert client.publish("s.1", b"", Nats_Msg_Id="a")["seq"] == first["seq"]
    rig.wait(1.2)
    assert client.publish("s.1", b"", Nats_Msg_Id="a")["seq"] > first["seq"]
    assert "duplicate" not in client.publish("s.1", b"", Nats_Msg_Id="old")


def test_times_of_messages_ascend_and_return_to_the_clock() -> None:
    rig, _ = after_the_jump()
    times = []
    for _ in range(12):
        rig.client().publish("s.1")
        times.append(rig.engine.streams["S"].log.state.last_time)
        rig.wait(86_400)
    assert times == sorted(set(times))
    assert START + DAY <= times[0] < START + DAY + SECOND
    assert times[-1] == rig.now - DAY  # caught up, after ten days


def test_reads_by_time_are_in_order() -> None:
    rig, client = after_the_jump(allow_direct=True)
    for n in range(5):
        rig.wait(10)
        client.publish(f"s.{n}")
    log = rig.engine.streams["S"].log
    stamps = [record.time for record in log.scan("", 1, limit=10)]
    assert stamps == sorted(stamps)
    assert [log.time_to_seq(time) for time in stamps] == [1, 2, 3, 4, 5, 6]


def test_timers_of_batches_and_schedules_keep_the_servers_time() -> None:
    rig, client = after_the_jump(allow_atomic=True, allow_msg_schedules=True)
    client.publish(
        "s.plan", b"x", Nats_Schedule="@at 2023-11-14T22:13:30Z", Nats_Schedule_Target="s.out"
    )  # in ten seconds
    client.ask("s.b", b"x", Headers({"Nats-Batch-Id": "one", "Nats-Batch-Sequence": "1"}))
    assert rig.engine.batch_usage.batches == 1
    rig.wait(11)
    assert rig.engine.batch_usage.batches == 0  # given up after ten seconds
    assert rig.engine.streams["S"].log.last_seq_of("s.out")


@given(st.integers(0, 10**18), st.lists(st.integers(0, 10**15), min_size=1, max_size=20))
def test_the_streams_time_never_goes_back_and_meets_the_servers(ahead: int, steps: list[int]) -> None:
    time, now = StreamTime(), START
    time.begin(START + ahead, now)
    before = time.at(now)
    assert before == START + ahead
    for step in steps:
        moment = before + step
        due = time.until(moment, now)
        assert now <= due
        assert time.at(due) >= moment or due == moment
        now += step
        current = time.at(now)
        assert before <= current <= before + step or current == now
        assert current >= now
        before = current
    assert time.at(START + 10 * ahead) == START + 10 * ahead


def test_a_message_after_a_pause_is_not_older_than_it_is() -> None:
    """By now the clock has passed the last message, but not yet the stream's time."""
    rig, _ = after_the_jump(max_age=3600 * SECOND)
    rig.wait(86_400 + 10)
    client = rig.client()
    client.publish("s.new")
    rig.wait(3500)
    assert seqs(rig.client()) == [2]
    rig.wait(600)
    assert seqs(rig.client()) == []

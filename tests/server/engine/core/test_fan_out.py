"""Publishes that take long, to very many subscribers or past many: a client that pipelines them is served in slices."""

from __future__ import annotations

from slipstream.server.engine.engine import BRANCHES_PER_UNIT, TARGETS_PER_UNIT
from slipstream.server.engine.jobs import RECEIVE_UNITS, STEP_UNITS
from slipstream.wire import Msg, Pong, pub
from tests.server.support import Rig

SUBS, PUBLISHES = 1000, 60
TURN = (2 * RECEIVE_UNITS + STEP_UNITS) * TARGETS_PER_UNIT + 3 * SUBS  # deliveries, at most


def test_pipelined_publishes_to_many_subscribers_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = rig.client(), rig.client(), rig.client()
    reader.send(b"".join(b"SUB a.b %d\r\n" % n for n in range(SUBS)))
    reader.take()
    burst = b"".join(pub("a.b", b"%d" % n) for n in range(PUBLISHES))
    writer.send(burst + b"PING\r\n", settle=False)
    counts, total = [], 0
    while total < SUBS * PUBLISHES:
        other.send(b"PING\r\n", settle=False)  # it is answered in every turn
        rig.engine.step(rig.now)
        rig.flush()
        assert any(isinstance(event, Pong) for event in other.take())
        seen = reader.messages()
        assert [m.payload for m in seen[::SUBS]] == [
            b"%d" % n for n in range(total // SUBS, (total + len(seen)) // SUBS)
        ]
        counts.append(len(seen))
        total += len(seen)
        assert len(counts) < 100
    assert max(counts) <= TURN
    rig.settle()
    assert any(isinstance(event, Pong) for event in writer.take())  # behind its publishes


def test_pipelined_publishes_past_many_patterns_take_several_turns() -> None:
    rig = Rig()
    reader, writer, other = rig.client(), rig.client(), rig.client()
    tokens, count = 10, 5 * PUBLISHES
    patterns = (".".join("*" if n >> at & 1 else "a" for at in range(tokens)) for n in range(2**tokens))
    reader.send(b"".join(f"SUB {pattern}.z {sid}\r\n".encode() for sid, pattern in enumerate(patterns)))
    reader.send(b"SUB done 5000\r\n")
    reader.take()
    burst = b"".join(pub(f"{'.'.join('a' * tokens)}.b{n}", b"") for n in range(count))
    writer.send(burst + pub("done", b"") + b"PING\r\n", settle=False)
    turns = 0
    while not reader.messages():
        other.send(b"PING\r\n", settle=False)  # it is answered in every turn
        rig.engine.step(rig.now)
        rig.flush()
        assert any(isinstance(event, Pong) for event in other.take())
        turns += 1
        assert turns < 100
    branches = sum(2**at for at in range(5, tokens + 1)) * count  # at the tokens that meet more than a few
    assert turns >= branches / BRANCHES_PER_UNIT / (2 * RECEIVE_UNITS + STEP_UNITS)
    assert turns > 5


def test_few_subscribers_hold_up_no_publisher() -> None:
    rig = Rig()
    reader, writer = rig.client(), rig.client()
    reader.send(b"SUB a.b 1\r\nSUB a.* 2\r\n")
    reader.take()
    writer.send(b"".join(pub("a.b", b"x") for _ in range(3000)), settle=False)
    rig.flush()
    assert sum(isinstance(event, Msg) for event in reader.take()) == 6000

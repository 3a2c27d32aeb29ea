"""The driver: when the engine's timers run."""

from __future__ import annotations

from pathlib import Path

from slipstream.wire import Msg
from tests.jetstream.reads.simulation.choices import Choices
from tests.server.simulation.loop import SECOND
from tests.server.simulation.world import Check, Op, World


def test_a_clock_that_is_set_forward_does_not_delay_timers(tmp_path: Path) -> None:
    world = World(Choices(), tmp_path)
    world.is_checked = False  # the model knows nothing of what is asked here
    answers: list[bytes] = []

    def record(message: Msg) -> str:
        answers.append(message.payload)
        return ""

    def run(_: int) -> Check:
        return record

    world.start()
    try:
        client = world.clients[0]
        world.connect(client)
        world.settle()  # a timer is set: the client is pinged in two minutes
        world.time.offset += 3600 * SECOND
        world.request(client, Op("create", "$JS.API.STREAM.CREATE.S", b'{"name":"S"}', run))
        world.settle(waits=False)
        request = b'{"seq":1,"min_last_seq":7}'  # a sequence that the stream does not reach
        world.request(client, Op("get", "$JS.API.STREAM.MSG.GET.S", request, run))
        world.settle(waits=False)
        assert len(answers) == 1
        world.advance(SECOND)
        world.settle(waits=False)
        assert len(answers) == 2
        assert b"10180" in answers[1]
    finally:
        world.stop()

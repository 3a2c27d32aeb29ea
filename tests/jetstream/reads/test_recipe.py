"""The document's own recipe through the client: too high a sequence is rejected, publish, then the same succeeds."""

from __future__ import annotations

import pytest

from slipstream import ConsumerConfig, StreamConfig, connect
from slipstream.errors import StaleReadError


@pytest.mark.spec("RW-12", on="C")
@pytest.mark.spec("RW-18", on="C")
@pytest.mark.steady
async def test_reads_and_a_consumer_wait_for_the_sequence_that_was_asked_for(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.*",), allow_direct=True))
        await js.publish(f"{fresh}.a", b"1")
        with pytest.raises(StaleReadError):
            await stream.get_last(f"{fresh}.a", min_last_seq=3, timeout=1)
        with pytest.raises(StaleReadError):
            await stream.get(1, min_last_seq=3, timeout=1)
        with pytest.raises(StaleReadError):
            await stream.get_last(f"{fresh}.a", min_last_seq=3, from_leader=True, timeout=1)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="dur", min_last_seq=3))
        assert await consumer.fetch(5, timeout=1) == []
        assert (await consumer.info()).delivered.stream_seq == 0
        for data in (b"2", b"3"):
            await js.publish(f"{fresh}.a", data)
        assert (await consumer.info()).num_pending == 3
        assert [message.seq for message in await consumer.fetch(5, timeout=5)] == [1, 2, 3]
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=3)).data == b"3"
        assert (await stream.get(1, min_last_seq=3)).data == b"1"
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=3, from_leader=True)).data == b"3"

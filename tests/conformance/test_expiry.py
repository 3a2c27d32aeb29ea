"""Expiry and the duplicate window together, on our server and on a real one."""

from __future__ import annotations

import asyncio

from slipstream import connect


async def test_an_id_is_free_again_once_its_window_is_over_and_its_message_expired(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=fresh, max_age=1.0, duplicate_window=1.0)
        first = await js.publish(fresh, b"a", msg_id="one")
        assert (await js.publish(fresh, b"a", msg_id="one")).seq == first.seq
        async with asyncio.timeout(30):
            while (await stream.info()).state.messages:
                await asyncio.sleep(0.05)
            while (again := await js.publish(fresh, b"b", msg_id="one")).duplicate:
                await asyncio.sleep(0.05)
        assert again.seq == first.seq + 1
        assert (await stream.info()).state.first_seq == again.seq

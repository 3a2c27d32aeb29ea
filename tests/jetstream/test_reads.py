"""Reads through the client on our server, where a released one has nothing to compare."""

from __future__ import annotations

import pytest

from slipstream import connect
from slipstream.api import GetRequest
from slipstream.errors import MinLastSequenceError, StaleReadError
from tests.conformance.test_streams import config


@pytest.mark.spec("RW-02", "RW-04", on="E C")
async def test_message_get_keeps_min_last_seq_on_our_server(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"old")
        request = GetRequest(last_by_subj=f"{fresh}.a", min_last_seq=2)
        with pytest.raises(MinLastSequenceError) as caught:
            await stream.get_from_leader(request)
        assert (caught.value.code, caught.value.err_code) == (412, 10180)
        assert isinstance(caught.value, StaleReadError)
        await js.publish(f"{fresh}.a", b"new")
        assert (await stream.get_from_leader(request)).data == b"new"

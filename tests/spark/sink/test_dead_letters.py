"""Dead letters: whatever a row holds, the letter is one that the server takes."""

from __future__ import annotations

import pytest

from slipstream import Server, StreamConfig, connect_blocking
from slipstream.errors import UsageError
from slipstream.spark.sink.dead_letters import DeadLetters


@pytest.mark.parametrize("max_payload", [1024, 4096, 1024 * 1024])
@pytest.mark.parametrize("name", ["k" * 2_000, "\U0001f600" * 2_000, "a" + "日本" * 600, "k", "\ud800"])
def test_dead_letter_is_truncated_to_the_maximum_payload(name: str, max_payload: int) -> None:
    with Server(max_payload=max_payload) as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name="D", subjects=("D",), allow_direct=True))
        rejects = DeadLetters("D", prefix="p", timeout=5)
        rejects.attach(js)
        for row, size in enumerate((10, max_payload - 200, 2 * max_payload)):
            rejects.add(row, name, b"x" * size, UsageError(f"row {row}: bad key {name}: letters are allowed"))
        rejects.flush()
        small, *_, large = letters = list(js.stream("D").read())
    assert len(letters) == 3
    assert (small.data, small.headers.get("Slipstream-Truncated")) == (b"x" * 10, None)
    assert large.headers.get("Slipstream-Truncated") == str(2 * max_payload)
    assert len(large.data) + len(large.headers.encode()) == max_payload  # to the last byte
    assert len(large.data) >= max_payload // 3
    for letter in letters:
        assert str(letter.headers.get("Slipstream-Reason")).startswith(f"bad key {name[:20]}".replace("\ud800", "?"))
        assert "\ufffd" not in str(letter.headers.get("Slipstream-Name"))


def test_id_of_a_dead_letter_does_not_depend_on_the_row_number() -> None:
    with Server(max_payload=1024) as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name="D", subjects=("D",), allow_direct=True))
        for row in (9, 10_000):  # another attempt; the number is longer, so less of the row has room
            rejects = DeadLetters("D", prefix="p", timeout=5)
            rejects.attach(js)
            rejects.add(row, "k", b"x" * 2000, UsageError(f"row {row}: bad key 'k'"))
            rejects.flush()
        assert js.stream("D").info().state.messages == 1

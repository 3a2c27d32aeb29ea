"""Dead letters: all that helps is in their headers, and nothing that a stream would obey."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from slipstream.jetstream.consume import dead_letter
from slipstream.jetstream.consume.ack_subject import Metadata
from slipstream.jetstream.consume.dead_letter import Extent
from slipstream.wire import Headers

AT = Metadata("JOBS", "worker", 3, 17, 40, 1_700_000_000_000_000_000, 5)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def failed(text: str) -> Exception:
    """An exception with a traceback."""
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def letter(headers: Headers, error: Exception, *, extent: Extent = Extent.WHOLE) -> dict[str, str]:
    """The headers of a dead letter, as a stream gets them."""
    made = dead_letter.letter_headers(headers, AT, error, subject="jobs.1", now=NOW, extent=extent, size=9)
    return dict(Headers.parse(made.encode()).items())


def test_a_letter_says_what_failed_where_and_how_often() -> None:
    found = letter(Headers({"Trace": "abc"}), failed("order_id"))
    trace = found.pop("Dead-Letter-Traceback")
    assert "test_dead_letter.py" in trace
    assert trace.endswith("in failed")
    assert found == {
        "Trace": "abc",
        "Dead-Letter-Reason": "KeyError: 'order_id'",
        "Dead-Letter-Error": "KeyError",
        "Dead-Letter-Stream": "JOBS",
        "Dead-Letter-Sequence": "17",
        "Dead-Letter-Subject": "jobs.1",
        "Dead-Letter-Consumer": "worker",
        "Dead-Letter-Deliveries": "3",
        "Dead-Letter-Time": "2026-01-02T03:04:05Z",
    }


def test_instructions_to_a_stream_are_kept_under_another_name() -> None:
    found = letter(Headers({"Nats-Msg-Id": "7", "Nats-Rollup": "all", "nats-ttl": "1s", "Name": "x"}), failed("a"))
    assert not [name for name in found if name.lower().startswith("nats-")]
    assert found["Original-Nats-Msg-Id"] == "7"
    assert found["Name"] == "x"


def test_the_headers_of_an_earlier_time_as_a_dead_letter_are_replaced() -> None:
    old = Headers({"Dead-Letter-Reason": "old", "Dead-Letter-Traceback": "old"})
    found = letter(old, failed("new"), extent=Extent.NO_TRACEBACK)
    assert found["Dead-Letter-Reason"] == "KeyError: 'new'"
    assert "Dead-Letter-Traceback" not in found


def test_a_letter_without_payload_says_so() -> None:
    found = letter(Headers(), failed("x"), extent=Extent.NO_PAYLOAD)
    assert found["Dead-Letter-Left-Out"] == "payload of 9 bytes: too large with these headers"
    assert "Dead-Letter-Traceback" not in found


def test_names_that_no_client_may_send_are_made_fit() -> None:
    received = Headers.received([("Bad Name", "1"), ("", "2"), ("nats-\xe9", "3"), ("Good", "4")])
    found = letter(received, failed("x"))
    assert (found["Bad_Name"], found["_"], found["Original-nats-_"], found["Good"]) == ("1", "2", "3", "4")


@given(text=st.text())
def test_any_text_fits_into_one_line(text: str) -> None:
    reason = letter(Headers(), ValueError(text))["Dead-Letter-Reason"]
    assert len(reason) <= dead_letter.MAX_REASON
    assert "\n" not in reason


def test_the_id_is_that_of_the_message_and_not_of_the_delivery() -> None:
    first = dead_letter.letter_id(AT, 5)
    assert first == dead_letter.letter_id(AT._replace(num_delivered=4, consumer_seq=41), 5)
    for other in (AT._replace(stream_seq=18), AT._replace(time=1), AT._replace(consumer="other")):
        assert first != dead_letter.letter_id(other, 5)
    assert first != dead_letter.letter_id(AT, 6)  # a consumer that was made again


def test_a_class_is_named_with_its_module() -> None:
    assert dead_letter.type_of(KeyError()) == "KeyError"
    assert dead_letter.type_of(dead_letter_error()) == f"{__name__}.OwnError"


class OwnError(Exception):
    """Of a program."""


def dead_letter_error() -> Exception:
    """An exception that is not built in."""
    return OwnError()

"""Ack subjects: both formats, and everything that is neither."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.errors import NotJetStreamMessageError, RemoteProtocolError, UsageError
from slipstream.jetstream.consume.ack_subject import Metadata, nak_body, parse_reply, split_reply, term_body

V1 = "$JS.ACK.bar.dur.2.29034.29041.1626845015078897000.7"


@pytest.mark.spec("SW-10")
def test_both_formats_of_the_ack_subject_are_parsed_and_anything_else_is_rejected() -> None:
    expected = Metadata("bar", "dur", 2, 29034, 29041, 1626845015078897000, 7)
    assert parse_reply(V1) == expected
    for tail in ("", ".random", ".one.two"):
        v2 = f"$JS.ACK.hub.h4sh.bar.dur.2.29034.29041.1626845015078897000.7{tail}"
        assert parse_reply(v2) == expected._replace(domain="hub")
        assert parse_reply(v2.replace(".hub.", "._.")) == expected  # no domain
    for bad in (
        "",
        "_INBOX.a.b",
        "$JS.ACK.bar.dur.2.29034.29041.1626845015078897000",  # 8 tokens
        "$JS.ACK.hub.bar.dur.2.29034.29041.1626845015078897000.7",  # 10 tokens
        V1.replace("$JS.ACK", "$JS.NAK"),
        V1.replace("$JS", "JS"),
        V1.replace(".2.", ".two."),
        V1.replace(".29034.", ".-29034."),
        V1.replace(".29034.", ".."),
        V1.replace(".7", ".\u0667"),  # a digit, but not of the protocol
    ):
        with pytest.raises(NotJetStreamMessageError, match="reply subject"):
            parse_reply(bad)
        with pytest.raises(RemoteProtocolError):
            split_reply(bad)


def test_nak_delay_and_term_reason_are_part_of_the_ack_body() -> None:
    assert nak_body(None) == nak_body(0) == b"-NAK"
    assert nak_body(1.5) == nak_body(timedelta(seconds=1.5)) == b'-NAK {"delay":1500000000}'
    assert term_body("") == b"+TERM"
    assert term_body("bad order") == b"+TERM bad order"
    with pytest.raises(UsageError, match="delay"):
        nak_body(-1)
    with pytest.raises(UsageError, match="single line"):
        term_body("a\r\nb")

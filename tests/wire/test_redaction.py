"""URLs without their secrets."""

from __future__ import annotations

import pytest

from slipstream.wire.redaction import redacted


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:SECRET@h:4222", "nats://***@h:4222"),
        ("nats://TOKEN@h", "nats://***@h"),
        ("u:SECRET@h", "***@h"),
        ("nats://h:4222", "nats://h:4222"),
        ("nats://u:SEC@RET@h", "nats://***@h"),
        ("nats://a:S1@h1, tls://T2@h2,h3", "nats://***@h1,tls://***@h2,h3"),
        ("nats://u:SEC,RET@h", "nats://***@h"),
        ("hub=nats://u:SECRET@h", "***@h"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_user_password_and_token(url: str, shown: str) -> None:
    assert redacted(url) == shown

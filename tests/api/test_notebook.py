"""HTML for notebooks: hostile names and payloads stay text."""

from __future__ import annotations

from html.parser import HTMLParser

import slipstream
from slipstream.api.notebook import payload_text

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
ALLOWED = {"div", "strong", "table", "tr", "th", "td", "pre"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def check(shown: object) -> str:
    page = Tags()
    page.feed(shown._repr_html_())  # type: ignore[attr-defined]
    assert page.tags <= ALLOWED
    assert page.attributes <= {"style"}
    return page.text


def test_hostile_content_is_shown_as_text() -> None:
    message = slipstream.StoredMessage(
        EVIL, 7, 1, b"NATS/1.0\r\nX: " + EVIL.encode() + b"\r\n\r\n", EVIL.encode(), EVIL
    )
    assert check(message).count(EVIL) == 4
    with slipstream.Server() as server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("S", subjects=["s.>"], description=EVIL)
        js.publish("s.<b>", EVIL.encode())
        assert EVIL in check(stream.info())
        consumer = stream.create_consumer("c", description=EVIL)
        assert EVIL in check(consumer.info())
        assert EVIL in check(consumer.next(timeout=5))
        assert "Stream S" in check(stream)
        kv = js.create_key_value("b", description=EVIL)
        kv.put("k", EVIL.encode())
        assert EVIL in check(kv.get("k"))
        assert EVIL in check(kv.status())
        assert "Bucket b" in check(kv)


def test_payloads_are_json_text_or_hex() -> None:
    assert payload_text(b'{"a":1}') == '{\n  "a": 1\n}'
    assert payload_text(b"{no json") == "{no json"
    assert payload_text("größe".encode()) == "größe"
    assert payload_text(b"\x00\xff") == "00 ff"
    assert payload_text("ä".encode() * 5000).endswith("… 10,000 bytes")
    assert len(payload_text(b"\x00" * 1_000_000)) < 1000

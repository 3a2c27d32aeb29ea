"""HTML for notebooks (`_repr_html_`): facts and payloads, everything in it escaped.

Names, subjects, headers and payloads come from other programs: what is shown is text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import msgspec

LONGEST = 2000  # characters of a payload that are shown

_TABLE = "border-collapse:collapse;text-align:left"
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


def facts(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A title with facts below it; those that are None are left out."""
    lines = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{_shown(value)}</td></tr>'
        for name, value in rows
        if value is not None
    )
    return f'<div><strong>{escape(title)}</strong><table style="{_TABLE}">{lines}</table></div>'


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        text = payload_text(bytes(value))
        return f'<pre style="margin:0;white-space:pre-wrap">{escape(text)}</pre>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(str(value))


def payload_text(data: bytes) -> str:
    """A payload to look at: indented JSON, text, or the beginning in hexadecimal."""
    more = f"\n… {len(data):,} bytes" if len(data) > LONGEST else ""
    if not more and data[:1] in (b"{", b"["):
        try:
            return msgspec.json.format(data, indent=2).decode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
    try:
        # What is cut off may split a character.
        text = data[:LONGEST].decode("utf-8", "strict" if not more else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(one) < 32 and one not in "\t\r\n" for one in text):
        text = data[: LONGEST // 8].hex(" ")
        more = f"\n… {len(data):,} bytes" if len(data) > LONGEST // 8 else ""
    return text + more

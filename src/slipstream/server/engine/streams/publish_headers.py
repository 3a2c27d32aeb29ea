"""Parser of the `Nats-…` headers of a publish, and edits of header blocks.

A block without any `Nats-` header costs one search. The first of repeated headers counts, and names are case-sensitive:
both as on nats-server.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import names

_NUMBERS = {names.EXPECTED_LAST_SEQ: "last_seq", names.EXPECTED_LAST_SUBJECT_SEQ: "subject_seq"}
_TEXTS = {
    names.MSG_ID: "msg_id",
    names.EXPECTED_STREAM: "stream",
    names.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: "subject",
    names.EXPECTED_LAST_MSG_ID: "last_msg_id",
    names.ROLLUP: "rollup",
    names.TTL: "ttl",
    names.INCR: "incr",
    names.BATCH_ID: "batch",
    names.BATCH_SEQUENCE: "batch_seq",
    names.BATCH_COMMIT: "batch_commit",
    names.SCHEDULER: "scheduler",
    names.SCHEDULE_NEXT: "schedule_next",
    names.STREAM_SOURCE: "source",
    names.REQUIRED_API_LEVEL: "api_level",
}


class PublishHeaders(NamedTuple):
    """The `Nats-…` headers of a publish; empty and None: not set."""

    msg_id: str = ""
    stream: str = ""
    last_seq: int | None = None
    subject_seq: int | None = None
    subject: str = ""
    last_msg_id: str = ""
    rollup: str = ""
    ttl: str = ""
    incr: str = ""
    batch: str = ""
    batch_seq: str = ""
    batch_commit: str = ""
    scheduler: str = ""
    schedule_next: str = ""
    source: str = ""
    api_level: str = ""


NO_HEADERS = PublishHeaders()


def is_number(text: str) -> bool:
    """Whether a text is a plain number: `int` accepts other digits too, and raises for thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def parse_publish_headers(header: bytes) -> PublishHeaders:
    """Parse a header block. The first line of a name counts, also if it is empty."""
    if b"\r\nNats-" not in header:
        return NO_HEADERS
    found: dict[str, object] = {}
    empty: set[str] = set()
    for line in header.decode(errors="replace").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        value = value.strip()
        if not value:
            empty.add(name)
        elif name in empty:
            continue
        elif name in _TEXTS:
            found.setdefault(_TEXTS[name], value.lower() if name == names.ROLLUP else value)
        elif name in _NUMBERS:
            # An invalid number cannot be the right one: it is rejected as a wrong sequence, as on nats-server.
            found.setdefault(_NUMBERS[name], int(value) if is_number(value) else -1)
    return PublishHeaders(**found) if found else NO_HEADERS  # type: ignore[arg-type]


def remove_header(header: bytes, name: str) -> bytes:
    """The block without the lines of that name; empty if there are no others."""
    lead = f"{name}:"
    if f"\r\n{lead}".encode() in header:  # in one pass, however many there are
        header = remove_lines(header, (lead,))
    return b"" if header == b"NATS/1.0\r\n\r\n" else header


def remove_lines(header: bytes, leads: tuple[str, ...]) -> bytes:
    """The block without the lines that begin with one of `leads`."""
    first, *lines = header.split(b"\r\n")
    begins = tuple(lead.encode() for lead in leads)
    return b"\r\n".join([first, *(line for line in lines if not line.startswith(begins))])


def set_header(header: bytes, name: str, value: str) -> bytes:
    """The block with one line of that name, at its end."""
    header = remove_header(header, name)
    body = header[:-2] if header.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n"
    return b"%b%b: %b\r\n\r\n" % (body, name.encode(), value.encode())

"""Many literal subjects become their newest messages, in few requests, none older than a given sequence.

The end of a multi-subject get carries the responder's own last sequence: less than wanted, and the answer is thrown
away and asked for again. Where no subject has a message there is no such end; the caller must not rely on absence (a
publish that expects sequence 0 finds out).
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.api import GetRequest, encode_json
from slipstream.errors import RequestTimeoutError, StaleReadError
from slipstream.facade.blocking import JetStream
from slipstream.jetstream.columns import ColumnPage
from slipstream.jetstream.direct import StoredMessage

MOST_SUBJECTS = 1_000  # a server refuses more than 1,024
MOST_BYTES = 256 * 1024  # of a request
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25


def latest(
    js: JetStream, stream: str, subjects: Sequence[str], *, at_least: int, timeout: float
) -> dict[str, StoredMessage]:
    """The newest message of each subject that has one."""
    found: dict[str, StoredMessage] = {}
    for piece in _pieces(subjects):
        left: Sequence[str] = piece
        while left:
            page = _ask(js, stream, left, at_least, timeout)
            got = {message.subject: message for message in page.take().messages()}
            found.update(got)
            if page.end is None or page.end.pending <= 0 or not got:
                break
            left = [subject for subject in left if subject not in got]  # the answer would have been too large
    return found


def _pieces(subjects: Sequence[str]) -> list[list[str]]:
    pieces: list[list[str]] = []
    size = MOST_BYTES
    for subject in subjects:
        size += len(subject) + 3
        if size > MOST_BYTES or len(pieces[-1]) >= MOST_SUBJECTS:
            pieces.append([])
            size = len(subject) + 3
        pieces[-1].append(subject)
    return pieces


def _ask(js: JetStream, stream: str, subjects: Sequence[str], at_least: int, timeout: float) -> ColumnPage:
    """One answer that is new enough; a replica that is behind is not believed."""
    client = js.client
    asked = js.stream(stream)._api.direct_subject(stream)
    body = encode_json(GetRequest(multi_last=tuple(subjects), batch=len(subjects)))
    deadline, pause = client.now() + timeout, _FIRST_PAUSE
    while True:
        page = ColumnPage(asked)
        token = client.start_bulk(asked, body, page)
        try:
            client.wait(page.is_finished, timeout=max(deadline - client.now(), 0.001), what=f"values of {stream}")
        finally:
            client.cancel(token)
        seen = -1 if page.end is None else page.end.up_to_seq
        if seen >= at_least or (page.end is not None and page.end.last_seq < 0):
            return page
        if client.now() + pause > deadline:
            text = f"{stream}: a replica with last sequence {seen} answered, wanted {at_least}"
            raise StaleReadError(text, stream=stream, min_last_seq=at_least)
        try:
            client.wait(lambda: False, timeout=pause, what="a replica to catch up")
        except RequestTimeoutError:
            pause = min(pause * 2, _LONGEST_PAUSE)

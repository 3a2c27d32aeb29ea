"""Blocks as fast batches: each is acknowledged as a whole, in flight, or comes back, whatever is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.jetstream.publish.bulk_window import Draft
from slipstream.jetstream.publish.fast_batches import FastBatchWindow
from slipstream.server.engine.streams import fast_batches
from slipstream.wire import Msg

INBOX = "_INBOX.abc.7"


def drafts(count: int, subject: str = "s") -> list[Draft]:
    return [(subject, b"%d" % n, b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n) for n in range(count)]


def said(subject: bytes, payload: bytes, header: bytes = b"") -> Msg:
    return Msg(subject.decode(), b"7", "", header, payload)


@pytest.mark.parametrize("count", [1, 2, 3, 500])
def test_reply_subjects_are_what_a_server_reads(count: int) -> None:
    blocks = FastBatchWindow[int](INBOX)
    names = set()
    for _ in range(2):
        parts = [fast_batches.parse(reply.decode()) for reply in blocks.sending(drafts(count), range(count))]
        assert all(part is not None and len(part.batch) <= 64 for part in parts)
        names.add(parts[0].batch)  # type: ignore[union-attr]
        assert [(part.number, part.gaps) for part in parts if part] == [(n, False) for n in range(1, count + 1)]
        whole = (
            [fast_batches.COMMIT]
            if count == 1
            else [fast_batches.START, *[fast_batches.APPEND] * (count - 2), fast_batches.COMMIT]
        )
        assert [part.operation for part in parts if part] == whole
    assert len(names) == 2
    assert blocks.in_flight == 2 * count


def test_names_of_batches_are_not_shared_between_writers() -> None:
    """A batch is known by its name alone, whichever client sends it."""
    (one,) = FastBatchWindow[int]("_INBOX.abc.7").sending(drafts(1), [1])
    (other,) = FastBatchWindow[int]("_INBOX.abd.7").sending(drafts(1), [1])
    assert fast_batches.parse(one.decode()).batch != fast_batches.parse(other.decode()).batch  # type: ignore[union-attr]


ANSWERS = ("report", "gap", "whole", "short", "error", "no_responders", "strange")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_a_block_is_acknowledged_in_flight_or_comes_back(sizes: list[int], data: st.DataObject) -> None:
    blocks = FastBatchWindow[str](INBOX)
    replies = {at: blocks.sending(drafts(size), [f"{at}.{n}" for n in range(size)]) for at, size in enumerate(sizes)}
    open_ones, acked, back, last = set(replies), 0, [], 0
    for _ in range(data.draw(st.integers(0, 20))):
        at, kind = data.draw(st.sampled_from(sorted(replies))), data.draw(st.sampled_from(ANSWERS))
        reply, size, seq = data.draw(st.sampled_from(replies[at])), sizes[at], data.draw(st.integers(1, 99))
        name = reply.split(b".")[3]
        count = size if kind == "whole" else size - 1
        ack = b'{"stream":"S","seq":%d,"batch":"%b","count":%d}' % (seq, name, count)
        msg = {
            "report": said(reply, b'{"type":"ack","seq":3,"msgs":3}'),
            "gap": said(reply, b'{"type":"gap","last_seq":3,"seq":5}'),
            "whole": said(reply, ack),
            "short": said(reply, ack),
            "error": said(reply, b'{"error":{"code":400,"err_code":10208,"description":"x"},"stream":"S","seq":0}'),
            "no_responders": said(reply, b"", b"NATS/1.0 503\r\n\r\n"),
            "strange": said(reply, b"hello"),
        }[kind]
        blocks.deliver(msg)
        if kind not in ("report", "gap") and at in open_ones:
            open_ones.discard(at)
            if kind == "whole":
                acked, last = acked + size, max(last, seq)
            else:
                back.append([f"{at}.{n}" for n in range(size)])
        blocks.deliver(said(b"_INBOX.abc.7.other-1.500.fail.1.0.$FI", ack))  # of another batch
        assert (blocks.acked, blocks.last_seq) == (acked, last)
        assert [list(block.items) for block in blocks.again] == back
        assert blocks.in_flight == sum(sizes[at] for at in open_ones)

"""Range reads without a server: pages come as bytes would, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConnectionLostError
from slipstream.jetstream.reads.columns import ColumnPage, TakenColumns
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from tests.jetstream.reads.test_direct_get import batched, reply


def eob(pending: int) -> bytes:
    return b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: 1\r\n\r\n" % pending


def page_of(*headers: bytes) -> ColumnPage:
    page = ColumnPage("x")
    for header in headers:
        page.deliver(reply(header))
    return page


def feed(reader: RangeReader, page: ColumnPage) -> TakenColumns:
    """Move a reader on by what arrived of its page, as its driver does."""
    columns, is_over = page.take()
    return TakenColumns(reader.accept(columns, page.end if is_over else None), is_over)


def seqs(reader: RangeReader, page: ColumnPage) -> list[int]:
    return feed(reader, page).columns.seqs


def test_a_page_is_finished_by_a_status_line_and_only_by_it() -> None:
    page = ColumnPage("x")
    assert page.deliver(reply(batched(1))) is False
    assert page.deliver(reply(eob(0))) is True
    assert page.ready()
    assert page.finished


@pytest.mark.spec("DG-21", on="C")
def test_a_server_without_batches_is_read_message_by_message() -> None:
    old = (
        b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-11-15T08:03:38Z\r\n\r\n"
    )
    reader = RangeReader(start=1, end=2)
    for seq in (1, 2):
        assert reader.state.name == "READING"
        assert reader.request().seq == seq
        page = reader.page("x")
        assert page.deliver(reply(old % seq)) is True
        progress = feed(reader, page)
        assert progress.columns.seqs == [seq]
        assert progress.is_over
    assert reader.state.name == "DONE"


def test_the_end_seen_is_the_end_of_the_range() -> None:
    reader = RangeReader(start=3, end=4)
    assert seqs(reader, page_of(batched(3), batched(4), eob(5))) == [3, 4]
    assert reader.state.name == "DONE"


def test_a_message_beyond_the_end_proves_that_nothing_is_missing() -> None:
    reader = RangeReader(start=1, end=4)
    assert seqs(reader, page_of(batched(2), batched(7))) == [2]
    assert reader.state.name == "DONE"


def test_a_responder_that_ends_early_leaves_the_range_in_doubt() -> None:
    reader = RangeReader(start=1, end=4)
    assert seqs(reader, page_of(batched(2), eob(0))) == [2]
    assert reader.state.name == "DOUBTFUL"
    reader.resume()
    assert reader.state.name == "READING"
    assert reader.request().seq == 3
    seqs(reader, page_of(eob(0)))
    assert reader.state.name == "DOUBTFUL"
    reader.finish()
    assert reader.is_done


def test_a_range_may_begin_at_a_time() -> None:
    reader = RangeReader(since=1_763_190_218_000_000_000)
    assert (reader.request().seq, reader.request().start_time) == (0, "2025-11-15T07:03:38Z")
    seqs(reader, page_of(batched(7), eob(2)))
    assert (reader.request().seq, reader.request().start_time) == (8, None)


def test_a_server_that_keeps_min_last_seq_is_believed() -> None:
    reader = RangeReader(start=1, end=4, trusting=True)
    assert reader.request().min_last_seq == 4
    assert seqs(reader, page_of(batched(2), eob(0))) == [2]
    assert reader.state.name == "DONE"


def test_without_an_end_the_read_goes_on_until_nothing_is_pending() -> None:
    reader = RangeReader()
    assert seqs(reader, page_of(batched(1), eob(3))) == [1]
    assert reader.state.name == "READING"
    assert seqs(reader, page_of(batched(5), eob(0))) == [5]
    assert reader.state.name == "DONE"


def test_without_an_end_a_wanted_sequence_must_have_been_seen() -> None:
    reader = RangeReader(at_least=6)
    assert seqs(reader, page_of(batched(5), eob(0))) == [5]
    assert reader.state.name == "DOUBTFUL"


def test_an_empty_range_asks_nothing() -> None:
    assert RangeReader(start=5, end=4).state is RangeState.DONE


def test_a_lost_connection_is_raised_behind_what_came_before_it() -> None:
    page = page_of(batched(1))
    page.fail(ConnectionLostError("gone"))
    reader = RangeReader()
    assert seqs(reader, page) == [1]
    assert not reader.is_done
    with pytest.raises(ConnectionLostError):
        feed(reader, page)


@given(
    stored=st.sets(st.integers(1, 60), max_size=40),
    start=st.integers(1, 60),
    end=st.integers(1, 60),
    size=st.integers(1, 7),
    cut=st.integers(1, 5),
)
def test_any_paging_gives_the_messages_of_the_range(
    stored: set[int], start: int, end: int, size: int, cut: int
) -> None:
    reader = RangeReader(start=start, end=end)
    got: list[int] = []
    while reader.state is not RangeState.DONE:
        if reader.state is RangeState.DOUBTFUL:
            if any(s >= reader.next_seq for s in stored):
                reader.resume()
            else:
                reader.finish()
            continue
        rest = [s for s in sorted(stored) if s >= reader.request().seq]
        headers = [batched(s) for s in rest[:size]] + [eob(max(len(rest) - size, 0))]
        page = reader.page("x")
        over = False
        while not over:
            for header in headers[:cut]:
                page.deliver(reply(header))
            del headers[:cut]
            progress = feed(reader, page)
            got += progress.columns.seqs
            over = progress.is_over or reader.is_done
    assert got == [s for s in sorted(stored) if start <= s <= end]


def test_columns_that_arrive_while_a_page_is_taken_come_with_the_next_take() -> None:
    class Racing(ColumnPage):
        """Another thread delivers the rest between the take and the look at the end."""

        def take(self) -> TakenColumns:
            taken = super().take()
            if not self.finished:
                self.deliver(reply(batched(2)))
                self.deliver(reply(eob(0)))
            return taken

    page, reader = Racing("x"), RangeReader()
    page.deliver(reply(batched(1)))
    first = feed(reader, page)
    assert (first.columns.seqs, first.is_over, reader.is_done) == ([1], False, False)
    second = feed(reader, page)
    assert (second.columns.seqs, second.is_over, reader.is_done) == ([2], True, True)


def test_what_was_wanted_beyond_the_end_is_the_goal() -> None:
    reader = RangeReader(start=1, end=4, at_least=9, trusting=True)
    assert reader.request().min_last_seq == 9


def test_messages_that_are_gone_are_passed_over() -> None:
    reader = RangeReader(start=1, end=4)
    reader.pass_over(4)
    assert seqs(reader, page_of(batched(2))) == [2]
    assert reader.is_done


def test_a_range_without_an_end_goes_on_to_what_replaced_a_part_of_it() -> None:
    reader = RangeReader(at_least=3)
    reader.read_on(5)
    assert seqs(reader, page_of(batched(3), eob(0))) == [3]
    assert reader.state is RangeState.DOUBTFUL  # 4 or 5 is behind
    reader.resume()
    assert seqs(reader, page_of(batched(5), eob(0))) == [5]
    assert reader.is_done
    bounded = RangeReader(end=3)
    bounded.read_on(5)
    assert seqs(bounded, page_of(batched(3), eob(0))) == [3]
    assert bounded.is_done


def test_a_stream_that_was_made_again_is_not_read_up_to_the_old_one() -> None:
    reader = RangeReader(at_least=3)
    reader.read_on(5)
    reader.lower_goal(3)
    assert reader.goal == 5
    reader.lower_goal(0)
    assert reader.goal == 0

"""The Prometheus text format, held against the parser of prometheus_client."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from slipstream.metrics.exposition import Exposition, Family, Histogram, label_set
from slipstream.metrics.server import FAMILIES

ONE = {"x": Family("gauge", 'a "help"\nof \\ two lines'), "h": Family("histogram", "h"), "s": Family("summary", "s")}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_any_label_value_reads_back_the_same(value: str) -> None:
    page = Exposition(ONE)
    page.add("x", 1, label_set(subject=value, other="o"))
    (family,) = parse(page.encode().decode())
    assert [sample.labels for sample in family.samples] == [{"subject": value, "other": "o"}]


@given(st.one_of(st.integers(-(2**63), 2**64), st.floats(allow_nan=False, allow_infinity=False)))
def test_any_number_reads_back_the_same(value: float) -> None:
    page = Exposition(ONE)
    page.add("x", value)
    (family,) = parse(page.encode().decode())
    assert family.documentation == 'a "help"\nof \\ two lines'
    assert family.samples[0].value == value


@given(st.lists(st.floats(0, 100), max_size=50))
def test_buckets_are_cumulative_and_end_at_infinity(values: list[float]) -> None:
    histogram = Histogram(1, 2.5, 10)
    for value in values:
        histogram.observe(value)
    page = Exposition(ONE)
    page.add_histogram("h", histogram, label_set(storage="file"))
    page.add_summary("s", len(values), histogram.total)
    family, summary = parse(page.encode().decode())
    got = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    bounds = {"1.0": 1.0, "2.5": 2.5, "10.0": 10.0, "+Inf": math.inf}
    counts = {le: sum(value <= bound for value in values) for le, bound in bounds.items()}
    assert {float(le): got[le] for le in got if not le.startswith("slip")} == {
        float(le): count for le, count in counts.items()
    }
    assert got["slipstream_h_count"] == len(values)
    assert {sample.name: sample.value for sample in summary.samples}["slipstream_s_count"] == len(values)


def test_names_follow_the_conventions() -> None:
    for name, family in FAMILIES.items():
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert family.help.endswith("."), name
        assert not name.endswith(("_ms", "_nanoseconds", "_kb")), name


def test_pieces_are_bounded_and_join_to_the_page() -> None:
    page = Exposition(ONE)
    for number in range(1000):
        page.add("x", number, label_set(n=str(number)))
    pieces = list(page.pieces(size=100))
    assert b"".join(pieces) == page.encode()
    assert max(piece.count(b"\n") for piece in pieces) == 100

"""The archive in a snapshot: entries there and back, however the bytes are cut, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api.snapshot.archive import END, MAGIC, ArchiveReader, Entry, encode_entry

entries = st.builds(
    Entry, st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1),
    st.binary(max_size=30), st.binary(max_size=300),
)  # fmt: skip


@given(st.lists(entries, max_size=6), st.integers(1, 40))
def test_entries_come_back_however_the_bytes_are_cut(written: list[Entry], size: int) -> None:
    data = MAGIC + b"".join(encode_entry(entry) for entry in written)
    reader = ArchiveReader()
    read = [entry for at in range(0, len(data), size) for entry in reader.feed(data[at : at + size])]
    assert read == written


def test_an_entry_is_written_as_nats_server_writes_it() -> None:
    assert encode_entry(END) == bytes(5)
    assert encode_entry(Entry("ab", 1, 300, b"H", b"xyz")) == b"\x02\x02\xac\x02\x01\x03abHxyz"
    assert encode_entry(Entry("", -1)) == b"\x00\x01\x00\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"NATSARC2xxxx",
        MAGIC + b"\xff" * 11,
        MAGIC + b"\xff\xff\xff\x7f\0\0\0\0",
        MAGIC + b"\0\0\0\xff\xff\xff\xff\x7f\0",
        MAGIC + b"\x01\0\0\0\0\xff",
    ],
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        ArchiveReader().feed(data)

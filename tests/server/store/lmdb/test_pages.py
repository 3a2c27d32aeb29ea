"""Pages that LMDB must not touch: they are found before it maps the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import CorruptRecordError
from slipstream.server.store.lmdb.pages import PageFile
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.store.lmdb.test_lmdb import TINY, filled


@pytest.mark.parametrize("table", ["messages", "index", "subjects", "control"])
@pytest.mark.parametrize("field", [0, 6])  # sizes of the data and of the key
def test_a_page_with_a_node_of_a_wrong_size_is_refused(tmp_path: Path, table: str, field: int) -> None:
    """LMDB would destroy the nodes beside it, and its own memory, when it deletes it."""
    filled(tmp_path, 120)
    with PageFile(tmp_path / "data.mdb") as file:
        number, page, _, _ = next(file._leaves(file.trees()[table], table))
    node = min(memoryview(page)[16 : page[12] | page[13] << 8].cast("H"))  # it ends within the page in any case
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    data[number * len(page) + node + field] ^= 2
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(CorruptRecordError, match=f"page {number} of table '{table}' has nodes of wrong sizes"):
        LmdbStore(tmp_path, tuning=TINY)


def test_a_branch_with_a_node_of_a_wrong_size_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 600)
    with PageFile(tmp_path / "data.mdb") as file:
        tree = file.trees()["messages"]
        assert tree.depth == 2
        page = file._page(tree.root, 1)
    node = min(memoryview(page)[16 : page[12] | page[13] << 8].cast("H"))
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    data[tree.root * len(page) + node + 6] ^= 2
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(CorruptRecordError, match=f"page {tree.root} of table 'messages' has nodes of wrong sizes"):
        LmdbStore(tmp_path, tuning=TINY)

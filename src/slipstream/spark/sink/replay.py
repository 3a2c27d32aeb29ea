"""Rows that a sink has taken from Spark and that are not known to be stored, so that they can be sent again.

A task gets its rows once. When its connection is lost, the fate of the rows in flight is unknown, and the task must go
on from the last point at which everything was stored. The buffer is bounded: a sink confirms all rows whenever it is
full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ROWS = 50_000  # a wait for all acks per so many rows costs nothing that can be measured
MAX_BYTES = 32 * 1024 * 1024


class Replay(Generic[T]):
    """Blocks of rows, of which those that were not confirmed come again in the next iteration."""

    def __init__(self, blocks: Iterator[Sequence[T]], size: Callable[[T], int]) -> None:
        """`size` is the number of bytes of a row. `blocks` must raise no error that another attempt could mend."""
        self._source = blocks
        self._size = size
        self._kept: list[Sequence[T]] = []
        self._rows = 0
        self._bytes = 0
        self.count: int = 0  # rows taken from the source

    def __iter__(self) -> Iterator[Sequence[T]]:
        yield from tuple(self._kept)
        for block in self._source:
            self._kept.append(block)
            self._rows += len(block)
            self._bytes += sum(map(self._size, block))
            self.count += len(block)
            yield block

    @property
    def is_full(self) -> bool:
        """Whether it is time to confirm."""
        return self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES

    def confirm(self) -> None:
        """Every row that was handed out is stored, or rejected for good."""
        self._kept.clear()
        self._rows = self._bytes = 0

"""The query that reads a source once and writes several outputs, each exactly once.

Theory of operation. Spark runs one streaming query over the decoded messages of the source; `foreachBatch` keeps the
rows of a batch and writes them to one output after the other. Each output has a batch number and a query id of its
own, from its own checkpoint, and its sink is told those and not the shared query's:

    shared:   offsets/7 ------------------------------------------------------------------------> commits/7
    alerts:              offsets/58  write as (alerts' id, 58)  commits/58
    history:                                                                offsets/31  write ...  commits/31

A run that ends anywhere in between repeats shared batch 7, with the same end. An output that has committed it is at its
end, and is left out. One that had begun it writes the same rows under the same id and number again, which is what its
sink recognises. So nothing depends on which outputs shared a read when a batch was begun. Sinks remember tasks by
partition: the rows for an output that is ahead of the batch get the partitions that they have if it reads them alone.

An output that fails for good is left out of the batches that follow, stays where it is, and reads by itself from there
in the next run. Any other failure ends the query; its restart repeats the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from slipstream.errors import Error
from slipstream.spark.failures import is_outage, is_stopped, is_transient, telling_line, with_short_errors
from slipstream.spark.micro_batch import BATCH_ID, QUERY_ID
from slipstream.spark.pipelines.fan_out.checkpoints import Checkpoint, CheckpointPosition, has_all_before
from slipstream.spark.pipelines.fan_out.grouping import SharingGroup
from slipstream.spark.source.offsets import Offset
from slipstream.spark.source.plan import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MAX_FAILURES = 20  # in a row, of one output, outages apart: after those it is left out, and the others go on

# Makes the views of a batch from its rows, all of them or those of a range of sequences, in the partitions that a query
# which reads this range has; returns the rows.
Views = Callable[["DataFrame", Range | None], "DataFrame"]
Rows = Callable[["DataFrame"], "DataFrame"]


class SharingOutput(NamedTuple):
    """One output of a shared read."""

    name: str
    rows: Rows  # for its sink, of a batch whose views are those of the session
    write: Callable[[DataFrame, int], int]  # rows and the number of the output's batch; returns the number of rows
    checkpoint: Checkpoint


class WrittenBatch(NamedTuple):
    """A batch of an output that a shared batch has written."""

    batch: int
    rows: int


class SharedRead:
    """A source and the outputs that are written from one read of it."""

    def __init__(
        self, source: str, frame: DataFrame, views: Views, outputs: Sequence[SharingOutput], checkpoint: Checkpoint
    ) -> None:
        """`frame` are the messages of the source, decoded; `views` makes the views of a batch."""
        self.source = source
        self._frame = frame
        self._views = views
        self.outputs = tuple(outputs)
        self.checkpoint = checkpoint
        self.failed: dict[str, str] = {}  # by output: why it failed for good
        self._failures: dict[str, int] = {}
        self._written: dict[int, dict[str, WrittenBatch]] = {}

    def prepare(self, group: SharingGroup) -> None:
        """Bring the checkpoint of the shared query to where the group begins; before the first start of a run."""
        if group.continues:
            return
        self.checkpoint.clear()
        if group.start:
            first = next(one for one in self.outputs if one.name == group.start)
            position = first.checkpoint.position()
            assert position is not None, "the group was chosen by it"
            self.checkpoint.start_behind(first.checkpoint, position.batch)

    def writer(self) -> DataStreamWriter:
        """A writer of the query, still without checkpoint and trigger."""
        return self._frame.writeStream.foreachBatch(with_short_errors(self._write))

    def written(self, batch: int) -> Mapping[str, WrittenBatch]:
        """What a shared batch has written, by output; can be asked once."""
        return self._written.pop(batch, {})

    def _write(self, rows: DataFrame, batch: int) -> None:
        text, end = self.checkpoint.offsets_text(batch), self.checkpoint.end_of(batch)
        begin = self.checkpoint.end_of(batch - 1) if batch else None
        due = {}
        for one in self.outputs:
            if one.name not in self.failed and (found := self._position(one, begin, end)) is not None:
                due[one] = found
        rows.persist()
        try:
            for one, position in due.items():
                self._attempt(one, position, rows, batch, text, begin)
        finally:
            rows.unpersist()
        if len(self.failed) == len(self.outputs):
            raise Error("every output of this read has failed")

    def _position(self, one: SharingOutput, begin: Offset | None, end: Offset) -> CheckpointPosition | None:
        """Where an output is, if it has rows of this batch to write."""
        found = one.checkpoint.position()
        if found is not None and has_all_before(found.end, begin, end):
            if found.end is not None and found.end.created == end.created and found.end.seq >= end.seq:
                return None  # repeated: written before
            return found
        self.failed[one.name] = "its checkpoint is behind the shared read; the next run reads for it alone"
        return None

    def _attempt(
        self,
        one: SharingOutput,
        position: CheckpointPosition,
        rows: DataFrame,
        batch: int,
        offsets: str,
        begin: Offset | None,
    ) -> None:
        """Write an output's rows of a batch. Raises what another attempt may mend."""
        number = position.batch + 1
        end = self.checkpoint.end_of(batch)
        is_inside = position.end is not None and position.end.created == end.created and position.end != begin
        part = Range(position.end.seq + 1, end.seq) if position.end is not None and is_inside else None
        try:
            if position.pending is not None and position.pending != end:
                raise Error("its checkpoint has begun another batch; the next run reads for it alone")
            one.checkpoint.begin(number, offsets)
            own = self._views(rows, part)
            with _as_query(rows.sparkSession, one.checkpoint.query_id(), number):
                count = one.write(one.rows(own), number)
            one.checkpoint.commit(number)
        except Exception as error:
            text = str(error)
            if is_stopped(text):
                raise
            self._failures[one.name] = self._failures.get(one.name, 0) + (not is_outage(text))
            is_hopeless = self._failures[one.name] > MAX_FAILURES
            if is_transient(text) and not is_hopeless:
                raise
            self.failed[one.name] = telling_line(text)
            return
        self._failures.pop(one.name, None)
        self._written.setdefault(batch, {})[one.name] = WrittenBatch(number, count)


@contextmanager
def _as_query(session: SparkSession, query: str, batch: int) -> Iterator[None]:
    """Jobs inside belong to this query and batch, as far as sinks and lookup tables are concerned."""
    context = session.sparkContext
    before = {name: context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)}
    try:
        context.setLocalProperty(QUERY_ID, query)
        context.setLocalProperty(BATCH_ID, str(batch))
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it

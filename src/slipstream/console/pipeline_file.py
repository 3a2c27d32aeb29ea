"""A pipeline as the console sees it: its file as a graph, what its runs have recorded, and its dead letters.

Everything here blocks and runs in a thread. No server is started and nothing of the pipeline's state is changed; a
server that runs is asked over one connection, which is opened again when it fails.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream import Error, MessageNotFoundError, StreamNotFoundError
from slipstream.console.paging import shown
from slipstream.console.web import Problem

if TYPE_CHECKING:
    from slipstream import BlockingJetStream
    from slipstream.spark.pipelines.model import Pipeline
    from slipstream.spark.pipelines.workbench.dead_letters import Letter

T = TypeVar("T")
PAGE = 50
SLICE = 200  # letters that one request sends again
FIRST_WINDOW, LONGEST_WINDOW = 200, 20_000  # sequences that are looked at for a page of letters
LOOKED = 200_000


class PipelineFile:
    """One pipeline file and its state folder."""

    def __init__(self, file: str, servers: str = "") -> None:
        from slipstream.spark.pipelines import load
        from slipstream.spark.pipelines.state import StateFolder

        self.pipeline: Pipeline = load(file)
        self._servers = servers
        self._state = StateFolder(self.pipeline)
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._js: BlockingJetStream | None = None
        self._run = (0, "")

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline.name

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._js = None
        self._stack.close()

    def _ask(self, work: Callable[[BlockingJetStream], T]) -> T:
        """The result of `work` with a connection to the pipeline's server."""
        from slipstream.spark.pipelines.connection import existing_server

        with self._lock:
            run = self._state.read_run()[:2]
            if run != self._run:  # another run has another embedded server
                self._close()
                self._run = run
            try:
                if self._js is None:
                    self._js = self._stack.enter_context(existing_server(self.pipeline, self._state, self._servers))
                if self._js is None:
                    raise Problem(503, "the pipeline has not run yet, so it has no server to query")
                return work(self._js)
            except (Error, OSError):
                self._close()
                raise

    # The file.

    def graph(self) -> dict[str, Any]:
        """Sources, steps and outputs as nodes with a column each stands in, and the flows between them."""
        from slipstream.spark.pipelines.workbench.explain import edges

        pipeline, nodes = self.pipeline, dict[str, dict[str, Any]]()
        for source in pipeline.sources:
            what = f"stream {source.stream}" if source.stream else f"changes of bucket {source.bucket}"
            nodes[source.name] = {"kind": "source", "name": source.name, "detail": f"{what} · {source.format}"}
        for table in pipeline.tables:
            detail = f"state of bucket {table.bucket} · {table.format}"
            nodes[table.name] = {"kind": "table", "name": table.name, "detail": detail}
        for step in pipeline.steps:
            nodes[step.name] = {"kind": "step", "name": step.name, "detail": "SQL"}
        for output in pipeline.outputs:
            detail = f"{output.kind} {output.target}"
            nodes[f"output:{output.name}"] = {"kind": "output", "name": output.name, "detail": detail}
        flows: list[dict[str, Any]] = [
            {"start": start, "end": end, "columns": list(columns) if columns is not None else None}
            for start, end, columns in edges(pipeline)
        ]
        if pipeline.dead_letter:
            nodes["letters:"] = {"kind": "letters", "name": pipeline.dead_letter, "detail": "dead letters"}
            for source in pipeline.sources:
                if source.format != "raw":
                    flows.append({"start": source.name, "end": "letters:", "columns": None, "dead": True})
        _set_columns(nodes, flows)
        return {"nodes": [one | {"id": key} for key, one in nodes.items()], "edges": flows}

    def about(self) -> dict[str, Any]:
        """The file as a whole."""
        return {"name": self.name, "trigger": self.pipeline.trigger, "dead_letter": self.pipeline.dead_letter,
                "outputs": [*(one.name for one in self.pipeline.outputs), *self.pipeline.dead_letter_queries()],
                "graph": self.graph()}  # fmt: skip

    # Its runs.

    def sample(self) -> dict[str, Any]:
        """What the runs have done so far, and how far behind each output is."""
        from slipstream.spark.pipelines.connection import NotReachedError, last_sequences
        from slipstream.spark.pipelines.display import failure
        from slipstream.spark.pipelines.lag import letter_counts
        from slipstream.spark.pipelines.state import QueryState, lag_of

        pid, _, queries = self._state.read_run()
        last: dict[str, int] = {}
        letters: dict[str, int] = {}
        away = ""
        try:
            last, letters = self._ask(lambda js: (last_sequences(js, self.pipeline), letter_counts(js, self.pipeline)))
        except (NotReachedError, Problem, Error, OSError) as error:
            away = str(error)
        outputs = {}
        for name in (*(one.name for one in self.pipeline.outputs), *self.pipeline.dead_letter_queries()):
            batch, offsets = self._state.committed(name)
            seen = queries.get(name, QueryState())
            outputs[name] = {
                "batch": max(batch, seen.batch),
                "rows": seen.rows,
                "written": seen.written if seen.written >= 0 else None,
                "batch_rows": seen.batch_rows,
                "batch_seconds": seen.batch_seconds,
                "lag": lag_of(self.pipeline, name, offsets, last),
                "lag_seconds": round(seen.lag_seconds, 1) if pid else None,
                "dead": letters.get(name, seen.dead),
                "at": seen.at,
                "error": failure(seen),
                "failed": seen.is_failed,
            }
        return {"time": round(time.time(), 1), "pid": pid, "saved": self._state.saved_at(), "away": away,
                "outputs": outputs}  # fmt: skip

    # Its dead letters.

    def letters(self, before: int = 0, origin: str = "") -> dict[str, Any]:
        """A page of dead letters before a sequence (0: the newest), of one source or output, the newest first."""
        if not self.pipeline.dead_letter:
            return {"kept": False, "letters": [], "more": 0}

        def read(js: BlockingJetStream) -> dict[str, Any]:
            stream = js.stream(self.pipeline.dead_letter)
            try:
                state = stream.info().state
            except StreamNotFoundError:
                return {"kept": True, "letters": [], "more": 0, "total": 0, "last": 0}
            upto, window, looked = min(before or state.last_seq + 1, state.last_seq + 1), FIRST_WINDOW, 0
            found: list[Letter] = []
            while upto > max(state.first_seq, 1) and len(found) < PAGE and looked < LOOKED:
                start = max(state.first_seq, upto - window, 1)
                letters = map(self._letter, stream.read(start=start, end=upto - 1))
                # A window has up to 20,000 messages of any size: nothing is kept but what may be shown.
                found[:0] = deque((one for one in letters if not origin or one.origin == origin), maxlen=PAGE + 1)
                looked += upto - start
                upto, window = start, min(window * 4, LONGEST_WINDOW)
            page = found[-PAGE:]
            is_more = len(found) > PAGE or upto > max(state.first_seq, 1)
            rows = [
                shown(one.message)
                | {"origin": one.origin, "row": one.is_row, "reason": one.reason, "columns": one.columns}
                for one in reversed(page)
            ]
            more = (page[0].seq if page else upto) if is_more else 0
            return {"kept": True, "letters": rows, "more": more, "total": state.messages, "last": state.last_seq}

        return self._ask(read)

    def _letter(self, message: Any) -> Letter:
        from slipstream.spark.pipelines.workbench.dead_letters import MISFIT, Letter, misfits

        origin = message.subject.removeprefix(f"{self.pipeline.dead_letter}.")
        reason = message.headers.get("Slipstream-Reason") or ""
        is_row = message.headers.get("Slipstream-Row") is not None
        source = next((one for one in self.pipeline.sources if one.name == origin and not is_row), None)
        columns = misfits(source, message.data) if source is not None and reason.startswith(MISFIT) else ()
        return Letter(message.seq, origin, is_row, reason, columns, message)

    def resend_one(self, seq: int) -> dict[str, Any]:
        """Send the message of one letter again, and remove the letter."""
        from slipstream.spark.pipelines.workbench.dead_letters import resend

        def send(js: BlockingJetStream) -> dict[str, Any]:
            try:
                letter = self._letter(js.stream(self.pipeline.dead_letter).get(seq))
            except MessageNotFoundError:
                raise Problem(404, f"dead letter {seq} no longer exists: it was sent again, or removed") from None
            if letter.is_row:
                raise Problem(409, "a letter of an output is a row: correct the step and reset the output instead")
            return dict(resend(js, self.pipeline, [letter]))

        return self._ask(send)

    def resend_slice(self, start: int, end: int, origin: str = "") -> dict[str, Any]:
        """Send the messages of letters from a sequence on again, some at a time; `next` is 0 when all are done."""
        from slipstream.spark.pipelines.workbench.dead_letters import resend

        def chosen(js: BlockingJetStream) -> Iterator[Letter]:
            for message in js.stream(self.pipeline.dead_letter).read(start=max(start, 1), end=end):
                yield self._letter(message)

        def send(js: BlockingJetStream) -> dict[str, Any]:
            batch: list[Letter] = []
            following = 0
            for looked, letter in enumerate(chosen(js)):
                if len(batch) >= SLICE or looked >= LONGEST_WINDOW:
                    following = letter.seq
                    break
                if not letter.is_row and (not origin or letter.origin == origin):
                    batch.append(letter)
            done = resend(js, self.pipeline, batch)
            return {"sent": done["sent"], "replaced": done["replaced"], "outputs": done["outputs"], "next": following}

        return self._ask(send)


def _set_columns(nodes: dict[str, dict[str, Any]], flows: list[dict[str, Any]]) -> None:
    """Put each node one column behind what flows into it, and all targets into the last."""
    for node in nodes.values():
        node["column"] = 0
    for _ in nodes:  # steps are in the order of their dependencies, so few rounds are needed
        for flow in flows:
            end = nodes[flow["end"]]
            end["column"] = max(end["column"], nodes[flow["start"]]["column"] + 1)
    last = max((node["column"] for node in nodes.values()), default=0)
    for node in nodes.values():
        if node["kind"] in ("output", "letters"):
            node["column"] = last


def connection_of(file: str, servers: str = "") -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The arguments of `connect` and `jetstream` for a pipeline's server; None while its embedded one is not up."""
    import os
    from pathlib import Path

    from slipstream.spark.connect import read_context
    from slipstream.spark.option_reader import OptionReader, secrets_of
    from slipstream.spark.options import JETSTREAM
    from slipstream.spark.pipelines import load
    from slipstream.spark.pipelines.state import StateFolder

    pipeline = load(file)
    options = dict(pipeline.connection)
    if servers:
        options["servers"] = servers
    if not options.get("servers") and not options.get("context"):
        pid, url, _ = StateFolder(pipeline).read_run()
        if not pid or not url:
            return None
        options["servers"] = url
    connection = OptionReader(JETSTREAM, options, tuple(options)).connection()
    arguments: dict[str, Any] = {"name": "slipstream-console"}
    prefix, domain = connection.api_prefix, connection.domain
    if connection.context:
        context = read_context(connection.context, os.environ)
        arguments |= context.arguments()
        if not (prefix or domain):
            prefix, domain = context.jetstream_api_prefix, context.jetstream_domain
    if connection.credentials:
        arguments["credentials"] = Path(connection.credentials).expanduser()
    elif not {"user", "token", "nkey", "credentials"}.intersection(arguments):
        arguments |= secrets_of(os.environ)._asdict()
    if connection.servers:
        arguments["servers"] = list(connection.servers)
    return arguments, {"prefix": prefix, "domain": "" if prefix else domain}

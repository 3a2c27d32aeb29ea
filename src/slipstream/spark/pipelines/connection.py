"""Connection of a pipeline: to the servers that its file names, or to an embedded server with its data on disk.

Streams and buckets that the file declares are created if they do not exist; existing ones are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from slipstream.api import StreamConfig
from slipstream.errors import BucketNotFoundError, ConnectionLostError, Error, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.kv.bucket import BucketConfig
from slipstream.spark.connect import open_jetstream
from slipstream.spark.option_reader import OptionReader
from slipstream.spark.options import JETSTREAM
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.retries import RetryPolicy

LOOK_TIMEOUT = 3.0  # seconds for a server to answer where the answer is not essential

T = TypeVar("T")


class NotReachedError(Error):
    """A server that cannot be looked at now; the text says why."""


@contextmanager
def connection_options(
    pipeline: Pipeline, state: StateFolder, servers: str = "", *, in_memory: bool = False
) -> Iterator[dict[str, str]]:
    """The connection options of the Spark formats; an embedded server runs meanwhile if no other is named.

    `servers` (from the command line) take precedence over the file's. The data of the embedded server are on disk,
    unless they are to be `in_memory`.
    """
    connection = dict(pipeline.connection)
    if servers:
        connection["servers"] = servers
    if connection.get("servers") or connection.get("context"):
        yield connection
        return
    from slipstream import Server

    if not in_memory:
        state.server.mkdir(parents=True, exist_ok=True)
    with Server(port=pipeline.server.get("port", 0), data_dir=None if in_memory else state.server) as server:
        yield {**connection, "servers": server.url}


@contextmanager
def open_connection(options: Mapping[str, str]) -> Iterator[JetStream]:
    """JetStream with these connection options."""
    connection = OptionReader(JETSTREAM, options, tuple(options)).connection()
    with open_jetstream(connection, os.environ) as js:
        yield js


def wait_out(
    options: Mapping[str, str],
    work: Callable[[], T],
    *,
    pause: Callable[[float], object],
    is_stopping: Callable[[], bool],
) -> T | None:
    """The result of `work`, which is called again while the server or a stream's leader is away, for as long as the
    option `retryFor` of the connection says; None if the run is stopped meanwhile.
    """
    seconds = OptionReader(JETSTREAM, options, tuple(options)).connection().retry_for
    retries = RetryPolicy(seconds, pause=pause)
    while True:
        try:
            result = work()
        except Error as error:
            retries.failed(error)
            if is_stopping():
                return None
        else:
            retries.succeeded()
            return result


@contextmanager
def running_server(pipeline: Pipeline, servers: str = "") -> Iterator[JetStream]:
    """A connection to the server of a pipeline, whether it runs or not: the embedded one is started where it has data.
    Raises UsageError where it has none, since there is nothing to read."""
    state = StateFolder(pipeline)
    pid, url, _ = state.read_run()
    is_embedded = not (servers or pipeline.connection.get("servers") or pipeline.connection.get("context") or pid)
    if is_embedded and not state.server.exists():
        raise UsageError("the embedded server of this pipeline has no data yet: there is nothing to read")
    with (
        connection_options(pipeline, state, servers or (url if pid else "")) as connection,
        open_connection(connection) as js,
    ):
        yield js


@contextmanager
def existing_server(pipeline: Pipeline, state: StateFolder, servers: str = "") -> Iterator[JetStream | None]:
    """A connection to the servers that a run of the pipeline would use, without starting any.

    None if there is nothing to look at: the embedded server has no data yet. Raises NotReachedError if there is a
    server that cannot be looked at.
    """
    pid, url, _ = state.read_run()
    connection = {"timeout": str(LOOK_TIMEOUT), **pipeline.connection}
    if servers := servers or connection.get("servers", "") or (url if pid else ""):
        connection["servers"] = servers
    elif not connection.get("context"):
        if state.server.exists():
            raise NotReachedError("the embedded server is not running")
        yield None
        return
    with ExitStack() as stack:
        try:
            js = stack.enter_context(open_connection(connection))
        except (ConnectionLostError, TimeoutError, OSError) as error:
            raise NotReachedError(str(error)) from error
        yield js


def create_declared(js: JetStream, pipeline: Pipeline) -> list[str]:
    """Create the declared streams and buckets that do not exist, and the dead-letter stream; returns which."""
    created = []
    declared = [
        StreamConfig(**{"name": one.name, "subjects": one.subjects, "allow_direct": True, **one.settings})
        for one in pipeline.streams
    ]
    dead_letter = pipeline.dead_letter
    if dead_letter and all(one.name != dead_letter for one in declared):
        declared.append(StreamConfig(name=dead_letter, subjects=(f"{dead_letter}.>",), allow_direct=True))
    for config in declared:
        try:
            js.stream(config.name).info()
        except StreamNotFoundError:
            js.create_stream(config)
            created.append(f"stream {config.name}")
    for bucket in pipeline.buckets:
        try:
            js.key_value(bucket.name)
        except BucketNotFoundError:
            js.create_key_value(BucketConfig(**{"bucket": bucket.name, **bucket.settings}))
            created.append(f"bucket {bucket.name}")
    return created


def last_messages(js: JetStream, stream: str, count: int) -> list[bytes]:
    """The payloads of the last messages of a stream."""
    try:
        info = js.stream(stream).info()
    except StreamNotFoundError as error:
        near = suggestion(stream, js.stream_names(), "the streams are")
        raise UsageError(f"there is no stream {stream!r}; {near}") from error
    start = max(info.state.first_seq, info.state.last_seq - count + 1, 1)
    if not info.state.messages:
        raise UsageError(f"stream {stream!r} has no messages to infer a schema from")
    return [message.data for message in js.stream(stream).read(start=start, end=info.state.last_seq)]


def last_sequences(js: JetStream, pipeline: Pipeline) -> dict[str, int]:
    """The last sequence of each source's stream, by the source's name; sources without a stream are left out."""
    found = {}
    for source in pipeline.sources:
        try:
            info = js.stream(source.stream_name).info()
        except StreamNotFoundError:
            continue
        found[source.name] = info.state.last_seq
    return found

"""The connection of a pipeline becomes servers to talk to: those it names, or an embedded one with its data on disk.

Streams and buckets that the file declares are made if they are not there; what is there is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from slipstream.api import StreamConfig
from slipstream.errors import BucketNotFoundError, StreamNotFoundError
from slipstream.facade._sync.client import JetStream
from slipstream.kv.bucket import BucketConfig
from slipstream.spark.connect import open_jetstream
from slipstream.spark.option_reader import OptionReader
from slipstream.spark.options import JETSTREAM
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import StateFolder


@contextmanager
def servers(pipeline: Pipeline, state: StateFolder, given: str = "") -> Iterator[dict[str, str]]:
    """The connection options to use, with an embedded server behind them if no other is named.

    `given` are servers from the command line, which go first.
    """
    connection = dict(pipeline.connection)
    if given:
        connection["servers"] = given
    if connection.get("servers") or connection.get("context"):
        yield connection
        return
    from slipstream import Server

    state.server.mkdir(parents=True, exist_ok=True)
    with Server(port=pipeline.server.get("port", 0), data_dir=state.server) as server:
        yield {**connection, "servers": server.url}


@contextmanager
def jetstream(connection: Mapping[str, str]) -> Iterator[JetStream]:
    """JetStream over these options."""
    found = OptionReader(JETSTREAM, connection, tuple(connection)).connection()
    with open_jetstream(found, os.environ) as js:
        yield js


def prepare(js: JetStream, pipeline: Pipeline) -> list[str]:
    """Make what the file declares and what is not there; gives what was made."""
    made = []
    wanted = [
        StreamConfig(
            name=one.name,
            subjects=one.subjects,
            num_replicas=one.replicas,
            max_age=timedelta(seconds=one.max_age_seconds),
            allow_direct=True,
            allow_batched=one.batched,
        )
        for one in pipeline.streams
    ]
    dead = pipeline.dead_letter
    if dead and all(one.name != dead for one in wanted):
        wanted.append(StreamConfig(name=dead, subjects=(f"{dead}.>",), allow_direct=True))
    for config in wanted:
        try:
            js.stream(config.name).info()
        except StreamNotFoundError:
            js.create_stream(config)
            made.append(f"stream {config.name}")
    for bucket in pipeline.buckets:
        try:
            js.key_value(bucket.name)
        except BucketNotFoundError:
            js.create_key_value(BucketConfig(bucket=bucket.name, history=bucket.history, replicas=bucket.replicas))
            made.append(f"bucket {bucket.name}")
    return made


def last_sequences(js: JetStream, pipeline: Pipeline) -> dict[str, int]:
    """The last sequence of each source, by the source's name; one that is not there is left out."""
    found = {}
    for source in pipeline.sources:
        try:
            info = js.stream(source.stream or f"KV_{source.bucket}").info()
        except StreamNotFoundError:
            continue
        found[source.name] = info.state.last_seq
    return found

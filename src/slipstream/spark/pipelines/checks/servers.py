"""Check of a pipeline's streams and buckets against a server: which are missing, cannot be read, or never match.

A stream that the file declares is created by the run, so it need not exist. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slipstream.api import StreamConfig
from slipstream.errors import ApiError, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.kv.bucket import STREAM_PREFIX
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.model import Mistake, Pipeline
from slipstream.spark.source.plan import check_readable
from slipstream.wire.subjects import overlaps


class ServerReport(NamedTuple):
    """Mistakes, which keep the pipeline from running, and warnings, which do not."""

    mistakes: list[Mistake]
    warnings: list[Mistake]


def check_servers(pipeline: Pipeline, js: JetStream | None) -> ServerReport:
    """Look at the streams and buckets that a pipeline names. Without `js`, the server has none yet."""
    report = ServerReport([], [])
    streams = _Streams(pipeline, js)
    for kind, source in (
        *(("sources", one) for one in pipeline.sources),
        *(("tables", one) for one in pipeline.tables),
    ):
        key = "stream" if source.stream else "bucket"
        path = (kind, source.name, key)
        config, problem = streams.look(source.stream_name)
        if problem:
            report.mistakes.append(pipeline.mistake(path, problem))
        elif config is None:
            report.mistakes.append(pipeline.mistake(path, streams.missing(key, source.stream or source.bucket)))
        elif source.stream:
            filters = source.options.get("subjects", "")
            for one in streams.unmatched(config, filters.split(",") if filters else []):
                subjects = ", ".join(config.subjects)
                text = f"subjects {one!r} matches no message of stream {source.stream!r}, whose subjects are {subjects}"
                report.warnings.append(pipeline.mistake(("sources", source.name, "subjects"), text))
    for output in pipeline.outputs:
        if output.kind in ("stream", "bucket"):
            path = ("outputs", output.name, output.kind)
            name = output.target if output.kind == "stream" else STREAM_PREFIX + output.target
            config, problem = streams.look(name, is_target=True)
            if problem or config is None:
                text = problem or streams.missing(output.kind, output.target)
                report.mistakes.append(pipeline.mistake(path, text))
    return report


class _Streams:
    """The streams that a pipeline will find: those that it declares, and those on the server."""

    def __init__(self, pipeline: Pipeline, js: JetStream | None) -> None:
        self._js = js
        self._declared = {one.name: StreamConfig(name=one.name, subjects=one.subjects) for one in pipeline.streams}
        for bucket in pipeline.buckets:
            name = STREAM_PREFIX + bucket.name
            self._declared[name] = StreamConfig(name=name, subjects=(f"$KV.{bucket.name}.>",))
        if letter := pipeline.dead_letter:
            self._declared.setdefault(letter, StreamConfig(name=letter, subjects=(f"{letter}.>",)))

    def look(self, name: str, *, is_target: bool = False) -> tuple[StreamConfig | None, str]:
        """The configuration of a stream, None if there is none; and why it cannot be read (or written)."""
        if self._js is not None:
            try:
                info = self._js.stream(name).info()
                if not is_target:
                    check_readable(info)
                elif info.config.sealed or (info.config.mirror is not None and not name.startswith(STREAM_PREFIX)):
                    kind = "sealed" if info.config.sealed else "a mirror"
                    return info.config, f"stream {name!r} is {kind} and cannot be written to"
            except StreamNotFoundError:
                pass
            except (UsageError, ApiError) as error:
                return None, str(error)
            else:
                return info.config, ""
        return self._declared.get(name), ""

    def missing(self, kind: str, name: str) -> str:
        """The message for a stream or bucket that does not exist and that the file does not declare."""
        names = [*self._declared, *(self._js.stream_names() if self._js is not None else ())]
        if kind == "bucket":
            names = [one.removeprefix(STREAM_PREFIX) for one in names if one.startswith(STREAM_PREFIX)]
        else:
            names = [one for one in names if not one.startswith(STREAM_PREFIX)]
        example = f"[{kind}s.{name}]" + ("" if kind == "bucket" else ' with subjects = ["…"]')
        near = suggestion(name, names, "")
        hint = f"{near} To have it created, add {example}" if near.startswith("did you") else f"add {example}"
        return f"there is no {kind} {name!r}, and the file does not declare it; {hint}"

    @staticmethod
    def unmatched(config: StreamConfig, filters: list[str]) -> Iterator[str]:
        """The filters that no message of the stream can match."""
        if config.mirror is not None or config.sources or config.subject_transform is not None:
            return  # whose subjects are those of other streams
        for one in filters:
            if config.subjects and not any(overlaps(one.strip(), subject) for subject in config.subjects):
                yield one.strip()

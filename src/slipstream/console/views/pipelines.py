"""Pipelines: files as graphs, their outputs over time, and their dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipstream.console.pipeline_file import PipelineFile
from slipstream.console.sampler import Ticker
from slipstream.console.state import ConsoleState
from slipstream.console.web import Endpoint, Problem, event, json_body, whole

KEY = "pipelines"


class PipelineSampler(Ticker):
    """Samples of one pipeline."""

    def __init__(self, file: PipelineFile) -> None:
        super().__init__()
        self.file = file
        self._before: dict[str, tuple[float, int]] = {}

    async def take(self) -> dict[str, Any]:
        """Read what the run has recorded; rows a second are what was added since the last look."""
        sample = await asyncio.to_thread(self.file.sample)
        point: dict[str, Any] = {"time": sample["time"], "outputs": {}}
        for name, one in sample["outputs"].items():
            then, rows = self._before.get(name, (0.0, 0))
            self._before[name] = (sample["time"], one["rows"])
            passed = sample["time"] - then
            one["rate"] = round(max(0.0, (one["rows"] - rows) / passed), 1) if then and passed > 0 else None
            point["outputs"][name] = [one["rate"], one["lag"], one["lag_seconds"], one["batch_seconds"]]
        self.history.append(point)
        return sample


async def _samplers(state: ConsoleState) -> dict[str, PipelineSampler]:
    if KEY not in state.shared:
        found: dict[str, PipelineSampler] = {}
        for path in state.settings.pipelines:
            file = await asyncio.to_thread(PipelineFile, path, state.settings.pipeline_servers)
            found[file.name] = PipelineSampler(file)
        state.shared.setdefault(KEY, found)
    samplers: dict[str, PipelineSampler] = state.shared[KEY]
    return samplers


async def _sampler(state: ConsoleState, request: Request) -> PipelineSampler:
    name = request.path_params["pipeline"]
    if (found := (await _samplers(state)).get(name)) is None:
        raise Problem(404, f"the console was not given a pipeline {name!r}")
    return found


async def _pipelines(state: ConsoleState, _: Request) -> Any:
    return [await asyncio.to_thread(one.file.about) for one in (await _samplers(state)).values()]


async def _live(state: ConsoleState, request: Request) -> Response:
    sampler = await _sampler(state, request)

    async def events() -> AsyncIterator[bytes]:
        async for sample in sampler.watch():
            yield event(sample)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _letters(state: ConsoleState, request: Request) -> Any:
    file, query = (await _sampler(state, request)).file, request.query_params
    return await asyncio.to_thread(file.letters, whole(query.get("before"), "before"), query.get("origin", ""))


async def _resend(state: ConsoleState, request: Request) -> Any:
    """Send one letter again (`seq`), or those from `start` to `end`, some at a time."""
    file, body = (await _sampler(state, request)).file, await json_body(request)
    if "seq" in body:
        return await asyncio.to_thread(file.resend_one, whole(body["seq"], "seq"))
    start, end = whole(body.get("start"), "start", 1), whole(body["end"], "end")
    return await asyncio.to_thread(file.resend_slice, start, end, str(body.get("origin", "")))


def close(state: ConsoleState) -> None:
    """Close the connections."""
    for sampler in state.shared.get(KEY, {}).values():
        sampler.close()
        sampler.file.close()


ENDPOINTS = (
    Endpoint("/api/pipelines", _pipelines),
    Endpoint("/api/pipelines/{pipeline}/live", _live),
    Endpoint("/api/pipelines/{pipeline}/letters", _letters),
    Endpoint("/api/pipelines/{pipeline}/resend", _resend, writes=True),
)

"""The promise on a real cluster: concurrent clients, streams that lose messages in every way, and faults all the time.

A checker goes over the history of all of it (history.py): nothing stale, nothing that went back, nothing falsely
absent, no range with a gap; and no read refused that a connected majority could have answered (faults.py).
`SLIPSTREAM_SEED` chooses another run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pytest

from slipstream import StreamConfig, connect
from slipstream.api import Placement
from slipstream.errors import ApiError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream.reads.read_state import GENERATION_AGE
from tests.cluster import NODES, Cluster
from tests.jetstream.reads.faults import Faults, Health, brief
from tests.jetstream.reads.history import Got, Write
from tests.jetstream.reads.traces import traced
from tests.jetstream.reads.workload import (
    KEYS,
    READ_TIMEOUT,
    Reader,
    Workload,
    hunt,
    keep_a_session,
    keep_reading,
    repeat,
    shapes,
)

SEED = int(os.environ.get("SLIPSTREAM_SEED", "7"))
NOT_CRASH_SAFE = ("rollups", "ring")  # after a kill, nats-server 2.15.1 may show again what they removed, for good
CLIENTS = 6
READERS = 3
PAUSE = 0.02  # seconds between two operations of one task, in the mean: two cores must do it all
STUCK = 60.0  # seconds that the end of a run may take
MOST_SHOWN = 12  # of what was broken or refused, with all that is known around it
SHOWN_BEFORE = 45.0  # seconds


Call = Callable[..., Coroutine[None, None, None]]


class Outcome(NamedTuple):
    """What a run brought to light."""

    broken: list[str]
    refused: list[str]  # although a majority could have answered
    wrong_models: list[str]  # streams that are not what the checker takes them for: it proves nothing there
    summary: str
    operations: int
    around: list[str]  # what nodes said of a stream, and the faults, around what was broken or refused

    def save(self, path: str) -> None:
        """Append it to a file, so that a long run that is stopped has shown what it found."""
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{self.summary}\n")
            for name in ("wrong_models", "broken", "refused", "around"):
                file.writelines(f"  {name}: {what}\n" for what in getattr(self, name))


class Run:
    """One cluster, all shapes of streams, for so many operations and at least one round of faults."""

    def __init__(self, cluster: Cluster, prefix: str, seed: int, *, pause: float, crashes: bool) -> None:
        self._cluster = cluster
        self._seed = seed
        self._pause = pause
        single = cluster.meta_leader()
        self.workloads = {
            kind: Workload(shape, seed + n)
            for n, (kind, shape) in enumerate(shapes(prefix, single).items())
            if not (crashes and kind in NOT_CRASH_SAFE)
        }
        by_name = {workload.name: workload for workload in self.workloads.values()}
        self._health = Health(cluster, by_name)
        loop = asyncio.get_running_loop()

        def on_loop(call: Call, stream: str, *arguments: float) -> None:
            asyncio.run_coroutine_threadsafe(call(by_name[stream], *arguments), loop).result(30)

        def hunter(workload: Workload, seconds: float) -> Coroutine[None, None, None]:
            return hunt(workload, self._near(workload), seconds, seed)

        self._faults = Faults(
            cluster,
            self._health,
            [self.workloads[kind].name for kind in ("bucket", "rollups", "ring") if kind in self.workloads],
            {
                workload.name: node
                for (kind, workload), node in zip(self.workloads.items(), itertools.cycle(NODES), strict=False)
                if kind != "again"
            },
            seed,
            crashes=crashes,
            overwrite=partial(on_loop, lambda workload: workload.overwrite(self._near(workload))),
            fill=partial(on_loop, lambda workload: workload.fill(self._near(workload))),
            hunt=partial(on_loop, hunter),
        )
        self._contexts: list[JetStream] = []
        self.wrong_models: list[str] = []

    async def __call__(self, operations: int) -> Outcome:
        clients = [await connect([self._cluster.url(NODES[n % 3]), *self._cluster.urls]) for n in range(CLIENTS)]
        self._contexts = [client.jetstream(timeout=READ_TIMEOUT) for client in clients]
        begin = time.monotonic()
        try:
            await self._create()
            self._health.start()
            self._faults.start()
            tasks = [asyncio.create_task(task) for task in self._tasks()]
            ending = asyncio.create_task(self._end(operations))
            try:
                done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                await ending
                await asyncio.wait_for(asyncio.gather(*tasks), STUCK)
                await self._compare()
            finally:
                for task in (*tasks, ending):
                    task.cancel()
        finally:
            self._health.stop()
            await asyncio.to_thread(self._faults.stop)
            for client in clients:
                await client.close()
        return self._outcome(time.monotonic() - begin)

    def _near(self, workload: Workload) -> JetStream:
        """A context whose server leads the stream, or is at least not cut off."""
        leader = self._health.leader(workload.name)
        near = [js for js in self._contexts if js.client.server_info.server_name == leader]
        return near[0] if near else self._contexts[0]

    async def _create(self) -> None:
        js = self._contexts[0]
        for n, workload in enumerate(self.workloads.values()):
            await js.create_stream(workload.shape.config, timeout=10)
            node = NODES[n % len(NODES)]
            workload.mirror = workload.shape.mirror.replace(placement=Placement(tags=(node,)))
            await js.create_stream(workload.mirror, timeout=10)
            await workload.overwrite(js)
        for workload in self.workloads.values():
            replicas = workload.shape.config.num_replicas
            await asyncio.to_thread(self._cluster.wait_for_direct, workload.name, min(replicas, 2))

    def _tasks(self) -> Iterator[Coroutine[None, None, None]]:
        contexts, pause = self._contexts, self._pause
        for n, workload in enumerate(self.workloads.values()):
            seed = self._seed + 1000 * n
            yield workload.keep_writing(contexts[n % CLIENTS], pause)
            for m in range(READERS):
                yield keep_reading(Reader(f"r{m}", workload, seed + m), contexts[(n + m) % CLIENTS], pause)
            yield keep_a_session(
                Reader("s", workload, seed + 100), contexts, pause, urls=self._cluster.urls, children=1
            )

    async def _end(self, operations: int) -> None:
        """Make a stream again and edit a mirror now and then; end it all when enough was done."""
        js = self._contexts[2]
        edit: StreamConfig | None = self.workloads["log"].mirror
        while self.count < operations or len(self._faults.done) < len(self._faults.names):
            for _ in range(50):
                await asyncio.sleep(0.5)
                if self.count >= operations and len(self._faults.done) == len(self._faults.names):
                    break
            await asyncio.to_thread(self._faults.calm.acquire)
            try:
                await self._make_again(js)
                if edit is not None:  # and now it is no whole copy
                    await repeat(partial(js.update_stream, edit.replace(max_msgs=50), timeout=5))
                    edit = None
            finally:
                self._faults.calm.release()
        await asyncio.to_thread(self._faults.stop)
        for workload in self.workloads.values():
            workload.is_over = True

    async def _make_again(self, js: JetStream) -> None:
        again = self.workloads["again"]
        self._health.note(again.name, "is made again")
        await again.make_again(js, self._is_empty)

    async def _is_empty(self, stream: str) -> bool:
        """Whether a stream that was created just now is there and empty on every node, soon."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError):  # a node that does not answer yet
                details = {name: await asyncio.to_thread(self._cluster.detail, name, stream) for name in NODES}
                for name, detail in details.items():
                    self._health.note(stream, f"made again, {name} has {brief(detail)}")
                if all(detail.get("state", {}).get("last_seq") == 0 for detail in details.values()):
                    return True
            await asyncio.sleep(0.1)
        return False

    async def _compare(self) -> None:
        """Whether the model is right: else the checker would be wrong."""
        for workload in self.workloads.values():
            await workload.opened()
            self.wrong_models += [*workload.kept, *workload.history.unknown()]
            call = partial(self._contexts[0].stream(workload.name).info, deleted_details=True)
            state = (await repeat(call)).state
            seqs = {*range(state.first_seq, state.last_seq + 1)} - {*state.deleted}
            workload.history.model.settle()
            nodes = await self._states(workload.name, state.last_seq)
            if len({*nodes.values()}) > 1:
                self.wrong_models.append(f"{workload.name}: its nodes differ: {nodes}")
            if what := workload.history.model.differences(seqs):
                self.wrong_models.append(f"{workload.name}: {what}")

    async def _states(self, stream: str, last: int) -> dict[str, tuple[int, int]]:
        """Messages and first sequence of the nodes that have the last one. Each removes what expires by a timer of its
        own, so they may differ for a moment."""
        deadline = time.monotonic() + 10
        while True:
            found = {name: await asyncio.to_thread(self._cluster.state, name, stream) for name in NODES}
            nodes = {
                name: (state["messages"], state["first_seq"])
                for name, state in found.items()
                if state.get("last_seq") == last
            }
            if len({*nodes.values()}) <= 1 or time.monotonic() > deadline:
                return nodes
            await asyncio.sleep(0.2)

    @property
    def count(self) -> int:
        return sum(workload.count for workload in self.workloads.values())

    def _outcome(self, seconds: float) -> Outcome:
        broken = [what for workload in self.workloads.values() for what in workload.history.broken()]
        refusals = [refusal for workload in self.workloads.values() for refusal in workload.refusals]
        refused = [refusal for refusal in refusals if self._health.was_answerable(refusal)]
        stats = Counter[str]()
        for js in self._contexts:
            stats.update({name: value for name, value in js.read_stats._asdict().items() if value})
        late = [what for workload in self.workloads.values() for what in workload.late]
        made = sum(workload.history.generations for workload in self.workloads.values())
        kinds = Counter(what.split(": ")[1] for what in broken)
        summary = (
            f"seed {self._seed}: {self.count} operations in {seconds:.0f} s, {self._reads} of them reads: "
            f"{len(broken)} broken promises {dict(kinds)}, "
            f"{len(refusals)} refused, {len(refused)} of them answerable; healthy {self._health.healthy_share():.0%}; "
            f"made again {made} times, late {late}; "
            f"faults {dict(self._faults.done)} (not carried out: {len(self._faults.failed)}, "
            f"caught up {self._faults.caught_up}); ways {dict(stats)}"
        )
        shown = [*broken, *("\n    ".join((f"{each.stream}: {each}", *each.trace)) for each in refused)]
        around = [what for each in shown[:MOST_SHOWN] for what in self._around(each)]
        return Outcome(broken, [str(each) for each in refused], self.wrong_models, summary, self.count, around)

    @property
    def _reads(self) -> int:
        return sum(workload.history.count + len(workload.refusals) for workload in self.workloads.values())

    def _around(self, shown: str) -> Iterator[str]:
        """What happened around a read, whose trace has the times."""
        stream, _, rest = shown.partition(": ")
        times = [float(line.split()[0]) for line in rest.splitlines()[1:]]
        yield rest
        if times:
            begin, end = times[0] - SHOWN_BEFORE, times[-1] + 2
            yield from (f"  {what}" for what in self._health.around(stream, begin, end))
            yield from (f"  {at:.3f} {name}" for at, name in self._faults.began if begin <= at <= end)


async def made_again(js: JetStream, name: str, is_empty: Callable[[str], Awaitable[bool]]) -> Workload:
    """A stream that was written to, and made again; every key of it is read once."""
    shape = shapes(name, "")["again"]
    workload = Workload(shape._replace(config=shape.config.replace(num_replicas=1)), SEED)
    await js.create_stream(workload.shape.config)
    await workload.write(js, KEYS[0])
    await workload.make_again(js, is_empty)
    await workload.write(js, KEYS[1])
    reader = Reader("r", workload, SEED)
    for path in ("to_last", "pattern", "leader"):
        await reader.read(js.stream(workload.name), None, 1, path=path)
    return workload


@pytest.mark.parametrize("count", [0, 1])
async def test_a_publish_that_arrives_after_the_stream_was_made_again_is_a_part_of_its_model(
    real_url: str, fresh: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A server that stood still may send it then, though it was repeated elsewhere and acknowledged before."""
    monkeypatch.setattr("tests.jetstream.reads.workload.LONGEST_HOLD", -GENERATION_AGE)
    async with connect(real_url) as nc:
        js = nc.jetstream()

        async def late(stream: str) -> bool:
            for _ in range(count):
                await js.publish(f"{stream}.{KEYS[0]}", b"of the deleted stream")
            return True

        workload = await made_again(js, fresh, late)
        assert workload.history.broken() == []
        assert (len(workload.late), workload.kept, workload.history.unknown()) == (count, [], [])


async def test_messages_that_a_server_kept_from_a_deleted_stream_are_not_taken_for_late_ones(
    real_url: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-server 2.15.1 on its own keeps them where a stream is deleted twice within a moment."""
    monkeypatch.setattr("tests.jetstream.reads.workload.LONGEST_HOLD", -GENERATION_AGE)
    async with connect(real_url) as nc:
        js = nc.jetstream()

        async def delete_twice(stream: str) -> bool:
            config = (await js.stream(stream).info()).config
            for _ in range(300):
                if (await js.stream(stream).info()).state.messages:
                    return True
                await js.publish(f"{stream}.{KEYS[0]}", b"of the deleted stream")
                await js.delete_stream(stream)
                with suppress(ApiError):  # it could not create its store: the next try can
                    await js.create_stream(config)
                await repeat(partial(js.create_stream, config))
            pytest.skip("this server has emptied all of them")

        workload = await made_again(js, fresh, delete_twice)
        assert (bool(workload.kept), workload.late) == (True, [])


def test_a_session_without_the_stale_token_is_not_held_to_what_the_one_before_saw() -> None:
    workload = Workload(shapes("P", "")["again"], SEED)
    workload.history.model.begun = 1
    workload.history.model.wrote(1, Write(KEYS[0], b"1"))
    reader = Reader("s", workload, SEED)
    reader.is_session = True
    reader.note("last", KEYS[0], 1, Got(1, b"1"))
    reader.begin_again()
    reader.note("last", KEYS[0], 0, None)  # by a follower that lags
    assert workload.history.broken() == []
    reader.note("last", KEYS[0], 0, Got(1, b"1"))
    reader.note("last", KEYS[0], 0, None)
    assert len(workload.history.broken()) == 1


@pytest.mark.spec("RW-19", on="C N")
@pytest.mark.timeout(300)
def test_no_read_is_stale_or_goes_back_or_is_refused_under_faults() -> None:
    check(run(20_000, SEED))


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_a_million_operations() -> None:
    """In rounds, each on a cluster of its own with a seed of its own; in every second one nodes are killed.

    `SLIPSTREAM_SOAK_LOG` names a file for what each round found.
    """
    log = os.environ.get("SLIPSTREAM_SOAK_LOG", os.devnull)
    outcomes = []
    for seed in itertools.count(SEED):
        outcomes.append(run(50_000, seed, crashes=bool(seed % 2)))
        outcomes[-1].save(log)
        if sum(outcome.operations for outcome in outcomes) >= 1_000_000:
            break
    for outcome in outcomes:
        check(outcome)


def run(operations: int, seed: int, *, crashes: bool = False) -> Outcome:
    """A run on a cluster of its own."""

    async def main(cluster: Cluster) -> Outcome:
        return await Run(cluster, "P", seed, pause=PAUSE, crashes=crashes)(operations)

    with Cluster() as cluster, traced():
        outcome = asyncio.run(main(cluster))
    print(outcome.summary)
    return outcome


def check(outcome: Outcome) -> None:
    assert outcome.wrong_models == []
    assert outcome.broken == []
    assert outcome.refused == []

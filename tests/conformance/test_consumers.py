"""Consumers: our answers and nats-server's, field by field and frame by frame."""

# ruff: noqa: E501 -- tables of configurations

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.conformance.compare import Wire, same_on, scrub

SECOND = 1_000_000_000
DYNAMIC = frozenset(("last_active", "pause_remaining", "ack_time"))


@pytest.fixture
def urls(real_url: str, our_url: str) -> tuple[str, str]:
    return real_url, our_url


def without_dynamic(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "<dynamic>" if key in DYNAMIC else without_dynamic(item) for key, item in value.items()}
    return [without_dynamic(item) for item in value] if isinstance(value, list) else value


class Work:
    """A stream with consumers on one server, for a record that is compared."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.name = wire.name
        self._inboxes = 0

    async def put(self, subject: str, config: dict[str, Any], **more: Any) -> Any:
        """A request to make a consumer; what the server calls it by itself is left out of the record."""
        return await self._api(f"CONSUMER.{subject}", {"stream_name": self.name, "config": config} | more)

    async def create(self, name: str = "c", **config: Any) -> Any:
        full = {"durable_name": name, "ack_policy": "explicit"} | config
        if not full["durable_name"]:
            del full["durable_name"]
        return await self.put(f"CREATE.{self.name}.{name}", full)

    async def info(self, name: str = "c") -> Any:
        return await self._api(f"CONSUMER.INFO.{self.name}.{name}")

    async def _api(self, call: str, body: Any = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        message = await self.wire.nc.request(f"$JS.API.{call}", payload, timeout=10)
        answer = json.loads(message.data)
        answer.pop("cluster", None)  # ours has it even without one, as the document shows it
        self.wire.record.append((call, body, without_dynamic(scrub(answer))))
        return answer

    async def fill(self, *tokens: str, payload: bytes = b"x") -> None:
        last = 0
        for token in tokens:
            answer = await self.wire.nc.request(f"{self.wire.subject}.{token}", payload, timeout=10)
            last = json.loads(answer.data)["seq"]
        await self._counted(last)

    async def _counted(self, last: int) -> None:
        """Wait until all consumers without filters count what was stored: nats-server acks a publish before that, and
        what it delivers meanwhile has too few pending."""
        async with asyncio.timeout(10):
            behind = True
            while behind:
                answer = await self.wire.nc.request(f"$JS.API.STREAM.INFO.{self.name}", b"", timeout=10)
                stored = json.loads(answer.data)["state"]["messages"]  # limits may have removed some
                answer = await self.wire.nc.request(f"$JS.API.CONSUMER.LIST.{self.name}", b"", timeout=10)
                behind = any(
                    one["num_pending"] < min(stored, last - one["delivered"]["stream_seq"])
                    for one in json.loads(answer.data)["consumers"]
                    if not one["config"].get("filter_subject") and not one["config"].get("filter_subjects")
                )

    async def pull(self, body: Any, count: int, name: str = "c") -> list[Msg]:
        """A pull on an inbox of its own; its first `count` answers, for the record."""
        self._inboxes += 1
        inbox = f"_INBOX.{self.name}.{self._inboxes}"
        queue = await self.wire.listen(inbox)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.wire.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{name}", payload, reply=inbox)
        return [await self.take(queue) for _ in range(count)]

    async def pull_idle(self, body: Any, count: int) -> None:
        """A pull that gets `count` statuses until it expires, for the record: how many there are is a matter of time,
        so it is repeated where the machine stood still."""
        frames: list[Msg] = []
        for attempt in range(10):
            inbox = f"_INBOX.{self.name}.idle.{attempt}"
            queue = await self.wire.listen(inbox)
            await self.wire.nc.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.c", json.dumps(body).encode(), reply=inbox
            )
            frames.clear()
            while not frames or (frames[-1].headers or {}).get("Status") != "408":
                frames.append(await asyncio.wait_for(queue.get(), 10))
            if len(frames) == count:
                break
        for frame in frames:
            frame.subject = "<inbox>"
            self.note(frame)

    async def take(self, queue: asyncio.Queue[Msg]) -> Msg:
        message = await asyncio.wait_for(queue.get(), 10)
        self.note(message)
        return message

    def note(self, message: Msg) -> None:
        """Write a message down, without the time in its ack subject."""
        tokens = message.reply.split(".")
        if tokens[:2] == ["$JS", "ACK"]:
            tokens[7] = "<time>"
        elif tokens[:2] == ["$JS", "FC"]:
            tokens[4] = "<token>"
        headers = {
            key: "<token>" if key == "Nats-Consumer-Stalled" else value
            for key, value in (message.headers or {}).items()
        }
        self.wire.record.append((message.subject, ".".join(tokens), headers, message.data))

    async def ack(self, message: Msg, body: bytes = b"+ACK") -> None:
        answer = await self.wire.nc.request(message.reply, body, timeout=10)
        self.wire.record.append(("ack", body, dict(answer.headers or {}), answer.data))

    async def nothing(self, queue: asyncio.Queue[Msg], seconds: float) -> None:
        await asyncio.sleep(seconds)
        assert queue.empty()


CONFIGS: list[dict[str, Any]] = [
    {},
    {"ack_policy": "none"},
    {"ack_policy": "all", "max_deliver": 5},
    {"deliver_policy": "last"},
    {"deliver_policy": "new"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 50},
    {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
    {"deliver_policy": "last_per_subject", "filter_subject": "@.>"},
    {"filter_subjects": ["@.a", "@.b"], "backoff": [SECOND, 2 * SECOND], "max_deliver": 3},
    {"filter_subject": "@.nobody", "headers_only": True, "metadata": {"b": "2", "a": "1"}},
    {
        "description": "d",
        "sample_freq": "30%",
        "max_batch": 5,
        "max_expires": SECOND,
        "max_bytes": 100,
        "max_waiting": 7,
    },
    {"deliver_subject": "out.@", "flow_control": True, "idle_heartbeat": 5 * SECOND, "rate_limit_bps": 1000},
    {"deliver_subject": "out.@", "deliver_group": "g", "max_ack_pending": 5, "inactive_threshold": 60 * SECOND},
    {"mem_storage": True, "replay_policy": "original", "num_replicas": 1, "inactive_threshold": SECOND * 100},
    {"durable_name": "", "name": "c"},
    {"durable_name": "", "mem_storage": True},
    {"pause_until": "2090-01-01T00:00:00Z"},
    {"priority_policy": "overflow", "priority_groups": ["g"]},
    {"priority_policy": "pinned_client", "priority_groups": ["g"]},
    {"max_deliver": -7, "max_ack_pending": -9, "max_waiting": -1, "max_batch": -1},
]


def filled(config: dict[str, Any], subject: str) -> dict[str, Any]:
    done: dict[str, Any] = json.loads(json.dumps(config).replace("@", subject))
    return done


async def test_a_consumer_is_reported_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.fill("a", "b", "a", "c")
        for config in CONFIGS:
            await work.create(**filled(config, wire.subject))
            await work.info()
            await wire.api(f"CONSUMER.DELETE.{wire.name}.c")

    await same_on(urls, fresh, scenario)


BAD: list[dict[str, Any]] = [
    {"deliver_subject": "d.*"},
    {"deliver_subject": "d..e"},
    {"deliver_subject": "@.x"},
    {"deliver_subject": "d", "max_waiting": 5},
    {"deliver_subject": "d", "max_ack_pending": 5, "ack_policy": "none"},
    {"deliver_subject": "d", "idle_heartbeat": 1000},
    {"deliver_subject": "d", "flow_control": True},
    {"rate_limit_bps": 5},
    {"idle_heartbeat": SECOND},
    {"flow_control": True},
    {"max_expires": 1000},
    {"backoff": [1, 2, 3], "max_deliver": 2},
    {"backoff": [-1]},
    {"ack_wait": -1000},
    {"description": "x" * 5000},
    {"num_replicas": -1},
    {"num_replicas": 3},
    {"direct": True},
    {"direct": True, "deliver_subject": "d"},
    {"filter_subject": "a", "filter_subjects": ["b"]},
    {"filter_subjects": ["a", ""]},
    {"filter_subjects": ["@.a", "@.*"]},
    {"filter_subject": "a..b"},
    {"opt_start_seq": 5},
    {"opt_start_time": "2024-01-01T00:00:00Z"},
    {"deliver_policy": "last", "opt_start_seq": 5},
    {"deliver_policy": "new", "opt_start_time": "2024-01-01T00:00:00Z"},
    {"deliver_policy": "by_start_sequence"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 1, "opt_start_time": "2024-01-01T00:00:00Z"},
    {"deliver_policy": "by_start_time"},
    {"deliver_policy": "by_start_time", "opt_start_seq": 5, "opt_start_time": "2024-01-01T00:00:00Z"},
    {"deliver_policy": "last_per_subject"},
    {"sample_freq": "often"},
    {"sample_freq": "-5"},
    {"metadata": {"k": "v" * 131072}},
    {"priority_groups": ["g"]},
    {"priority_timeout": 5},
    {"priority_policy": "overflow"},
    {"priority_policy": "overflow", "priority_groups": [""]},
    {"priority_policy": "overflow", "priority_groups": ["x y"]},
    {"deliver_subject": "d", "priority_policy": "overflow", "priority_groups": ["g"]},
    {"priority_policy": "some"},
    {"ack_policy": "some"},
    {"deliver_policy": "some"},
    {"replay_policy": "some"},
    {"durable_name": "other"},
    {"nope": 1},
    {"name": "a.b", "durable_name": ""},
]


async def test_a_bad_configuration_is_refused_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(consumer_limits={"max_ack_pending": 50, "inactive_threshold": 60 * SECOND})
        work = Work(wire)
        for config in [*BAD, {"max_ack_pending": 51}, {"inactive_threshold": 61 * SECOND}]:
            await work.create(**filled(config, wire.subject))
        await wire.api(f"CONSUMER.NAMES.{wire.name}")

    await same_on(urls, fresh, scenario)


async def test_requests_that_do_not_fit_their_subject_are_refused_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work, name = Work(wire), wire.name
        await work.put(f"CREATE.{name}", {"durable_name": "x"})
        await work.put(f"DURABLE.CREATE.{name}.d", {})
        await work.put(f"DURABLE.CREATE.{name}.d", {"durable_name": "e"})
        await work.put(f"CREATE.{name}.d", {"durable_name": "e"})
        await work.put(f"CREATE.{name}.d.{wire.subject}.a", {"filter_subject": f"{wire.subject}.b"})
        await work.put(f"CREATE.{name}.d.{wire.subject}.a", {"filter_subjects": [f"{wire.subject}.a"]})
        await work.put(f"CREATE.{name}.a/b", {})
        await work.put(f"CREATE.{name}.d", {}, stream_name="other")
        await work.put(f"CREATE.{name}.d", {}, action="make")
        await work.put(f"CREATE.{name}.d", {}, nope=1)
        await work.put(f"CREATE.{name}none.d", {}, stream_name=f"{name}none")
        await work.put(f"CREATE.{name}.d", {"max_deliver": -5}, pedantic=True)
        await work.put(f"CREATE.{name}.d", {"max_waiting": -5}, pedantic=True)
        await work.put(f"CREATE.{name}.d", {"backoff": [1000]}, pedantic=True)
        await work.put(f"CREATE.{name}.{'x' * 256}", {"durable_name": "x" * 256})
        for verb in ("INFO", "DELETE", "PAUSE"):
            await wire.api(f"CONSUMER.{verb}.{name}.nobody")
            await wire.api(f"CONSUMER.{verb}.{name}none.nobody")
        await wire.api(f"CONSUMER.INFO.{name}.nobody", {"x": 1})
        await wire.api(f"CONSUMER.NAMES.{name}none")
        await wire.api(f"CONSUMER.LIST.{name}none")
        await wire.api(f"CONSUMER.UNPIN.{name}.nobody", {"group": "g"})

    await same_on(urls, fresh, scenario)


async def test_updates_are_taken_and_refused_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work, name = Work(wire), wire.name
        await work.fill("a", "b", "b")
        base = {"durable_name": "c", "ack_policy": "explicit"}
        await work.put(f"CREATE.{name}.c", base, action="update")
        await work.put(f"CREATE.{name}.c", base, action="create")
        await work.put(f"CREATE.{name}.c", base, action="create")
        await work.put(f"CREATE.{name}.c", base | {"description": "x"}, action="create")
        changes: list[dict[str, Any]] = [
            {"description": "x"}, {"max_ack_pending": 5}, {"ack_wait": SECOND}, {"max_deliver": 3}, {"sample_freq": "5"},
            {"filter_subject": f"{wire.subject}.b"}, {"inactive_threshold": 60 * SECOND}, {"headers_only": True},
            {"metadata": {"k": "v"}}, {"max_batch": 3}, {"backoff": [SECOND]}, {"pause_until": "2090-01-01T00:00:00Z"},
            {"deliver_policy": "new"}, {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}, {"ack_policy": "all"},
            {"replay_policy": "original"}, {"mem_storage": True}, {"max_waiting": 5}, {"deliver_subject": "d"},
            {"backoff": [1, 2, 3], "max_deliver": 2},
        ]  # fmt: skip
        for change in changes:
            await work.put(f"CREATE.{name}.c", base | change, action="update")
            await work.info()
        push = {"durable_name": "p", "deliver_subject": f"out.{name}"}
        await work.put(f"CREATE.{name}.p", push)
        for change in ({"idle_heartbeat": SECOND}, {"deliver_subject": f"out.{name}.2"}, {"deliver_subject": ""}):
            await work.put(f"CREATE.{name}.p", push | change)

    await same_on(urls, fresh, scenario)


async def test_work_queues_refuse_consumers_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(retention="workqueue", max_consumers=3)
        work = Work(wire)
        await work.create(ack_policy="none")
        await work.create(ack_policy="none", deliver_subject="d")
        await work.create(ack_policy="all")
        await work.create(deliver_policy="new")
        await work.create("a", filter_subject=f"{wire.subject}.a.>")
        await work.create("b")
        await work.create("b", filter_subject=f"{wire.subject}.*.1")
        await work.create("b", filter_subject=f"{wire.subject}.b")
        await work.create("b", filter_subject=f"{wire.subject}.a.1")
        await work.create("c", filter_subject=f"{wire.subject}.c")
        await work.create("d", filter_subject=f"{wire.subject}.d")

    await same_on(urls, fresh, scenario)


async def test_pulls_are_answered_frame_by_frame_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create(max_batch=50, max_bytes=10_000, max_expires=5 * SECOND)
        await work.pull({"batch": 5, "no_wait": True}, 1)
        await work.fill("a", "b", "c", "d", "e", payload=b"0123456789")
        await work.pull(b"", 1)
        await work.pull(b"2", 2)
        await work.pull({"batch": 5, "no_wait": True}, 3)
        await work.pull({"batch": 1, "expires": SECOND // 2}, 1)
        await work.pull({"batch": 51}, 1)
        await work.pull({"batch": 1, "expires": 6 * SECOND}, 1)
        await work.pull({"batch": 1, "max_bytes": 10_001}, 1)
        await work.pull({"batch": 1, "expires": SECOND, "idle_heartbeat": SECOND}, 1)
        await work.pull({"batch": 1, "min_pending": 5}, 1)
        await work.pull({"batch": 1, "id": "x"}, 1)
        await work.pull({"batch": 1, "priority": 12}, 1)
        await work.fill("a", payload=b"y" * 100)
        await work.fill("b", payload=b"z" * 500)
        await work.pull({"batch": 10, "max_bytes": 400, "expires": SECOND}, 2)
        await work.pull({"batch": 1, "max_bytes": 5000, "expires": SECOND}, 2)
        # Two heartbeats and the end, each with half a second to be late in.
        await work.pull_idle({"batch": 1, "expires": 3 * SECOND, "idle_heartbeat": 6 * SECOND // 5}, 3)
        await work.info()

    await same_on(urls, fresh, scenario)


async def test_acks_of_all_kinds_have_the_same_effects(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create(ack_wait=30 * SECOND, max_ack_pending=10)  # no redelivery but those that are asked for
        await work.fill(*"abcdefgh")
        messages = await work.pull({"batch": 6}, 6)
        await work.ack(messages[1])
        await work.info()
        await work.ack(messages[0])
        await work.info()
        await work.ack(messages[0])
        await work.ack(messages[3], b"+TERM because")
        await work.ack(messages[2], b"-NAK")
        await work.pull({"batch": 1}, 1)
        await work.info()
        # Two that are new come before it: the delay is longer than a busy machine stands still.
        await work.ack(messages[4], b'-NAK {"delay": 3000000000}')
        await work.ack(messages[5], b"+WPI")
        await work.pull({"batch": 2, "expires": 2 * SECOND}, 2)
        await work.pull({"batch": 1, "expires": 8 * SECOND}, 1)
        await work.info()

    await same_on(urls, fresh, scenario)


async def test_one_ack_for_all_has_the_same_effects(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create(ack_policy="all")
        await work.fill(*"abcdef")
        messages = await work.pull({"batch": 5}, 5)
        for i in (2, 0, 4):
            await work.ack(messages[i])
            await work.info()

    await same_on(urls, fresh, scenario)


@pytest.mark.steady
async def test_max_deliver_advisories_are_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        events = await wire.listen(f"$JS.EVENT.ADVISORY.CONSUMER.*.{wire.name}.>")
        await work.create(ack_wait=SECOND, max_deliver=2)
        await wire.heard(events)
        await work.fill("a")
        await work.pull({"batch": 1}, 1)
        await work.pull({"batch": 1, "expires": 4 * SECOND}, 1)
        await work.pull({"batch": 1, "expires": 2 * SECOND}, 1)
        await wire.heard(events)
        await work.info()
        for answer in wire.record:  # nats-server moves the floor past such a message with the next ack only
            if isinstance(answer[-1], dict) and "ack_floor" in answer[-1]:
                del answer[-1]["ack_floor"]
        await work.fill("b")
        (message,) = await work.pull({"batch": 1}, 1)
        await work.ack(message, b"-NAK")
        await wire.heard(events)
        (message,) = await work.pull({"batch": 1}, 1)
        await work.ack(message, b"+TERM a reason")
        await wire.heard(events)
        await wire.api(f"CONSUMER.DELETE.{wire.name}.c")
        await wire.heard(events)

    await same_on(urls, fresh, scenario)


async def test_pushes_are_made_frame_by_frame_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        out = await wire.listen(f"out.{wire.name}")
        await work.fill("a", "b")
        await work.create(
            deliver_subject=f"out.{wire.name}", ack_policy="none", flow_control=True, idle_heartbeat=SECOND // 2
        )
        for _ in range(3):
            await work.take(out)
        await work.info()
        await work.pull({"batch": 1}, 1)
        await wire.api(f"CONSUMER.DELETE.{wire.name}.c")
        after = await wire.listen(f"after.{wire.name}")  # the first may have sent another heartbeat before its end
        await work.create("h", deliver_subject=f"after.{wire.name}", headers_only=True, deliver_policy="last")
        await work.take(after)
        await work.info("h")

    await same_on(urls, fresh, scenario)


async def test_flow_control_opens_and_closes_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(storage="memory")
        work = Work(wire)
        out = await wire.listen(f"out.{wire.name}")
        for i in range(12):
            await work.fill(str(i), payload=b"x" * 500_000)
        await work.create(
            deliver_subject=f"out.{wire.name}", ack_policy="none", flow_control=True, idle_heartbeat=SECOND
        )
        taken = 0
        while taken < 12:
            message = await asyncio.wait_for(out.get(), 10)
            if "FlowControl" in str(message.headers):
                work.note(message)
                await message.respond(b"")
            elif not message.headers:
                taken += 1
        await work.info()

    await same_on(urls, fresh, scenario)


async def test_pauses_are_reported_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create()
        events = await wire.listen(f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{wire.name}.>")
        await work._api(f"CONSUMER.PAUSE.{wire.name}.c", {"pause_until": "2090-01-01T00:00:00Z"})
        await wire.heard(events)
        await work.info()
        await work.fill("a")
        await work.pull({"batch": 1, "expires": SECOND // 2}, 1)
        await work._api(f"CONSUMER.PAUSE.{wire.name}.c", {})
        await wire.heard(events)
        await work.info()
        await work._api(f"CONSUMER.PAUSE.{wire.name}.c", {"pause_until": "2001-01-01T00:00:00Z"})
        await work.info()

    await same_on(urls, fresh, scenario)


async def test_lists_and_counts_are_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        for name in ("b", "a", "c"):
            await work.create(name)
        await wire.api(f"CONSUMER.NAMES.{wire.name}")
        await wire.api(f"CONSUMER.NAMES.{wire.name}", {"offset": 2})
        await wire.api(f"CONSUMER.LIST.{wire.name}", {"offset": 1})
        await wire.api(f"CONSUMER.LIST.{wire.name}", {"offset": 9})
        await wire.info()

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
async def test_messages_leave_alike(urls: tuple[str, str], fresh: str, retention: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(retention=retention)
        work = Work(wire)
        await wire.publish("a")
        await wire.info()
        await work.create("a", filter_subject=f"{wire.subject}.a")
        await work.create("b", filter_subject=f"{wire.subject}.b")
        for token in ("a", "b", "c", "a", "b"):
            await wire.publish(token)
        await wire.info(deleted_details=True)
        for name in ("a", "b"):
            for message in await work.pull({"batch": 2}, 2, name):
                await work.ack(message)
                await wire.info(deleted_details=True)
            await work.info(name)
        await wire.api(f"CONSUMER.DELETE.{wire.name}.a")
        await wire.info(deleted_details=True)
        await wire.api(f"CONSUMER.DELETE.{wire.name}.b")
        await wire.info(deleted_details=True)

    await same_on(urls, fresh, scenario)


async def test_removed_messages_are_not_counted_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(max_msgs_per_subject=2, allow_direct=True)
        work = Work(wire)
        await work.create("all")
        await work.create("some", filter_subject=f"{wire.subject}.a")
        await work.fill("a", "b", "a", "b", "a", "c", "a")
        for call, body in (
            ("STREAM.MSG.DELETE", {"seq": 6}),
            ("STREAM.PURGE", {"filter": f"{wire.subject}.b"}),
            ("STREAM.PURGE", {"keep": 1}),
            ("STREAM.PURGE", {}),
        ):
            await work.pull({"batch": 1, "no_wait": True}, 1, "some")
            await wire.api(f"{call}.{wire.name}", body)
            await asyncio.sleep(0.2)
            await work.info("all")
            await work.info("some")

    await same_on(urls, fresh, scenario)


async def test_a_durable_updated_without_its_durable_name_gets_no_time_limit_alike(
    urls: tuple[str, str], fresh: str
) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work, name = Work(wire), wire.name
        await work.fill("a", "b")
        await work.put(f"CREATE.{name}.d", {"durable_name": "d", "ack_policy": "explicit"})
        (message,) = await work.pull({"batch": 1}, 1, "d")
        await work.ack(message)
        for config in ({}, {"description": "x"}, {"durable_name": "d"}, {"inactive_threshold": 60 * SECOND}):
            await work.put(f"CREATE.{name}.d", {"name": "d", "ack_policy": "explicit", **config})
            await work.info("d")
        await work.put(f"CREATE.{name}.f", {"durable_name": "f", "inactive_threshold": 60 * SECOND})
        await work.put(f"CREATE.{name}.f", {"name": "f"})
        await work.put(f"CREATE.{name}.e", {"name": "e"})
        await work.put(f"CREATE.{name}.e", {"name": "e", "description": "an ephemeral keeps its limit"})

    await same_on(urls, fresh, scenario)


async def test_priority_groups_are_served_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create(priority_policy="overflow", priority_groups=["g"])
        await work.pull({"batch": 1}, 1)
        await work.pull({"batch": 1, "group": "h"}, 1)
        await work.fill("a", "b", "c")
        await work.pull({"batch": 2, "group": "g", "min_pending": 3, "expires": SECOND}, 2)
        await work.pull({"batch": 2, "group": "g"}, 2)
        await work.info()
        await wire.api(f"CONSUMER.UNPIN.{wire.name}.c", {"group": "h"})
        await wire.api(f"CONSUMER.UNPIN.{wire.name}.c", {})
        await wire.api(f"CONSUMER.UNPIN.{wire.name}.c", {"group": "x y"})

    await same_on(urls, fresh, scenario)


async def test_a_consumer_that_begins_again_does_so_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        work = Work(wire)
        await work.create()
        await work.fill(*"abcdef")
        messages = await work.pull({"batch": 5}, 5)
        await work.ack(messages[0])
        for body in ({}, {"seq": 3}, None):
            await work._api(f"CONSUMER.RESET.{wire.name}.c", body)
            await work.info()
            await work.pull({"batch": 2}, 2)
        await work.create("late", deliver_policy="by_start_sequence", opt_start_seq=4)
        await work._api(f"CONSUMER.RESET.{wire.name}.late", {"seq": 3})
        await work._api(f"CONSUMER.RESET.{wire.name}.late", {"seq": 5})
        await work.create("new", deliver_policy="new")
        await work._api(f"CONSUMER.RESET.{wire.name}.new", {"seq": 3})

    await same_on(urls, fresh, scenario)

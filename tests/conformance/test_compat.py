"""`Server(compat="nats-server")` beside the real server: the rows of docs/compatibility.md that a program can notice.

Each scenario runs on the real server and on ours in compat mode, and every answer is compared. Without the mode ours
follows the documents: that is asserted too, so that a row without a difference is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.server import Server
from tests.conformance.compare import Scenario, Wire, recorded
from tests.servers import real_server


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """The real server, ours in compat mode, ours as it is."""
    folders = [tmp_path_factory.mktemp("store") for _ in range(2)]
    with (
        real_server() as real,
        Server(compat="nats-server", data_dir=folders[0]) as compat,
        Server(data_dir=folders[1]) as plain,
    ):
        yield real, compat.url, plain.url


async def same(urls: tuple[str, str, str], name: str, scenario: Scenario) -> None:
    """The same answers in compat mode, and others without it."""
    real, compat, plain = [await recorded(url, name, scenario) for url in urls]
    assert compat == real
    assert plain != real


async def direct(wire: Wire, body: bytes, subject: str = "") -> list[Any]:
    """A Direct Get; every answer up to its end."""
    inbox = wire.nc.new_inbox()
    sub = await wire.nc.subscribe(inbox)
    await wire.nc.publish(f"$JS.API.DIRECT.GET.{wire.name}{subject and f'.{subject}'}", body, reply=inbox)
    found: list[Any] = []
    with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
        while not found or found[-1].get("Status") not in ("204", "404", "408"):
            message = await sub.next_msg(timeout=10 if not found else 0.3)
            found.append(dict(message.headers or {}) | {"data": message.data})
    await sub.unsubscribe()
    kept = [{key: value for key, value in each.items() if key != "Nats-Time-Stamp"} for each in found]
    wire.record.append((body, subject, kept))
    return kept


async def test_a_limit_per_subject_leaves_allow_direct_as_it_is(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        made = await wire.create(max_msgs_per_subject=1)
        assert made["config"]["name"]

    await same(urls, "BUCKET", scenario)


async def test_more_than_one_replica_is_refused(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(num_replicas=3)

    await same(urls, "REPLICAS", scenario)


async def test_the_end_of_a_batch_has_one_count(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_direct=True)
        for token in "abc":
            await wire.publish(token)
        await direct(wire, b'{"seq":1,"batch":2}')
        await direct(wire, b'{"multi_last":["%b.>"]}' % wire.subject.encode())

    await same(urls, "BATCH", scenario)


async def test_min_last_seq_and_as_of_are_unknown_fields(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_direct=True)
        await wire.publish("a")
        await direct(wire, b'{"seq":1,"min_last_seq":100}')
        await direct(wire, b'{"seq":1,"as_of":true}')
        await direct(wire, b'{"min_last_seq":100}', f"{wire.subject}.a")
        config = {"name": "c", "ack_policy": "explicit", "min_last_seq": 1}
        for call, body in (
            (f"STREAM.MSG.GET.{wire.name}", {"seq": 1, "min_last_seq": 100}),
            (f"CONSUMER.CREATE.{wire.name}.c", {"stream_name": wire.name, "config": config}),
        ):
            answer = await wire.nc.request(f"$JS.API.{call}", json.dumps(body).encode(), timeout=10)
            wire.record.append((call, b"10025" in answer.data))

    await same(urls, "FRESH", scenario)


async def test_a_direct_get_with_subject_takes_a_body(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_direct=True)
        await wire.publish("a")
        for body in (b"{}", b'{"no_hdr":true}', b'{"unknown":1}', b'{"seq":1}', b"{", b'{"last_by_subj":"x"}'):
            await direct(wire, body, f"{wire.subject}.a")

    await same(urls, "BODY", scenario)


async def test_consumer_info_names_no_cluster(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        config = {"name": "c", "ack_policy": "explicit"}
        await wire.api(f"CONSUMER.CREATE.{wire.name}.c", {"stream_name": wire.name, "config": config})
        await wire.api(f"CONSUMER.INFO.{wire.name}.c")

    await same(urls, "INFO", scenario)


async def test_a_pull_without_waiting_waits_until_it_expires(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        config = {"name": "c", "ack_policy": "explicit", "max_ack_pending": 1}
        await wire.api(f"CONSUMER.CREATE.{wire.name}.c", {"stream_name": wire.name, "config": config})
        next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{wire.name}.c"
        inbox = wire.nc.new_inbox()
        sub = await wire.nc.subscribe(inbox)
        await wire.nc.publish(next_subject, b'{"batch":1,"no_wait":true,"expires":8000000000}', reply=inbox)
        await wire.nc.flush()
        await asyncio.sleep(0.2)
        await wire.publish("a")
        answer = await sub.next_msg(timeout=10)
        wire.record.append((answer.subject == inbox, dict(answer.headers or {}).get("Status"), answer.data))

    await same(urls, "PULL", scenario)


async def test_a_pull_without_waiting_ends_at_its_first_heartbeat_when_acks_are_missing(
    urls: tuple[str, str, str],
) -> None:
    """The fetch of nats-py relies on it: messages that arrive after it returned confuse the next one."""

    async def scenario(wire: Wire) -> None:
        await wire.create()
        config = {"name": "c", "ack_policy": "explicit", "max_ack_pending": 2}
        await wire.api(f"CONSUMER.CREATE.{wire.name}.c", {"stream_name": wire.name, "config": config})
        for _ in range(4):
            await wire.publish("a")
        inbox = wire.nc.new_inbox()
        sub = await wire.nc.subscribe(inbox)
        pull = b'{"batch":9,"no_wait":true,"expires":20000000000,"idle_heartbeat":300000000}'
        await wire.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{wire.name}.c", pull, reply=inbox)
        answers = [await sub.next_msg(timeout=10) for _ in range(3)]
        wire.record += [(dict(answer.headers or {}).get("Status"), answer.data) for answer in answers]
        await wire.nc.request(answers[0].reply, b"+ACK", timeout=10)
        info = json.loads((await wire.nc.request(f"$JS.API.CONSUMER.INFO.{wire.name}.c", b"", timeout=10)).data)
        wire.record.append((info["num_pending"], info["num_waiting"]))  # the ack let no further message out

    await same(urls, "BEAT", scenario)


async def test_leaders_do_not_step_down_on_a_single_server(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        config = {"name": "c", "ack_policy": "explicit"}
        await wire.nc.request(
            f"$JS.API.CONSUMER.CREATE.{wire.name}.c",
            json.dumps({"stream_name": wire.name, "config": config}).encode(),
            timeout=10,
        )
        for consumer in ("c", "none"):
            await wire.api(f"CONSUMER.LEADER.STEPDOWN.{wire.name}.{consumer}")
        await wire.api(f"STREAM.LEADER.STEPDOWN.{wire.name}")

    records = [await recorded(url, "LEADERS", scenario) for url in urls]
    assert records[0] == records[1] == records[2]


async def test_info_does_not_name_our_version(urls: tuple[str, str, str]) -> None:
    async def scenario(wire: Wire) -> None:
        info = wire.nc._server_info
        wire.record.append(("slipstream" in info, info["version"]))

    await same(urls, "VERSION", scenario)


def test_other_servers_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compat must be 'nats-server' or empty, got 'redis'"):
        Server(compat="redis")
    path = tmp_path / "s.conf"
    path.write_text("compat: nats-server\nport: -1\n")
    assert Server.from_config(path).options.compat == "nats-server"

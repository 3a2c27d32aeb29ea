"""The administrative API and the headers of publishers: every call, error and field as on nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.server import Server
from tests.conformance.compare import Wire, same_on
from tests.servers import real_server

SECOND = 1_000_000_000


@pytest.fixture
def urls(real_url: str, our_url: str) -> tuple[str, str]:
    return real_url, our_url


async def test_streams_are_listed_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        for n in range(3):
            name = f"{wire.name}_{n}"
            await wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{wire.subject}.{n}.>"]})
        await wire.publish("1.a", b"x")
        for body in (
            {"subject": f"{wire.subject}.1.>"},
            {"subject": f"{wire.subject}.>"},
            {"subject": f"{wire.subject}.1.a"},
            {"subject": f"{wire.subject}.nobody"},
            {"subject": f"{wire.subject}.>", "offset": 1},
            {"subject": f"{wire.subject}.>", "offset": 7},
            {"subject": f"{wire.subject}.>", "offset": -3},
        ):
            await wire.api("STREAM.NAMES", body)
            await wire.api("STREAM.LIST", body)
        await wire.api("STREAM.NAMES", {"unknown": 1})

    await same_on(urls, fresh, scenario)


async def test_info_is_given_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        await wire.info()
        for n in range(6):
            await wire.publish(f"{n % 3}.x", b"x")
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 3})
        for body in (
            {},
            {"deleted_details": True},
            {"subjects_filter": ">"},
            {"subjects_filter": f"{wire.subject}.1.>"},
            {"subjects_filter": f"{wire.subject}.1.x"},
            {"subjects_filter": "nobody"},
            {"subjects_filter": ">", "offset": 1},
            {"subjects_filter": ">", "offset": 9},
            {"unknown": 1},
        ):
            await wire.api(f"STREAM.INFO.{wire.name}", body)
        await wire.api(f"STREAM.INFO.{wire.name}NO")

    await same_on(urls, fresh, scenario)


async def test_messages_are_got_and_deleted_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        for n in range(6):
            await wire.publish(f"{n % 2}", b"%d" % n, K=f"v{n}")
        for body in (
            {"seq": 1},
            {"seq": 99},
            {"last_by_subj": f"{wire.subject}.1"},
            {"last_by_subj": f"{wire.subject}.*"},
            {"last_by_subj": "nobody"},
            {"next_by_subj": f"{wire.subject}.1"},
            {"next_by_subj": f"{wire.subject}.1", "seq": 3},
            {"next_by_subj": f"{wire.subject}.1", "seq": 7},
            {"seq": 1, "no_hdr": True},
            {},
            {"seq": 0},
            {"seq": 1, "last_by_subj": "x"},
            {"batch": 3, "seq": 1},
            {"unknown": 1},
            {"start_time": "2020-01-01T00:00:00Z"},
        ):
            await wire.api(f"STREAM.MSG.GET.{wire.name}", body)
        await wire.api(f"STREAM.MSG.GET.{wire.name}NO", {"seq": 1})
        for body in ({"seq": 2}, {"seq": 2}, {"seq": 0}, {"seq": 77}, {}, {"unknown": 1}, {"seq": 3, "no_erase": True}):
            await wire.api(f"STREAM.MSG.DELETE.{wire.name}", body)
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}NO", {"seq": 1})

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_streams_are_purged_alike(urls: tuple[str, str], fresh: str, storage: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(storage=storage)
        for n in range(30):
            await wire.publish(f"{n % 3}", b"%d" % n)
        for body in (
            {"filter": f"{wire.subject}.0", "keep": 2},
            {"filter": f"{wire.subject}.1", "seq": 10},
            {"filter": "nobody"},
            {"seq": 5},
            {"keep": 4},
            {"seq": 3, "keep": 3},
            {"unknown": 1},
            {"seq": 100},
        ):
            await wire.api(f"STREAM.PURGE.{wire.name}", body)
            await wire.info(deleted_details=True)
        await wire.publish("0", b"x")
        await wire.api(f"STREAM.PURGE.{wire.name}")
        await wire.info()
        await wire.api(f"STREAM.PURGE.{wire.name}NO")
        await wire.update(storage=storage, deny_purge=True, deny_delete=True)
        await wire.api(f"STREAM.PURGE.{wire.name}")
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 1})

    await same_on(urls, fresh, scenario)


async def test_a_sealed_stream_says_no_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(sealed=True)
        await wire.create()
        await wire.publish("a", b"x")
        await wire.update(sealed=True)
        await wire.publish("a", b"x")
        await wire.api(f"STREAM.PURGE.{wire.name}")
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 1})
        await wire.update(max_msgs=5)
        await wire.get(1)
        await wire.delete()
        await wire.delete()

    await same_on(urls, fresh, scenario)


async def test_headers_of_publishers_are_kept_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_rollup_hdrs=True, max_msg_size=300)
        await wire.publish("a", b"1", Nats_Msg_Id="one")
        await wire.publish("a", b"1", Nats_Msg_Id="one")
        await wire.publish("a", b"2", Nats_Expected_Stream=wire.name)
        await wire.publish("a", b"2", Nats_Expected_Stream="other")
        for value in ("2", "9", "x", "-1", "0"):
            await wire.publish("a", b"3", Nats_Expected_Last_Sequence=value)
            await wire.publish("a", b"3", Nats_Expected_Last_Subject_Sequence=value)
        await wire.publish("b", b"3", Nats_Expected_Last_Subject_Sequence="0")
        subject = f"{wire.subject}.*"
        for value in ("0", "5", "6"):
            await wire.publish(
                "b",
                b"3",
                Nats_Expected_Last_Subject_Sequence=value,
                Nats_Expected_Last_Subject_Sequence_Subject=subject,
            )
        await wire.publish("b", b"3", Nats_Expected_Last_Subject_Sequence_Subject=subject)
        await wire.publish("b", b"3", Nats_Expected_Last_Msg_Id="one")
        await wire.publish("b", b"3", Nats_Msg_Id="two")
        await wire.publish("b", b"3", Nats_Expected_Last_Msg_Id="two")
        for rollup in ("sub", "SUB", "nonsense", "all"):
            await wire.publish("a", b"r", Nats_Rollup=rollup)
            await wire.info(deleted_details=True)
        await wire.publish("a", b"x" * 301)
        await wire.publish("a", b"x" * 200, Long="y" * 200)
        await wire.publish("a", b"", Nats_Stream_Source="X 1")
        await wire.publish("a", b"", Nats_Schedule="@hourly")
        await wire.update(allow_rollup_hdrs=False)
        await wire.publish("a", b"r", Nats_Rollup="sub")

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize(
    "config",
    [
        {"max_msgs": 3, "discard": "new"},
        {"max_bytes": 200, "discard": "new"},
        {"max_msgs_per_subject": 2, "discard": "new", "allow_direct": True},
        {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True, "allow_direct": True},
        {"max_msgs": 3, "max_msgs_per_subject": 1, "discard": "new", "allow_direct": True},
        {"max_msgs": 3},
        {"max_bytes": 200},
        {"max_bytes": 200, "storage": "memory"},
        {"max_msgs_per_subject": 2, "allow_direct": True},
    ],
)
async def test_limits_are_kept_alike(urls: tuple[str, str], fresh: str, config: dict[str, Any]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(**config)
        for n in range(8):
            await wire.publish(f"{n % 3}", b"x" * (10 + n))
        await wire.info(subjects_filter=">", deleted_details=True)

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_smaller_limits_of_a_stream_that_discards_new_messages_are_alike(
    urls: tuple[str, str], fresh: str, storage: str
) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(discard="new", storage=storage, allow_direct=True)
        for n in range(6):
            await wire.publish(f"{n % 2}", b"hello")
        for limits in ({"max_msgs": 3}, {"max_bytes": 60}, {"max_msgs_per_subject": 2}):
            await wire.update(discard="new", storage=storage, allow_direct=True, **limits)
            await wire.info(subjects_filter=">", deleted_details=True)
            await wire.publish("0", b"x")

    await same_on(urls, fresh, scenario)


async def test_no_ack_means_no_ack(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(no_ack=True)
        inbox = wire.nc.new_inbox()
        answers = await wire.listen(inbox)
        await wire.nc.publish(f"{wire.subject}.a", b"x", reply=inbox)
        await wire.nc.publish(f"{wire.subject}.a", b"x", reply=inbox, headers={"Nats-Expected-Stream": "no"})
        await wire.nc.flush()
        while not (await wire.info())["state"]["messages"]:  # nobody tells when it is there
            wire.record.pop()
        wire.record.append(answers.qsize())

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"name":1}',
        b'{"name":"NAME","max_msgs":"x"}',
        b'{"name":"NAME","subjects":"x"}',
        b'{"name":"NAME","retention":"sometimes"}',
        b'{"name":"NAME","discard":7}',
        b'{"name":"NAME","max_age":-1}',
        b'{"name":"NAME","duplicate_window":1000}',
        b'{"name":"NAME","duplicate_window":-1}',
        b'{"name":"NAME","num_replicas":-1}',
        b'{"name":"NAME","subjects":["a b"]}',
        b'{"name":"NAME","subjects":["a..b"]}',
        b'{"name":"NAME","subjects":["$JS.API.x"]}',
        b'{"name":"NAME","mirror_direct":true}',
        b'{"name":"NAME","discard_new_per_subject":true}',
        b'{"name":"NAME","deny_purge":true,"allow_rollup_hdrs":true}',
    ],
)
async def test_a_bad_create_is_refused_alike(urls: tuple[str, str], fresh: str, body: bytes) -> None:
    """But for the words of a JSON parser, which are its own."""

    async def scenario(wire: Wire) -> None:
        answer = await wire.ask(f"$JS.API.STREAM.CREATE.{wire.name}", body.replace(b"NAME", wire.name.encode()))
        if answer.get("error", {}).get("err_code") == 10025:
            wire.record[-1] = answer["error"]["code"]

    await same_on(urls, fresh, scenario)


async def test_a_domain_is_answered_alike(fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_direct=True)
        await wire.publish("a", b"x", Nats_Msg_Id="m")
        await wire.publish("a", b"x", Nats_Msg_Id="m")
        await wire.publish("a", b"x", Nats_Expected_Stream="other")
        for call in ("INFO", f"STREAM.INFO.{wire.name}", "STREAM.LIST", "STREAM.NAMES"):
            await wire.ask(f"$JS.hub.API.{call}")
        await wire.ask(f"$JS.hub.API.STREAM.MSG.GET.{wire.name}", b'{"seq":1}')
        await wire.ask(f"$JS.hub.API.DIRECT.GET.{wire.name}", b'{"seq":1}')
        await wire.update(max_msgs=5)

    config = 'jetstream { domain: "hub" }'
    with real_server(config=config) as real:
        async with Server(domain="hub") as ours:
            await same_on((real, ours.url), fresh, scenario)


LIMITS = """
jetstream {}
accounts { A { users: [{user: u, password: p}], jetstream: {
    max_mem: 2000, max_file: 3000, max_streams: 2, max_consumers: 3, max_bytes_required: MUST, max_ack_pending: 9,
    memory_max_stream_bytes: 1500, disk_max_stream_bytes: 2000 } } }
"""


@pytest.mark.parametrize("must", [False, True])
async def test_limits_of_an_account_are_kept_alike(fresh: str, must: bool) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.api("INFO")
        await wire.create()
        for storage, most in (("memory", 1501), ("file", 2001), ("memory", 1500), ("file", 2000)):
            name = f"{storage}{most}"
            await wire.api(
                f"STREAM.CREATE.{name}",
                {"name": name, "subjects": [f"{wire.subject}.{name}"], "storage": storage, "max_bytes": most},
            )
        await wire.api("STREAM.CREATE.more", {"name": "more", "subjects": ["more"], "max_bytes": 10})
        await wire.api(
            "STREAM.CREATE.some", {"name": "some", "subjects": ["some"], "max_bytes": 10, "max_consumers": 4}
        )
        await wire.api("STREAM.DELETE.file2000")
        await wire.api("STREAM.CREATE.big", {"name": "big", "subjects": ["big"], "max_bytes": 3001})
        await wire.api("STREAM.DELETE.memory1500")
        answer = await wire.api("STREAM.CREATE.open", {"name": "open", "subjects": ["open"], "discard": "new"})
        for _ in range(4 if "error" not in answer else 0):
            await wire.ask("open", b"x" * 900)
        await wire.api("INFO")

    with real_server(config=LIMITS.replace("MUST", str(must).lower())) as real:
        limits = AccountLimits(
            max_memory=2000, max_storage=3000, max_streams=2, max_consumers=3, max_ack_pending=9,
            memory_max_stream_bytes=1500, storage_max_stream_bytes=2000, max_bytes_required=must,
        )  # fmt: skip
        async with Server(user="u", password="p", limits=limits) as ours:
            urls = tuple(url.replace("nats://", "nats://u:p@") for url in (real, ours.url))
            await same_on((urls[0], urls[1]), fresh, scenario)

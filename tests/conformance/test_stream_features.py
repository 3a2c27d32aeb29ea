"""Times to live, markers, batches, counters, transforms, republish: our answers and nats-server's, field by field."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.compare import Scenario, Wire, same_on

SECOND = 1_000_000_000


@pytest.fixture
def urls(real_url: str, our_url: str) -> tuple[str, str]:
    return real_url, our_url


@pytest.mark.steady
async def test_times_to_live_are_taken_and_refused_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_msg_ttl=True)
        for ttl in ("1s", "1", "90", "1m30s", "never", "0", "0s", "500ms", "-1", "abc", "1.5s", "+5", "1h1"):
            await wire.publish("a", b"x", Nats_TTL=ttl)
        await wire.get(1)
        await wire.get(3)
        await wire.update(allow_msg_ttl=False)
        await wire.delete()
        await wire.create()
        for ttl in ("1s", "never", "0", "abc"):
            await wire.publish("a", b"x", Nats_TTL=ttl)

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.steady
async def test_what_is_over_leaves_and_the_last_of_a_subject_leaves_a_marker(
    urls: tuple[str, str], fresh: str, storage: str
) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(
            subject_delete_marker_ttl=3 * SECOND, storage=storage, max_msgs_per_subject=5, allow_direct=True
        )
        await wire.publish("a", b"1", Nats_TTL="1s")  # raised to that of the marker
        await wire.get(1)
        await wire.publish("b", b"1", Nats_TTL="3s")
        await wire.publish("b", b"2")
        await wire.publish("c", b"1", Nats_TTL="never")
        await asyncio.sleep(4.5)
        await wire.info(subjects_filter=">", deleted_details=True)
        for seq in range(1, 6):
            await wire.get(seq)
        await asyncio.sleep(3)  # the marker's own time
        await wire.info(subjects_filter=">", deleted_details=True)

    await same_on(urls, fresh, scenario)


@pytest.mark.steady
async def test_the_age_of_a_stream_leaves_markers_too_and_spares_what_never_ends(
    urls: tuple[str, str], fresh: str
) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(subject_delete_marker_ttl=60 * SECOND, max_age=2 * SECOND, duplicate_window=SECOND)
        await wire.publish("a", b"1")
        await wire.publish("a", b"2", Nats_TTL="never")
        await wire.publish("b", b"1")
        await wire.publish("b", b"2")
        await asyncio.sleep(3)  # the marker is two seconds old at four
        await wire.info(subjects_filter=">")
        for seq in range(1, 7):
            await wire.get(seq)

    await same_on(urls, fresh, scenario)


async def test_an_atomic_batch_is_stored_as_a_whole(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_atomic=True)
        for number in ("1", "2"):
            await wire.publish("a", b"x", Nats_Batch_Id="b1", Nats_Batch_Sequence=number)
        await wire.info()
        await wire.publish("b", b"y", Nats_Batch_Id="b1", Nats_Batch_Sequence="3", Nats_Batch_Commit="1")
        await wire.info()
        await wire.publish("a", b"x", Nats_Batch_Id="b1", Nats_Batch_Sequence="1")
        await wire.publish("a", b"", Nats_Batch_Id="b1", Nats_Batch_Sequence="2", Nats_Batch_Commit="eob")
        for seq in range(1, 6):
            await wire.get(seq)
        await wire.publish("a", b"x", Nats_Batch_Id="one", Nats_Batch_Sequence="1", Nats_Batch_Commit="1")
        await wire.info()

    await same_on(urls, fresh, scenario)


async def test_a_batch_that_is_wrong_is_refused_as_a_whole(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_atomic=True, allow_rollup_hdrs=True)
        told = await wire.listen(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{wire.name}")

        async def batch(*messages: dict[str, str], commit: str = "1", name: str = "b") -> None:
            for n, headers in enumerate(messages, 1):
                more = {"Nats_Batch_Commit": commit} if n == len(messages) else {}
                await wire.publish("a", b"x", Nats_Batch_Id=name, Nats_Batch_Sequence=str(n), **headers, **more)

        await wire.publish("a", b"x", Nats_Batch_Id="b")
        await wire.publish("a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence="x")
        await wire.publish("a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence="2")
        await wire.publish("a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence="1001")
        await wire.publish("a", b"x", Nats_Batch_Id="x" * 65, Nats_Batch_Sequence="1")
        await batch({}, {}, commit="2")
        await batch({}, commit="eob")
        await wire.heard(told)
        await wire.publish("a", b"x", Nats_Batch_Id="gap", Nats_Batch_Sequence="1")
        await wire.publish("a", b"x", Nats_Batch_Id="gap", Nats_Batch_Sequence="3")
        await wire.heard(told)
        await batch({}, {"Nats_Expected_Last_Msg_Id": "x"})
        await batch({}, {"Nats_Expected_Stream": "other"})
        await batch({}, {"Nats_TTL": "1s"})
        await batch({"Nats_Msg_Id": "m"}, {"Nats_Msg_Id": "m"})
        await batch({}, {"Nats_Expected_Last_Sequence": "1"})
        await batch({}, {"Nats_Expected_Last_Sequence": "7"})
        await batch({}, {"Nats_Expected_Last_Subject_Sequence": "0"})
        await batch({"Nats_Expected_Last_Subject_Sequence": "5"}, {})
        await batch({}, {"Nats_Rollup": "sub"})
        await batch({}, {"Nats_Rollup": "all"})
        await batch({}, {"Nats_Rollup": "nonsense"})
        await batch({}, {"Nats_Incr": "1"})
        await wire.info()
        await batch({"Nats_Expected_Last_Sequence": "0", "Nats_Msg_Id": "m"}, {})
        await batch({"Nats_Msg_Id": "m"}, {})
        await batch({"Nats_Rollup": "all"}, {})
        await wire.info(deleted_details=True)

    await same_on(urls, fresh, scenario)


async def test_a_full_stream_refuses_a_batch_as_a_whole(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(
            allow_atomic=True,
            discard="new",
            max_msgs=2,
            max_msgs_per_subject=2,
            discard_new_per_subject=True,
            allow_direct=True,
        )
        for token, count in (("a", 3), ("a", 2), ("b", 1)):
            for n in range(1, count + 1):
                more = {"Nats_Batch_Commit": "1"} if n == count else {}
                await wire.publish(token, b"x", Nats_Batch_Id="b", Nats_Batch_Sequence=str(n), **more)
        await wire.info()

    await same_on(urls, fresh, scenario)


async def test_batches_are_not_taken_by_streams_that_do_not_want_them(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        await wire.publish("a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence="1")

    await same_on(urls, fresh, scenario)


async def test_fifty_batches_at_once_are_enough_for_a_stream(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_atomic=True)
        for n in range(51):
            await wire.publish("a", b"x", Nats_Batch_Id=f"b{n}", Nats_Batch_Sequence="1")
        await wire.delete()

    await same_on(urls, fresh, scenario)


async def test_counters_count_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(allow_msg_counter=True, allow_direct=True, allow_atomic=True)
        for amount in ("5", "+3", "-10", "0", "123456789012345678901234567890"):
            await wire.publish("a", b"", Nats_Incr=amount)
        for amount in ("x", "1.5", "--1", "0x10", "1_000"):
            await wire.publish("a", b"", Nats_Incr=amount)
        await wire.publish("a", b"payload", Nats_Incr="1")
        await wire.publish("a", b"")
        await wire.publish("a", b"x")
        for name, value in (
            ("Nats_Rollup", "sub"),
            ("Nats_Expected_Stream", wire.name),
            ("Nats_Expected_Last_Sequence", "5"),
            ("Nats_Expected_Last_Subject_Sequence", "5"),
            ("Nats_Expected_Last_Msg_Id", "x"),
        ):
            await wire.publish("a", b"", Nats_Incr="1", **{name: value})
        await wire.publish("b", b"", Nats_Incr="1", Nats_Msg_Id="once")
        await wire.publish("b", b"", Nats_Incr="1", Nats_Msg_Id="once")
        await wire.publish("a", b"", Nats_Incr="2", Nats_Batch_Id="b", Nats_Batch_Sequence="1")
        await wire.publish("a", b"", Nats_Incr="3", Nats_Batch_Id="b", Nats_Batch_Sequence="2", Nats_Batch_Commit="1")
        for seq in range(1, 9):
            await wire.get(seq)
        await wire.update(allow_msg_counter=False)
        for more in ({"discard": "new"}, {"allow_msg_ttl": True}, {"retention": "workqueue"}):
            await wire.api(
                "STREAM.CREATE.X" + wire.name, wire.config(name="X" + wire.name, allow_msg_counter=True, **more)
            )

    await same_on(urls, fresh, scenario)


MAPPINGS = [
    ("*.*", "{{wildcard(2)}}.{{wildcard(1)}}"),
    (">", "p.{{partition(7)}}.>"),
    ("*.*", "o.{{partition(7,1,2)}}"),
    ("*.*", "o.{{SplitFromLeft(2,2)}}"),
    ("*.*", "o.{{SplitFromRight(2,2)}}"),
    ("*.*", "o.{{SliceFromLeft(2,2)}}"),
    ("*.*", "o.{{SliceFromRight(2,2)}}"),
    ("*.*", "o.{{split(2,-)}}"),
    ("*.*", "o.{{left(2,2)}}"),
    ("*.*", "o.{{right(2,2)}}"),
    ("*.*", "o.{{wildcard(0)}}"),
    ("*.*", "o.{{wildcard(3)}}"),
    ("*.*", "o.{{wildcard()}}"),
    ("*.*", "o.{{wildcard(1,2)}}"),
    ("*.*", "o.{{nope(1)}}"),
    ("*.*", "o..x"),
    ("*.*", "o. .x"),
    ("*.*", "o.>"),
    ("*.*", "*"),
    ("*.*", ""),
    ("", "o.>"),
    ("a..b", "o"),
    ("nowhere", "o"),
    ("*.*", "$2.$1"),
    ("*.*", "o.{{random(1)}}"),
]


@pytest.mark.parametrize(("source", "destination"), MAPPINGS)
async def test_subjects_are_transformed_alike(urls: tuple[str, str], fresh: str, source: str, destination: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(subject_transform={"src": source, "dest": destination})
        answer = await wire.publish("abcde", b"x") if "error" not in wire.record[-1][-1] else {}
        if answer:
            await wire.get(1)
            await wire.publish("-ab--cd-e-", b"x")
            await wire.get(2)
        await wire.info(subjects_filter=">")

    await same_on(urls, fresh, scenario)


async def test_expectations_are_about_the_transformed_subject(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(
            subject_transform={"src": f"{wire.subject}.*", "dest": "to.$1"}, max_msgs_per_subject=1, allow_direct=True
        )
        await wire.publish("a", b"1", Nats_Expected_Last_Subject_Sequence="0")
        await wire.publish("a", b"2", Nats_Expected_Last_Subject_Sequence="0")
        await wire.publish("a", b"2", Nats_Expected_Last_Subject_Sequence="1")
        await wire.publish(
            "b", b"3", Nats_Expected_Last_Subject_Sequence="2", Nats_Expected_Last_Subject_Sequence_Subject="to.a"
        )
        await wire.info(subjects_filter=">")
        await wire.update(subject_transform={"src": f"{wire.subject}.*", "dest": "elsewhere.$1"})
        await wire.publish("a", b"1")
        await wire.update()
        await wire.publish("a", b"1")
        await wire.info(subjects_filter=">")

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("headers_only", [False, True])
async def test_stored_messages_are_published_again(urls: tuple[str, str], fresh: str, headers_only: bool) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(
            republish={"src": f"{wire.subject}.>", "dest": f"again.{wire.name}.>", "headers_only": headers_only}
        )
        told = await wire.listen(f"again.{wire.name}.>")
        await wire.publish("a", b"one")
        await wire.heard(told)
        await wire.publish("a", b"two", Own="header", Nats_Msg_Id="m")
        await wire.heard(told)
        await wire.publish("a", b"two", Own="header", Nats_Msg_Id="m")
        await wire.publish("b", b"")
        await wire.heard(told)

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize(
    ("config", "pedantic"),
    [
        ({"republish": {"src": ">", "dest": "SUBJECT.x.>"}}, False),
        ({"republish": {"src": "a.*", "dest": "b.$2"}}, False),
        ({"republish": {"dest": "b.NAME.>"}}, False),
        ({"republish": {"dest": "b.NAME.>"}}, True),
        ({"republish": {"src": ">", "dest": ">"}}, False),
        (
            {"republish": {"src": ">", "dest": ">"}, "subject_transform": {"src": "SUBJECT.>", "dest": "t.NAME.>"}},
            False,
        ),
        ({"republish": {"src": ">", "dest": ">"}, "subject_transform": {"src": "SUBJECT.>", "dest": "t.NAME.>"}}, True),
    ],
)
async def test_where_messages_may_be_published_again(
    urls: tuple[str, str], fresh: str, config: dict[str, Any], pedantic: bool
) -> None:
    async def scenario(wire: Wire) -> None:
        def filled(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: filled(item) for key, item in value.items()}
            return (
                value.replace("SUBJECT", wire.subject).replace("NAME", wire.name) if isinstance(value, str) else value
            )

        await wire.create(**filled(config), pedantic=pedantic)

    await same_on(urls, fresh, scenario)


def after_an_update(*changes: dict[str, Any], first: dict[str, Any] | None = None) -> Scenario:
    async def scenario(wire: Wire) -> None:
        await wire.create(**(first or {}))
        for change in changes:
            await wire.update(**change)
            await wire.info()

    return scenario


@pytest.mark.parametrize(
    "scenario",
    [
        after_an_update({"allow_msg_ttl": True}, {"allow_msg_ttl": False}),
        after_an_update({"subject_delete_marker_ttl": SECOND}, {"allow_msg_ttl": True, "allow_rollup_hdrs": True}),
        after_an_update({"subject_delete_marker_ttl": SECOND // 2}, {"subject_delete_marker_ttl": -1}),
        after_an_update({"allow_atomic": True}, {"allow_atomic": False}),
        after_an_update({"allow_msg_counter": True}),
        after_an_update({"persist_mode": "async"}, first={"persist_mode": "default"}),
        after_an_update({}, first={"persist_mode": "async"}),
        after_an_update({"storage": "memory"}),
        after_an_update({"compression": "s2"}, {"compression": "none"}),
        after_an_update({"placement": {"cluster": "c", "tags": ["a"]}}, {"placement": {}}),
        after_an_update({"placement": {"preferred": "x"}}),
        after_an_update({"consumer_limits": {"max_ack_pending": 5, "inactive_threshold": SECOND}}),
        after_an_update({"metadata": {"a": "b", "_nats.ver": "mine"}}, {"metadata": {}}),
        after_an_update({"max_consumers": 5, "description": "d"}, {"num_replicas": 6}),
        after_an_update({"sealed": True}, {"sealed": False}),
        after_an_update({"deny_delete": True, "deny_purge": True}, {"deny_delete": False}, {"deny_delete": True}),
        after_an_update({"first_seq": 7}, first={"first_seq": 5}),
        after_an_update({"subject_delete_marker_ttl": SECOND, "pedantic": True}),
        after_an_update({"max_msgs": -7, "pedantic": True}, {"max_msgs": -7}),
        after_an_update({"max_age": SECOND, "duplicate_window": 2 * SECOND}),
        after_an_update({"max_age": SECOND}, {"max_age": SECOND, "duplicate_window": SECOND}),
    ],
)
async def test_a_stream_may_be_changed_alike(urls: tuple[str, str], fresh: str, scenario: Scenario) -> None:
    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize(
    "config",
    [
        {"compression": "s2"},
        {"compression": "zip"},
        {"persist_mode": "async"},
        {"persist_mode": "async", "storage": "memory"},
        {"persist_mode": "async", "allow_atomic": True},
        {"persist_mode": "sometimes"},
        {"placement": {"cluster": "c"}},
        {"consumer_limits": {"max_ack_pending": 3}},
        {"metadata": {"z": "1", "a": "2"}},
        {"allow_atomic": True, "allow_msg_ttl": True},
        {"subject_delete_marker_ttl": 5 * SECOND, "deny_purge": True},
        {"max_msgs_per_subject": -3, "max_bytes": 0},
        {"max_age": SECOND, "pedantic": True},
        {"max_bytes": -2, "pedantic": True},
        {"unknown": 1},
        {"first_seq": 100},
        {"no_ack": True},
        {"subjects": [">"], "no_ack": False},
    ],
)
async def test_a_stream_is_made_alike(urls: tuple[str, str], fresh: str, config: dict[str, Any]) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(**config)
        await wire.create(**config)

    await same_on(urls, fresh, scenario)


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_statistics_are_counted_alike(urls: tuple[str, str], fresh: str, storage: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create(storage=storage, max_bytes=100_000)
        for n in range(10):
            await wire.publish(f"s{n % 3}", b"x" * n)
        await wire.publish("é", b"12345", Own="header")
        await wire.info(subjects_filter=">")
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 3})
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 3})
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 99})
        await wire.api(f"STREAM.MSG.DELETE.{wire.name}", {"seq": 4, "no_erase": True})
        await wire.info(deleted_details=True)
        await wire.api(f"STREAM.PURGE.{wire.name}", {"filter": f"{wire.subject}.s1", "keep": 1})
        await wire.info(subjects_filter=">", deleted_details=True)
        await wire.api(f"STREAM.PURGE.{wire.name}", {"seq": 8})
        await wire.info()
        await wire.api(f"STREAM.PURGE.{wire.name}")
        await wire.info()

    await same_on(urls, fresh, scenario)


async def test_streams_are_announced_when_they_come_change_and_go(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        told = await wire.listen(f"$JS.EVENT.ADVISORY.STREAM.*.{wire.name}")
        await wire.create()
        await wire.heard(told)
        await wire.update(max_msgs=5)
        await wire.heard(told)
        await wire.delete()
        await wire.heard(told)

    await same_on(urls, fresh, scenario)

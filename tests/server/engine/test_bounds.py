"""The cost of one request: near linear in what it lists, and bounded with an error that names the bound.

Costs are CPU time of this thread for two sizes (`tests.growth`): what is quadratic takes sixteen times as long for four
times the size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slipstream.server.engine import bounds
from slipstream.wire import pub
from tests.growth import cpu, grows_less
from tests.server.support import Client, Rig

Body = dict[str, Any]


@pytest.fixture
def client() -> Client:
    return Rig().client()


def cost(subject: str, body: Body, *, accepted: bool = True, setup: Callable[[Client], object] = lambda _: 0) -> float:
    """CPU seconds of a request with all that follows, on a new server each time."""
    client = Rig(max_pending_bytes=1 << 30).client()
    setup(client)
    data = pub(f"$JS.API.{subject}", msgspec.json.encode(body), f"{client.inbox}x", b"")

    def run() -> None:
        client.send(data)
        (answer,) = client.messages()
        assert (b'_response","error":' not in answer.payload[:80]) is accepted, answer.payload[:300]

    return cpu(run)


def stream(**fields: Any) -> Body:
    return {"name": "S", "storage": "memory"} | fields


def numbered(form: str, count: int) -> list[str]:
    return [form.format(at) for at in range(count)]


def transforms(count: int) -> list[Body]:
    return [{"src": f"s.{at}.*", "dest": f"t.{at}.{{{{wildcard(1)}}}}"} for at in range(count)]


def consumer(**fields: Any) -> Body:
    return {"stream_name": "S", "config": {"name": "c", "durable_name": "c", "ack_policy": "explicit"} | fields}


def has_streams(client: Client) -> None:
    client.create("S")
    client.create("O", subjects=["o.>"])


STREAMS: dict[str, Callable[[int], Body]] = {
    "literal subjects": lambda n: stream(subjects=numbered("s.{}", n)),
    "subjects with wildcards": lambda n: stream(subjects=numbered("s.{}.>", n)),
    "sources of one stream": lambda n: stream(sources=[{"name": "O", "filter_subject": f"s.{at}"} for at in range(n)]),
    "sources of many streams": lambda n: stream(sources=[{"name": name} for name in numbered("O{}", n)]),
    "transforms of a source": lambda n: stream(sources=[{"name": "O", "subject_transforms": transforms(n)}]),
    "transforms of a mirror": lambda n: stream(mirror={"name": "O", "subject_transforms": transforms(n)}),
    "metadata": lambda n: stream(metadata=dict.fromkeys(numbered("{}", n), "")),
}


@pytest.mark.parametrize("what", STREAMS)
def test_creating_a_stream_takes_cpu_in_proportion_to_what_it_lists(what: str) -> None:
    assert grows_less(lambda count: cost("STREAM.CREATE.S", STREAMS[what](count)), 100, 400, times=8)


@pytest.mark.parametrize("form", ["s.{}", "s.{}.>"])
def test_updating_the_subjects_of_a_stream_takes_linear_cpu(form: str) -> None:
    def update(count: int) -> float:
        body = stream(allow_direct=True, subjects=numbered(form, count))
        return cost("STREAM.UPDATE.S", body, setup=lambda client: client.create("S", subjects=numbered("a.{}", count)))

    assert grows_less(update, 150, 600, times=8)


@pytest.mark.parametrize("form", ["s.{}", "s.*.x{}"])
def test_creating_a_consumer_takes_cpu_in_proportion_to_its_filters(form: str) -> None:
    def create(count: int) -> float:
        return cost("CONSUMER.CREATE.S.c", consumer(filter_subjects=numbered(form, count)), setup=has_streams)

    assert grows_less(create, 520, 1560, times=6)


def test_nested_calls_of_a_transform_are_parsed_in_linear_time() -> None:
    def parse(count: int) -> float:
        transform = {"src": "s.*", "dest": "{{left(" * count + "}}"}
        return cost("STREAM.CREATE.S", stream(subjects=["s.*"], subject_transform=transform), accepted=False)

    assert grows_less(parse, 1000, 4000, times=8)


def test_tokens_of_a_transform_are_checked_in_linear_time() -> None:
    def parse(count: int) -> float:
        transform = {"src": "s.*", "dest": ".".join("x" * count)}
        return cost("STREAM.CREATE.S", stream(subjects=["s.*"], subject_transform=transform))

    assert grows_less(parse, 3000, 12_000, times=8)


def test_a_new_stream_costs_the_same_beside_few_and_many_others() -> None:
    def create(others: int) -> float:
        def setup(client: Client) -> None:
            for at in range(others):
                client.create(f"O{at}", subjects=numbered(f"o.{at}.{{}}", 20))

        return cost("STREAM.CREATE.S", stream(subjects=numbered("s.{}", 20)), setup=setup)

    assert grows_less(create, 5, 80, times=4)


def test_chains_of_streams_with_several_sources_of_one_stream_are_not_followed_again_and_again() -> None:
    """Each stream takes four parts of the one before: 4^n ways lead to the first one."""

    def create(length: int) -> float:
        def setup(client: Client) -> None:
            client.create("S0", subjects=["s.>"])
            for at in range(1, length):
                parts = [{"name": f"S{at - 1}", "filter_subject": f"s.{part}"} for part in range(4)]
                client.create(f"S{at}", subjects=[], sources=parts)

        parts = [{"name": f"S{length - 1}", "filter_subject": f"s.{part}"} for part in range(4)]
        return cost("STREAM.CREATE.S", stream(sources=parts), setup=setup)

    assert grows_less(create, 3, 9, times=8)


def test_a_commit_costs_in_proportion_to_the_sources_that_read_it() -> None:
    def publish(count: int) -> float:
        client = Rig(max_pending_bytes=1 << 30).client()
        client.create("O", subjects=["o.>"])
        sources = [{"name": "O", "filter_subject": f"o.{at}"} for at in range(count)]
        assert "error" not in client.create("S", subjects=[], sources=sources)
        return cpu(lambda: client.publish("o.1"))

    assert grows_less(publish, 60, 240, times=8)


# Bounds.

HARD = [".".join(tokens) for tokens in itertools.product(("a", "*"), repeat=8)]  # each differs behind eight stars
BRANCHED = [".".join(tokens) for tokens in itertools.product(("a", "*"), repeat=6)]

TOO_MUCH: dict[str, tuple[str, Body, str]] = {
    "subjects": (
        "STREAM.CREATE.N",
        stream(name="N", subjects=numbered("n.{}", 20_000)),
        "stream subjects must have at most 2048 entries, got 20000",
    ),
    "tokens of subjects": (
        "STREAM.CREATE.N",
        stream(name="N", subjects=["n" + ".*" * 100_000]),
        "stream subjects must have at most 6144 tokens together, got 100001",
    ),
    "sources": (
        "STREAM.CREATE.N",
        stream(name="N", sources=[{"name": "O", "filter_subject": f"s.{at}"} for at in range(10_000)]),
        "stream sources must have at most 512 entries, got 10000",
    ),
    "transforms of a source": (
        "STREAM.CREATE.N",
        stream(name="N", sources=[{"name": name, "subject_transforms": transforms(600)} for name in "OP"]),
        "stream subject_transforms must have at most 1024 entries, got 1200",
    ),
    "transforms of a mirror": (
        "STREAM.CREATE.N",
        stream(name="N", mirror={"name": "O", "subject_transforms": transforms(10_000)}),
        "stream subject_transforms must have at most 1024 entries, got 10000",
    ),
    "a transform": (
        "STREAM.CREATE.N",
        stream(name="N", subject_transform={"src": "n", "dest": "{{left(" * 60_000 + "}}"}),
        "subject transforms of a stream must have at most 32768 characters, got 420003",
    ),
    "republish": (
        "STREAM.CREATE.N",
        stream(name="N", republish={"src": ">", "dest": "r." * 100_000 + ">"}),
        "subject transforms of a stream must have at most 32768 characters, got 200002",
    ),
    "placement": (
        "STREAM.CREATE.N",
        stream(name="N", placement={"tags": ["a"] * 100_000}),
        "stream placement tags must have at most 1024 entries, got 100000",
    ),
    "metadata": (
        "STREAM.CREATE.N",
        stream(name="N", metadata=dict.fromkeys(numbered("{}", 100_000), "")),
        "stream metadata must have at most 4096 entries, got 100000",
    ),
    "hard subjects": (
        "STREAM.CREATE.N",
        stream(name="N", no_ack=True, subjects=[f"{head}.{at}" for at, head in enumerate(HARD * 2)]),
        "stream subjects must be comparable in at most 100000 steps",
    ),
    "filters": (
        "CONSUMER.CREATE.S.c",
        consumer(filter_subjects=numbered("s.{}", 20_000)),
        "consumer filter_subjects must have at most 4096 entries, got 20000",
    ),
    "tokens of filters": (
        "CONSUMER.CREATE.S.c",
        consumer(filter_subjects=["s" + ".*" * 100_000, "s.x"]),
        "consumer filter_subjects with wildcards must have at most 6144 tokens together, got 100001",
    ),
    "filters with stars in many places": (
        "CONSUMER.CREATE.S.c",
        consumer(filter_subjects=[f"{head}.{at}" for at, head in enumerate(BRANCHED)]),
        "consumer filter_subjects must be matched in at most 128 steps by each subject, got 189",
    ),
    "subjects with stars in many places": (
        "STREAM.CREATE.N",
        stream(name="N", no_ack=True, subjects=[f"{head}.{at}" for at, head in enumerate(BRANCHED)]),
        "stream subjects must be matched in at most 128 steps by each subject, got 189",
    ),
    "transforms with stars in many places": (
        "STREAM.CREATE.N",
        stream(
            name="N",
            mirror={
                "name": "O",
                "subject_transforms": [{"src": f"{h}.{at}", "dest": ""} for at, h in enumerate(BRANCHED)],
            },
        ),
        "stream subject_transforms must be matched in at most 128 steps by each subject, got 189",
    ),
    "back-off": (
        "CONSUMER.CREATE.S.c",
        consumer(backoff=[10**9] * 100_000),
        "consumer backoff must have at most 1024 entries, got 100000",
    ),
    "groups": (
        "CONSUMER.CREATE.S.c",
        consumer(priority_policy="overflow", priority_groups=numbered("g{}", 100_000)),
        "consumer priority_groups must have at most 1024 entries, got 100000",
    ),
    "consumer metadata": (
        "CONSUMER.CREATE.S.c",
        consumer(metadata=dict.fromkeys(numbered("{}", 100_000), "")),
        "consumer metadata must have at most 4096 entries, got 100000",
    ),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_beyond_a_bound_is_rejected_with_the_bound(what: str) -> None:
    subject, body, text = TOO_MUCH[what]
    client = Rig(max_payload=8 << 20).client()
    has_streams(client)
    error = client.api(subject, body)["error"]
    assert error["err_code"] == 10052
    assert error["description"].startswith(text)


def test_filters_that_are_hard_to_compare_are_rejected_in_words(client: Client) -> None:
    client.create("S")
    filters = [f"{head}.{at}" for at, head in enumerate(HARD)] + numbered("a.a.a.a.a.a.a.a.x{}", 1000)
    error = client.api("CONSUMER.CREATE.S.c", consumer(filter_subjects=filters))["error"]
    assert error["description"].startswith("consumer filter_subjects must be comparable in at most 100000 steps")


def test_lists_at_their_bounds_are_accepted(client: Client) -> None:
    made = client.create("A", subjects=numbered("a.{}.x", bounds.MAX_SUBJECTS))
    assert len(made["config"]["subjects"]) == bounds.MAX_SUBJECTS
    assert "error" not in client.create("B", subjects=numbered("b.{}.>", bounds.MAX_SUBJECTS))
    assert "error" not in client.create("S")
    filters = numbered("s.{}", bounds.MAX_FILTERS)
    info = client.api("CONSUMER.CREATE.S.c", consumer(filter_subjects=filters))
    assert info["config"]["filter_subjects"] == filters
    some = [f"s.{head}.{at}" for at, head in enumerate(BRANCHED[::4])]  # stars in four places
    assert "error" not in client.api(
        "CONSUMER.CREATE.S.some", consumer(name="some", durable_name="some", filter_subjects=some)
    )
    sources = [{"name": "A", "filter_subject": f"a.{at}.x"} for at in range(bounds.MAX_SOURCES)]
    assert "error" not in client.create("C", subjects=[], sources=sources)
    renamed = [{"src": f"a.{at}.x", "dest": f"{at}"} for at in range(bounds.MAX_TRANSFORMS)]
    assert "error" not in client.create("D", subjects=[], mirror={"name": "A", "subject_transforms": renamed})


def test_first_of_several_overlapping_subjects_is_named(client: Client) -> None:
    error = client.create("S", subjects=["b", "a.*.c", "a.b.d", "a.b.*", "a.b.c"])["error"]
    assert error["description"] == 'subject "a.*.c" overlaps with "a.b.*"'


def test_wrong_types_are_left_to_the_decoder(client: Client) -> None:
    wrong: list[Body] = [{"subjects": "s"}, {"subjects": [1]}, {"sources": {}}, {"mirror": []}, {"placement": 1}]
    for fields in wrong:
        assert client.create("S", **fields)["error"]["err_code"] == 10025
    client.create("S")
    for config in ({"filter_subjects": 5}, {"filter_subjects": [None]}, {"backoff": "x"}):
        assert client.api("CONSUMER.CREATE.S.c", consumer(**config))["error"]["err_code"] == 10025

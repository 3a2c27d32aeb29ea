"""Configurations with hundreds of subjects, filters and transforms, within our bounds: the same as on nats-server."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.conformance.compare import TIMEOUT, Wire, same_on

MANY = 600


@pytest.fixture
def urls(real_url: str, our_url: str) -> tuple[str, str]:
    return real_url, our_url


def consumer(wire: Wire, **config: Any) -> dict[str, Any]:
    fixed = {
        "name": "c",
        "durable_name": "c",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
    }
    return {"stream_name": wire.name, "config": fixed | config}


async def shown(wire: Wire, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A request about a consumer; its answer, without `cluster`, which only our server shows."""
    data = json.dumps(body).encode() if body is not None else b""
    answer = json.loads((await wire.nc.request(f"$JS.API.CONSUMER.{call}", data, timeout=TIMEOUT)).data)
    wire.record.append({name: answer.get(name) for name in ("config", "num_ack_pending", "num_pending", "error")})
    return cast("dict[str, Any]", answer)


async def test_stream_with_many_subjects_captures_all_of_them(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        subjects = [f"{wire.subject}.{at}" for at in range(MANY)] + [f"{wire.subject}.w.{at}.>" for at in range(MANY)]
        await wire.create(subjects=subjects)
        for token in ("0", "599", "w.0.a", "w.599.a.b"):
            await wire.publish(token)
        for subject in (f"{wire.subject}.599", f"{wire.subject}.*", f"{wire.subject}.w.5.x", f"{wire.subject}.600"):
            await wire.api("STREAM.NAMES", {"subject": subject})
        await wire.update(subjects=subjects[100:])
        await wire.api("STREAM.NAMES", {"subject": f"{wire.subject}.5"})
        await wire.publish("599")
        await wire.update(subjects=[*subjects[100:], f"{wire.subject}.w.7.x"])
        other = f"{wire.name}_2"
        for subject in (f"{wire.subject}.150", f"{wire.subject}.w.*.a", f"{wire.subject}.>", f"{wire.subject}.5"):
            await wire.api(f"STREAM.CREATE.{other}", {"name": other, "subjects": [subject]})

    await same_on(urls, fresh, scenario)


async def test_consumer_with_many_filters_counts_and_delivers_alike(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        for at in range(0, 40):
            await wire.publish(f"{at % 8}.{at % 3}")
        filters = [f"{wire.subject}.{at}.1" for at in range(5, MANY)]
        await shown(wire, f"CREATE.{wire.name}.c", consumer(wire, filter_subjects=filters))
        inbox = await wire.listen(f"in.{wire.subject}")
        for _ in range(3):
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{wire.name}.c"
            await wire.nc.publish(subject, b'{"batch":1,"no_wait":true}', reply=f"in.{wire.subject}")
            await wire.heard(inbox)
        info = await shown(wire, f"INFO.{wire.name}.c")
        assert len(info["config"]["filter_subjects"]) == len(filters)
        for wrong in ([*filters, filters[7]], [*filters, f"{wire.subject}.*.1"], [*filters, f"{wire.subject}..1"]):
            await shown(wire, f"CREATE.{wire.name}.c", consumer(wire, filter_subjects=wrong))

    await same_on(urls, fresh, scenario)


async def test_a_source_with_many_transforms_takes_the_first_that_matches(urls: tuple[str, str], fresh: str) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create()
        renamed = [{"src": f"{wire.subject}.{at}.*", "dest": f"t.{at}.{{{{wildcard(1)}}}}"} for at in range(300)]
        renamed.append({"src": f"{wire.subject}.*.x", "dest": "x.{{wildcard(1)}}"})
        name = f"{wire.name}_2"
        for transforms in ([*renamed, renamed[0]], [*renamed, {"src": f"{wire.subject}.>", "dest": "u.>"}]):
            source = {"name": wire.name, "subject_transforms": transforms}
            await wire.api(f"STREAM.CREATE.{name}", {"name": name, "sources": [source]})
            await wire.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": source})

    await same_on(urls, fresh, scenario)

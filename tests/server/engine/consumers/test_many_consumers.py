"""Very many consumers of one stream: what a commit, a publish and an ack cost for each of them, counted in looks."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.consumers import filters, retention
from slipstream.server.engine.consumers.filters import CommitNews, FilterIndex, Filters
from slipstream.server.engine.jobs import RECEIVE_UNITS, SLICE_UNITS
from slipstream.server.engine.ports import Changes
from slipstream.wire import SubjectSet, pub
from tests.server.support import Client, Rig

CONSUMERS, MESSAGES = 300, 200


def stream(client: Client, filter_subject: str, **config: Any) -> None:
    """A stream with very many consumers; `{}` in the filter is the number of each."""
    client.create("S", subjects=["s.>"], **config)
    for n in range(CONSUMERS):
        body = {
            "name": f"c{n}",
            "durable_name": f"c{n}",
            "ack_policy": "explicit",
            "filter_subject": filter_subject.format(n),
        }
        client.api(f"CONSUMER.CREATE.S.c{n}", {"stream_name": "S", "config": body})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects that sets of filters were searched for."""
    found: list[str] = []
    matches, matching = SubjectSet.matches, SubjectSet.matching

    class Counted(SubjectSet):
        def matches(self, subject: str) -> bool:
            found.append(subject)
            return matches(self, subject)

        def matching(self, subject: str) -> list[str]:
            found.append(subject)
            return matching(self, subject)

    monkeypatch.setattr(filters, "SubjectSet", Counted)
    return found


def test_commit_looks_each_subject_up_once_for_all_consumers(looks: list[str]) -> None:
    client = Rig().client()
    stream(client, "s.*.{}")
    client.send(pub("s.x.1", b"x"))
    looks.clear()
    client.send(b"".join(pub(f"s.{n}.7", b"x") for n in range(MESSAGES)))
    assert len(looks) == MESSAGES
    consumers = client.rig.engine.streams["S"].consumers.items
    assert [consumers[f"c{n}"].left for n in (1, 7, 8)] == [1, MESSAGES, 0]


def test_publish_looks_once_for_the_interest_of_all_consumers(looks: list[str]) -> None:
    client = Rig().client()
    stream(client, "s.*.{}", retention="interest")
    looks.clear()
    client.send(b"".join(pub(f"s.{n}.none", b"x") for n in range(MESSAGES)))
    assert client.rig.engine.streams["S"].log.state.messages == 0
    assert len(looks) <= 3 * MESSAGES  # as it is stored, and as it is added and removed by a commit
    client.send(pub("s.x.7", b"x"))
    assert client.rig.engine.streams["S"].log.state.messages == 1


def test_filters_of_a_changed_or_deleted_consumer_are_no_interest() -> None:
    client = Rig().client()
    stream(client, "s.*.{}", retention="interest")
    config = {"name": "c7", "durable_name": "c7", "ack_policy": "explicit", "filter_subject": "s.new"}
    client.api("CONSUMER.CREATE.S.c7", {"stream_name": "S", "config": config, "action": "update"})
    client.api("CONSUMER.DELETE.S.c8")
    client.send(b"".join(pub(subject, b"x") for subject in ("s.x.7", "s.x.8", "s.new")))
    log = client.rig.engine.streams["S"].log
    assert [record.subject for record in log.scan("", 0, limit=10)] == ["s.new"]


def test_acks_that_ask_very_many_consumers_are_in_slices() -> None:
    rig = Rig()
    client, reader = rig.client(), rig.client()
    stream(client, "s.x", retention="interest")
    reader.send(b"SUB reader 1\r\n")
    client.send(b"".join(pub("s.x", b"x") for _ in range(MESSAGES)))
    for n in range(CONSUMERS - 1):  # the last one needs them
        client.api(f"CONSUMER.RESET.S.c{n}", {"seq": MESSAGES + 1})
    client.api("CONSUMER.RESET.S.c0", {"seq": 1})
    reader.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c0", msgspec.json.encode({"batch": MESSAGES}), "reader"))
    acks = [message.reply for message in reader.messages()]
    assert len(acks) == MESSAGES
    reader.send(b"".join(pub(ack, b"+ACK") for ack in acks), settle=False)
    each = CONSUMERS // retention.CURSORS_PER_UNIT
    state = rig.engine.streams["S"].consumers.items["c0"].state
    assert MESSAGES - len(state.pending) <= RECEIVE_UNITS // each + 1
    rig.settle()
    assert not state.pending
    assert rig.engine.streams["S"].log.state.messages == MESSAGES


def test_sweep_that_asks_very_many_consumers_is_in_slices() -> None:
    client = Rig().client()
    stream(client, "s.x", retention="interest")
    client.send(b"".join(pub("s.x", b"x") for _ in range(MESSAGES)))
    for n in range(CONSUMERS - 1):
        client.api(f"CONSUMER.RESET.S.c{n}", {"seq": MESSAGES + 1})
    consumers = client.rig.engine.streams["S"].consumers
    consumers.retention.sweep()
    sweep = retention.Sweep(consumers.retention, client.rig.engine.streams["S"], {"c": consumers.items["c0"].cursor})
    slices = 0
    while (units := sweep.run()[1]) or not slices:
        assert units <= SLICE_UNITS + CONSUMERS // retention.CURSORS_PER_UNIT + 2
        slices += 1
    assert slices >= MESSAGES * CONSUMERS / retention.CURSORS_PER_UNIT / (2 * SLICE_UNITS)


def test_news_of_a_commit_are_those_that_each_message_tells() -> None:
    chance = random.Random(1)
    subjects = [f"s.{a}.{b}" for a in "123" for b in "xyz"]
    for _ in range(300):
        added = [(seq, chance.choice(subjects)) for seq in range(50, 50 + chance.randrange(30))]
        removed = [(seq, chance.choice(subjects)) for seq in chance.sample(range(1, 80), chance.randrange(80 - 1))]
        sets = [("s.*.x",), (), ("s.1.>", "s.*.y"), ("s.1.x", "s.2.y"), ("s.1.*", "s.2.*"), ("s.3.z",), ("s.*.*",)]
        index = FilterIndex()
        for patterns in sets[:-1]:  # the last one is of a consumer that came later
            index.add(Filters(patterns))
        gone = Filters(sets[0])
        index.add(gone)
        index.remove(gone)
        news = CommitNews(Changes(added, removed, False), index)
        for patterns in sets:
            filters, seq = Filters(patterns), chance.randrange(90)
            covered = [at for at, subject in added if at >= seq and filters.covers(subject)]
            assert news.added_from(seq, filters) == len(covered)
            covered = [at for at, subject in removed if at >= seq and filters.covers(subject)]
            assert news.removed_from(seq, filters) == len(covered)
        pending = dict.fromkeys(sorted(chance.sample(range(100), chance.randrange(100))))
        expected = {seq for seq, _ in removed if seq in pending}
        assert len(found := news.removed_of(pending)) == len(expected)
        assert set(found) == expected


def test_removals_of_a_commit_are_not_looked_through_by_each_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "FEW_REMOVED", 0)
    client = Rig().client()
    stream(client, ">", max_msgs=100)
    client.send(b"".join(pub("s.x", b"x") for _ in range(100)))
    looked = 0

    class Removed(list[tuple[int, str]]):
        def __iter__(self) -> Any:
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    news = client.rig.engine.streams["S"].log.news

    def counted() -> Changes | None:
        found = news()
        return found._replace(removed=Removed(found.removed)) if found is not None else None

    monkeypatch.setattr(client.rig.engine.streams["S"].log, "news", counted)
    client.send(b"".join(pub("s.x", b"x") for _ in range(MESSAGES)))
    consumers = client.rig.engine.streams["S"].consumers.items
    assert {consumer.left for consumer in consumers.values()} == {100}
    assert looked <= 10 * MESSAGES

"""Requests in slices on a stream that changes all the time: each ends after a number of turns that depends on its work.

Three clients fill the open group in every turn before a job gets its slice, and a commit takes two turns. A walk that
started over with each change, or waited for a group with space, would not end at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.consumers import persistence
from slipstream.server.engine.ports import Store
from slipstream.server.engine.streams import removals, subject_limits
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Msg, pub
from tests.server.support import Client, Rig

SUBJECTS = 3000
PUBLISHERS, BURST = 3, 300  # together more than the changes at which a job waits for the next group
MOST_TURNS = 300


@pytest.fixture(params=["memory", "lmdb"])
def busy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr(subject_limits, "MAX_PENDING", 512)
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 28) if request.param == "lmdb" else MemoryStore()
    yield Busy(store)
    store.close()


class Busy:
    """A stream S with very many subjects, `s.<n % 10>.<n>`, and clients that keep publishing to it."""

    def __init__(self, store: Store) -> None:
        assert max(removals.MAX_PENDING, persistence.MAX_PENDING, subject_limits.MAX_PENDING) < PUBLISHERS * BURST
        self.rig = Rig(store=store)
        self.client: Client = self.rig.client()
        self.publishers = [self.rig.client() for _ in range(PUBLISHERS)]
        self.turns = 0
        self.client.create("S", storage="file", subjects=["s.>"])
        for start in range(0, SUBJECTS, 500):
            self.client.send(b"".join(pub(f"s.{n % 10}.{n}", b"x") for n in range(start, start + 500)))

    def turn(self) -> None:
        """Publishes first, then a slice of the jobs; every other turn ends with a commit."""
        self.turns += 1
        assert self.turns < MOST_TURNS, "the request does not end"
        burst = b"".join(pub(f"s.new.{self.turns}.{n % 30}", b"x") for n in range(BURST))
        for publisher in self.publishers:
            publisher.send(burst, settle=False)
        self.rig.engine.step(self.rig.now)
        if not self.turns % 2:
            self.rig.commit()
        self.rig.flush()

    def ask(self, subject: str, body: dict[str, Any] | bytes = b"") -> Msg:
        """A request; its answer, while the others publish."""
        self.client.take()
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.client.send(pub(subject, payload, f"{self.client.inbox}r"), settle=False)
        found: list[Msg] = []
        while not found:
            self.turn()
            found = self.client.messages()
        return found[0]

    def api(self, subject: str, body: dict[str, Any] | bytes = b"") -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(self.ask(f"$JS.API.{subject}", body).payload)
        assert "error" not in answer, answer
        return answer

    def consumer(self, action: str = "", **config: Any) -> dict[str, Any]:
        its = {"name": "d", "durable_name": "d", "ack_policy": "explicit", **config}
        return self.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "action": action, "config": its})


def of_subjects(busy: Busy) -> None:
    found = busy.api("STREAM.INFO.S", {"subjects_filter": "s.*.*"})
    assert found["total"] == len(found["state"]["subjects"]) == SUBJECTS


def of_gaps(busy: Busy) -> None:
    busy.client.api("STREAM.PURGE.S", {"filter": "s.3.*"})
    assert busy.api("STREAM.INFO.S", {"deleted_details": True})["state"]["num_deleted"] == SUBJECTS // 10


def of_last_messages(busy: Busy) -> None:
    answer = busy.ask("$JS.API.STREAM.MSG.GET.S", {"last_by_subj": "*.*.17"})
    assert msgspec.json.decode(answer.payload)["message"]["subject"] == "s.7.17"


def of_a_purge_by_filter(busy: Busy) -> None:
    assert busy.api("STREAM.PURGE.S", {"filter": "s.*.*"})["purged"] == SUBJECTS


def of_a_purge_that_keeps_some(busy: Busy) -> None:
    assert busy.api("STREAM.PURGE.S", {"filter": "s.*.*", "keep": 10})["purged"] == SUBJECTS - 10


def of_a_consumer_that_begins(busy: Busy) -> None:
    assert busy.consumer(filter_subject="s.*.*")["num_pending"] == SUBJECTS


def of_a_list_of_last_messages(busy: Busy) -> None:
    assert busy.consumer(filter_subject="s.*.*", deliver_policy="last_per_subject")["num_pending"] == SUBJECTS


def of_a_count_again(busy: Busy) -> None:
    busy.consumer(filter_subject="s.*.*")
    assert busy.consumer("update", filter_subject="s.4.*")["num_pending"] == SUBJECTS // 10


def of_an_ack_of_all(busy: Busy) -> None:
    config = {"name": "d", "durable_name": "d", "ack_policy": "all", "max_ack_pending": -1, "filter_subject": "s.*.*"}
    busy.client.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config})
    busy.client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":%d}' % SUBJECTS, f"{busy.client.inbox}p"))
    last = busy.client.messages()[-1]
    busy.ask(last.reply, b"+ACK")
    assert busy.client.api("CONSUMER.INFO.S.d")["num_ack_pending"] == 0


def of_a_lower_limit_per_subject(busy: Busy) -> None:
    busy.client.send(b"".join(pub(f"s.{n % 10}.{n}", b"x") for n in range(SUBJECTS)))
    busy.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "storage": "file", "max_msgs_per_subject": 1})
    stream = busy.rig.engine.streams["S"]
    while stream.trimming:
        busy.turn()
    assert all(stream.log.count_of(f"s.{n % 10}.{n}") == 1 for n in range(SUBJECTS))


REQUESTS: list[Callable[[Busy], None]] = [
    of_subjects,
    of_gaps,
    of_last_messages,
    of_a_purge_by_filter,
    of_a_purge_that_keeps_some,
    of_a_consumer_that_begins,
    of_a_list_of_last_messages,
    of_a_count_again,
    of_an_ack_of_all,
    of_a_lower_limit_per_subject,
]


@pytest.mark.parametrize("request_of", REQUESTS, ids=lambda each: each.__name__.removeprefix("of_"))
def test_request_in_slices_ends_beside_clients_that_keep_publishing(
    busy: Busy, request_of: Callable[[Busy], None]
) -> None:
    request_of(busy)

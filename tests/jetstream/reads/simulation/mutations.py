"""Weakened rules: each leaves out one thing that the rules rest on, and the simulator must notice.

A mutation names what to replace, and the cluster and faults that show why it matters: with everything possible at once
each is found as well, after more schedules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from slipstream.api import GetRequest, StreamInfo
from slipstream.jetstream.reads import evidence, read_state, rule
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.evidence import LeaderWord
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.jetstream.reads.read_state import MirrorFacts, StreamCache
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import Found, LeaderGet, ReadRule
from tests.jetstream.reads.simulation.model import Limits
from tests.jetstream.reads.simulation.world import TEMPOS, Faults, Kind

_KV3 = Limits(per_subject=1, replicas=3)
_KV = Limits(per_subject=1)
_ALL3 = Limits(replicas=3)
_ALL = Limits()


class Mutation(NamedTuple):
    """What is replaced (object, attribute, replacement), and where that is wrong."""

    changes: tuple[tuple[object, str, object], ...]
    faults: Faults


def _faults(kinds: Sequence[Kind], reads: str, allowed: str, *, is_split: bool = False) -> Faults:
    """`is_split`: clients see both sides of a partition, and time passes in seconds."""
    kinds, asked = tuple(kinds), tuple(reads.split())
    if not is_split:
        return Faults(
            frozenset(allowed.split()),
            kinds,
            asked,
            is_early=False,
            tempos=TEMPOS[:1],
            reads_mirrors=False,
            from_leader=0,
        )
    events = frozenset((*allowed.split(), "wait"))
    return Faults(
        events, kinds, asked, is_early=False, views=(0,), tempos=TEMPOS[1:2], reads_mirrors=False, from_leader=0
    )


_leader_word = evidence.leader_word
_proves_itself = ReadRule._proves_itself


def _word_of_anyone(info: StreamInfo) -> LeaderWord | None:
    return _leader_word(info) or LeaderWord("n1", "", info.state.last_seq, is_settled=True, is_heard_by_all=True)


def _last_word(self: ReadRule, goal: ReadGoal) -> Generator[Any, Any, Any]:
    word = self.cache.leader
    if word is not None and word.last_seq >= goal.wanted:
        return word
    return (yield from _word(self, goal))


_word = ReadRule._word


def _word_of_any_age(self: ReadRule, goal: ReadGoal) -> Generator[Any, Any, Any]:
    """Without a look at how far the leader is."""
    info = yield from self.info(goal)
    return (isinstance(info, StreamInfo) and _leader_word(info)) or Retry(goal.stale("no leader"))


def _any_leader(self: ReadRule, _: ReadGoal, request: GetRequest, __: LeaderWord) -> Generator[Any, Any, Any]:
    message = yield LeaderGet(self.origin, request)
    return message if isinstance(message, Retry) else Found(message)


def _no_leftovers(*_: object) -> Generator[Any, Any, set[int]]:
    yield from ()
    return set()


def _nearly_new(self: ReadRule, goal: ReadGoal, request: GetRequest, message: StoredMessage) -> bool:
    return message.seq >= goal.wanted - 1 if request.last_by_subj else _proves_itself(self, goal, request, message)


_learn = StreamCache.learn


def _learn_config_once(self: StreamCache, info: StreamInfo, sent: float) -> bool:
    config, is_lossless, is_known = self.config, self.is_lossless, self.created == info.created
    is_current = _learn(self, info, sent)
    if is_known:
        self.config, self.is_lossless = config, is_lossless
    return is_current


def _yes(*_: object, **__: object) -> bool:
    return True


def _no(*_: object, **__: object) -> bool:
    return False


def _no_doubt(self: ReadRule, goal: ReadGoal, _: str, __: int) -> Generator[Any, Any, None]:
    yield from self.learn_generation(goal)


def _accept_early_end(self: RangeReader, columns: Any, page_end: Any) -> Any:
    found = _accept(self, columns, page_end)
    if page_end is not None and page_end.pending <= 0:
        self.finish()
    return found


_accept = RangeReader.accept

MUTATIONS: dict[str, Mutation] = {
    "a leader is settled after 2 s": Mutation(
        ((evidence, "SETTLED", 2_000_000_000),),
        _faults((Kind(_KV3),), "last next", "cut_leader move_client", is_split=True),
    ),
    "a leader's Message Get is believed before it is settled": Mutation(
        ((ReadRule, "_unsettled", _any_leader),),
        _faults((Kind(_KV3),), "last next", "cut_leader move_client", is_split=True),
    ),
    "a leader need not have reached the wanted sequence": Mutation(
        ((ReadRule, "_word", _word_of_any_age),), _faults((Kind(_KV3),), "last next", "cut_leader", is_split=True)
    ),
    "a follower that answers without a leader counts as one": Mutation(
        ((rule, "leader_word", _word_of_anyone), (read_state, "leader_word", _word_of_anyone)),
        _faults((Kind(_KV3),), "last next many", "cut_leader step_down cut_follower wait"),
    ),
    "the leader's word is not asked for behind the answer": Mutation(
        ((ReadRule, "_word", _last_word),), _faults((Kind(_KV3),), "last many", "step_down cut_follower wait")
    ),
    "a named copy counts whoever leads afterwards": Mutation(
        ((LeaderWord, "is_same_leader", _yes),),
        _faults((Kind(_KV3),), "last many", "step_down cut_follower cut_leader wait"),
    ),
    "no look at the generation": Mutation(
        ((ReadRule, "_doubt", _no_doubt),),
        _faults((Kind(_KV3, (("", _KV),)),), "last", "remake_stream cut_mirror wait"),
    ),
    "a configuration is believed for ever": Mutation(
        ((read_state, "CONFIG_AGE", 1e9), (StreamCache, "learn", _learn_config_once)),
        _faults((Kind(_ALL3),), "last next seq", "edit_stream cut_follower"),
    ),
    "every stream keeps everything": Mutation(
        ((read_state, "lost_nothing", _yes),), _faults((Kind(_KV3),), "last seq", "cut_follower")
    ),
    "a mirror has everything": Mutation(
        ((rule, "has_everything", _yes), (rule, "begins_as", _yes)),
        _faults((Kind(_ALL, (("", _ALL),)),), "range seq next", "edit_mirror purge_mirror"),
    ),
    "a mirror begins as its origin does": Mutation(
        ((rule, "begins_as", _yes),),
        _faults((Kind(_ALL, (("", _ALL),)),), "last many seq next", "remake_stream cut_mirror wait"),
    ),
    "a mirror is the one that answered": Mutation(
        ((MirrorFacts, "is_one", _yes),),
        _faults((Kind(_ALL, (("", _ALL),)),), "last many seq next", "remake_mirror cut_mirror"),
    ),
    "a range shows what a copy still has": Mutation(
        ((ReadRule, "_leftovers", _no_leftovers),), _faults((Kind(_KV3),), "range", "cut_follower")
    ),
    "a next message is shown although it is gone": Mutation(
        ((rule, "state_has", _yes),), _faults((Kind(_KV3),), "next seq", "step_down cut_follower wait")
    ),
    "a range ends although what replaced a part of it is behind": Mutation(
        ((RangeReader, "read_on", lambda *_: None),), _faults((Kind(_KV3),), "range", "cut_follower")
    ),
    "a page of a mirror lacks nothing": Mutation(
        ((rule, "lacks_any_of", _no),), _faults((Kind(_KV3, (("s.a", _KV),)),), "range", "edit_mirror cut_mirror")
    ),
    "an early end is an end": Mutation(
        ((RangeReader, "accept", _accept_early_end),), _faults((Kind(_KV3),), "range", "cut_follower")
    ),
    "a message right before the wanted sequence proves itself": Mutation(
        ((ReadRule, "_proves_itself", _nearly_new),), _faults((Kind(_KV3),), "last", "cut_follower")
    ),
}

# What the rules rest on: in a cluster where this is not so their promises do not hold.
ASSUMPTIONS: dict[str, Faults] = {
    "a leader without a majority stops answering within 30 s": _faults(
        (Kind(_KV3),), "last next", "cut_leader move_client", is_split=True
    )._replace(deposed_for=(60.0, 90.0), tempos=TEMPOS[2:]),
}

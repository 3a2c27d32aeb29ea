"""The consumer part of the JetStream API (`$JS.API.CONSUMER.…`).

A handler gets the tokens after `CONSUMER.<verb>` and returns an `Outcome` or raises an ApiError, as those of streams
do; `dispatch` sends the responses. A new or changed consumer is reported as of the commit that makes it durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.api import ConsumerConfig, ConsumerInfo, SequenceInfo, parse_time
from slipstream.api.times import ZERO, format_time
from slipstream.errors import ConsumerNotFoundError, ErrorCode, ReplicasNotSupportedError
from slipstream.server.engine.api.requests import Count, Outcome, Sequence, decode, is_empty, optional
from slipstream.server.engine.consumers import config as rules
from slipstream.server.engine.consumers.consumer import Consumer
from slipstream.server.engine.ports import Walk

if TYPE_CHECKING:
    from slipstream.server.engine.streams.stream import Stream

MAX_NAMES = 1024
MAX_LIST = 256
WAIT_UNITS = 256  # a slice of work (`engine.jobs`): a report that waits looks once per turn
AFTER_CLUSTER = ("push_bound", "paused", "pause_remaining", "ts", "priority_groups")

Handler = Callable[[list[str], bytes, int], Outcome]
Find = Callable[[str], "Stream"]


class ConsumerPageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of CONSUMER.NAMES and CONSUMER.LIST."""

    offset: Count = 0


class PauseRequest(msgspec.Struct):
    """Body of CONSUMER.PAUSE."""

    pause_until: str | None = None


class ResetRequest(msgspec.Struct):
    """Body of CONSUMER.RESET."""

    seq: Sequence = 0


class UnpinRequest(msgspec.Struct):
    """Body of CONSUMER.UNPIN."""

    group: str = ""


class ConsumerApi:
    """The handlers of one account."""

    def __init__(self, find: Find, metadata: Mapping[str, str], *, compat: bool = False) -> None:
        """`find` returns the stream of a name, or raises; `metadata` is what the server adds to reports; with `compat`
        everything is as on a single nats-server."""
        self._find = find
        self._is_compat = compat
        self._metadata = metadata
        # By verb: the type of response, the handler, and the number of tokens that follow (None: the handler checks).
        self.handlers: dict[str, tuple[str, Handler, int | None]] = {
            "CREATE": ("consumer_create_response", self._create, None),
            "DURABLE": ("consumer_create_response", self._create_durable, None),
            "NAMES": ("consumer_names_response", self._names, 1),
            "LIST": ("consumer_list_response", self._list, 1),
            "INFO": ("consumer_info_response", self._info, 2),
            "DELETE": ("consumer_delete_response", self._delete, 2),
            "PAUSE": ("consumer_pause_response", self._pause, 2),
            "UNPIN": ("consumer_unpin_response", self._unpin, 2),
            "RESET": ("consumer_reset_response", self._reset, 2),
            "LEADER": ("consumer_leader_stepdown_response", self._step_down, 3),
        }

    # Create and update.

    def _create(self, tokens: list[str], payload: bytes, now: int) -> Outcome:
        """`<stream>`: an ephemeral consumer, the old form; `<stream>.<name>` and an optional filter: the new one."""
        name = tokens[1] if len(tokens) > 1 else None
        return self._put(tokens[0], name, ".".join(tokens[2:]), payload, now)

    def _create_durable(self, tokens: list[str], payload: bytes, now: int) -> Outcome:
        """`CREATE.<stream>.<name>`."""
        if tokens[0] != "CREATE" or len(tokens) != 3:
            raise ErrorCode.CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT.error()
        return self._put(tokens[1], tokens[2], "", payload, now, durable=True)

    def _put(
        self, stream_name: str, name: str | None, pattern: str, payload: bytes, now: int, *, durable: bool = False
    ) -> Outcome:
        body = _create_body(payload)
        config = rules.parse(body.get("config", {}))
        if self._is_compat and "min_last_seq" in body.get("config", {}):
            raise ErrorCode.INVALID_JSON.error(err='json: unknown field "min_last_seq"')
        if body.get("stream_name", "") != stream_name:
            raise ErrorCode.STREAM_MISMATCH.error()
        if any(char in (name or config.name) for char in "\\/"):
            raise ErrorCode.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS.error()
        config = _named(config, name, durable=durable)
        if pattern and config.filter_subjects:
            raise ErrorCode.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED.error()
        if pattern and config.filter_subject != pattern:
            raise ErrorCode.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH.error()
        stream = self._find(stream_name)
        if config.num_replicas > max(1, stream.config.num_replicas):
            raise ReplicasNotSupportedError
        consumer = stream.consumers.put(config, body.get("action", ""), now, pedantic=body.get("pedantic", False))
        if consumer.will_search or consumer.is_searching:
            return Outcome({}, stream.journal, search=lambda: self._begun(stream, consumer))
        return Outcome({}, stream.journal, later=lambda: self._report(consumer))

    def _begun(self, stream: Stream, consumer: Consumer) -> Walk[dict[str, Any]]:
        """The report of a consumer once its first message is found: until then it is not known what is left."""
        while consumer.is_searching:
            yield WAIT_UNITS
        if stream.consumers.items.get(consumer.name) is not consumer:  # deleted, or lost with its group
            raise ConsumerNotFoundError
        return self._report(consumer)

    # Reports.

    def _chosen(self, tokens: list[str], payload: bytes, limit: int) -> tuple[dict[str, Any], list[Consumer]]:
        request = optional(payload, ConsumerPageRequest)
        items = self._find(tokens[0]).consumers.items
        offset = min(max(request.offset, 0), len(items))
        names = sorted(items)[offset : offset + limit]
        return {"total": len(items), "offset": offset, "limit": limit}, [items[name] for name in names]

    def _names(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        page, consumers = self._chosen(tokens, payload, MAX_NAMES)
        return Outcome(page | {"consumers": [consumer.name for consumer in consumers]})

    def _list(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        page, consumers = self._chosen(tokens, payload, MAX_LIST)
        if not any(consumer.is_searching for consumer in consumers):
            return Outcome(page | {"consumers": [consumer_info(consumer) for consumer in consumers]})

        def infos() -> Walk[dict[str, Any]]:
            while any(consumer.is_searching for consumer in consumers):
                yield WAIT_UNITS
            return page | {"consumers": [consumer_info(consumer) for consumer in consumers]}

        return Outcome({}, search=infos)

    def _consumer(self, tokens: list[str]) -> Consumer:
        return self._find(tokens[0]).consumers.find(tokens[1])

    def _info(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        _check_empty(payload)
        stream, consumer = self._find(tokens[0]), self._consumer(tokens)
        if consumer.is_searching:
            return Outcome({}, search=lambda: self._begun(stream, consumer))
        return Outcome(self._report(consumer))

    def _report(self, consumer: Consumer) -> dict[str, Any]:
        """A consumer, with what this server adds to its metadata."""
        info = consumer_info(consumer)
        info["config"]["metadata"] = dict(sorted((info["config"].get("metadata", {}) | self._metadata).items()))
        # The documentation shows it; nats-server itself omits it without a cluster. It must be in every report of a
        # consumer, since clients compare the response to a create with later infos.
        when = {name: info.pop(name) for name in AFTER_CLUSTER if name in info}
        cluster = {} if self._is_compat else {"cluster": {"leader": consumer.services.leader_name}}
        return info | cluster | when

    def _step_down(self, tokens: list[str], _: bytes, __: int) -> Outcome:
        """`LEADER.STEPDOWN.<stream>.<consumer>`: a consumer is led by its stream's leader, never by itself."""
        del tokens
        raise ErrorCode.CLUSTER_REQUIRED.error()

    # Changes.

    def _delete(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        _check_empty(payload)
        stream, consumer = self._find(tokens[0]), self._consumer(tokens)
        stream.consumers.delete(consumer)
        return Outcome({"success": True}, stream.journal)

    def _pause(self, tokens: list[str], payload: bytes, now: int) -> Outcome:
        request = optional(payload, PauseRequest)
        until = ZERO
        if request.pause_until is not None:
            try:
                until = parse_time(request.pause_until)
            except ValueError as exc:
                raise ErrorCode.INVALID_JSON.error(err=exc) from exc
        stream, consumer = self._find(tokens[0]), self._consumer(tokens)
        config = rules.with_level(consumer.config.replace(pause_until=until if until > ZERO else None))
        if config != consumer.config:
            stream.consumers.change(consumer, config, now)
        paused = until > now
        fields: dict[str, Any] = {"paused": paused, "pause_until": format_time(until)}
        if paused:
            fields["pause_remaining"] = until - now
        return Outcome(fields, stream.journal)

    def _unpin(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        request = decode(payload, UnpinRequest)
        if not request.group:
            raise ErrorCode.INVALID_JSON.error(err="consumer group not specified")
        if not rules.valid_group(request.group):
            raise rules.bad_group()
        consumer = self._consumer(tokens)
        if not consumer.unpin(request.group):
            raise ErrorCode.CONSUMER_INVALID_PRIORITY_GROUP.error()
        return Outcome({})

    def _reset(self, tokens: list[str], payload: bytes, _: int) -> Outcome:
        request = decode(payload, ResetRequest) if payload.strip() else ResetRequest()
        stream, consumer = self._find(tokens[0]), self._consumer(tokens)
        seq = consumer.reset(request.seq)
        journal = stream.journal
        if not consumer.writer.saved:  # the answer waits for the delivery state
            journal.after.append(lambda: None)
        if consumer.is_searching:
            return Outcome({}, journal, search=lambda: self._moved(stream, consumer, seq))
        return Outcome({}, journal, later=lambda: self._report(consumer) | {"reset_seq": seq})

    def _moved(self, stream: Stream, consumer: Consumer, seq: int) -> Walk[dict[str, Any]]:
        report = yield from self._begun(stream, consumer)
        return report | {"reset_seq": seq}


def consumer_info(consumer: Consumer) -> dict[str, Any]:
    """Configuration and state, with nats-server's fields in its order."""
    state, config, now = consumer.state, consumer.config, consumer.services.router.now
    paused = consumer.paused
    info = ConsumerInfo(
        stream_name=consumer.stream_name,
        name=consumer.name,
        created=consumer.created,
        config=config,
        delivered=SequenceInfo(
            consumer_seq=state.dseq, stream_seq=state.delivered, last_active=state.last_delivery or None
        ),
        ack_floor=SequenceInfo(
            consumer_seq=state.floor_dseq, stream_seq=state.floor_seq, last_active=state.last_ack or None
        ),
        num_ack_pending=len(state.pending),
        num_redelivered=0 if config.max_deliver == 1 else len(state.counts),
        num_waiting=consumer.waiting,
        num_pending=max(consumer.left, 0),
        push_bound=consumer.bound,
        paused=paused,
        ts=now,
        priority_groups=tuple(consumer.pins()),
    ).to_dict()
    if paused and config.pause_until is not None:
        at = list(info).index("paused") + 1
        items = list(info.items())
        info = dict([*items[:at], ("pause_remaining", config.pause_until - now), *items[at:]])
    return info


def _create_body(payload: bytes) -> dict[str, Any]:
    body: dict[str, Any] = decode(payload, dict) if payload.strip() else {}
    for name, value in body.items():
        if name not in ("stream_name", "config", "action", "pedantic"):
            raise ErrorCode.INVALID_JSON.error(err=f'json: unknown field "{name}"')
        if value is None:  # as if it were not there
            continue
        if name == "action" and value not in ("", "create", "update"):
            raise ErrorCode.INVALID_JSON.error(err=f"unknown consumer action: {msgspec.json.encode(value).decode()}")
        if name == "pedantic" and not isinstance(value, bool):
            raise ErrorCode.INVALID_JSON.error(err=f"pedantic must be true or false, got {value!r}")
    return {name: value for name, value in body.items() if value is not None}


def _named(config: ConsumerConfig, name: str | None, *, durable: bool) -> ConsumerConfig:
    """The configuration with the name in the subject."""
    if durable and not config.durable_name:
        raise ErrorCode.CONSUMER_DURABLE_NAME_NOT_SET.error()
    if name is not None:
        if config.durable_name and config.durable_name != name:
            raise ErrorCode.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT.error()
        return config.replace(name=name)
    if config.durable_name:
        raise ErrorCode.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME.error()
    return config


def _check_empty(payload: bytes) -> None:
    if not is_empty(payload):
        raise ErrorCode.NOT_EMPTY_REQUEST.error()

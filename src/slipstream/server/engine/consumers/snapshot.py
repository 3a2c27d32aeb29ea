"""Codec of a consumer in a snapshot: nats-server's JSON of its configuration and delivery state."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from slipstream.api import NOT_JSON, ConsumerConfig, encode_json
from slipstream.server.engine.consumers.config import config_record, valid_name
from slipstream.server.engine.consumers.consumer import Consumer
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.persistence import state_records


class Pair(msgspec.Struct):
    """A consumer sequence and the stream sequence that belongs to it."""

    consumer_seq: int = 0
    stream_seq: int = 0


class Delivery(msgspec.Struct, rename="pascal"):
    """A message that awaits its ack."""

    sequence: int = 0
    timestamp: int = 0


class ConsumerState(msgspec.Struct, omit_defaults=True):
    """The state of a consumer. Keys are stream sequences."""

    delivered: Pair = msgspec.field(default_factory=Pair)
    ack_floor: Pair = msgspec.field(default_factory=Pair)
    pending: dict[int, Delivery] | None = None
    redelivered: dict[int, int] | None = None


class StateBody(msgspec.Struct):
    """An entry of a snapshot."""

    config: dict[str, Any]
    state: ConsumerState


def exported(consumer: Consumer) -> bytes:
    """The entry of a consumer. Its state may be ahead of the messages in the snapshot, which was begun before."""
    own = consumer.state
    state = ConsumerState(
        delivered=Pair(own.dseq, own.delivered),
        ack_floor=Pair(own.floor_dseq, own.floor_seq),
        pending={seq: Delivery(dseq, time) for seq, (dseq, time) in own.pending.items()} or None,
        redelivered=dict(own.counts) or None,
    )
    config = consumer.config.replace(name=consumer.name).to_dict()
    return encode_json({"config": config, "state": msgspec.to_builtins(state, str_keys=True)})


def imported(name: str, data: bytes, *, last_seq: int, now: int) -> dict[str, bytes]:
    """The store's records of the consumer in an entry, without what lies beyond `last_seq`. Raises ValueError."""
    try:
        body = msgspec.json.decode(data, type=StateBody)
        config = ConsumerConfig.from_dict(body.config)
    except NOT_JSON as exc:
        raise ValueError(f"failed to decode consumer {name!r} state: {exc}") from exc
    if not valid_name(name):
        raise ValueError(f"consumer name must be one token without path separators, got {name[:64]!r}")
    entry, state = body.state, DeliveryState(1)
    state.dseq = entry.delivered.consumer_seq
    state.delivered = min(entry.delivered.stream_seq, last_seq)
    state.next_seq = state.delivered + 1
    state.floor_dseq = entry.ack_floor.consumer_seq
    state.floor_seq = min(entry.ack_floor.stream_seq, last_seq)
    state.pending = {
        seq: (delivery.sequence, delivery.timestamp)
        for seq, delivery in sorted((entry.pending or {}).items())
        if state.floor_seq < seq <= state.delivered
    }
    state.counts = {seq: count for seq, count in (entry.redelivered or {}).items() if 0 < seq <= last_seq}
    state.all_changed()
    try:
        records = {f"{name}\0c": config_record(now, config)} | state_records(name, state)
        return {key: value for key, value in records.items() if value is not None}
    except struct.error as exc:
        raise ValueError(f"the numbers of consumer {name!r} must fit the store's records: {exc}") from exc

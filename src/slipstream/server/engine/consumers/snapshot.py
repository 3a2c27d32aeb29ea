"""A consumer in a snapshot: configuration and books become nats-server's JSON, and that records of the store."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from slipstream.api import NOT_JSON, ConsumerConfig, encode_json
from slipstream.server.engine.consumers.consumer import Consumer, StoredConsumer
from slipstream.server.engine.consumers.delivery_state import DeliveryState


class Pair(msgspec.Struct):
    """A place in the consumer's and in the stream's count."""

    consumer_seq: int = 0
    stream_seq: int = 0


class Delivery(msgspec.Struct, rename="pascal"):
    """A message that awaits its ack."""

    sequence: int = 0
    timestamp: int = 0


class ConsumerBooks(msgspec.Struct, omit_defaults=True):
    """The state of a consumer. Keys are stream sequences."""

    delivered: Pair = msgspec.field(default_factory=Pair)
    ack_floor: Pair = msgspec.field(default_factory=Pair)
    pending: dict[int, Delivery] | None = None
    redelivered: dict[int, int] | None = None


class StateBody(msgspec.Struct):
    """An entry of a snapshot."""

    config: dict[str, Any]
    state: ConsumerBooks


def exported(consumer: Consumer) -> bytes:
    """The entry of a consumer. Its state may be ahead of the messages in the snapshot by what came meanwhile."""
    ledger = consumer.ledger
    state = ConsumerBooks(
        delivered=Pair(ledger.dseq, ledger.delivered),
        ack_floor=Pair(ledger.floor_dseq, ledger.floor_seq),
        pending={seq: Delivery(dseq, time) for seq, (dseq, time) in ledger.pending.items()} or None,
        redelivered=dict(ledger.counts) or None,
    )
    config = consumer.config.replace(name=consumer.name).to_dict()
    return encode_json({"config": config, "state": msgspec.to_builtins(state, str_keys=True)})


def imported(name: str, data: bytes, *, last_seq: int, now: int) -> dict[str, bytes]:
    """The records that make a consumer of an entry; raises ValueError. What lies beyond `last_seq` is left out."""
    try:
        body = msgspec.json.decode(data, type=StateBody)
        config = ConsumerConfig.from_dict(body.config)
    except NOT_JSON as exc:
        raise ValueError(f"failed to decode consumer {name!r} state: {exc}") from exc
    if not name or any(char in name for char in ".*>\\/ \0"):
        raise ValueError(f"{name[:64]!r} is no name of a consumer")
    state, ledger = body.state, DeliveryState(1)
    ledger.dseq = state.delivered.consumer_seq
    ledger.delivered = min(state.delivered.stream_seq, last_seq)
    ledger.next_seq = ledger.delivered + 1
    ledger.floor_dseq = state.ack_floor.consumer_seq
    ledger.floor_seq = min(state.ack_floor.stream_seq, last_seq)
    ledger.pending = {
        seq: (entry.sequence, entry.timestamp)
        for seq, entry in sorted((state.pending or {}).items())
        if ledger.floor_seq < seq <= ledger.delivered
    }
    ledger.counts = {seq: count for seq, count in (state.redelivered or {}).items() if 0 < seq <= last_seq}
    ledger.all_changed()
    try:
        records = {f"{name}\0c": encode_json(StoredConsumer(now, config.to_dict())), f"{name}\0s": ledger.head()}
        return records | {f"{name}\0b{number:x}": block for number, block in ledger.changed().items() if block}
    except struct.error as exc:
        raise ValueError(f"consumer {name!r} has numbers that cannot be: {exc}") from exc

"""The metrics of a NATS server, made from its own reports: `/varz`, `/jsz`, stream and consumer infos.

The reports have the same fields on the Slipstream server and on nats-server, at the monitoring port and in `$JS.API`,
so one module serves all of them. A field that a server does not report makes no sample, instead of a zero that is not
true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.api.times import parse_time
from slipstream.metrics.exposition import Exposition, Family, label_set

Report = Mapping[str, Any]

SECOND = 1_000_000_000

# By name: type and help. The order is that of the page.
FAMILIES: dict[str, Family] = {
    "up": Family("gauge", "Whether the server could be asked (1) or not (0)."),
    "scrape_seconds": Family("gauge", "How long it took to ask the server."),
    "server_info": Family("gauge", "The server; always 1."),
    "start_time_seconds": Family("gauge", "When the server started, in seconds since the epoch."),
    "connections": Family("gauge", "Open client connections."),
    "connections_total": Family("counter", "Client connections since the start."),
    "max_connections": Family("gauge", "Most client connections that are accepted."),
    "subscriptions": Family("gauge", "Subscriptions of clients."),
    "received_messages_total": Family("counter", "Messages received from clients."),
    "received_bytes_total": Family("counter", "Bytes of messages received from clients."),
    "sent_messages_total": Family("counter", "Messages sent to clients."),
    "sent_bytes_total": Family("counter", "Bytes of messages sent to clients."),
    "slow_consumers_total": Family("counter", "Connections closed because they did not read their data."),
    "stale_connections_total": Family("counter", "Connections closed because they did not answer pings."),
    "routes": Family("gauge", "Connections to other servers of the cluster."),
    "leafnodes": Family("gauge", "Connections of leaf nodes."),
    "resident_memory_bytes": Family("gauge", "Resident memory of the server's process."),
    "cpu_ratio": Family("gauge", "CPU of the server's process, 1 for one core."),
    "cores": Family("gauge", "CPU cores of the machine."),
    "max_payload_bytes": Family("gauge", "Largest payload that is accepted."),
    "pending_bytes": Family("gauge", "Bytes that wait in memory to be sent."),
    "pending_peak_bytes": Family("gauge", "The most that `pending_bytes` has been."),
    "pending_limit_bytes": Family("gauge", "Limit of `pending_bytes`."),
    "pending_cut_off_total": Family("counter", "Connections closed to stay below the limit of pending bytes."),
    "http_requests_total": Family("counter", "Requests to the monitoring endpoints."),
    "jetstream_memory_bytes": Family("gauge", "Bytes of streams in memory."),
    "jetstream_storage_bytes": Family("gauge", "Bytes of streams on disk."),
    "jetstream_reserved_memory_bytes": Family("gauge", "Bytes in memory that the limits of streams reserve."),
    "jetstream_reserved_storage_bytes": Family("gauge", "Bytes on disk that the limits of streams reserve."),
    "jetstream_max_memory_bytes": Family("gauge", "Limit of streams in memory; -1 for none."),
    "jetstream_max_storage_bytes": Family("gauge", "Limit of streams on disk; -1 for none."),
    "jetstream_api_requests_total": Family("counter", "Requests to the JetStream API."),
    "jetstream_api_errors_total": Family("counter", "Requests to the JetStream API that were answered by an error."),
    "account_streams": Family("gauge", "Streams of an account."),
    "account_memory_bytes": Family("gauge", "Bytes of an account's streams in memory."),
    "account_storage_bytes": Family("gauge", "Bytes of an account's streams on disk."),
    "account_api_requests_total": Family("counter", "Requests of an account to the JetStream API."),
    "account_api_errors_total": Family("counter", "Requests of an account that were answered by an error."),
    "stream_messages": Family("gauge", "Messages in a stream."),
    "stream_bytes": Family("gauge", "Bytes of the messages in a stream."),
    "stream_max_messages": Family("gauge", "Limit of a stream's messages."),
    "stream_max_bytes": Family("gauge", "Limit of a stream's bytes."),
    "stream_first_sequence": Family("gauge", "Sequence of the first message in a stream."),
    "stream_last_sequence": Family("gauge", "Sequence of the last message of a stream; its rate is that of publishes."),
    "stream_last_message_time_seconds": Family("gauge", "When the last message was stored, since the epoch."),
    "stream_subjects": Family("gauge", "Subjects in a stream."),
    "stream_deleted_messages": Family("gauge", "Messages missing between the first and the last sequence."),
    "stream_consumers": Family("gauge", "Consumers of a stream."),
    "stream_replica_lag_messages": Family("gauge", "Lag of a replica behind the leader, in messages."),
    "stream_replica_current": Family("gauge", "Whether a replica is up to date (1) or not (0)."),
    "stream_replica_inactive_seconds": Family("gauge", "How long ago the leader heard from a replica."),
    "stream_mirror_lag_messages": Family("gauge", "Lag of a mirror behind its stream, in messages."),
    "stream_mirror_inactive_seconds": Family("gauge", "How long ago a mirror heard from its stream."),
    "stream_source_lag_messages": Family("gauge", "How many messages of a source are not in the stream yet."),
    "stream_source_inactive_seconds": Family("gauge", "How long ago a stream heard from its source."),
    "stream_reads_total": Family("counter", "Direct Get requests answered, by replica and kind."),
    "stream_reads_waited_total": Family("counter", "Direct Gets that waited for their `min_last_seq`."),
    "stream_reads_rejected_total": Family("counter", "Direct Gets whose `min_last_seq` was not reached in time."),
    "stream_reads_redirected_total": Family("counter", "Direct Gets that a replica left to the leader."),
    "consumer_lag_messages": Family("gauge", "Messages that a consumer has to deliver, or to have acknowledged."),
    "consumer_pending_messages": Family("gauge", "Messages that a consumer has to deliver."),
    "consumer_ack_pending_messages": Family("gauge", "Messages delivered and not acknowledged."),
    "consumer_redelivered_messages": Family("gauge", "Unacknowledged messages that were delivered more than once."),
    "consumer_waiting_pulls": Family("gauge", "Pull requests that wait for messages."),
    "consumer_delivered_sequence": Family("gauge", "Stream sequence of the last message that was delivered."),
    "consumer_ack_floor_sequence": Family("gauge", "Stream sequence up to which everything is acknowledged."),
    "consumer_deliveries_total": Family("counter", "Deliveries of a consumer, redeliveries included."),
    "consumer_paused": Family("gauge", "Whether a consumer is paused (1) or not (0)."),
    "commit_seconds": Family("histogram", "Time from sealing a group of changes to its being durable."),
    "commit_changes": Family("histogram", "Changes in a group that was committed."),
    "commit_failures_total": Family("counter", "Groups of changes that could not be stored."),
}

_VARZ = (
    ("connections", "connections"),
    ("connections_total", "total_connections"),
    ("max_connections", "max_connections"),
    ("subscriptions", "subscriptions"),
    ("received_messages_total", "in_msgs"),
    ("received_bytes_total", "in_bytes"),
    ("sent_messages_total", "out_msgs"),
    ("sent_bytes_total", "out_bytes"),
    ("slow_consumers_total", "slow_consumers"),
    ("stale_connections_total", "stale_connections"),
    ("routes", "routes"),
    ("leafnodes", "leafnodes"),
    ("resident_memory_bytes", "mem"),
    ("cores", "cores"),
    ("max_payload_bytes", "max_payload"),
    ("pending_bytes", "pending_bytes"),
    ("pending_peak_bytes", "pending_bytes_peak"),
    ("pending_limit_bytes", "max_pending_total"),
    ("pending_cut_off_total", "pending_cut_off"),
)
_STATE = (
    ("stream_messages", "messages"),
    ("stream_bytes", "bytes"),
    ("stream_first_sequence", "first_seq"),
    ("stream_last_sequence", "last_seq"),
    ("stream_subjects", "num_subjects"),
    ("stream_deleted_messages", "num_deleted"),
    ("stream_consumers", "consumer_count"),
)
_USAGE = ("memory", "storage")


def add_server(page: Exposition, varz: Report) -> None:
    """The server as a whole, from its `/varz`."""
    names = {"server_id": "id", "server_name": "name", "version": "version", "slipstream": "slipstream"}
    page.add("server_info", 1, label_set(**{label: str(varz[key]) for key, label in names.items() if varz.get(key)}))
    if start := _seconds(varz.get("start")):
        page.add("start_time_seconds", start)
    for name, field in _VARZ:
        if field in varz:
            page.add(name, varz[field])
    if "cpu" in varz:
        page.add("cpu_ratio", varz["cpu"] / 100)
    for path, count in varz.get("http_req_stats", {}).items():
        page.add("http_requests_total", count, label_set(path=path))
    jetstream = varz.get("jetstream") or {}
    stats, config = jetstream.get("stats") or {}, jetstream.get("config") or {}
    for name, value in (
        *((f"jetstream_{kind}_bytes", stats.get(kind)) for kind in _USAGE),
        *((f"jetstream_reserved_{kind}_bytes", stats.get(f"reserved_{kind}")) for kind in _USAGE),
        *((f"jetstream_max_{kind}_bytes", config.get(f"max_{kind}")) for kind in _USAGE),
        ("jetstream_api_requests_total", stats.get("api", {}).get("total")),
        ("jetstream_api_errors_total", stats.get("api", {}).get("errors")),
    ):
        if value is not None:
            page.add(name, value)


def add_account(page: Exposition, account: str, detail: Report, streams: int) -> None:
    """An account, from its `account_detail` in `/jsz` or its `$JS.API.INFO`."""
    labels, api = label_set(account=account), detail.get("api") or {}
    page.add("account_streams", streams, labels)
    for kind in _USAGE:
        if kind in detail:
            page.add(f"account_{kind}_bytes", detail[kind], labels)
    page.add("account_api_requests_total", api.get("total", 0), labels)
    page.add("account_api_errors_total", api.get("errors", 0), labels)


def stream_labels(account: str, stream: str) -> str:
    """The labels of a stream's samples."""
    return label_set(account=account, stream=stream)


def add_stream(page: Exposition, labels: str, info: Report) -> None:
    """A stream, from its info: also how far its replicas, its mirror and its sources are behind."""
    state, config = info.get("state") or {}, info.get("config") or {}
    for name, field in _STATE:
        page.add(name, state.get(field, 0), labels)
    if state.get("last_seq") and (last := _seconds(state.get("last_ts"))):
        page.add("stream_last_message_time_seconds", last, labels)
    for name, field in (("stream_max_messages", "max_msgs"), ("stream_max_bytes", "max_bytes")):
        if config.get(field, -1) >= 0:
            page.add(name, config[field], labels)
    for peer in (info.get("cluster") or {}).get("replicas") or ():
        own = f"{labels},{label_set(replica=peer.get('name', ''))}"
        page.add("stream_replica_lag_messages", peer.get("lag", 0), own)
        page.add("stream_replica_current", int(peer.get("current", False)), own)
        page.add("stream_replica_inactive_seconds", max(peer.get("active", 0), 0) / SECOND, own)
    if mirror := info.get("mirror"):
        _add_upstream(page, "mirror", labels, mirror)
    for source in info.get("sources") or ():
        _add_upstream(page, "source", labels, source)


def _add_upstream(page: Exposition, kind: str, labels: str, upstream: Report) -> None:
    own = f"{labels},{label_set(**{'of' if kind == 'mirror' else 'source': upstream.get('name', '')})}"
    page.add(f"stream_{kind}_lag_messages", upstream.get("lag", 0), own)
    if (active := upstream.get("active", -1)) >= 0:  # -1: it was never heard from
        page.add(f"stream_{kind}_inactive_seconds", active / SECOND, own)


def add_consumer(page: Exposition, stream: str, info: Report) -> None:
    """A consumer, from its info; `stream` is the label set of its stream."""
    labels = f"{stream},{label_set(consumer=info.get('name', ''))}"
    pending, unacked = info.get("num_pending", 0), info.get("num_ack_pending", 0)
    delivered, floor = info.get("delivered") or {}, info.get("ack_floor") or {}
    for name, value in (
        ("consumer_lag_messages", pending + unacked),
        ("consumer_pending_messages", pending),
        ("consumer_ack_pending_messages", unacked),
        ("consumer_redelivered_messages", info.get("num_redelivered", 0)),
        ("consumer_waiting_pulls", info.get("num_waiting", 0)),
        ("consumer_delivered_sequence", delivered.get("stream_seq", 0)),
        ("consumer_ack_floor_sequence", floor.get("stream_seq", 0)),
        ("consumer_deliveries_total", delivered.get("consumer_seq", 0)),
        ("consumer_paused", int(info.get("paused", False))),
    ):
        page.add(name, value, labels)


def add_jsz(page: Exposition, jsz: Report) -> None:
    """All accounts, streams and consumers of `/jsz?consumers=1&config=1`."""
    for account in jsz.get("account_details") or ():
        name, streams = account.get("name", ""), account.get("stream_detail") or ()
        add_account(page, name, account, len(streams))
        for info in streams:
            labels = stream_labels(name, info.get("name", ""))
            add_stream(page, labels, info)
            for consumer in info.get("consumer_detail") or ():
                add_consumer(page, labels, consumer)


def _seconds(time: object) -> float:
    """Seconds since the epoch; 0 for none."""
    if not isinstance(time, str) or time.startswith("0001"):
        return 0.0
    try:
        return parse_time(time) / SECOND
    except ValueError:
        return 0.0

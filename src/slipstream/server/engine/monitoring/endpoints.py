"""Monitoring endpoints: `/varz`, `/connz`, `/subsz`, `/accountz`, `/jsz`, `/healthz`, with nats-server's fields.

Names and shapes are nats-server's, so that its tools and dashboards read them. `out_bytes` counts payloads and headers,
as there; of messages that are written in one piece (batches, deliveries of consumers) the protocol lines too.

Pages that may be long are walks (`ports.Walk`): they are made in slices, and show what there is as they come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from slipstream.api import format_time
from slipstream.errors import UsageError
from slipstream.server.engine.account import Account
from slipstream.server.engine.api.consumers import consumer_info
from slipstream.server.engine.api.responses import stream_info
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.core.client_info import closed_reason
from slipstream.server.engine.core.session import ClientSub, Session
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.ports import Walk
from slipstream.server.engine.streams.features import API_LEVEL
from slipstream.server.engine.streams.stream import Stream
from slipstream.wire import is_valid_filter, matches

DEFAULT_LIMIT = 1024
SECOND = 1_000_000_000
DAMAGE_SHOWN = 100  # damaged ranges of a page
PAUSE = 256  # connections or subscriptions that are looked at between two pauses

T = TypeVar("T")
Query = Mapping[str, str]


def _flag(query: Query, name: str) -> bool:
    value = query.get(name, "").lower()
    if value not in ("", "0", "1", "t", "f", "true", "false"):
        raise UsageError(f"error decoding boolean for '{name}': {value!r}")
    return value in ("1", "t", "true")


def _count(query: Query, name: str, default: int) -> int:
    value = query.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or len(value) > 18:
        raise UsageError(f"error decoding int for '{name}': {value[:32]!r}")
    return int(value)


def uptime(nanos: int) -> str:
    """As nats-server writes it: `1d2h3m4s`."""
    seconds = max(0, nanos) // SECOND
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts = parts[1:]
    return "".join(f"{count}{unit}" for count, unit in parts)


def duration(nanos: int) -> str:
    """As Go writes short durations: `153µs`, `1.25ms`."""
    for size, unit in ((SECOND, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if nanos >= size:
            return f"{nanos / size:.6g}{unit}"
    return f"{nanos}ns"


def _accounts(engine: Engine) -> dict[str, Account]:
    return {account.name: account for account in engine.accounts}


def varz(engine: Engine, now: int) -> dict[str, Any]:
    """The server as a whole; the driver adds what the engine does not know."""
    settings, totals, sessions = engine.settings, engine.totals, list(engine.sessions.values())
    in_msgs = totals.in_msgs + sum(one.in_msgs for one in sessions)
    in_bytes = totals.in_bytes + sum(one.in_bytes for one in sessions)
    out_msgs = totals.out_msgs + sum(one.out_msgs for one in sessions)
    out_bytes = totals.out_bytes + sum(one.out_bytes for one in sessions)
    seen: dict[str, Any] = {
        "server_id": settings.server_id,
        "server_name": settings.server_name,
        "version": settings.version,
        "slipstream": settings.slipstream,
        "proto": 1,
        "go": "",
        "host": settings.host,
        "port": settings.port,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending_bytes,
        "max_subscriptions": settings.max_subscriptions,
        "ping_interval": settings.ping_interval,
        "ping_max": settings.max_pings_out,
        "start": format_time(engine.started),
        "now": format_time(now),
        "uptime": uptime(now - engine.started),
        "connections": len(sessions),
        "total_connections": totals.connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": in_msgs,
        "in_bytes": in_bytes,
        "in_client_msgs": in_msgs,
        "in_client_bytes": in_bytes,
        "out_msgs": out_msgs,
        "out_bytes": out_bytes,
        "out_client_msgs": out_msgs,
        "out_client_bytes": out_bytes,
        "slow_consumers": totals.slow + sum(one.reason == "Slow Consumer" for one in sessions),
        "stale_connections": totals.stale,
        "stalled_clients": 0,
        "subscriptions": sum(len(one.subs) for one in sessions),
        "system_account": engine.system_account,
        "jetstream": {},
    }
    for name, yes in (
        ("auth_required", engine.auth_required),
        ("tls_required", settings.tls_required),
        ("tls_verify", settings.tls_verify),
    ):
        if yes:
            seen[name] = True
    if settings.jetstream:
        seen["jetstream"] = _jetstream_varz(engine)
    if settings.compat:
        del seen["slipstream"]
    return seen


def statsz(engine: Engine, usage: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics that the server sends to its system account; `usage` is that of the process."""
    totals, sessions = engine.totals, list(engine.sessions.values())
    sent = {
        "msgs": totals.out_msgs + sum(one.out_msgs for one in sessions),
        "bytes": totals.out_bytes + sum(one.out_bytes for one in sessions),
    }
    received = {
        "msgs": totals.in_msgs + sum(one.in_msgs for one in sessions),
        "bytes": totals.in_bytes + sum(one.in_bytes for one in sessions),
    }
    seen: dict[str, Any] = {
        "start": format_time(engine.started),
        "mem": usage["mem"],
        "cores": usage["cores"],
        "cpu": usage["cpu"],
        "connections": len(sessions),
        "total_connections": totals.connections,
        "active_accounts": len({one.account for one in sessions if one.account}),
        "subscriptions": sum(len(one.subs) for one in sessions),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": totals.slow,
    }
    for name, count in (("slow_consumer_stats", totals.slow), ("stale_connection_stats", totals.stale)):
        if count:
            seen[name] = {"clients": count, "routes": 0, "gateways": 0, "leafs": 0}
    if totals.stale:
        seen["stale_connections"] = totals.stale
    seen["active_servers"] = 1
    if engine.settings.jetstream:
        seen["jetstream"] = _jetstream_varz(engine)
    return seen | {"gomaxprocs": usage["cores"]}


# Connections.

_SORTS: dict[str, tuple[Callable[[Session], Any], bool]] = {  # key, and whether descending
    "cid": (lambda one: one.cid, False),
    "start": (lambda one: one.started, False),
    "subs": (lambda one: len(one.subs), True),
    "msgs_to": (lambda one: one.out_msgs, True),
    "msgs_from": (lambda one: one.in_msgs, True),
    "bytes_to": (lambda one: one.out_bytes, True),
    "bytes_from": (lambda one: one.in_bytes, True),
    "last": (lambda one: one.active, True),
    "idle": (lambda one: one.active, False),
    "uptime": (lambda one: one.started, False),
    "rtt": (lambda one: one.rtt, True),
    "stop": (lambda one: one.stopped, True),
    "reason": (lambda one: one.reason, False),
}
_STATES = {
    "": "open",
    "0": "open",
    "open": "open",
    "1": "closed",
    "closed": "closed",
    "2": "all",
    "any": "all",
    "all": "all",
}


def connz(engine: Engine, now: int, query: Query) -> Walk[dict[str, Any]]:
    """The connections: sorted, filtered, a page of them."""
    order = query.get("sort", "cid") or "cid"
    _count(query, "cid", 0)
    state = _STATES.get(query.get("state", "").lower() or "open", "")
    if order != "pending" and order not in _SORTS:
        raise UsageError(f"invalid sorting option: {order}")
    if not state:
        raise UsageError(f"invalid state option: {query.get('state')}")
    if order in ("stop", "reason") and state == "open":
        raise UsageError(f"sort by {order} only valid on closed connections")
    every = [*(engine.sessions.values() if state != "closed" else ()), *(engine.closed if state != "open" else ())]
    chosen, work = [], 0
    for one in every:
        if _is_wanted(one, query):
            chosen.append(one)
        work += 1 + (len(one.subs) // 4 if query.get("filter_subject") else 0)
        if work >= PAUSE:
            yield work
            work = 0

    def pending(one: Session) -> int:
        return max(0, engine.settings.max_pending_bytes - one.capacity)

    key, largest = _SORTS.get(order, (pending, True))
    chosen.sort(key=key, reverse=largest)
    offset, limit = _count(query, "offset", 0), _count(query, "limit", DEFAULT_LIMIT) or DEFAULT_LIMIT
    page = chosen[offset : offset + limit]
    detail = query.get("subs", "").lower()
    subs = 2 if detail == "detail" else int(_flag(query, "subs"))
    yield work + len(chosen) // 8
    shown = []
    for one in page:
        seen = _connection(one, now, pending(one), _flag(query, "auth"))
        if subs:
            field, part = (
                ("subscriptions_list_detail", _subscription) if subs == 2 else ("subscriptions_list", _subject)
            )
            seen[field] = yield from _each(part, list(one.subs.values()))
        shown.append(seen)
        yield 4 + len(one.subs) // 64  # `out_msgs` adds up its subscriptions
    return {
        "server_id": engine.settings.server_id,
        "now": format_time(now),
        "num_connections": len(page),
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "connections": shown,
    }


def _each(part: Callable[[T], Any], items: list[T]) -> Walk[list[Any]]:
    """A report of each, some at a time."""
    found: list[Any] = []
    for at in range(0, len(items), PAUSE):
        found += map(part, items[at : at + PAUSE])
        yield PAUSE // 4
    return found


def _subject(sub: ClientSub) -> str:
    return sub.subject


def _is_wanted(one: Session, query: Query) -> bool:
    cid = _count(query, "cid", 0)
    if cid and one.cid != cid:
        return False
    if query.get("acc") and query["acc"] != (one.account or DEFAULT_ACCOUNT):
        return False
    if query.get("user") and (one.identity is None or one.identity.name != query["user"]):
        return False
    return not query.get("filter_subject") or any(
        matches(sub.subject, query["filter_subject"]) for sub in one.subs.values()
    )


def _connection(one: Session, now: int, pending: int, auth: bool) -> dict[str, Any]:
    end = one.stopped or now
    seen: dict[str, Any] = {
        "cid": one.cid,
        "kind": "Client",
        "type": "websocket" if one.listener.connection_type == "WEBSOCKET" else "nats",
        "ip": one.peer.host,
        "port": one.peer.port,
        "start": format_time(one.started),
        "last_activity": format_time(one.active),
        "uptime": uptime(end - one.started),
        "idle": uptime(end - one.active),
        "pending_bytes": pending,
        "in_msgs": one.in_msgs,
        "out_msgs": one.out_msgs,
        "in_bytes": one.in_bytes,
        "out_bytes": one.out_bytes,
        "subscriptions": len(one.subs),
    }
    if one.stopped:
        seen |= {"stop": format_time(one.stopped), "reason": closed_reason(one)}
    optional = {"name": one.name, "lang": one.lang, "version": one.version, "rtt": duration(one.rtt) if one.rtt else ""}
    optional |= {"tls_version": one.tls[0].removeprefix("TLSv"), "tls_cipher_suite": one.tls[1]}
    if auth:
        optional |= {"authorized_user": one.identity.name if one.identity is not None else ""}
        optional |= {"account": one.account or DEFAULT_ACCOUNT, "name_tag": one.account or DEFAULT_ACCOUNT}
    return seen | {name: value for name, value in optional.items() if value}


def _subscription(sub: ClientSub) -> dict[str, Any]:
    seen: dict[str, Any] = {"subject": sub.subject}
    if sub.queue:
        seen["qgroup"] = sub.queue
    seen |= {"sid": sub.sid.decode(errors="replace"), "msgs": sub.delivered}
    if sub.max_msgs:
        seen["max"] = sub.max_msgs
    return seen | {"cid": sub.session.cid}


def subsz(engine: Engine, now: int, query: Query) -> Walk[dict[str, Any]]:
    """The subscriptions of clients."""
    test = query.get("test", "")
    if test and not is_valid_filter(test):
        raise UsageError(f"invalid test subject: {test[:64]!r}")
    chosen: list[ClientSub] = []
    for one in list(engine.sessions.values()):
        if query.get("acc") and query["acc"] != (one.account or DEFAULT_ACCOUNT):
            continue
        subs = list(one.subs.values())
        for at in range(0, len(subs), PAUSE):
            chosen += (sub for sub in subs[at : at + PAUSE] if not test or matches(sub.subject, test))
            yield PAUSE // 4 if test else PAUSE // 16
        yield 1
    offset, limit = _count(query, "offset", 0), _count(query, "limit", DEFAULT_LIMIT) or DEFAULT_LIMIT
    page = chosen[offset : offset + limit]
    seen: dict[str, Any] = {
        "server_id": engine.settings.server_id,
        "now": format_time(now),
        "num_subscriptions": len(chosen),
        "num_cache": sum(account.router.matcher.cached for account in engine.accounts),
        "num_inserts": sum(account.router.inserts for account in engine.accounts),
        "num_removes": sum(account.router.removes for account in engine.accounts),
        "num_matches": 0,
        "cache_hit_rate": 0,
        "max_fanout": 0,
        "avg_fanout": 0,
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
    }
    if _flag(query, "subs"):
        seen["subscriptions_list"] = yield from _each(
            lambda sub: {"account": sub.session.account or DEFAULT_ACCOUNT, **_subscription(sub)}, page
        )
    return seen


# Accounts and JetStream.


def accountz(engine: Engine, now: int, query: Query) -> dict[str, Any]:
    """The names of the accounts, or one of them in detail."""
    seen: dict[str, Any] = {
        "server_id": engine.settings.server_id,
        "now": format_time(now),
        "system_account": engine.system_account,
    }
    name = query.get("acc", "")
    if not name:
        return seen | {"accounts": sorted({*_accounts(engine), engine.system_account})}
    if name not in _accounts(engine):
        raise UsageError(f"account {name[:64]!r} does not exist")
    router = engine.account(name).router
    sessions = [one for one in engine.sessions.values() if (one.account or DEFAULT_ACCOUNT) == name]
    return seen | {
        "account_detail": {
            "account_name": name,
            "update_time": format_time(engine.started),
            "expired": False,
            "complete": True,
            "jetstream_enabled": engine.has_jetstream(name),
            "leafnode_connections": 0,
            "client_connections": len(sessions),
            "subscriptions": sum(len(one.subs) for one in sessions),
            **({"is_system": True} if name == engine.system_account else {}),
            "name_tag": name,
            "sublist_stats": {
                "num_subscriptions": router.inserts - router.removes,
                "num_cache": router.matcher.cached,
                "num_inserts": router.inserts,
                "num_removes": router.removes,
                "num_matches": 0,
                "cache_hit_rate": 0,
                "max_fanout": 0,
                "avg_fanout": 0,
            },
        }
    }


def jsz(engine: Engine, now: int, query: Query) -> Walk[dict[str, Any]]:
    """JetStream as a whole; with `accounts=1`, `streams=1` and `consumers=1` by account, by stream and by consumer."""
    seen: dict[str, Any] = {"server_id": engine.settings.server_id, "now": format_time(now)}
    if not engine.settings.jetstream:
        return seen | {"disabled": True, "config": {"max_memory": 0, "max_storage": 0}, "streams": 0, "consumers": 0,
                       "messages": 0, "bytes": 0, "total": 0}  # fmt: skip
    streams = _flag(query, "streams") or _flag(query, "consumers") or _flag(query, "config")
    wanted = query.get("acc", "")
    accounts = {
        name: account
        for name, account in _accounts(engine).items()
        if engine.has_jetstream(name) and (not wanted or name == wanted)
    }
    every = [stream for account in accounts.values() for stream in account.streams.values()]
    states = [stream.log.committed for stream in every]
    if not engine.settings.compat:
        seen["damage"] = _damage(engine)
    seen |= _jetstream_stats(engine, accounts) | {
        "config": _jetstream_config(engine),
        "limits": {},
        "streams": len(states),
        "consumers": sum(len(stream.consumers) for stream in every),
        "messages": sum(state.messages for state in states),
        "bytes": sum(state.bytes for state in states),
        "total": len(accounts),
    }
    yield len(every) // 4
    if streams or wanted or _flag(query, "accounts"):
        offset, limit = _count(query, "offset", 0), _count(query, "limit", DEFAULT_LIMIT) or DEFAULT_LIMIT
        page = list(accounts.items())[offset : offset + limit]
        details = []
        for name, one in page:
            details.append((yield from _account_detail(engine, name, one, now, query, streams)))
            yield 4
        seen["account_details"] = details
    return seen


def _account_detail(
    engine: Engine, name: str, account: Account, now: int, query: Query, streams: bool
) -> Walk[dict[str, Any]]:
    seen = {"name": name, "id": name, **_jetstream_stats(engine, {name: account})}
    if streams:
        details = []
        for stream_name in sorted(account.streams):
            stream = account.streams.get(stream_name)
            if stream is not None:  # deleted since
                details.append((yield from _stream_detail(stream, now, query)))
        seen["stream_detail"] = details
    return seen


def _stream_detail(stream: Stream, now: int, query: Query) -> Walk[dict[str, Any]]:
    """The configurations only if they are asked for; consumers have nearly as long ones as streams."""
    seen = {"name": stream.name, **stream_info(stream, now)}
    del seen["ts"]
    if damage := _damage_of(stream):
        seen["damage"] = damage
    yield 10
    consumers = []
    if _flag(query, "consumers"):
        for one in list(stream.consumers.items.values()):
            consumers.append(consumer_info(one))
            yield 8
    if not _flag(query, "config"):
        for part in (seen, *consumers):
            part.pop("config", None)
    return seen | ({"consumer_detail": consumers} if consumers else {})


def jetstream_stats(engine: Engine, account: Account) -> dict[str, Any]:
    """Usage and API requests of one account."""
    return _jetstream_stats(engine, {account.name: account})


def _jetstream_varz(engine: Engine) -> dict[str, Any]:
    stats = _jetstream_stats(engine, _accounts(engine))
    seen = {"config": _jetstream_config(engine), "stats": stats, "limits": {}}
    return seen if engine.settings.compat else seen | {"damage": _damage(engine)}


def _damage(engine: Engine) -> dict[str, Any]:
    """What is known of damage in the stores: totals, and the streams and ranges (some, if there are many)."""
    health = engine.health()
    ranges = [
        *({"stream": stream, "first_seq": seq, "last_seq": seq, "messages": 1} for stream, seq in health.damaged),
        *(
            {"stream": stream, "first_seq": low, "last_seq": high, "messages": count}
            for stream, low, high, count in health.missing
        ),
    ]
    rounds = sum(each.store.scrubber.rounds for each in engine.journals if each.store.scrubber is not None)
    return {
        "messages": len(health.damaged),
        "ranges": len(health.missing),
        "records": sum(len(each.store.faults()) for each in engine.journals),
        "scrub_rounds": rounds,
        "details": ranges[:DAMAGE_SHOWN],
    }


def _damage_of(stream: Stream) -> list[dict[str, int]]:
    """The ranges of a stream that are damaged or missing; 0 messages: how many is not known."""
    journal = stream.journal
    name = stream.key
    found = [(seq, seq, 1) for owner, seq in journal.store.damaged() if owner == name]
    found += [(low, high, count) for owner, low, high, count in journal.store.losses() if owner == name]
    return [
        {"first_seq": low, "last_seq": high, "messages": count} for low, high, count in sorted(found)[:DAMAGE_SHOWN]
    ]


def _jetstream_config(engine: Engine) -> dict[str, Any]:
    settings = engine.settings
    config: dict[str, Any] = {"max_memory": settings.max_memory, "max_storage": settings.max_storage}
    config |= {"sync_always": True}
    return config | ({"domain": settings.domain} if settings.domain else {})


def _jetstream_stats(engine: Engine, accounts: Mapping[str, Account]) -> dict[str, Any]:
    sizes, reserved = {"memory": 0, "file": 0}, {"memory": 0, "file": 0}
    with_streams = [one for name, one in accounts.items() if engine.has_jetstream(name)]
    for account in with_streams:
        for stream in account.streams.values():
            sizes[stream.config.storage] += stream.log.committed.bytes
            reserved[stream.config.storage] += max(stream.config.max_bytes, 0)
    return {
        "memory": sizes["memory"],
        "storage": sizes["file"],
        "reserved_memory": reserved["memory"],
        "reserved_storage": reserved["file"],
        "accounts": len(with_streams),
        "ha_assets": 0,
        "api": {
            "level": API_LEVEL,
            "total": sum(account.api.total for account in with_streams),
            "errors": sum(account.api.errors for account in with_streams),
        },
    }


def healthz(engine: Engine, query: Query) -> tuple[int, dict[str, Any]]:
    """Whether the server can do its work: an HTTP status, and what to say."""
    name, stream, consumer = query.get("account", ""), query.get("stream", ""), query.get("consumer", "")
    if stream and not name:
        return 400, {"status": "error", "error": '"account" must not be empty when checking stream health'}
    if consumer and not stream:
        return 400, {"status": "error", "error": '"stream" must not be empty when checking consumer health'}
    if not engine.settings.jetstream:
        return 200, {"status": "ok"}
    account = _accounts(engine).get(name)
    if name and (account is None or not engine.has_jetstream(name)):
        return 404, _unwell(query, "ACCOUNT", f'JetStream account "{name[:64]}" not found')
    if stream and account is not None and stream not in account.streams:
        return 404, _unwell(query, "STREAM", f'JetStream stream "{stream[:64]}" not found on account "{name}"')
    if consumer and account is not None and consumer not in account.streams[stream].consumers.items:
        text = f'JetStream consumer "{consumer[:64]}" not found for stream "{stream}" on account "{name}"'
        return 404, _unwell(query, "CONSUMER", text)
    only_server = any(_flag(query, flag) for flag in ("js-server-only", "js-enabled-only", "js-enabled"))
    problems = [] if only_server else engine.health().problems
    if problems:
        return 503, _unwell(query, "JETSTREAM", problems[0])
    return 200, {"status": "ok"}


def _unwell(query: Query, kind: str, text: str) -> dict[str, Any]:
    if _flag(query, "details"):
        return {"status": "error", "errors": [{"type": kind, "error": text}]}
    return {"status": "unavailable", "error": text}

"""`slipstream consumer …`: management of consumers, and reading from them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from slipstream import ConsumerConfig, ConsumerInfo
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.config_options import Fields, add_fields, changed_fields, read_config
from slipstream.cli.pubsub import show
from slipstream.cli.values import show_duration, show_time
from slipstream.errors import RequestTimeoutError

_FIELDS: Fields = {
    "--description": ("description", str, "description"),
    "--ack": ("ack_policy", values.choice("explicit", "all", "none"), "explicit, all or none"),
    "--wait": ("ack_wait", values.duration, "time without an ack after which a message is redelivered"),
    "--max-deliver": ("max_deliver", int, "maximum deliveries of a message; -1: unlimited"),
    "--max-pending": ("max_ack_pending", int, "maximum unacknowledged messages"),
    "--replay": ("replay_policy", values.choice("instant", "original"), "instant or original"),
    "--target": ("deliver_subject", str, "deliver subject of a push consumer (default: a pull consumer)"),
    "--deliver-group": ("deliver_group", str, "queue group of a push consumer"),
    "--heartbeat": ("idle_heartbeat", values.duration, "idle heartbeat of a push consumer"),
    "--inactive-threshold": ("inactive_threshold", values.duration, "remove it after this time without use"),
    "--sample": ("sample_freq", str, "percentage of acks to sample"),
    "--max-waiting": ("max_waiting", int, "maximum waiting pull requests"),
}
_FLAGS: dict[str, tuple[str, str]] = {
    "--memory": ("mem_storage", "keep its state in memory"),
    "--headers-only": ("headers_only", "deliver headers only"),
    "--flow-control": ("flow_control", "enable flow control of a push consumer"),
}


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("consumer", "manage consumers and read from them", aliases=("con",))
    for name, run, text, aliases in (
        ("add", _add, "create a consumer", ("create", "new")),
        ("edit", _edit, "change the named settings of a consumer", ("update",)),
    ):
        parser = group.add(
            name,
            run,
            text,
            aliases=aliases,
            examples=f"  slipstream consumer {name} ORDERS worker --filter 'orders.*' --max-deliver 5",
        )
        _named(parser)
        _config_options(parser)
    listing = group.add("ls", _list, "list the consumers of a stream", aliases=("list",))
    listing.add_argument("stream", metavar="STREAM")
    listing.add_argument("-n", "--names", action="store_true", help="print names only")
    _named(group.add("info", _info, "show the configuration and state of a consumer"))
    removing = _named(group.add("rm", _delete, "remove a consumer", aliases=("delete", "del")))
    removing.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    taking = _named(group.add("next", _next, "fetch messages from a pull consumer and acknowledge them"))
    taking.add_argument("--count", type=values.count, default=1, metavar="N", help="number of messages (default: 1)")
    reading = _named(group.add("sub", _read, "read messages from a pull consumer as they arrive"))
    reading.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")
    for parser in (taking, reading):
        parser.add_argument("--no-ack", action="store_true", help="do not acknowledge messages")
        parser.add_argument("--raw", action="store_true", help="print payloads only")
        parser.add_argument(
            "--wait", type=values.seconds, default=None, metavar="TIME", help="maximum wait for the next message"
        )
    pausing = _named(group.add("pause", _pause, "pause delivery for a time"))
    pausing.add_argument("time", type=values.duration, metavar="TIME", help="duration of the pause, such as 10m")
    _named(group.add("resume", _resume, "end a pause"))


def _named(parser: Parser) -> Parser:
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("name", metavar="CONSUMER")
    return parser


def _config_options(parser: Parser) -> None:
    add_fields(parser, _FIELDS)
    parser.add_argument(
        "--filter", action="append", metavar="SUBJECT", help="only messages that match; may be repeated"
    )
    parser.add_argument(
        "--deliver", metavar="START", help="all, new, last, subject (the last of each), a sequence or a time"
    )
    parser.add_argument("--ephemeral", action="store_true", help="remove it when it is no longer used")
    for option, (field, text) in _FLAGS.items():
        parser.add_argument(option, dest=field, action="store_true", default=None, help=text)
    parser.add_argument("--backoff", metavar="TIMES", help="redelivery delays, such as 1s,10s,1m")


def _changed(shell: Shell, config: ConsumerConfig) -> ConsumerConfig:
    options = shell.options
    config = read_config(options.config, ConsumerConfig.from_json, config)
    changes = changed_fields(options, _FIELDS)
    changes |= {field: True for field, _ in _FLAGS.values() if getattr(options, field)}
    if options.filter:
        one = len(options.filter) == 1
        changes["filter_subject"] = options.filter[0] if one else ""
        changes["filter_subjects"] = () if one else tuple(options.filter)
    if options.backoff:
        changes["backoff"] = tuple(values.duration(each) for each in values.names(options.backoff))
    if options.deliver:
        changes |= _start(options.deliver)
    return replace(config, **changes)


def _start(start: str) -> dict[str, Any]:
    if start in ("all", "new", "last"):
        return {"deliver_policy": start}
    if start == "subject":
        return {"deliver_policy": "last_per_subject"}
    if start.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(start)}
    return {"deliver_policy": "by_start_time", "opt_start_time": values.moment(start)}


def _add(shell: Shell) -> None:
    options = shell.options
    named = {"name": options.name} if options.ephemeral else {"durable_name": options.name, "name": options.name}
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.stream)
        config = replace(_changed(shell, ConsumerConfig()), **named)
        _show(shell, stream.create_consumer(config).info())


def _edit(shell: Shell) -> None:
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(shell.options.stream)
        now = stream.consumer(shell.options.name).info().config
        _show(shell, stream.update_consumer(_changed(shell, now)).info())


def _list(shell: Shell) -> None:
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(shell.options.stream)
        if shell.options.names:
            found = sorted(stream.consumer_names())
            if shell.out.is_json:
                shell.out.json(found)
            else:
                for name in found:
                    shell.out.text(name)
            return
        infos = sorted(stream.consumers(), key=lambda info: info.name)
    if shell.out.is_json:
        shell.out.json([info.to_dict() for info in infos])
        return
    rows = [
        (info.name, "push" if info.config.deliver_subject else "pull", info.config.ack_policy,
         f"{info.num_ack_pending:,}", f"{info.num_redelivered:,}", f"{info.num_pending:,}")
        for info in infos
    ]  # fmt: skip
    shell.out.table(("Name", "Kind", "Ack", "Unacknowledged#", "Redelivered#", "Waiting#"), rows, empty="no consumers")


def _info(shell: Shell) -> None:
    with shell.connect() as client:
        _show(shell, shell.jetstream(client).stream(shell.options.stream).consumer(shell.options.name).info())


def _show(shell: Shell, info: ConsumerInfo) -> None:
    if shell.out.is_json:
        shell.out.json(info.to_dict())
        return
    config = info.config
    filters = ", ".join(config.filter_subjects) or config.filter_subject
    shell.out.facts(f"Consumer {info.stream_name} > {info.name}", [
        ("Description", config.description or None), ("Created", show_time(info.created)),
        ("Kind", f"push to {config.deliver_subject}" if config.deliver_subject else "pull"),
        ("Durable", "yes" if config.durable_name else "no"), ("Filter", filters or None),
        ("Deliver", config.deliver_policy), ("Replay", config.replay_policy), ("Ack", config.ack_policy),
        ("Ack wait", show_duration(config.ack_wait) if config.ack_wait else None),
        ("Max deliver", config.max_deliver if config.max_deliver > 0 else None),
        ("Max unacknowledged", config.max_ack_pending if config.max_ack_pending > 0 else None),
        ("Paused", f"for another {show_duration(info.pause_remaining)}" if info.paused else None),
        ("Delivered", f"{info.delivered.consumer_seq:,}, up to stream sequence {info.delivered.stream_seq:,}"),
        ("Acknowledged", f"all up to stream sequence {info.ack_floor.stream_seq:,}"),
        ("Unacknowledged", f"{info.num_ack_pending:,}"), ("Redelivered", f"{info.num_redelivered:,}"),
        ("Waiting pulls", f"{info.num_waiting:,}" if not config.deliver_subject else None),
        ("Messages to come", f"{info.num_pending:,}"),
    ])  # fmt: skip


def _delete(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove the consumer {options.name} of {options.stream}?")
    with shell.connect() as client:
        shell.jetstream(client).stream(options.stream).delete_consumer(options.name)
    shell.out.note(f"removed {options.name}")


def _next(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        consumer = shell.jetstream(client).stream(options.stream).consumer(options.name)
        messages = consumer.fetch(options.count, timeout=options.wait or shell.timeout)
        for number, message in enumerate(messages, 1):
            show(shell, message, number)
            if not options.no_ack:
                message.ack_sync(timeout=shell.timeout)
    if not messages:
        raise RequestTimeoutError(f"consumer {options.name!r} of stream {options.stream!r}: no message arrived in time")


def _read(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        consumer = shell.jetstream(client).stream(options.stream).consumer(options.name)
        shell.out.note(f"reading from {options.stream} > {options.name}")
        messages = consumer.messages(idle_timeout=options.wait, max_messages=options.count or 500)
        for number, message in enumerate(messages, 1):
            show(shell, message, number)
            if not options.no_ack:
                message.ack()
            if number == options.count:
                break
        client.flush(timeout=shell.timeout)


def _pause(shell: Shell) -> None:
    options = shell.options
    until = time.time_ns() + options.time.total_seconds() * 10**9
    with shell.connect() as client:
        shell.jetstream(client).stream(options.stream).consumer(options.name).pause(int(until))
    shell.out.note(f"paused {options.name} for {show_duration(options.time)}")


def _resume(shell: Shell) -> None:
    with shell.connect() as client:
        shell.jetstream(client).stream(shell.options.stream).consumer(shell.options.name).resume()
    shell.out.note(f"resumed {shell.options.name}")

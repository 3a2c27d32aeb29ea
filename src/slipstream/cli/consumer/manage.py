"""`slipstream consumer add`, `edit`, `copy`, `rm`, `pause`, `resume`, `reset` and `unpin`: changes of consumers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from slipstream import ConsumerConfig
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.config_options import Fields, add_fields, changed_fields, declare_fields, read_config
from slipstream.cli.consumer.listing import show_info
from slipstream.cli.values import show_duration
from slipstream.errors import UsageError

_GENERAL: Fields = {
    "--description": ("description", str, "description"),
}
_ACKS: Fields = {
    "--ack": ("ack_policy", values.choice("explicit", "all", "none"), "what must be acknowledged"),
    "--wait": ("ack_wait", values.duration, "time without an ack after which a message is redelivered"),
    "--max-deliver": ("max_deliver", int, "maximum deliveries of a message; -1: unlimited"),
    "--max-pending": ("max_ack_pending", int, "maximum unacknowledged messages"),
    "--sample": ("sample_freq", str, "percentage of acks to sample"),
}
_PULL: Fields = {
    "--max-waiting": ("max_waiting", int, "maximum waiting pull requests"),
    "--max-pull-batch": ("max_batch", int, "maximum messages of one pull request"),
    "--max-pull-bytes": ("max_bytes", values.size, "maximum bytes of one pull request"),
    "--max-pull-expire": ("max_expires", values.duration, "maximum wait of one pull request"),
}
_PUSH: Fields = {
    "--target": ("deliver_subject", str, "deliver subject, which makes it a push consumer"),
    "--deliver-group": ("deliver_group", str, "queue group"),
    "--heartbeat": ("idle_heartbeat", values.duration, "idle heartbeat"),
}
_STATE: Fields = {
    "--replay": ("replay_policy", values.choice("instant", "original"), "pace of the messages"),
    "--inactive-threshold": ("inactive_threshold", values.duration, "remove it after this time without use"),
    "--replicas": ("num_replicas", int, "replicas of its state; 0: those of the stream"),
}
_FIELDS: Fields = {**_GENERAL, **_ACKS, **_PULL, **_PUSH, **_STATE}
_FLAGS: dict[str, tuple[str, str]] = {
    "--memory": ("mem_storage", "keep its state in memory"),
    "--headers-only": ("headers_only", "deliver headers only"),
    "--flow-control": ("flow_control", "enable flow control of a push consumer"),
}


def add(group: Commands) -> None:
    """Declare the commands."""
    for name, run, text, aliases in (
        ("add", _add, "create a consumer", ("create", "new")),
        ("edit", _edit, "update the given settings of a consumer", ("update",)),
        ("copy", _copy, "create a consumer with the settings of another one", ("cp",)),
    ):
        new = " copied" if name == "copy" else ""
        parser = group.add(
            name,
            run,
            text,
            aliases=aliases,
            examples=f"  slipstream consumer {name} ORDERS worker{new} --filter 'orders.*' --wait 1m",
        )
        named(parser)
        if name == "copy":
            parser.add_argument("new_name", metavar="NEW", help="name of the new consumer")
        _config_options(parser)
    removing = named(group.add("rm", _delete, "remove a consumer", aliases=("delete", "del")))
    pausing = named(group.add("pause", _pause, "pause delivery for a time"))
    pausing.add_argument("time", type=values.duration, metavar="DURATION", help="duration of the pause, such as 10m")
    named(group.add("resume", _resume, "end a pause"))
    resetting = named(
        group.add(
            "reset",
            _reset,
            "redeliver from a sequence; unacknowledged deliveries are forgotten",
            examples="  slipstream consumer reset ORDERS worker 100   # nats-server 2.14 or newer",
        )
    )
    resetting.add_argument(
        "seq",
        nargs="?",
        type=values.count,
        default=0,
        metavar="SEQ",
        help="next sequence (default: after the last ack)",
    )
    unpin = named(group.add("unpin", _unpin, "let another client take over a priority group"))
    unpin.add_argument("group", metavar="GROUP", help="name of the priority group")
    for parser in (removing, resetting):
        parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")


def named(parser: Parser) -> Parser:
    """Declare the names of a stream and of its consumer."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("name", metavar="CONSUMER")
    return parser


def add_cluster(group: Commands) -> None:
    """Declare the commands on the leader of a consumer."""
    cluster = group.group("cluster", "leaders of consumers", aliases=("c",))
    down = cluster.add(
        "step-down",
        _step_down,
        "make the leader of a consumer step down",
        aliases=("stepdown", "down"),
    )
    down.add_argument("stream", metavar="STREAM")
    down.add_argument("name", metavar="CONSUMER")


def _config_options(parser: Parser) -> None:
    add_fields(parser, _GENERAL)
    for title, fields in (("acknowledgements", _ACKS), ("pull", _PULL), ("push", _PUSH), ("state", _STATE)):
        declare_fields(parser, fields, title=title)
    parser.add_argument(
        "--filter", action="append", metavar="SUBJECT", help="only messages that match; may be repeated"
    )
    parser.add_argument(
        "--deliver", metavar="START", help="all, new, last, subject (the last of each), a sequence or a time"
    )
    parser.add_argument("--ephemeral", action="store_true", help="remove it when it is no longer used")
    for option, (field, text) in _FLAGS.items():
        parser.add_argument(option, dest=field, action="store_true", default=None, help=text)
    parser.add_argument("--backoff", metavar="DURATIONS", help="redelivery delays, such as 1s,10s,1m")
    parser.add_argument("--priority-groups", metavar="NAMES", help="priority groups, separated by commas")
    parser.add_argument(
        "--priority-policy",
        type=values.choice("none", "overflow", "pinned_client", "prioritized"),
        metavar="{none,overflow,pinned_client,prioritized}",
        help="which client of a group gets messages",
    )
    parser.add_argument(
        "--pinned-ttl", type=values.duration, metavar="DURATION", help="unpin a client after this time without a pull"
    )


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
    if options.priority_groups is not None:
        changes["priority_groups"] = tuple(values.names(options.priority_groups))
    if options.priority_policy:
        changes["priority_policy"] = "" if options.priority_policy == "none" else options.priority_policy
    if options.pinned_ttl is not None:
        changes["priority_timeout"] = options.pinned_ttl
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
        show_info(shell, stream.create_consumer(config).info())


def _edit(shell: Shell) -> None:
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(shell.options.stream)
        now = stream.consumer(shell.options.name).info().config
        show_info(shell, stream.update_consumer(_changed(shell, now)).info())


def _copy(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.stream)
        now = stream.consumer(options.name).info().config
        if options.new_name in stream.consumer_names():
            raise UsageError(f"consumer {options.new_name!r} already exists; NEW must be a new name")
        kept = {key: value for key, value in now.metadata.items() if not key.startswith("_nats.")}
        durable = options.new_name if now.durable_name and not options.ephemeral else ""
        config = replace(_changed(shell, replace(now, metadata=kept)), name=options.new_name, durable_name=durable)
        show_info(shell, stream.create_consumer(config).info())


def _delete(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove the consumer {options.name} of {options.stream}?")
    with shell.connect() as client:
        shell.jetstream(client).stream(options.stream).delete_consumer(options.name)
    shell.out.note(f"removed {options.name}")


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


def _reset(shell: Shell) -> None:
    options = shell.options
    where = f"from sequence {options.seq:,}" if options.seq else "after the last acknowledged message"
    shell.confirm(f"Redeliver the messages of {options.stream} to {options.name}, {where}?")
    with shell.connect() as client:
        consumer = shell.jetstream(client).stream(options.stream).consumer(options.name)
        start = consumer.reset(options.seq or None)
    if shell.out.is_json:
        shell.out.json({"reset_seq": start})
    else:
        shell.out.note(f"{options.name} continues with sequence {start:,}")


def _step_down(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        shell.jetstream(client).stream(options.stream).consumer(options.name).step_down()
    shell.out.note(f"the leader of {options.name} stepped down")


def _unpin(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        shell.jetstream(client).stream(options.stream).consumer(options.name).unpin(options.group)
    shell.out.note(f"unpinned the client of the group {options.group}")

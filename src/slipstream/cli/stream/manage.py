"""`slipstream stream add`, `edit`, `copy`, `seal`, `rm`, `purge` and `rmm`: changes of streams and their messages."""

from __future__ import annotations

from dataclasses import replace

from slipstream import StreamConfig
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.stream import settings
from slipstream.cli.stream.listing import show_info
from slipstream.errors import UsageError

_EXAMPLES = {
    "add": """\
  slipstream stream add ORDERS --subjects 'orders.>' --max-age 24h
  slipstream stream add COPY --mirror ORDERS
  slipstream stream add ALL --source 'EU,US,filter=orders.>' --allow-atomic""",
    "edit": "  slipstream stream edit ORDERS --max-age 48h --no-allow-direct",
    "copy": "  slipstream stream copy ORDERS TEST --subjects 'test.>' --storage memory",
}


def add(group: Commands) -> None:
    """Declare the commands."""
    for name, run, text, aliases in (
        ("add", _add, "create a stream", ("create", "new")),
        ("edit", _edit, "update the given settings of a stream", ("update",)),
        ("copy", _copy, "create a stream with the settings of another one, without its messages", ("cp",)),
    ):
        parser = named(group.add(name, run, text, aliases=aliases, examples=_EXAMPLES[name]))
        if name == "copy":
            parser.add_argument("target", metavar="NEW", help="name of the new stream")
        settings.add_settings(parser)
    _destructive(named(group.add("seal", _seal, "make a stream permanently read-only")))
    _destructive(named(group.add("rm", _delete, "remove a stream and all its messages", aliases=("delete", "del"))))
    purge = _destructive(named(group.add("purge", _purge, "remove messages from a stream")))
    purge.add_argument("--subject", default="", metavar="FILTER", help="only messages that match")
    purge.add_argument("--seq", type=values.count, metavar="N", help="only messages below this sequence")
    purge.add_argument("--keep", type=values.count, default=0, metavar="N", help="keep the newest N messages")
    drop = _destructive(named(group.add("rmm", _delete_message, "remove one message from a stream")))
    drop.add_argument("seq", type=values.count, metavar="SEQ", help="sequence of the message")


def named(parser: Parser) -> Parser:
    """Declare the name of a stream."""
    parser.add_argument("name", metavar="STREAM")
    return parser


def _destructive(parser: Parser) -> Parser:
    parser.add_argument("-f", "--force", action="store_true", help="skip the confirmation")
    return parser


def _add(shell: Shell) -> None:
    name = shell.options.name
    # Most commands read by Direct Get, so it is enabled by default.
    config = settings.changed(shell.options, StreamConfig(name=name, allow_direct=True), name=name)
    if not config.subjects and not config.mirror and not config.sources:
        config = replace(config, subjects=(config.name,))
    with shell.connect() as client:
        js = shell.jetstream(client)
        js.create_stream(config)
        show_info(shell, js, name)


def _edit(shell: Shell) -> None:
    name = shell.options.name
    with shell.connect() as client:
        js = shell.jetstream(client)
        now = js.stream(name).info().config
        config = settings.changed(shell.options, now, name=name)
        if config == now:
            shell.out.note("nothing to change")
            return
        js.update_stream(config)
        show_info(shell, js, name)


def _copy(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        js = shell.jetstream(client)
        now = js.stream(options.name).info().config
        if options.target in js.stream_names():
            raise UsageError(f"stream {options.target!r} already exists; NEW must be a new name")
        # What a server notes in the metadata describes the stream that was copied.
        kept = {key: value for key, value in now.metadata.items() if not key.startswith("_nats.")}
        config = settings.changed(options, replace(now, metadata=kept, sealed=False), name=options.target)
        if config.subjects and config.subjects == now.subjects:
            raise UsageError(
                f"--subjects must be those of the new stream: {options.name} has {', '.join(now.subjects)}, "
                "and no subject may belong to two streams"
            )
        js.create_stream(config)
        show_info(shell, js, options.target)


def _seal(shell: Shell) -> None:
    name = shell.options.name
    shell.confirm(f"Seal the stream {name}? It cannot be undone.")
    with shell.connect() as client:
        js = shell.jetstream(client)
        js.update_stream(replace(js.stream(name).info().config, sealed=True))
    shell.out.note(f"sealed {name}")


def _delete(shell: Shell) -> None:
    shell.confirm(f"Remove the stream {shell.options.name} and all its messages?")
    with shell.connect() as client:
        shell.jetstream(client).delete_stream(shell.options.name)
    shell.out.note(f"removed {shell.options.name}")


def _purge(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove messages of the stream {options.name}?")
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        removed = stream.purge(subject=options.subject, below=options.seq, keep=options.keep)
    if shell.out.is_json:
        shell.out.json({"purged": removed})
    else:
        shell.out.note(f"removed {removed:,} messages")


def _delete_message(shell: Shell) -> None:
    options = shell.options
    shell.confirm(f"Remove message {options.seq} of the stream {options.name}?")
    with shell.connect() as client:
        shell.jetstream(client).stream(options.name).delete_message(options.seq)
    shell.out.note(f"removed message {options.seq}")

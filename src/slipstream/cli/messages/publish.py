"""`slipstream pub`: one message, many of one form, or one for each line of stdin; with acks of a stream or without."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slipstream import PubAck
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell, body
from slipstream.cli.messages.templates import facts, fill
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream import BlockingClient, BlockingJetStream
    from slipstream.cli.output import Meter

_OFTEN = 100  # messages between two steps of a progress bar


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "pub",
        _publish,
        "publish messages; without a body, from stdin",
        aliases=("publish",),
        examples=(
            "  slipstream pub orders.new '{\"id\": 1}'\n"
            "  slipstream pub -J orders.new @ --count 100   # acknowledged by a stream\n"
            "  date | slipstream pub clock\n"
            "  slipstream pub -J log --send-on newline <app.log   # a message for each line\n"
            "  slipstream pub -J jobs.later.1 report --schedule 5m --schedule-target jobs.now\n"
            "  slipstream pub test 'message {{Count}} at {{Time}}' --count 3"
        ),
    )
    parser.add_argument("subject", metavar="SUBJECT")
    body_and_headers(parser)
    parser.add_argument("--reply", default="", metavar="SUBJECT", help="reply subject")
    parser.add_argument("--count", type=values.count, default=1, metavar="N", help="number of messages (default: 1)")
    parser.add_argument(
        "--send-on", type=values.choice("eof", "newline"), default="eof", metavar="{eof,newline}",
        help="stdin is one message, or one for each line (default: eof)",
    )  # fmt: skip
    parser.add_argument("--sleep", type=values.seconds, default=0.0, metavar="DURATION", help="pause between messages")
    parser.add_argument("-J", "--jetstream", action="store_true", help="wait for the ack of a stream")
    parser.add_argument("--atomic", action="store_true", help="store all messages as one atomic batch, or none")
    parser.add_argument("--msg-id", metavar="ID", help="with -J: message id for deduplication; may have templates")
    parser.add_argument("--ttl", type=values.duration, metavar="DURATION", help="with -J: time to live of the message")
    _schedule_options(parser)
    parser.add_argument("--no-templates", action="store_true", help="do not expand {{Count}} and other templates")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors")


def _schedule_options(parser: Parser) -> None:
    group = parser.add_argument_group("with -J: scheduled messages, in a stream with --allow-schedules")
    group.add_argument(
        "--schedule", type=schedule, metavar="WHEN",
        help="publish later: 5m from now, a time, '@every 1h', or a cron line with seconds",
    )  # fmt: skip
    group.add_argument("--schedule-target", default="", metavar="SUBJECT", help="subject on which it is published then")
    group.add_argument(
        "--schedule-source", default="", metavar="SUBJECT", help="publish the last message of this subject instead"
    )
    group.add_argument(
        "--schedule-ttl", type=values.duration, metavar="DURATION", help="time to live of what is published"
    )
    group.add_argument("--schedule-zone", default="", metavar="NAME", help="time zone of a cron line, Europe/Rome")


def schedule(text: str) -> str:
    """When a message is to be published, as the server reads it. Raises ArgumentTypeError."""
    if text.startswith("@") or len(text.split()) > 1:
        return text  # the server knows which patterns there are
    try:
        when = time.time_ns() + values.nanoseconds(text)
    except ArgumentTypeError:
        when = values.moment(text)
    return f"@at {values.rfc3339(when)}"


def _scheduled(options: Any) -> dict[str, list[str]]:
    """The headers of a schedule; raises UsageError if they do not fit together."""
    settings = {
        "Target": options.schedule_target, "Source": options.schedule_source, "Time-Zone": options.schedule_zone,
        "TTL": f"{options.schedule_ttl.total_seconds():.0f}s" if options.schedule_ttl else "",
    }  # fmt: skip
    if not options.schedule:
        if any(settings.values()):
            raise UsageError("--schedule-target, -source, -ttl and -zone need --schedule")
        return {}
    if not options.jetstream:
        raise UsageError("--schedule needs -J")
    if not options.schedule_target:
        raise UsageError("--schedule needs --schedule-target")
    others = {f"Nats-Schedule-{name}": [value] for name, value in settings.items() if value}
    return {"Nats-Schedule": [options.schedule], **others}


def body_and_headers(parser: Parser) -> None:
    """Declare the body and the headers of a message."""
    parser.add_argument("body", nargs="?", metavar="BODY", help="body of the message (default: stdin, if it is piped)")
    parser.add_argument(
        "-H", "--header", type=values.header, action="append", metavar="NAME:VALUE", help="may be repeated"
    )


class _Messages:
    """The messages that a command line names: their number, where it is known, and each with its number from 1 on."""

    def __init__(self, shell: Shell) -> None:
        options = shell.options
        self._options = options
        self._is_filled = options.body is not None and not options.no_templates
        self.by_line = options.send_on == "newline" and options.body is None
        self.data = b"" if self.by_line else body(options.body)
        self.total: int | None = None if self.by_line else options.count
        self.sent = 0
        self.size = 0

    def __iter__(self) -> Iterator[tuple[bytes, str | None]]:
        for data in self._bodies():
            self.sent += 1
            known = facts(self.sent)
            data = fill(data.decode(), known).encode() if self._is_filled and b"{{" in data else data
            self.size += len(data)
            msg_id = self._options.msg_id
            is_template = msg_id and "{{" in msg_id and not self._options.no_templates
            yield data, fill(msg_id, known) if is_template else msg_id

    def _bodies(self) -> Iterator[bytes]:
        for _ in range(self._options.count if not self.by_line else 0):
            yield self.data
        if self.by_line:
            for line in sys.stdin.buffer:
                yield line.rstrip(b"\r\n")


def _publish(shell: Shell) -> None:
    options = shell.options
    if (options.msg_id or options.ttl) and not (options.jetstream or options.atomic):
        raise UsageError("--msg-id and --ttl need -J")
    if options.send_on == "newline" and (options.body is not None or options.count > 1):
        raise UsageError("--send-on newline sends each line of stdin; it cannot be combined with a body or --count")
    if options.atomic and options.sleep:
        raise UsageError("--atomic and --sleep are mutually exclusive")
    headers = values.headers(options.header) | _scheduled(options) or None
    messages = _Messages(shell)
    with shell.connect() as client:
        js = shell.jetstream(client)
        if options.atomic:
            _publish_atomic(shell, js, messages, headers)
        elif options.jetstream and (options.count > 1 or messages.by_line) and not options.sleep:
            _publish_many(shell, js, messages, headers)
        elif options.jetstream:
            for data, msg_id in messages:
                ack = js.publish(options.subject, data, headers=headers, msg_id=msg_id, ttl=options.ttl)
                _show_ack(shell, ack)
                _pause(shell, messages)
        else:
            _publish_core(shell, client, messages, headers)


def _pause(shell: Shell, messages: _Messages) -> None:
    if shell.options.sleep and messages.sent != messages.total:
        time.sleep(shell.options.sleep)


def _publish_core(shell: Shell, client: BlockingClient, messages: _Messages, headers: Any) -> None:
    options = shell.options
    with shell.out.count(options.subject, messages.total) as meter:
        for data, _ in messages:
            client.publish(options.subject, data, reply=options.reply, headers=headers)
            if options.sleep:
                client.flush(timeout=shell.timeout)
                _pause(shell, messages)
            _step(meter, messages.sent, messages.sent)
        client.flush(timeout=shell.timeout)
    if options.quiet:
        return
    is_one_size = messages.size == len(messages.data) * messages.sent and messages.sent > 1 and not messages.by_line
    size = f"{len(messages.data):,} bytes each" if is_one_size else f"{messages.size:,} bytes"
    shell.out.note(f"published {count_of(messages.sent)} ({size}) to {options.subject}")


def _publish_many(shell: Shell, js: BlockingJetStream, messages: _Messages, headers: Any) -> None:
    """Publish with many acks outstanding; one line at the end says what was stored."""
    options = shell.options
    with shell.out.count(options.subject, messages.total) as meter, js.publisher(retries=2) as publisher:
        for data, msg_id in messages:
            publisher.publish(options.subject, data, headers=headers, msg_id=msg_id, ttl=options.ttl)
            _step(meter, messages.sent, publisher.acked)
        publisher.flush()
    if publisher.last_ack is None:  # the publisher raises if a message was not stored, so there was none
        shell.out.note("stdin was empty: nothing was published")
        return
    _show_stored(shell, publisher.last_ack, messages.sent, publisher.duplicates)


def _publish_atomic(shell: Shell, js: BlockingJetStream, messages: _Messages, headers: Any) -> None:
    options = shell.options
    with js.atomic_batch(timeout=shell.timeout) as batch, shell.out.count(options.subject, messages.total) as meter:
        for data, msg_id in messages:
            batch.publish(options.subject, data, headers=headers, msg_id=msg_id, ttl=options.ttl)
            _step(meter, messages.sent, messages.sent)
        if not messages.sent:
            batch.discard()
    if batch.ack is None:
        shell.out.note("stdin was empty: nothing was published")
        return
    _show_stored(shell, batch.ack, messages.sent, 0)


def _step(meter: Meter | None, sent: int, done: int) -> None:
    if meter is not None and sent % _OFTEN == 0:
        meter(done)


def count_of(count: int) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} message" + ("" if count == 1 else "s")


def _show_stored(shell: Shell, ack: PubAck, count: int, duplicates: int) -> None:
    if shell.out.is_json:
        fields = {"stream": ack.stream, "last_seq": ack.seq, "messages": count, "duplicates": duplicates}
        shell.out.json(fields)
    elif not shell.options.quiet:
        again = f", {duplicates:,} of them duplicates" if duplicates else ""
        shell.out.note(f"stored {count_of(count)} in {ack.stream}, the last as sequence {ack.seq:,}{again}")


def _show_ack(shell: Shell, ack: PubAck) -> None:
    if shell.out.is_json:
        shell.out.json({"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate})
    elif not shell.options.quiet:
        duplicate = ", a duplicate" if ack.duplicate else ""
        shell.out.note(f"stored in {ack.stream} as sequence {ack.seq}{duplicate}")
